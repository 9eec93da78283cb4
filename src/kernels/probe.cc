#include "kernels/probe.h"

#include "kernels/probe_loops.h"

namespace pagoda::kernels {

std::string_view to_string(DotKind kind) {
  switch (kind) {
    case DotKind::kF32:
      return "f32";
    case DotKind::kInt4:
      return "int4";
    case DotKind::kInt5:
      return "int5";
    case DotKind::kInt6:
      return "int6";
    case DotKind::kInt8:
      return "int8";
    case DotKind::kInt15:
      return "int15";
    case DotKind::kBf16:
      return "bf16";
  }
  return "unknown";
}

DotLoop dot_loop(Isa isa, DotKind kind) {
  switch (isa) {
    case Isa::kRef:
      return dot_loop_ref(kind);
    case Isa::kAvx2:
      return dot_loop_avx2(kind);
    case Isa::kAvx512:
      return dot_loop_avx512(kind);
    case Isa::kAmx:
      return kind == DotKind::kBf16 ? dot_loop_amx(kind) : dot_loop_avx512(kind);
  }
  return {};
}

uint64_t read_bytes(Isa isa, std::span<const std::byte> bytes) {
  switch (isa) {
    case Isa::kRef:
      return read_bytes_ref(bytes);
    case Isa::kAvx2:
      return read_bytes_avx2(bytes);
    case Isa::kAvx512:
    case Isa::kAmx:
      return read_bytes_avx512(bytes);
  }
  return 0;
}

uint64_t multiply_chain(int64_t n) {
  uint64_t x = 3;
  uint64_t factor = 5;
  asm volatile("" : "+r"(x), "+r"(factor));
  for (int64_t i = 0; i < n; i += 8) {
    for (int k = 0; k < 8; ++k) {
      x *= factor;
      asm volatile("" : "+r"(x));  // or eight would become one multiplication
    }
  }
  return x;
}

}  // namespace pagoda::kernels
