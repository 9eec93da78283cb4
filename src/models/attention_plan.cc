#include "models/attention_plan.h"

#include <algorithm>

#include "base/check.h"

namespace pagoda::models {

using kernels::Range;

namespace {

// Of equal segments every part gets as many; more than one, so that whoever is slowed down does fewer, but only of
// much work: what another thread left in slots comes slowly.
constexpr int64_t kSegmentsPerPart = 16;
constexpr int64_t kLeastSegment = 32768;  // in cost()'s unit
// What loading and unpacking a token's K and V costs, in rows that attend to it.
constexpr int64_t kLoadRows = 4;

size_t product(int a, int b) { return static_cast<size_t>(a) * static_cast<size_t>(b); }
int size_of(const auto& list) { return static_cast<int>(list.size()); }
template <typename List>
std::span<const typename List::value_type> part_of(const List& list, Range range) {
  return std::span(list).subspan(static_cast<size_t>(range.begin), static_cast<size_t>(range.size()));
}

}  // namespace

// A batch's passes are the leaves of trees, one or more per row, and their inner nodes, of which each has two children or more.
AttentionPlan::AttentionPlan(const Shape& shape) : shape_(shape) {
  const size_t max_passes = product(2, shape.max_rows);
  const size_t max_items = max_passes * static_cast<size_t>(shape.n_kv_heads);
  const size_t max_segments = product(static_cast<int>(kSegmentsPerPart), shape.n_parts) + 1;
  passes_.reserve(max_passes);
  row_offset_.reserve(2 * product(shape.max_rows, shape.heads_per_kv));
  position_.reserve(row_offset_.capacity());
  chunks_.reserve(max_items + max_segments);
  segments_.reserve(max_items + max_segments);
  items_.resize(max_items);
  levels_.reserve(16);
  items_left_ = std::make_unique<Countdown[]>(max_items);
  heads_left_ = std::make_unique<Countdown[]>(max_passes);
}

std::span<const AttentionPlan::Chunk> AttentionPlan::segment(int i) const {
  return part_of(chunks_, segments_[static_cast<size_t>(i)]);
}

std::span<const AttentionPlan::Chunk> AttentionPlan::item(const Chunk& chunk) const {
  return part_of(chunks_, items_[item_index(chunk)]);
}

void AttentionPlan::build(const Batch& batch, const GroupBatch& group, std::span<const int32_t> step_row) {
  CHECK(group.work.size() <= product(2, shape_.max_rows));
  passes_.clear();
  row_offset_.clear();
  position_.clear();
  chunks_.clear();
  segments_.clear();
  levels_.clear();
  n_folds_ = 0;
  n_slots_ = 0;
  int last_level = 0;
  for (const AttentionWork& work : group.work) {
    add_pass(batch, group, work, step_row);
    last_level = std::max(last_level, passes_.back().level);
  }
  for (int level = 0; level <= last_level; ++level) cut_level(level);
}

// The heads that share a KV head lie side by side in the buffer of queries, so the same offsets serve every KV head and layer.
void AttentionPlan::add_pass(const Batch& batch, const GroupBatch& group, const AttentionWork& work,
                             std::span<const int32_t> step_row) {
  const auto at = [](const auto& list, int i) { return list[static_cast<size_t>(i)]; };
  Pass pass;
  pass.table = at(group.table_begin, work.sequence);
  pass.first = size_of(position_);
  pass.spans = {work.spans.begin, work.spans.end};
  pass.shared = work.shared;
  for (int i = work.rows.begin; i < work.rows.end; ++i) {
    const int row = at(step_row, at(group.rows, i));
    if (row < 0) continue;
    if (pass.n_rows == 0) pass.rows.begin = row;
    pass.rows.end = row + 1;
    for (int head = 0; head < shape_.heads_per_kv; ++head) {
      row_offset_.push_back(static_cast<uint32_t>(row * shape_.row_stride + head * shape_.head_dim));
      position_.push_back(at(batch.positions, at(group.rows, i)));
    }
    pass.n_rows += shape_.heads_per_kv;
  }
  CHECK(pass.n_rows <= kernels::kAttentionMaxRows);
  if (work.parent < 0) {
    pass.fold = n_folds_;
    pass.fold_stride = pass.n_rows;
    n_folds_ += product(pass.n_rows, shape_.n_kv_heads);
  } else {
    const Pass& parent = at(passes_, work.parent);
    const int first = at(group.work, work.parent).rows.begin;
    const auto rows = part_of(group.rows, {first, first + work.parent_row});
    const auto before = std::ranges::count_if(rows, [&](int32_t row) { return at(step_row, row) >= 0; });
    pass.fold = parent.fold + static_cast<size_t>(before) * static_cast<size_t>(shape_.heads_per_kv);
    pass.fold_stride = parent.fold_stride;
    pass.level = parent.level + 1;
  }
  heads_left_[passes_.size()].set(shape_.n_kv_heads);
  passes_.push_back(pass);
}

// In tokens times rows; the tokens that a row sees in its last span only are as good as any.
int64_t AttentionPlan::cost(const Pass& pass, Range spans) const {
  const auto positions = part_of(position_, {pass.first, pass.first + pass.n_rows});
  const int seen =
      std::min(spans.end * kernels::kSpanTokens, positions.back() + 1) - spans.begin * kernels::kSpanTokens;
  return std::max(seen, 1) * (pass.n_rows + kLoadRows);
}

// KV head after KV head over all tiles of a sequence, so that its cache is read from near memory.
void AttentionPlan::cut_level(int level) {
  const auto is_part = [&](const Pass& pass) { return pass.level == level && pass.n_rows > 0; };
  level_cost_ = 0;
  for (const Pass& pass : passes_) level_cost_ += is_part(pass) ? cost(pass, pass.spans) * shape_.n_kv_heads : 0;
  if (level_cost_ == 0) return;
  const int64_t n_parts = shape_.n_parts;
  level_segments_ =
      n_parts == 1 ? 1 : n_parts * std::clamp<int64_t>(level_cost_ / n_parts / kLeastSegment, 1, kSegmentsPerPart);
  given_ = 0;
  open_segment_ = 0;
  segment_begin_ = size_of(chunks_);
  const int first_segment = size_of(segments_);
  for (int begin = 0, end = 0; begin < size_of(passes_); begin = end) {
    const int table = passes_[static_cast<size_t>(begin)].table;
    while (end < size_of(passes_) && passes_[static_cast<size_t>(end)].table == table) ++end;
    for (int kv_head = 0; kv_head < shape_.n_kv_heads; ++kv_head) {
      for (int pass = begin; pass < end; ++pass) {
        if (is_part(passes_[static_cast<size_t>(pass)])) cut_item(pass, kv_head);
      }
    }
  }
  close_segment();
  levels_.push_back({first_segment, size_of(segments_)});
}

void AttentionPlan::close_segment() {
  if (segment_begin_ < size_of(chunks_)) segments_.push_back({segment_begin_, size_of(chunks_)});
  segment_begin_ = size_of(chunks_);
  open_segment_ = std::max(open_segment_ + 1, given_ * level_segments_ / level_cost_);
}

// Segment i ends where i + 1 of level_segments_ parts of the cost have been given out, to the nearest span; ends of items attract it.
void AttentionPlan::cut_item(int pass_index, int kv_head) {
  const Pass& pass = passes_[static_cast<size_t>(pass_index)];
  const int64_t near = level_cost_ / level_segments_ / 8;
  const int64_t span_cost = std::max<int64_t>(cost(pass, {pass.spans.begin, pass.spans.begin + 1}), 1);
  Range& item = items_[item_index({pass_index, kv_head, {}, 0})];
  item.begin = size_of(chunks_);
  for (Range spans{pass.spans.begin, 0}; spans.begin < pass.spans.end; spans.begin = spans.end) {
    const int64_t room = level_cost_ * (open_segment_ + 1) / level_segments_ - given_;
    const int64_t rest = cost(pass, {spans.begin, pass.spans.end});
    spans.end = spans.begin + static_cast<int>(std::max<int64_t>((room + span_cost / 2) / span_cost, 1));
    const size_t slots = product(std::max(pass.spans.end - spans.end, 0), pass.n_rows);
    if (rest <= room + near || n_slots_ + slots > shape_.max_slots) spans.end = pass.spans.end;
    spans.end = std::min(spans.end, pass.spans.end);
    chunks_.push_back({pass_index, kv_head, spans, n_slots_});
    if (spans.begin > pass.spans.begin) n_slots_ += product(spans.size(), pass.n_rows);
    const int64_t given = cost(pass, spans);
    given_ += given;
    if (given + near >= room) close_segment();
  }
  item.end = size_of(chunks_);
  items_left_[item_index({pass_index, kv_head, {}, 0})].set(item.size());
}

}  // namespace pagoda::models
