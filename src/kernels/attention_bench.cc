// Attention of one layer step: every layer and KV head of a SmolLM2-135M-like cache in turn (30 layers, 3 KV heads,
// head_dim 64), so that K and V come from where they would in a model. GB/s are cached bytes read, GFLOP/s count q.K and
// P.V of visible tokens.
#include <benchmark/benchmark.h>

#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "kernels/test_util.h"
#include "tensor/aligned_buffer.h"

namespace pagoda::kernels {
namespace {

constexpr int kHeadDim = 64;
constexpr int kLayers = 30;
constexpr int kKvHeads = 3;

// A cache of n_tokens; all blocks hold the same.
struct BenchCache {
  explicit BenchCache(kv::LayerFormat format, int n_tokens)
      : layout(kv::GroupLayout::make(kKvHeads, kHeadDim, std::vector<kv::LayerFormat>(kLayers, format))) {
    const int n_blocks = (n_tokens + kv::kBlockTokens - 1) / kv::kBlockTokens;
    bytes = tensor::AlignedBuffer::allocate(layout.block_bytes * static_cast<size_t>(n_blocks)).value();
    for (int b = 0; b < n_blocks; ++b) blocks.push_back(bytes.data() + layout.block_bytes * static_cast<size_t>(b));
    fill_first_block();
    for (int b = 1; b < n_blocks; ++b)
      std::memcpy(bytes.data() + layout.block_bytes * b, bytes.data(), layout.block_bytes);
  }
  void fill_first_block() {
    const std::vector<float> x = random_floats(1, kHeadDim * kv::kBlockTokens);
    for (int i = 0; i < kLayers * kKvHeads; ++i) {
      const kv::KvView view = this->view(i);
      for (int slot = 0; slot < kv::kBlockTokens; ++slot) {
        const float* row = &x[static_cast<size_t>(slot * kHeadDim)];
        kernel_table(best_isa()).kv_write(row, row, kHeadDim, view.layer, bytes.data() + view.head_offset, slot);
      }
    }
  }
  kv::KvView view(int i) const { return kv::KvView::make(blocks.data(), layout, i / kKvHeads, i % kKvHeads); }

  kv::GroupLayout layout;
  tensor::AlignedBuffer bytes;
  std::vector<const std::byte*> blocks;
};

struct Setup {
  Isa isa;
  Arithmetic arithmetic;
  kv::LayerFormat format;
};

// n_rows query rows, rows_per_token of them at each position, the last at the end of the context.
void run_attention(benchmark::State& state, Setup setup, int n_rows, int rows_per_token) {
  set_float_mode();
  const int context = static_cast<int>(state.range(0));
  const BenchCache cache(setup.format, context);
  std::vector<float> q = random_floats(2, static_cast<size_t>(n_rows) * kHeadDim);
  std::vector<float> out(q.size());
  std::vector<uint32_t> offset;
  std::vector<int32_t> position;
  double seen = 0.0;
  for (int r = 0; r < n_rows; ++r) {
    offset.push_back(static_cast<uint32_t>(r * kHeadDim));
    position.push_back(context - (n_rows - 1 - r) / rows_per_token - 1);
    seen += position.back() + 1;
  }
  AttentionArgs args;
  args.q = q.data();
  args.out = out.data();
  args.row_offset = offset.data();
  args.position = position.data();
  args.n_rows = n_rows;
  args.scale = 0.125f;
  AlignedBytes scratch(attention_scratch_bytes(kHeadDim));
  const KernelTable& table = kernel_table(setup.isa);
  for (auto _ : state) {
    for (int i = 0; i < kLayers * kKvHeads; ++i) {
      args.kv = cache.view(i);
      attention(table, setup.arithmetic, args, scratch.data);
    }
    benchmark::ClobberMemory();
  }
  const double calls = static_cast<double>(state.iterations()) * kLayers * kKvHeads;
  const double token_bytes = static_cast<double>(kv::token_head_bytes(setup.format.k, kHeadDim) +
                                                 kv::token_head_bytes(setup.format.v, kHeadDim));
  state.counters["GB/s"] = benchmark::Counter(calls * context * token_bytes * 1e-9, benchmark::Counter::kIsRate);
  state.counters["GFLOP/s"] = benchmark::Counter(calls * seen * 4 * kHeadDim * 1e-9, benchmark::Counter::kIsRate);
}

// What one thread reads of memory of the same size: the peak that decode's GB/s stand beside.
void stream_read(benchmark::State& state) {
  auto buffer = tensor::AlignedBuffer::allocate(static_cast<size_t>(state.range(0))).value();
  for (std::byte& b : buffer.bytes()) b = std::byte{1};
  for (auto _ : state) {
    const auto words = buffer.as<uint64_t>();
    benchmark::DoNotOptimize(std::accumulate(words.begin(), words.end(), uint64_t{0}));
  }
  state.counters["GB/s"] = benchmark::Counter(
      static_cast<double>(state.iterations()) * static_cast<double>(buffer.size()) * 1e-9, benchmark::Counter::kIsRate);
}
BENCHMARK(stream_read)->Arg(6 << 20)->Arg(24 << 20)->Arg(97 << 20)->Unit(benchmark::kMicrosecond);

const int kRegistered = [] {
  const kv::LayerFormat q8{kv::KvType::kInt8, kv::KvType::kInt8};
  const kv::LayerFormat bf16{kv::KvType::kBf16, kv::KvType::kBf16};
  for (const Isa isa : supported_isas()) {
    if (isa == Isa::kRef) continue;
    for (const Setup& setup :
         {Setup{isa, Arithmetic::kInt8, q8}, Setup{isa, Arithmetic::kInt8, bf16}, Setup{isa, Arithmetic::kF32, q8}}) {
      const std::string name =
          fmt::format("{}/{}/{}", to_string(isa), to_string(setup.arithmetic), to_string(setup.format));
      benchmark::RegisterBenchmark(("decode/" + name).c_str(), run_attention, setup, 3, 3)
          ->Arg(512)
          ->Arg(2048)
          ->Arg(8192)
          ->Unit(benchmark::kMicrosecond);
      benchmark::RegisterBenchmark(("prefill/" + name).c_str(), run_attention, setup, 64, 3)
          ->Arg(512)
          ->Arg(2048)
          ->Unit(benchmark::kMicrosecond);
    }
  }
  return 0;
}();

}  // namespace
}  // namespace pagoda::kernels
