// Which instruction sets there are, their names, and one table for each.
#include <xmmintrin.h>

#include <algorithm>

#include "base/check.h"
#include "kernels/isa_detect.h"
#include "kernels/table.h"

namespace pagoda::kernels {
namespace {

constexpr Isa kAllIsas[] = {Isa::kRef, Isa::kAvx2, Isa::kAvx512, Isa::kAmx};

struct Filler {
  void (*matmul)(KernelTable&);
  void (*rows)(KernelTable&);
  void (*attention)(KernelTable&);
  void (*logits)(KernelTable&);
};

constexpr Filler kFillers[] = {
    {fill_matmul_ref, fill_rows_ref, fill_attention_ref, fill_logits_ref},
    {fill_matmul_avx2, fill_rows_avx2, fill_attention_avx2, fill_logits_avx2},
    {fill_matmul_avx512, fill_rows_avx512, fill_attention_avx512, fill_logits_avx512},
    {fill_matmul_amx, fill_rows_avx512, fill_attention_amx, fill_logits_avx512},
};

KernelTable make_table(Isa isa) {
  KernelTable table{};
  table.isa = isa;
  const Filler& filler = kFillers[static_cast<int>(isa)];
  filler.matmul(table);
  filler.rows(table);
  filler.attention(table);
  filler.logits(table);
  return table;
}

bool is_supported(Isa isa) {
  const std::vector<Isa> isas = supported_isas();
  return std::find(isas.begin(), isas.end(), isa) != isas.end();
}

std::string supported_names() {
  std::string names = "auto";
  for (const Isa isa : supported_isas()) names.append(", ").append(to_string(isa));
  return names;
}

}  // namespace

std::vector<Isa> supported_isas() {
  static const std::vector<Isa> kIsas = isas_of(read_cpu_words());  // CPUID is slow in a virtual machine
  return kIsas;
}

Isa best_isa() { return supported_isas().back(); }

const KernelTable& kernel_table(Isa isa) {
  CHECK(is_supported(isa));
  static const KernelTable kTables[] = {make_table(Isa::kRef), make_table(Isa::kAvx2), make_table(Isa::kAvx512),
                                        make_table(Isa::kAmx)};
  return kTables[static_cast<int>(isa)];
}

std::string_view to_string(Isa isa) {
  switch (isa) {
    case Isa::kRef:
      return "ref";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAmx:
      return "amx";
  }
  return "unknown";
}

std::string_view to_string(Arithmetic arithmetic) {
  switch (arithmetic) {
    case Arithmetic::kInt8:
      return "int8";
    case Arithmetic::kF32:
      return "f32";
    case Arithmetic::kBf16:
      return "bf16";
  }
  return "unknown";
}

Result<Isa> parse_isa(std::string_view name) {
  if (name == "auto") return best_isa();
  for (const Isa isa : kAllIsas) {
    if (name != to_string(isa)) continue;
    if (is_supported(isa)) return isa;
    return fail(ErrorCode::kUnsupported, "this machine cannot run instruction set '{}'; it has: {}", name,
                supported_names());
  }
  return fail(ErrorCode::kInvalidArgument, "unknown instruction set '{}'; this machine has: {}", name,
              supported_names());
}

Result<Arithmetic> parse_arithmetic(std::string_view name, Isa isa) {
  if (name == "auto") return isa == Isa::kAmx ? Arithmetic::kBf16 : Arithmetic::kInt8;
  for (const Arithmetic arithmetic : {Arithmetic::kInt8, Arithmetic::kF32, Arithmetic::kBf16}) {
    if (name == to_string(arithmetic)) return arithmetic;
  }
  return fail(ErrorCode::kInvalidArgument, "unknown arithmetic '{}'; use auto, int8, bf16 or f32", name);
}

void set_float_mode() {
  constexpr unsigned kExceptionsMasked = 0x1F80;  // and round to nearest even
  constexpr unsigned kFlushToZero = 0x8000;
  constexpr unsigned kDenormalsAreZero = 0x0040;
  _mm_setcsr(kExceptionsMasked | kFlushToZero | kDenormalsAreZero);
}

}  // namespace pagoda::kernels
