// matmul per type and batch: GB/s of weights read and GOP/s (2 per multiply-add) beside two limits measured in the same run:
// streaming reads of huge-page memory, and the peak of the instruction that does the work.   One thread.
// Weights rotate through kWorkingSet bytes of copies, so that a shape larger than the caches comes from memory as in decoding.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/matmul_fixture.h"

namespace pagoda::kernels {
namespace {

using tensor::DType;

constexpr size_t kWorkingSet = size_t{128} << 20;

struct Shape {
  int n_rows;
  int n_cols;
};
constexpr Shape kShapes[] = {{1536, 576}, {576, 1536}, {49152, 576}, {4864, 896}};
constexpr int kBatches[] = {1, 2, 4, 8, 16, 64, 512};

// The peak that a weight stream can reach: a plain sum over the working set.
void stream_read(benchmark::State& state) {
  auto buffer = tensor::AlignedBuffer::allocate(kWorkingSet);
  CHECK(buffer);
  std::fill(buffer->bytes().begin(), buffer->bytes().end(), std::byte{1});
  const std::span<const uint64_t> words = buffer->as<uint64_t>();
  for (auto _ : state) {
    uint64_t sums[8] = {};
    for (size_t i = 0; i < words.size(); i += 8) {
      __builtin_prefetch(words.data() + i + 1024);
      for (size_t j = 0; j < 8; ++j) sums[j] += words[i + j];
    }
    benchmark::DoNotOptimize(sums);
  }
  state.counters["GOP/s"] = 0;
  state.counters["GB/s"] =
      benchmark::Counter(static_cast<double>(kWorkingSet) * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}

void run(benchmark::State& state, Isa isa, Arithmetic arithmetic, DType dtype, Shape shape, int batch) {
  set_float_mode();
  const KernelTable table = kernel_table(isa);
  const Weights one = random_weights({dtype, shape.n_rows, shape.n_cols}, 1);
  const size_t bytes = one.view.bytes();
  const size_t n_copies = std::max<size_t>(1, kWorkingSet / bytes);
  auto copies = tensor::AlignedBuffer::allocate(n_copies * bytes);
  CHECK(copies);
  for (size_t i = 0; i < n_copies; ++i) std::memcpy(copies->data() + i * bytes, one.buffer.data(), bytes);
  Activations x = random_activations(batch, shape.n_cols, 2);
  x.convert(table);
  std::vector<float> y(static_cast<size_t>(batch) * static_cast<size_t>(shape.n_rows));
  auto scratch = tensor::AlignedBuffer::allocate(matmul_scratch_bytes(shape.n_cols));
  CHECK(scratch);
  tensor::PanelMatrix w = one.view;
  size_t copy = 0;
  for (auto _ : state) {
    w.data = copies->data() + copy * bytes;
    copy = (copy + 1) % n_copies;
    table.matmul[static_cast<size_t>(arithmetic)](w, {0, w.n_panels()}, x.input(), {0, batch}, y.data(), shape.n_rows,
                                                  scratch->data());
    benchmark::DoNotOptimize(y.data());
  }
  const double ops = 2.0 * batch * shape.n_rows * shape.n_cols;
  state.counters["GB/s"] =
      benchmark::Counter(static_cast<double>(bytes) * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["GOP/s"] = benchmark::Counter(ops * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}

void register_all() {
  benchmark::RegisterBenchmark("stream_read", stream_read);
  for (const Isa isa : supported_isas()) {
    if (isa == Isa::kRef) continue;
    for (const Arithmetic arithmetic : {Arithmetic::kInt8, Arithmetic::kF32, Arithmetic::kBf16}) {
      for (size_t type = 0; type < tensor::kDTypeCount; ++type) {
        const auto dtype = static_cast<DType>(type);
        if (tensor::is_float(dtype) && arithmetic == Arithmetic::kInt8) continue;
        for (const Shape shape : kShapes) {
          for (const int batch : kBatches) {
            if (!tensor::is_float(dtype) && shape.n_cols % (32 * tensor::panel_format(dtype).block_cells) != 0)
              continue;
            if (batch > 8 && shape.n_rows > 10000) continue;  // an LM head runs for few rows
            const std::string name = fmt::format("{}/{}/{}/{}x{}/{}", to_string(isa), to_string(arithmetic),
                                                 tensor::to_string(dtype), shape.n_cols, shape.n_rows, batch);
            benchmark::RegisterBenchmark(name.c_str(), run, isa, arithmetic, dtype, shape, batch);
          }
        }
      }
    }
  }
}

const bool kRegistered = (register_all(), true);

}  // namespace
}  // namespace pagoda::kernels
