#include "models/forward.h"

#include <algorithm>

#include "base/check.h"

namespace pagoda::models {

using kernels::MatmulInput;
using kernels::Range;

namespace {

constexpr int kCellPanels = tensor::kCellCols / tensor::kPanelRows;  // panels that are converted together
constexpr int kGatePanels = 4 * kCellPanels;  // of gate and of up: what one leaves in near memory for the other

AttentionPlan::Shape shape_of(const weights::ModelConfig& config, const StepLimits& limits) {
  return {.n_kv_heads = config.n_kv_heads,
          .heads_per_kv = config.n_heads / config.n_kv_heads,
          .head_dim = config.head_dim,
          .row_stride = (config.n_heads + 2 * config.n_kv_heads) * config.head_dim,
          .max_rows = limits.max_rows,
          .n_parts = limits.n_parts,
          .max_slots = Workspace::max_slots(config, limits)};
}

}  // namespace

ForwardPlan::ForwardPlan(const weights::ModelConfig& model_config, std::span<const AttentionGroup> attention_groups,
                         const StepLimits& limits)
    : config(&model_config),
      groups(attention_groups),
      global_rope(model_config.rope, RopeTable::Layers::kGlobal),
      local_rope(model_config.rope, RopeTable::Layers::kLocal),
      pruned(shape_of(model_config, limits)),
      panels_left(std::make_unique<Countdown[]>(static_cast<size_t>(model_config.n_heads + model_config.n_kv_heads))) {
  const auto rows = static_cast<size_t>(limits.max_rows);
  for (size_t g = 0; g < groups.size(); ++g) {
    attention.emplace_back(shape_of(model_config, limits));
    block_of.emplace_back().reserve(rows);
  }
  row_index.reserve(rows);
  step_row.reserve(rows);
  const int panels = model_config.head_dim / tensor::kPanelRows;
  for (int i = 0; i < model_config.n_heads; ++i) panels_left[static_cast<size_t>(i)].set(panels);
  for (int i = 0; i < model_config.n_kv_heads; ++i)
    panels_left[static_cast<size_t>(model_config.n_heads + i)].set(2 * panels);
}

Forward::Forward(const Batch& batch, const BlockAddresses& blocks, ForwardPlan& plan, const ExecContext& context)
    : batch_(batch),
      blocks_(blocks),
      plan_(plan),
      context_(context),
      k_(context.kernels),
      w_(context.workspace),
      config_(*plan.config),
      q_dim_(config_.n_heads * config_.head_dim),
      kv_dim_(config_.n_kv_heads * config_.head_dim),
      qkv_dim_(q_dim_ + 2 * kv_dim_),
      n_rows_(batch.n_rows()),
      x_(w_.x),
      x_next_(w_.x_next) {
  CHECK(n_rows_ > 0 && n_rows_ <= w_.limits.max_rows);
  CHECK(static_cast<int>(batch.samples.size()) <= w_.limits.max_samples);
  plan_.row_index.clear();
  for (int row = 0; row < n_rows_; ++row) plan_.row_index.push_back(row);
  for (size_t g = 0; g < batch.groups.size(); ++g) {
    const GroupBatch& group = batch.groups[g];
    std::vector<int>& block_of = plan_.block_of[g];
    block_of.clear();
    for (size_t s = 0; s < batch.sequences.size(); ++s) {
      for (int row = batch.sequences[s].rows.begin; row < batch.sequences[s].rows.end; ++row)
        block_of.push_back(group.table_begin[s] + batch.positions[static_cast<size_t>(row)] / kv::kBlockTokens);
    }
    plan_.attention[g].build(batch, group, plan_.row_index);
  }
}

kernels::Range Forward::share(int count, int grain, int part) const {
  const Slice slice = slice_of(count, grain, part, context_.pool.n_workers());
  return {slice.begin, slice.end};
}

// Columns [cols) of x's rows in the form that the arithmetic multiplies; columns on multiples of 32.
void Forward::convert(const float* x, int ld, Range rows, Range cols, const InputForms& forms, int n_cols) const {
  switch (context_.arithmetic) {
    case kernels::Arithmetic::kInt8:
      k_.quantize_rows(x, ld, rows, cols, {forms.q, forms.d, forms.sums16, n_cols});
      break;
    case kernels::Arithmetic::kBf16:
      k_.bf16_rows(x, ld, rows, cols, forms.bf16, n_cols);
      break;
    case kernels::Arithmetic::kF32:
      break;
  }
}

MatmulInput Forward::input_of(const float* x, int ld, int n_cols, const InputForms& forms) const {
  MatmulInput input{.x = x, .ld = ld, .quant = {}};
  if (context_.arithmetic == kernels::Arithmetic::kInt8) input.quant = {forms.q, forms.d, forms.sums16, n_cols};
  if (context_.arithmetic == kernels::Arithmetic::kBf16) input.bf16 = forms.bf16;
  return input;
}

// The input as `linear` reads it, for all multiplications of exactly these rows until the part packs others.
MatmulInput Forward::packed(MatmulInput input, const Linear& linear, Range rows) const {
  const tensor::DType type = linear.weight.dtype;
  if (context_.arithmetic == kernels::Arithmetic::kInt8 && !tensor::is_float(type)) {
    std::byte* const own = w_.packed + kernels::packed_bytes(w_.widest_input(), rows.begin);
    input.packed = k_.pack_rows(type, input.quant, rows, own);
  }
  return input;
}

// y[row, n] = linear(input)[row, n] for some rows and the outputs of `panels`, bias included.
void Forward::multiply(const Linear& linear, Range panels, const MatmulInput& input, Range rows, float* y, int ld_y,
                       int part) const {
  k_.matmul[static_cast<int>(context_.arithmetic)](linear.weight, panels, input, rows, y, ld_y,
                                                   w_.parts[static_cast<size_t>(part)].kernel);
  if (linear.bias == nullptr) return;
  const int begin = panels.begin * tensor::kPanelRows;
  const int end = std::min(panels.end * tensor::kPanelRows, linear.weight.n_rows);
  k_.add_bias(y + begin, ld_y, linear.bias + begin, end - begin, rows);
}

void Forward::embed(const Linear& embedding, float scale) {
  const int n = config_.embed_dim;
  const auto angles = [&](const RopeTable& rope, Range rows, float* table) {
    rope.fill(std::span(batch_.positions).subspan(static_cast<size_t>(rows.begin), static_cast<size_t>(rows.size())),
              table + static_cast<ptrdiff_t>(rows.begin) * config_.rope.dim);
  };
  by_rows(n_rows_, [&](Range rows, int) {
    angles(plan_.global_rope, rows, w_.rope[0]);
    if (config_.sliding_window > 0) angles(plan_.local_rope, rows, w_.rope[1]);
    for (int row = rows.begin; row < rows.end; ++row) {
      k_.gather_row(embedding.weight, batch_.tokens[static_cast<size_t>(row)].value,
                    x_ + static_cast<ptrdiff_t>(row) * n);
    }
    if (scale != 1.0f) k_.scale(x_, n, scale, n, rows);
  });
}

// h = norm(x) of some rows, once x has all it lacked.
void Forward::normalize(const Norm& norm, Range rows, int part) {
  const int n = config_.embed_dim;
  project_pending(rows, part);
  k_.rms_norm(x_, n, norm.weight, norm.eps, n, rows, w_.h, n);
  convert(w_.h, n, rows, {0, n}, w_.outer, n);
}

// The same of all rows in the part's own memory. Others still read x, so the part writes its share of the new one beside it.
MatmulInput Forward::normalize_for(int part, const Norm& norm) {
  const int n = config_.embed_dim;
  const Range rows{0, n_rows_};
  const PartScratch& own = w_.parts[static_cast<size_t>(part)];
  const float* x = x_;
  if (const Norm& post = pending_.post) {
    k_.rms_norm(w_.h, n, post.weight, post.eps, n, rows, own.h, n);
    k_.add(own.h, n, x_, n, n, rows);
    const Range columns = share(n, tensor::kPanelRows, part);
    for (int row = 0; row < n_rows_; ++row) {
      const ptrdiff_t at = static_cast<ptrdiff_t>(row) * n + columns.begin;
      std::copy_n(own.h + at, columns.size(), x_next_ + at);
    }
    x = own.h;
  }
  k_.rms_norm(x, n, norm.weight, norm.eps, n, rows, own.h, n);
  convert(own.h, n, rows, {0, n}, own.forms, n);
  return input_of(own.h, n, n, own.forms);
}

// x += what it lacked, in some rows.
void Forward::project_pending(Range rows, int part) const {
  const int n = config_.embed_dim;
  const Norm& post = pending_.post;
  if (const Linear* linear = pending_.linear)
    multiply(*linear, {0, linear->weight.n_panels()}, packed(pending_.input, *linear, rows), rows, w_.h, n, part);
  if (post) k_.rms_norm(w_.h, n, post.weight, post.eps, n, rows, w_.h, n);
  if (post || pending_.linear != nullptr) k_.add(x_, n, w_.h, n, n, rows);
}

// x += post(linear(input)). A step split by rows leaves it to the next block's phase. So does, in others, a norm, which needs whole
// rows; else each part adds its own columns.
void Forward::project_into_x(const Linear& linear, const MatmulInput& input, const Norm& post) {
  const int n = config_.embed_dim;
  if (is_split_by_rows()) {
    pending_ = {&linear, input, post};
    return;
  }
  run([&](int part) {
    const Range panels = share(linear.weight.n_panels(), 1, part);
    if (panels.size() == 0) return;
    multiply(linear, panels, input, {0, n_rows_}, w_.h, n, part);
    if (post) return;
    const int begin = panels.begin * tensor::kPanelRows;
    const int end = std::min(panels.end * tensor::kPanelRows, n);
    k_.add(x_ + begin, n, w_.h + begin, n, end - begin, {0, n_rows_});
  });
  pending_ = {nullptr, {}, post};
}

void Forward::mlp(const Norm& norm, const GatedMlp& layer, const Norm& post) {
  if (n_rows_ == 0) return;
  const int n = config_.ffn_dim;
  if (is_split_by_rows()) {
    by_rows(n_rows_, [&](Range rows, int part) {
      normalize(norm, rows, part);
      const MatmulInput input =
          packed(input_of(w_.h, config_.embed_dim, config_.embed_dim, w_.outer), layer.gate, rows);
      const int n_panels = layer.gate.weight.n_panels();
      for (int first = 0; first < n_panels; first += kGatePanels)
        gate_and_up(layer, {first, std::min(first + kGatePanels, n_panels)}, input, rows, part);
    });
  } else {
    on_normalized(norm, [&](int part, const MatmulInput& input) {
      const Range panels = share(layer.gate.weight.n_panels(), kCellPanels, part);
      if (panels.size() > 0) gate_and_up(layer, panels, input, {0, n_rows_}, part);
    });
  }
  project_into_x(layer.down, input_of(w_.gate, n, n, w_.inner), post);
}

void Forward::gate_and_up(const GatedMlp& layer, Range panels, const MatmulInput& input, Range rows, int part) const {
  const int n = config_.ffn_dim;
  multiply(layer.gate, panels, input, rows, w_.gate, n, part);
  multiply(layer.up, panels, input, rows, w_.up, n, part);
  const Range columns{panels.begin * tensor::kPanelRows, std::min(panels.end * tensor::kPanelRows, n)};
  k_.gated[static_cast<int>(layer.activation)](w_.gate + columns.begin, w_.up + columns.begin, n, columns.size(), rows,
                                               w_.gate + columns.begin, n);
  convert(w_.gate, n, rows, columns, w_.inner, n);
}

// By whole tiles, of which whoever computed one also finds the largest logit.
void Forward::head(const Norm& norm, const Linear& output, float softcap) {
  if (n_rows_ == 0) return;
  constexpr int kTilePanels = kernels::kLogitsTile / tensor::kPanelRows;
  const int vocab = config_.vocab_size;
  on_normalized(norm, [&](int part, const MatmulInput& input) {
    const Range tiles = share(w_.n_logit_tiles(), 1, part);
    for (int tile = tiles.begin; tile < tiles.end; ++tile) {
      const int last = std::min((tile + 1) * kTilePanels, output.weight.n_panels());
      multiply(output, {tile * kTilePanels, last}, input, {0, n_rows_}, w_.logits, vocab, part);
      const int begin = tile * kernels::kLogitsTile;
      const int size = std::min(kernels::kLogitsTile, vocab - begin);
      for (int row = 0; row < n_rows_; ++row) {
        float* logits = w_.logits + static_cast<ptrdiff_t>(row) * vocab + begin;
        if (softcap != 0.0f) k_.softcap(logits, size, softcap);
        kernels::LogitTile& result = w_.tiles[static_cast<ptrdiff_t>(row) * w_.n_logit_tiles() + tile];
        k_.logit_tiles(logits, size, &result);
        result.index += begin;
      }
    }
  });
}

}  // namespace pagoda::models
