// Forward::attention: projections, heads, the attention itself, and which rows go on in the last layer.
#include <algorithm>
#include <array>

#include "base/clock.h"
#include "models/forward.h"

namespace pagoda::models {

using kernels::MatmulInput;
using kernels::Range;

void Forward::attention(const Norm& norm, const Attention& layer, const Norm& post) {
  const Projection q{&layer.q, 0}, k{&layer.k, q_dim_}, v{&layer.v, q_dim_ + kv_dim_};
  const int n_heads = config_.n_heads;
  const Range all_heads{0, n_heads + config_.n_kv_heads};
  const bool prunes =
      layer.layer + 1 == config_.n_layers && batch_.samples.size() < static_cast<size_t>(batch_.n_rows());
  if (!prunes) {
    project_heads(norm, layer, std::array{q, k, v}, all_heads);
    attend(layer, plan_.attention[static_cast<size_t>(layer.group)]);
  } else {
    project_heads(norm, layer, std::array{k, v}, {n_heads, all_heads.end});
    keep_sampling_rows();
    if (n_rows_ == 0) return;
    project_heads(norm, layer, std::array{q}, {0, n_heads});
    plan_.pruned.build(batch_, batch_.groups[static_cast<size_t>(layer.group)], plan_.step_row);
    attend(layer, plan_.pruned);
  }
  project_into_x(layer.o, input_of(w_.qkv, qkv_dim_, q_dim_, w_.heads), post);
}

// From here on the step's rows are the batch's sampling rows.
void Forward::keep_sampling_rows() {
  plan_.step_row.assign(static_cast<size_t>(n_rows_), -1);
  plan_.row_index.clear();
  for (const SampleRow& sample : batch_.samples) {
    plan_.step_row[static_cast<size_t>(sample.row)] = static_cast<int32_t>(plan_.row_index.size());
    plan_.row_index.push_back(sample.row);
  }
  n_rows_ = static_cast<int>(plan_.row_index.size());
  if (n_rows_ == 0) return;
  const ptrdiff_t n = config_.embed_dim;
  by_rows(n_rows_, [&](Range rows, int) {
    for (int row = rows.begin; row < rows.end; ++row)
      std::copy_n(x_ + plan_.row_index[static_cast<size_t>(row)] * n, n, x_next_ + row * n);
  });
  std::swap(x_, x_next_);
}

// One list of panels over all projections, so that every part gets an equal share whatever the head counts.
// `heads`, which they fill: query heads from 0, KV heads (K and V) from n_heads.
void Forward::project_heads(const Norm& norm, const Attention& layer, std::span<const Projection> projections,
                            Range heads) {
  if (is_split_by_rows()) {
    by_rows(n_rows_, [&](Range rows, int part) {
      normalize(norm, rows, part);
      project_rows(projections, rows, part);
      finish_heads(layer, heads, rows);
    });
    pending_ = {};
    return;
  }
  int n_panels = 0;
  for (const Projection& projection : projections) n_panels += projection.linear->weight.n_panels();
  on_normalized(norm, [&](int part, const MatmulInput& input) {
    const Range share_of_all = share(n_panels, 1, part);
    int first = 0;
    for (const Projection& projection : projections) {
      const int count = projection.linear->weight.n_panels();
      const Range panels{std::max(share_of_all.begin - first, 0), std::min(share_of_all.end - first, count)};
      first += count;
      if (panels.size() <= 0) continue;
      multiply(*projection.linear, panels, input, {0, n_rows_}, w_.qkv + projection.column, qkv_dim_, part);
      if (is_short()) {
        arrive_at_heads(layer, {projection.column + panels.begin * tensor::kPanelRows,
                                projection.column + panels.end * tensor::kPanelRows});
      }
    }
  });
  if (!is_short()) by_rows(n_rows_, [&](Range rows, int) { finish_heads(layer, heads, rows); });
}

void Forward::project_rows(std::span<const Projection> projections, Range rows, int part) const {
  MatmulInput input = input_of(w_.h, config_.embed_dim, config_.embed_dim, w_.outer);
  for (const Projection& projection : projections) {
    const tensor::PanelMatrix& weight = projection.linear->weight;
    if (input.packed.type != weight.dtype) input = packed(input, *projection.linear, rows);
    multiply(*projection.linear, {0, weight.n_panels()}, input, rows, w_.qkv + projection.column, qkv_dim_, part);
  }
}

// Columns of qkv are there: who brings a head's last ones finishes it, in all rows.
void Forward::arrive_at_heads(const Attention& layer, Range columns) {
  const int d = config_.head_dim;
  for (int begin = columns.begin; begin < columns.end;) {
    const int end = std::min((begin / d + 1) * d, columns.end);
    int head = begin / d;
    if (head >= config_.n_heads + config_.n_kv_heads) head -= config_.n_kv_heads;  // V counts with K
    if (plan_.panels_left[static_cast<size_t>(head)].arrive((end - begin) / tensor::kPanelRows))
      finish_heads(layer, {head, head + 1}, {0, n_rows_});
    begin = end;
  }
}

// Norm and rope; K and V to the cache.
void Forward::finish_heads(const Attention& layer, Range heads, Range rows) const {
  const int d = config_.head_dim;
  const int n_heads = config_.n_heads;
  for (int head = heads.begin; head < heads.end; ++head) {
    const Norm& norm = head < n_heads ? layer.q_norm : layer.k_norm;
    float* x = w_.qkv + head * d;
    if (norm) k_.rms_norm(x, qkv_dim_, norm.weight, norm.eps, d, rows, x, qkv_dim_);
  }
  k_.rope[static_cast<int>(config_.rope.style)](w_.qkv + heads.begin * d, qkv_dim_, heads.size(), d, config_.rope.dim,
                                                w_.rope[static_cast<int>(layer.rope)], plan_.row_index.data(), rows);
  if (heads.end > n_heads) store_heads(layer, {std::max(heads.begin - n_heads, 0), heads.end - n_heads}, rows);
}

void Forward::store_heads(const Attention& layer, Range kv_heads, Range rows) const {
  const int d = config_.head_dim;
  const auto g = static_cast<size_t>(layer.group);
  const kv::LayerLayout& layout = plan_.groups[g].layout.layers[static_cast<size_t>(layer.layer_in_group)];
  for (int row = rows.begin; row < rows.end; ++row) {
    const auto r = static_cast<size_t>(row);
    std::byte* block = blocks_[g][static_cast<size_t>(plan_.block_of[g][r])] + layout.offset;
    const float* k = w_.qkv + static_cast<ptrdiff_t>(row) * qkv_dim_ + q_dim_;
    for (int head = kv_heads.begin; head < kv_heads.end; ++head) {
      k_.kv_write(k + head * d, k + kv_dim_ + head * d, d, layout,
                  block + static_cast<size_t>(head) * layout.head_bytes, batch_.positions[r] % kv::kBlockTokens);
    }
  }
}

// Segments are handed out by a counter: what they cost is an estimate, what they compute does not depend on who does.
void Forward::attend(const Attention& layer, AttentionPlan& plan) {
  const SteadyClock clock;
  const int64_t begin_us = clock.now_us();
  for (const Range segments : plan.levels()) {
    next_segment_.store(segments.begin, std::memory_order_relaxed);
    run([&](int part) {
      for (int s; (s = next_segment_.fetch_add(1, std::memory_order_relaxed)) < segments.end;)
        attend_segment(layer, plan, plan.segment(s), part);
    });
  }
  attention_us_ += clock.now_us() - begin_us;
}

void Forward::attend_segment(const Attention& layer, AttentionPlan& plan, std::span<const AttentionPlan::Chunk> chunks,
                             int part) const {
  for (size_t i = 0; i < chunks.size(); ++i) {
    kernels::AttentionArgs args = args_of(layer, plan, chunks[i]);
    if (i + 1 < chunks.size()) args.next = first_blocks(layer, plan, chunks[i + 1]);
    attend_chunk(args, plan, chunks[i], part);
  }
}

// Of the chunk's first span.
kernels::AttentionNext Forward::first_blocks(const Attention& layer, const AttentionPlan& plan,
                                             const AttentionPlan::Chunk& chunk) const {
  const kernels::AttentionArgs args = args_of(layer, plan, chunk);
  const int first = chunk.spans.begin * kernels::kSpanBlocks;
  const int last = *std::max_element(args.position, args.position + args.n_rows) / kv::kBlockTokens;
  return {.blocks = args.kv.blocks + first, .n_blocks = last + 1 - first, .head_offset = args.kv.head_offset};
}

kernels::AttentionArgs Forward::args_of(const Attention& layer, const AttentionPlan& plan,
                                        const AttentionPlan::Chunk& chunk) const {
  const auto g = static_cast<size_t>(layer.group);
  const AttentionPlan::Pass& pass = plan.pass(chunk);
  float* q = w_.qkv + chunk.kv_head * (config_.n_heads / config_.n_kv_heads) * config_.head_dim;
  return {
      .q = q,
      .out = q,
      .row_offset = plan.row_offset(pass),
      .position = plan.position(pass),
      .n_rows = pass.n_rows,
      .kv =
          kv::KvView::make(blocks_[g].data() + pass.table, plan_.groups[g].layout, layer.layer_in_group, chunk.kv_head),
      .window = plan_.groups[g].window,
      .scale = config_.attention_scale,
      .softcap = config_.attention_logit_softcap,
  };
}

float* Forward::slot_of(const AttentionPlan::Chunk& chunk, int n_rows, int span) const {
  const size_t partial = chunk.slots + static_cast<size_t>((span - chunk.spans.begin) * n_rows);
  return w_.slots + partial * static_cast<size_t>(kernels::partial_floats(config_.head_dim));
}

void Forward::attend_chunk(const kernels::AttentionArgs& args, AttentionPlan& plan, const AttentionPlan::Chunk& chunk,
                           int part) const {
  const AttentionPlan::Pass& pass = plan.pass(chunk);
  const std::span<const AttentionPlan::Chunk> item = plan.item(chunk);
  const int d = config_.head_dim;
  float* fold = w_.parts[static_cast<size_t>(part)].partials;
  if (item.size() > 1 || pass.level > 0 || pass.shared) {
    const size_t partial = pass.fold + static_cast<size_t>(chunk.kv_head * pass.fold_stride);
    fold = w_.folds + partial * static_cast<size_t>(kernels::partial_floats(d));
  }
  attend_spans(args, plan, chunk, fold, part);
  if (!plan.finish_chunk(chunk)) return;
  for (const AttentionPlan::Chunk& later : item.subspan(1)) {
    for (int span = later.spans.begin; span < later.spans.end; ++span)
      k_.attention_merge(fold, slot_of(later, pass.n_rows, span), pass.n_rows, d);
  }
  if (pass.shared) return;
  k_.attention_finish(args, fold);
  if (plan.finish_item(chunk)) convert(w_.qkv, qkv_dim_, pass.rows, {0, q_dim_}, w_.heads, q_dim_);
}

// An item's first chunk folds its spans, from nothing or from where the pass before it ended; a later one leaves each apart.
void Forward::attend_spans(const kernels::AttentionArgs& args, const AttentionPlan& plan,
                           const AttentionPlan::Chunk& chunk, float* fold, int part) const {
  const auto attend_span = k_.attention_span[static_cast<int>(context_.arithmetic)];
  const PartScratch& scratch = w_.parts[static_cast<size_t>(part)];
  const bool is_first = &chunk == plan.item(chunk).data();
  if (is_first && plan.pass(chunk).level == 0) {
    kernels::attention_fold(k_, context_.arithmetic, args, chunk.spans, fold, scratch.kernel);
    return;
  }
  k_.attention_prepare[static_cast<int>(context_.arithmetic)](args, scratch.kernel);
  for (int span = chunk.spans.begin; span < chunk.spans.end; ++span) {
    float* partial = is_first ? scratch.partials : slot_of(chunk, args.n_rows, span);
    attend_span(args, span, partial, scratch.kernel);
    if (is_first) k_.attention_merge(fold, partial, args.n_rows, config_.head_dim);
  }
}

}  // namespace pagoda::models
