// Attention of one step of a model: every layer and KV head of its cache in turn, so that K and V come from where they would in
// the model. Names: work/model/format/isa/arithmetic/context. GB/s are cached bytes read, GFLOP/s count q.K and P.V of visible tokens.
#include <benchmark/benchmark.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/kernels.h"
#include "kernels/test_util.h"
#include "tensor/aligned_buffer.h"

namespace pagoda::kernels {
namespace {

struct ModelShape {
  std::string_view name;
  int n_layers, n_kv_heads;
  int rows_per_token;  // query heads per KV head
  int head_dim;
  kv::LayerFormat format;
};
constexpr kv::LayerFormat kQ8{kv::KvType::kInt8, kv::KvType::kInt8};
constexpr kv::LayerFormat kK16V8{kv::KvType::kBf16, kv::KvType::kInt8};
constexpr kv::LayerFormat kBf16{kv::KvType::kBf16, kv::KvType::kBf16};
constexpr kv::LayerFormat kK8V4{kv::KvType::kInt8, kv::KvType::kInt4};
constexpr kv::LayerFormat kQ4{kv::KvType::kInt4, kv::KvType::kInt4};
constexpr ModelShape kModels[] = {{"smollm2-135m", 30, 3, 3, 64, kQ8},    {"smollm2-135m", 30, 3, 3, 64, kBf16},
                                  {"smollm2-135m", 30, 3, 3, 64, kK8V4},  {"smollm2-135m", 30, 3, 3, 64, kQ4},
                                  {"qwen2.5-0.5b", 24, 2, 7, 64, kK16V8}, {"gemma3-270m", 18, 1, 4, 256, kQ8},
                                  {"gemma3-270m", 18, 1, 4, 256, kQ4}};

// A cache of n_tokens; all blocks hold the same.
struct BenchCache {
  BenchCache(const ModelShape& model, int n_tokens)
      : layout(kv::GroupLayout::make(model.n_kv_heads, model.head_dim,
                                     std::vector<kv::LayerFormat>(static_cast<size_t>(model.n_layers), model.format))) {
    const int n_blocks = (n_tokens + kv::kBlockTokens - 1) / kv::kBlockTokens;
    bytes = tensor::AlignedBuffer::allocate(layout.block_bytes * static_cast<size_t>(n_blocks)).value();
    for (int b = 0; b < n_blocks; ++b) blocks.push_back(bytes.data() + layout.block_bytes * static_cast<size_t>(b));
    fill_first_block();
    for (size_t b = 1; b < blocks.size(); ++b) {
      std::memcpy(bytes.data() + layout.block_bytes * b, bytes.data(), layout.block_bytes);
    }
  }
  void fill_first_block() {
    const std::vector<float> x = random_floats(1, static_cast<size_t>(layout.head_dim * kv::kBlockTokens));
    for (int i = 0; i < n_heads(); ++i) {
      const kv::KvView view = this->view(i);
      for (int slot = 0; slot < kv::kBlockTokens; ++slot) {
        const float* row = &x[static_cast<size_t>(slot * layout.head_dim)];
        kernel_table(best_isa()).kv_write(row, row, layout.head_dim, view.layer, bytes.data() + view.head_offset, slot);
      }
    }
  }
  int n_heads() const { return static_cast<int>(layout.layers.size()) * layout.n_kv_heads; }  // of all layers
  kv::KvView view(int i) const {
    return kv::KvView::make(blocks.data(), layout, i / layout.n_kv_heads, i % layout.n_kv_heads);
  }

  kv::GroupLayout layout;
  tensor::AlignedBuffer bytes;
  std::vector<const std::byte*> blocks;
};

struct Setup {
  Isa isa;
  Arithmetic arithmetic;
  ModelShape model;
};

// The rows of n_tokens tokens, the last at the end of the context.
void run_attention(benchmark::State& state, Setup setup, int n_tokens) {
  set_float_mode();
  const int context = static_cast<int>(state.range(0));
  const int head_dim = setup.model.head_dim;
  const int n_rows = n_tokens * setup.model.rows_per_token;
  const BenchCache cache(setup.model, context);
  std::vector<float> q = random_floats(2, static_cast<size_t>(n_rows * head_dim));
  std::vector<float> out(q.size());
  std::vector<uint32_t> offset;
  std::vector<int32_t> position;
  double seen = 0.0;
  for (int r = 0; r < n_rows; ++r) {
    offset.push_back(static_cast<uint32_t>(r * head_dim));
    position.push_back(context - n_tokens + r / setup.model.rows_per_token);
    seen += position.back() + 1;
  }
  AttentionArgs args;
  args.q = q.data();
  args.out = out.data();
  args.row_offset = offset.data();
  args.position = position.data();
  args.n_rows = n_rows;
  args.scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  AlignedBytes scratch(attention_scratch_bytes(head_dim));
  const KernelTable& table = kernel_table(setup.isa);
  for (auto _ : state) {
    for (int i = 0; i < cache.n_heads(); ++i) {
      args.kv = cache.view(i);
      attention(table, setup.arithmetic, args, scratch.data);
    }
    benchmark::ClobberMemory();
  }
  const double calls = static_cast<double>(state.iterations()) * cache.n_heads();
  const auto token_bytes = static_cast<double>(kv::token_head_bytes(setup.model.format, head_dim));
  state.counters["GB/s"] = benchmark::Counter(calls * context * token_bytes * 1e-9, benchmark::Counter::kIsRate);
  state.counters["GFLOP/s"] = benchmark::Counter(calls * seen * 4 * head_dim * 1e-9, benchmark::Counter::kIsRate);
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
  for (const Isa isa : supported_isas()) {
    if (isa == Isa::kRef) continue;
    for (const Arithmetic arithmetic : {Arithmetic::kInt8, Arithmetic::kF32, Arithmetic::kBf16}) {
      for (const ModelShape& model : kModels) {
        const std::string name =
            fmt::format("{}/{}/{}/{}", model.name, to_string(model.format), to_string(isa), to_string(arithmetic));
        const struct {
          std::string_view name;
          int n_tokens;
        } works[] = {{"decode", 1}, {"prefill", kAttentionMaxRows / model.rows_per_token}};
        for (const auto& work : works) {
          benchmark::RegisterBenchmark(fmt::format("{}/{}", work.name, name).c_str(), run_attention,
                                       Setup{isa, arithmetic, model}, work.n_tokens)
              ->Arg(2048)
              ->Arg(7168)
              ->Unit(benchmark::kMicrosecond);
        }
      }
    }
  }
  return 0;
}();

}  // namespace
}  // namespace pagoda::kernels
