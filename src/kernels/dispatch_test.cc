#include <gtest/gtest.h>
#include <xmmintrin.h>

#include <algorithm>
#include <cstring>

#include "kernels/isa_detect.h"
#include "kernels/kernels.h"

namespace pagoda::kernels {
namespace {

// What CPUID and XCR0 say on a machine with all that AMX needs.
CpuWords everything() {
  return {.leaf1_ecx = 1U << 12 | 1U << 27 | 1U << 28 | 1U << 29,
          .leaf7_ebx = 1U << 5 | 1U << 16 | 1U << 17 | 1U << 30 | 1U << 31,
          .leaf7_ecx = 1U << 11,
          .leaf7_edx = 1U << 22 | 1U << 24,
          .leaf7_1_eax = 1U << 5,
          .xcr0 = 0x600E7,
          .tiles_granted = true};
}

TEST(DispatchTest, AnIsaNeedsItsInstructionsAndItsRegisters) {
  using Isas = std::vector<Isa>;
  EXPECT_EQ(isas_of(CpuWords{}), Isas{Isa::kRef});
  EXPECT_EQ(isas_of(everything()), (Isas{Isa::kRef, Isa::kAvx2, Isa::kAvx512, Isa::kAmx}));

  CpuWords no_tiles = everything();
  no_tiles.leaf7_edx = 0;
  EXPECT_EQ(isas_of(no_tiles), (Isas{Isa::kRef, Isa::kAvx2, Isa::kAvx512}));
  CpuWords no_tile_state = everything();
  no_tile_state.xcr0 = 0xE7;
  EXPECT_EQ(isas_of(no_tile_state), (Isas{Isa::kRef, Isa::kAvx2, Isa::kAvx512}));
  CpuWords no_permission = everything();
  no_permission.tiles_granted = false;
  EXPECT_EQ(isas_of(no_permission), (Isas{Isa::kRef, Isa::kAvx2, Isa::kAvx512}));
  CpuWords no_zmm_state = everything();
  no_zmm_state.xcr0 = 0x7;
  EXPECT_EQ(isas_of(no_zmm_state), (Isas{Isa::kRef, Isa::kAvx2}));
  CpuWords no_ymm_state = everything();
  no_ymm_state.xcr0 = 0x3;
  EXPECT_EQ(isas_of(no_ymm_state), Isas{Isa::kRef});
  CpuWords no_vnni = everything();
  no_vnni.leaf7_ecx = 0;
  EXPECT_EQ(isas_of(no_vnni), (Isas{Isa::kRef, Isa::kAvx2}));
  CpuWords no_fma = everything();
  no_fma.leaf1_ecx &= ~(1U << 12);
  EXPECT_EQ(isas_of(no_fma), Isas{Isa::kRef});
}

TEST(DispatchTest, EveryTableIsComplete) {
  for (const Isa isa : supported_isas()) {
    const KernelTable& table = kernel_table(isa);
    EXPECT_EQ(table.isa, isa);
    // Everything after the tag is pointers.
    constexpr size_t kPointers = sizeof(KernelTable) / sizeof(void*) - 1;
    void* pointers[kPointers];
    std::memcpy(pointers, reinterpret_cast<const std::byte*>(&table) + sizeof(void*), sizeof(pointers));
    EXPECT_EQ(std::count(std::begin(pointers), std::end(pointers), nullptr), 0) << to_string(isa);
  }
}

// The table that was asked for is the one whose code runs: no two instruction sets share a kernel, but AMX has only the matrix
// products of bf16 arithmetic for itself.
TEST(DispatchTest, TheForcedIsaRuns) {
  const std::vector<Isa> isas = supported_isas();
  for (size_t i = 0; i < isas.size(); ++i) {
    const Result<Isa> parsed = parse_isa(to_string(isas[i]));
    ASSERT_TRUE(parsed.has_value());
    ASSERT_EQ(kernel_table(*parsed).isa, isas[i]);
    for (size_t j = i + 1; j < isas.size(); ++j) {
      const KernelTable& a = kernel_table(isas[i]);
      const KernelTable& b = kernel_table(isas[j]);
      EXPECT_NE(a.matmul[2], b.matmul[2]);
      EXPECT_NE(a.attention_span[2], b.attention_span[2]);
      if (isas[i] == Isa::kAvx512) continue;
      EXPECT_NE(a.bf16_rows, b.bf16_rows);
      EXPECT_NE(a.rms_norm, b.rms_norm);
      EXPECT_NE(a.gated[0], b.gated[0]);
      EXPECT_NE(a.matmul[0], b.matmul[0]);
      EXPECT_NE(a.matmul[1], b.matmul[1]);
      EXPECT_NE(a.attention_span[0], b.attention_span[0]);
      EXPECT_NE(a.attention_span[1], b.attention_span[1]);
      EXPECT_NE(a.kv_write, b.kv_write);
      EXPECT_NE(a.argmax, b.argmax);
    }
  }
  EXPECT_EQ(&kernel_table(isas.back()), &kernel_table(best_isa()));
}

TEST(DispatchTest, NamesAreParsed) {
  EXPECT_EQ(parse_isa("auto").value(), best_isa());
  EXPECT_EQ(parse_isa("ref").value(), Isa::kRef);
  const Result<Isa> unknown = parse_isa("sse9");
  ASSERT_FALSE(unknown.has_value());
  EXPECT_NE(unknown.error().message.find("'sse9'"), std::string::npos);
  EXPECT_NE(unknown.error().message.find("ref"), std::string::npos);

  EXPECT_EQ(parse_arithmetic("auto", Isa::kAvx2).value(), Arithmetic::kInt8);
  EXPECT_EQ(parse_arithmetic("int8", Isa::kAvx2).value(), Arithmetic::kInt8);
  EXPECT_EQ(parse_arithmetic("f32", Isa::kAvx2).value(), Arithmetic::kF32);
  EXPECT_EQ(parse_arithmetic("bf16", Isa::kAvx2).value(), Arithmetic::kBf16);
  EXPECT_EQ(parse_arithmetic("auto", Isa::kAvx512).value(), Arithmetic::kInt8);
  EXPECT_EQ(parse_arithmetic("auto", Isa::kAmx).value(), Arithmetic::kBf16);
  EXPECT_EQ(parse_arithmetic("fp8", Isa::kAvx2).error().code, ErrorCode::kInvalidArgument);
}

TEST(DispatchTest, TilesAgreeWithRefWhereThereAreTiles) {
  const bool has_tiles = best_isa() == Isa::kAmx;
  EXPECT_EQ(amx_self_test(), has_tiles ? SelfTest::kAgrees : SelfTest::kNotHere);
  EXPECT_EQ(to_string(SelfTest::kNotHere), "not on this machine");
}

TEST(DispatchTest, FloatModeFlushesSubnormals) {
  set_float_mode();
  volatile float tiny = 1e-38f;
  volatile float subnormal = 1e-40f;
  EXPECT_EQ(tiny * 0.1f, 0.0f);
  EXPECT_EQ(subnormal * 1e10f, 0.0f);
  EXPECT_EQ(_mm_getcsr() & 0x6000, 0u);  // round to nearest even
}

}  // namespace
}  // namespace pagoda::kernels
