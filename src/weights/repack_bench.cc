// repack: GB/s of file bytes into panels, one thread.
#include "weights/repack.h"

#include <benchmark/benchmark.h>

#include <string>
#include <vector>

namespace pagoda::weights {
namespace {

void repack_type(benchmark::State& state) {
  const auto dtype = static_cast<tensor::DType>(state.range(0));
  constexpr int64_t kRows = 512;
  constexpr int64_t kCols = 1536;
  std::vector<std::byte> bytes(static_cast<size_t>(kRows * tensor::row_bytes(dtype, kCols)));
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 37 & 255U);
  const FileMatrix source{dtype, kRows, kCols, bytes};
  tensor::Arena arena;
  const auto target = allocate_panels(source, arena);
  if (!target) return state.SkipWithError("no memory");
  for (auto _ : state) repack_panels(source, 0, target->view.n_panels(), *target);
  state.SetLabel(std::string(tensor::to_string(dtype)));
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(bytes.size()));
}
BENCHMARK(repack_type)->DenseRange(0, static_cast<int>(tensor::kDTypeCount) - 1);

}  // namespace
}  // namespace pagoda::weights
