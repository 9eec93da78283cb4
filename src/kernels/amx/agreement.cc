// AMX against ref on the machine that runs it: what the tests compare over emulated tiles, `doctor --machine` compares in silicon.
#include <algorithm>
#include <cstring>
#include <vector>

#include "base/random.h"
#include "kernels/kernels.h"

namespace pagoda::kernels {
namespace {

constexpr int kRows = 49;                      // a whole block of 32 and a part
constexpr int kOutputs = 40;                   // a panel that y has a part of
constexpr int kCols = 37 * tensor::kCellCols;  // sums wait in y between chunks
constexpr size_t kBf16 = static_cast<size_t>(Arithmetic::kBf16);

// Values of 2^-20 ... 2^20 of either sign, some denormal: a sum depends on its order.
std::vector<uint16_t> operands(uint64_t seed, size_t n) {
  std::vector<uint16_t> values(n);
  for (size_t i = 0; i < n; ++i) {
    const auto draw = [&](uint32_t which) { return uniform(seed, 0, static_cast<uint32_t>(i), which); };
    const auto exponent = static_cast<uint32_t>(107 + 41 * draw(0));
    const auto fraction = static_cast<uint32_t>(128 * draw(1));
    const uint32_t sign = draw(2) < 0.5 ? 0x8000U : 0;
    values[i] = static_cast<uint16_t>(sign | (draw(3) < 0.01 ? fraction : exponent << 7 | fraction));
  }
  return values;
}

std::vector<float> multiply(Isa isa, const std::vector<uint16_t>& weights, const std::vector<uint16_t>& x, int n_rows) {
  const size_t bytes = tensor::panel_bytes(tensor::DType::kBF16, kCols);
  const tensor::PanelMatrix w{tensor::DType::kBF16, kOutputs, kCols, reinterpret_cast<const std::byte*>(weights.data()),
                              bytes};
  MatmulInput input;
  input.bf16 = x.data();
  std::vector<float> y(static_cast<size_t>(n_rows) * kOutputs);
  std::vector<std::byte> scratch(matmul_scratch_bytes(kCols));
  kernel_table(isa).matmul[kBf16](w, {0, w.n_panels()}, input, {0, n_rows}, y.data(), kOutputs, scratch.data());
  return y;
}

}  // namespace

SelfTest amx_self_test() {
  const std::vector<Isa> isas = supported_isas();
  if (std::find(isas.begin(), isas.end(), Isa::kAmx) == isas.end()) return SelfTest::kNotHere;
  set_float_mode();
  constexpr size_t kPanels = (kOutputs + tensor::kPanelRows - 1) / tensor::kPanelRows;
  const std::vector<uint16_t> weights = operands(1, kPanels * tensor::kPanelRows * kCols);
  const std::vector<uint16_t> x = operands(2, size_t{kRows} * kCols);
  for (const int n_rows : {1, kRows}) {
    const std::vector<float> expected = multiply(Isa::kRef, weights, x, n_rows);
    const std::vector<float> actual = multiply(Isa::kAmx, weights, x, n_rows);
    if (std::memcmp(expected.data(), actual.data(), expected.size() * sizeof(float)) != 0) return SelfTest::kDiffers;
  }
  return SelfTest::kAgrees;
}

std::string_view to_string(SelfTest result) {
  switch (result) {
    case SelfTest::kAgrees:
      return "agrees with ref";
    case SelfTest::kDiffers:
      return "differs from ref";
    case SelfTest::kNotHere:
      return "not on this machine";
  }
  return "unknown";
}

}  // namespace pagoda::kernels
