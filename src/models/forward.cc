#include "models/forward.h"

#include <algorithm>

#include "base/check.h"

namespace pagoda::models {

using kernels::MatmulInput;
using kernels::Range;

ForwardPlan::ForwardPlan(const weights::ModelConfig& model_config, std::span<const AttentionGroup> attention_groups)
    : config(&model_config),
      groups(attention_groups),
      global_rope(model_config.rope, RopeTable::Layers::kGlobal),
      local_rope(model_config.rope, RopeTable::Layers::kLocal),
      tiles(attention_groups.size()) {}

Forward::Forward(const Batch& batch, const BlockAddresses& blocks, ForwardPlan& plan, const ExecContext& context)
    : batch_(batch),
      blocks_(blocks),
      plan_(plan),
      context_(context),
      k_(context.kernels),
      w_(context.workspace),
      config_(*plan.config),
      n_rows_(batch.n_rows()),
      q_dim_(config_.n_heads * config_.head_dim),
      kv_dim_(config_.n_kv_heads * config_.head_dim),
      qkv_dim_(q_dim_ + 2 * kv_dim_) {
  CHECK(n_rows_ > 0 && n_rows_ <= w_.max_rows && static_cast<int>(batch.samples.size()) <= w_.max_samples);
  plan_attention();
  plan_.global_rope.fill(batch.positions, w_.rope[0]);
  if (config_.sliding_window > 0) plan_.local_rope.fill(batch.positions, w_.rope[1]);
  plan_.row_index.resize(static_cast<size_t>(n_rows_));
  for (int row = 0; row < n_rows_; ++row) plan_.row_index[static_cast<size_t>(row)] = row;
}

// A row of attention is one query head of one token; the heads that share a KV head lie side by side in qkv, so the same offsets
// serve every KV head and layer, and rows of several groups differ only in their tiles.
void Forward::plan_attention() {
  const int heads_per_kv = config_.n_heads / config_.n_kv_heads;
  plan_.row_offset.clear();
  plan_.position.clear();
  for (size_t g = 0; g < plan_.tiles.size(); ++g) {
    plan_.tiles[g].clear();
    for (const AttentionWork& work : batch_.groups[g].work) {
      const int n_rows = work.rows.size() * heads_per_kv;
      CHECK(n_rows <= kernels::kAttentionMaxRows);
      plan_.tiles[g].push_back({work.sequence, static_cast<int>(plan_.position.size()), n_rows});
      for (int row = work.rows.begin; row < work.rows.end; ++row) {
        for (int head = 0; head < heads_per_kv; ++head) {
          plan_.row_offset.push_back(static_cast<uint32_t>(row * qkv_dim_ + head * config_.head_dim));
          plan_.position.push_back(batch_.positions[static_cast<size_t>(row)]);
        }
      }
    }
  }
}

template <typename Fn>
void Forward::by_rows(int n_rows, Fn&& fn) {
  const int n_workers = context_.pool.n_workers();
  context_.pool.run([&](int worker) {
    const Slice s = slice_of(n_rows, 1, worker, n_workers);
    if (s.begin < s.end) fn(Range{s.begin, s.end});
  });
}

template <typename Fn>
void Forward::by_panels(int n_panels, int grain, Fn&& fn) {
  const int n_workers = context_.pool.n_workers();
  context_.pool.run([&](int worker) {
    const Slice s = slice_of(n_panels, grain, worker, n_workers);
    if (s.begin < s.end) fn(Range{s.begin, s.end}, worker);
  });
}

void Forward::quantize(const float* x, int ld, Range rows, Range cols, int n_cols) {
  if (context_.arithmetic != kernels::Arithmetic::kInt8) return;
  k_.quantize_rows(x, ld, rows, cols, {w_.quant_q, w_.quant_d, w_.quant_sums, n_cols});
}

MatmulInput Forward::input_of(const float* x, int ld, int n_cols) const {
  MatmulInput input{.x = x, .ld = ld, .quant = {}};
  if (context_.arithmetic == kernels::Arithmetic::kInt8) input.quant = {w_.quant_q, w_.quant_d, w_.quant_sums, n_cols};
  return input;
}

// y[row, n] = linear(input)[row, n] for the outputs of `panels`, bias included.
void Forward::multiply(const Linear& linear, Range panels, const MatmulInput& input, float* y, int ld_y, int worker) {
  const Range rows{0, n_rows_};
  k_.matmul[static_cast<int>(context_.arithmetic)](linear.weight, panels, input, rows, y, ld_y,
                                                   w_.worker_scratch[static_cast<size_t>(worker)]);
  if (linear.bias == nullptr) return;
  const int begin = panels.begin * tensor::kPanelRows;
  const int end = std::min(panels.end * tensor::kPanelRows, linear.weight.n_rows);
  k_.add_bias(y + begin, ld_y, linear.bias + begin, end - begin, rows);
}

void Forward::embed(const Linear& embedding, float scale) {
  const int n = config_.embed_dim;
  by_rows(n_rows_, [&](Range rows) {
    for (int row = rows.begin; row < rows.end; ++row) {
      k_.gather_row(embedding.weight, batch_.tokens[static_cast<size_t>(row)].value,
                    w_.x + static_cast<size_t>(row) * n);
    }
    if (scale != 1.0f) k_.scale(w_.x, n, scale, n, rows);
  });
}

void Forward::normalize_input(const Norm& norm) {
  const int n = config_.embed_dim;
  by_rows(n_rows_, [&](Range rows) {
    k_.rms_norm(w_.x, n, norm.weight, norm.eps, n, rows, w_.h, n);
    quantize(w_.h, n, rows, {0, n}, n);
  });
}

void Forward::attention(const Norm& norm, const Attention& layer, const Norm& post) {
  normalize_input(norm);
  project_qkv(layer);
  rotate_and_store(layer);
  attend(layer);
  by_rows(n_rows_, [&](Range rows) { quantize(w_.qkv, qkv_dim_, rows, {0, q_dim_}, q_dim_); });
  project_into_x(layer.o, input_of(w_.qkv, qkv_dim_, q_dim_), post);
}

// One list of panels over Q, K and V, so that every worker gets an equal share whatever the head counts.
void Forward::project_qkv(const Attention& layer) {
  const MatmulInput input = input_of(w_.h, config_.embed_dim, config_.embed_dim);
  const Linear* parts[] = {&layer.q, &layer.k, &layer.v};
  const int columns[] = {0, q_dim_, q_dim_ + kv_dim_};
  const int n_panels = qkv_dim_ / tensor::kPanelRows;
  by_panels(n_panels, 1, [&](Range panels, int worker) {
    for (int part = 0; part < 3; ++part) {
      const int first = columns[part] / tensor::kPanelRows;
      const Range mine{std::max(panels.begin - first, 0), std::min(panels.end - first, parts[part]->weight.n_panels())};
      if (mine.begin < mine.end) multiply(*parts[part], mine, input, w_.qkv + columns[part], qkv_dim_, worker);
    }
  });
}

void Forward::rotate_and_store(const Attention& layer) {
  const int d = config_.head_dim;
  const kv::GroupLayout& layout = plan_.groups[static_cast<size_t>(layer.group)].layout;
  const kv::LayerLayout& layer_layout = layout.layers[static_cast<size_t>(layer.layer_in_group)];
  const GroupBatch& group = batch_.groups[static_cast<size_t>(layer.group)];
  const auto& addresses = blocks_[static_cast<size_t>(layer.group)];

  const auto norm_heads = [&](const Norm& norm, float* x, int n_heads, Range rows) {
    for (int head = 0; norm && head < n_heads; ++head) {
      k_.rms_norm(x + head * d, qkv_dim_, norm.weight, norm.eps, d, rows, x + head * d, qkv_dim_);
    }
  };
  const auto store = [&](int row, int sequence) {
    const int position = batch_.positions[static_cast<size_t>(row)];
    const int block = group.table_begin[static_cast<size_t>(sequence)] + position / kv::kBlockTokens;
    std::byte* bytes = addresses[static_cast<size_t>(block)] + layer_layout.offset;
    const float* k = w_.qkv + static_cast<size_t>(row) * qkv_dim_ + q_dim_;
    for (int head = 0; head < config_.n_kv_heads; ++head, bytes += layer_layout.head_bytes) {
      k_.kv_write(k + head * d, k + kv_dim_ + head * d, d, layer_layout, bytes, position % kv::kBlockTokens);
    }
  };
  by_rows(n_rows_, [&](Range rows) {
    norm_heads(layer.q_norm, w_.qkv, config_.n_heads, rows);
    norm_heads(layer.k_norm, w_.qkv + q_dim_, config_.n_kv_heads, rows);
    k_.rope[static_cast<int>(config_.rope.style)](w_.qkv, qkv_dim_, config_.n_heads + config_.n_kv_heads, d,
                                                  config_.rope.dim, w_.rope[static_cast<int>(layer.rope)],
                                                  plan_.row_index.data(), rows);
    int sequence = 0;
    for (int row = rows.begin; row < rows.end; ++row) {
      while (row >= batch_.sequences[static_cast<size_t>(sequence)].rows.end) ++sequence;
      store(row, sequence);
    }
  });
}

// Items are (tile, KV head), handed out by a counter: their costs differ with the context, their results not with the worker.
void Forward::attend(const Attention& layer) {
  const auto g = static_cast<size_t>(layer.group);
  const AttentionGroup& group = plan_.groups[g];
  const auto& tiles = plan_.tiles[g];
  const int n_items = static_cast<int>(tiles.size()) * config_.n_kv_heads;
  const int heads_per_kv = config_.n_heads / config_.n_kv_heads;
  next_item_.store(0, std::memory_order_relaxed);
  context_.pool.run([&](int worker) {
    for (int item; (item = next_item_.fetch_add(1, std::memory_order_relaxed)) < n_items;) {
      const ForwardPlan::Tile& tile = tiles[static_cast<size_t>(item / config_.n_kv_heads)];
      const int kv_head = item % config_.n_kv_heads;
      const int table = batch_.groups[g].table_begin[static_cast<size_t>(tile.sequence)];
      float* q = w_.qkv + kv_head * heads_per_kv * config_.head_dim;
      const kernels::AttentionArgs args{
          .q = q,
          .out = q,
          .row_offset = plan_.row_offset.data() + tile.first,
          .position = plan_.position.data() + tile.first,
          .n_rows = tile.n_rows,
          .kv = kv::KvView::make(blocks_[g].data() + table, group.layout, layer.layer_in_group, kv_head),
          .window = group.window,
          .scale = config_.attention_scale,
          .softcap = config_.attention_logit_softcap,
      };
      kernels::attention(k_, context_.arithmetic, args, w_.worker_scratch[static_cast<size_t>(worker)]);
    }
  });
}

// x += post(linear(input)). Without a norm each worker adds the columns it computed, and no barrier is needed in between.
void Forward::project_into_x(const Linear& linear, MatmulInput input, const Norm& post) {
  const int n = config_.embed_dim;
  by_panels(linear.weight.n_panels(), 1, [&](Range panels, int worker) {
    multiply(linear, panels, input, w_.h, n, worker);
    if (post) return;
    const int begin = panels.begin * tensor::kPanelRows;
    const int end = std::min(panels.end * tensor::kPanelRows, n);
    k_.add(w_.x + begin, n, w_.h + begin, n, end - begin, {0, n_rows_});
  });
  if (!post) return;
  by_rows(n_rows_, [&](Range rows) {
    k_.rms_norm(w_.h, n, post.weight, post.eps, n, rows, w_.h, n);
    k_.add(w_.x, n, w_.h, n, n, rows);
  });
}

void Forward::mlp(const Norm& norm, const GatedMlp& layer, const Norm& post) {
  normalize_input(norm);
  const int n_ffn = config_.ffn_dim;
  const MatmulInput input = input_of(w_.h, config_.embed_dim, config_.embed_dim);
  // Workers read the quantized input until the barrier, so its buffers cannot take the output yet.
  by_panels(layer.gate.weight.n_panels(), 1, [&](Range panels, int worker) {
    multiply(layer.gate, panels, input, w_.gate, n_ffn, worker);
    multiply(layer.up, panels, input, w_.up, n_ffn, worker);
    const int begin = panels.begin * tensor::kPanelRows;
    const int end = std::min(panels.end * tensor::kPanelRows, n_ffn);
    k_.gated[static_cast<int>(layer.activation)](w_.gate + begin, w_.up + begin, n_ffn, end - begin, {0, n_rows_},
                                                 w_.gate + begin, n_ffn);
  });
  by_rows(n_rows_, [&](Range rows) { quantize(w_.gate, n_ffn, rows, {0, n_ffn}, n_ffn); });
  project_into_x(layer.down, input_of(w_.gate, n_ffn, n_ffn), post);
}

void Forward::head(const Norm& norm, const Linear& output, float softcap) {
  const int n = config_.embed_dim;
  const int n_samples = static_cast<int>(batch_.samples.size());
  if (n_samples == 0) return;
  by_rows(n_samples, [&](Range samples) {
    for (int i = samples.begin; i < samples.end; ++i) {
      const float* x = w_.x + static_cast<size_t>(batch_.samples[static_cast<size_t>(i)].row) * n;
      k_.rms_norm(x, n, norm.weight, norm.eps, n, {0, 1}, w_.h + static_cast<size_t>(i) * n, n);
    }
    quantize(w_.h, n, samples, {0, n}, n);
  });
  const MatmulInput input = input_of(w_.h, n, n);
  const int vocab = config_.vocab_size;
  by_panels(output.weight.n_panels(), 1, [&](Range panels, int worker) {
    k_.matmul[static_cast<int>(context_.arithmetic)](output.weight, panels, input, {0, n_samples}, w_.logits, vocab,
                                                     w_.worker_scratch[static_cast<size_t>(worker)]);
    if (softcap == 0.0f) return;
    const int begin = panels.begin * tensor::kPanelRows;
    const int end = std::min(panels.end * tensor::kPanelRows, vocab);
    for (int i = 0; i < n_samples; ++i)
      k_.softcap(w_.logits + static_cast<size_t>(i) * vocab + begin, end - begin, softcap);
  });
}

}  // namespace pagoda::models
