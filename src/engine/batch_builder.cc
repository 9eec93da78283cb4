#include "engine/batch_builder.h"

#include <algorithm>

#include "kernels/kernels.h"

namespace pagoda::engine {
namespace {

std::span<const kv::BlockId> table_of(const models::GroupBatch& group, int sequence) {
  const auto s = static_cast<size_t>(sequence);
  const auto begin = static_cast<size_t>(group.table_begin[s]);
  return std::span(group.blocks).subspan(begin, static_cast<size_t>(group.table_begin[s + 1]) - begin);
}

void append_rows(models::GroupBatch& group, models::Rows rows) {
  for (int row = rows.begin; row < rows.end; ++row) group.rows.push_back(row);
}

}  // namespace

void BatchBuilder::begin(kv::ModelId model, std::span<const models::AttentionGroup> groups, int heads_per_kv) {
  groups_ = groups;
  tile_tokens_ = std::max(1, kernels::kAttentionMaxRows / heads_per_kv);
  batch_.model = model;
  batch_.tokens.clear();
  batch_.positions.clear();
  batch_.adapters.clear();
  batch_.sequences.clear();
  batch_.samples.clear();
  batch_.groups.resize(groups.size());
  for (models::GroupBatch& group : batch_.groups) {
    group.blocks.clear();
    group.table_begin.assign(1, 0);
    group.rows.clear();
    group.work.clear();
  }
}

void BatchBuilder::add(const sched::SeqRows& rows, const sched::Sequence& sequence, models::SampleMode mode) {
  input_.tokens =
      sequence.tokens().subspan(static_cast<size_t>(rows.first_position), static_cast<size_t>(rows.n_tokens));
  input_.first_position = rows.first_position;
  input_.n_logits = rows.n_logits;
  input_.last_row = mode;
  input_.tables.clear();
  for (size_t g = 0; g < batch_.groups.size(); ++g)
    input_.tables.push_back(sequence.lease.blocks(kv::GroupId(static_cast<uint32_t>(g))));
  add(input_);
}

void BatchBuilder::add(const SequenceInput& input) {
  const int begin = batch_.n_rows();
  batch_.tokens.insert(batch_.tokens.end(), input.tokens.begin(), input.tokens.end());
  const int end = batch_.n_rows();
  for (int i = 0; i < end - begin; ++i) batch_.positions.push_back(input.first_position + i);
  batch_.adapters.resize(batch_.tokens.size(), 0);
  batch_.sequences.push_back({{begin, end}, input.first_position});
  for (size_t g = 0; g < batch_.groups.size(); ++g) {
    models::GroupBatch& group = batch_.groups[g];
    group.blocks.insert(group.blocks.end(), input.tables[g].begin(), input.tables[g].end());
    group.table_begin.push_back(static_cast<int>(group.blocks.size()));
  }
  for (int row = end - input.n_logits; row < end; ++row)
    batch_.samples.push_back({row, row + 1 == end ? input.last_row : models::SampleMode::kLogits});
}

const models::Batch& BatchBuilder::finish() {
  for (size_t g = 0; g < batch_.groups.size(); ++g) plan_work(batch_.groups[g], groups_[g].window);
  return batch_;
}

// Sorted by their blocks, sequences with a common beginning stand side by side, and what the first and the last of some have in
// common, all between have.
void BatchBuilder::plan_work(models::GroupBatch& group, int window) {
  const int n = static_cast<int>(batch_.sequences.size());
  members_.clear();
  shareable_.clear();
  for (int s = 0; s < n; ++s) {
    const models::SequenceRows& sequence = batch_.sequences[static_cast<size_t>(s)];
    const bool sees_all = window == 0 || sequence.first_position + sequence.rows.size() <= window;
    const bool is_small = sequence.rows.size() <= tile_tokens_;
    shareable_.push_back(sees_all && is_small ? sequence.first_position / kernels::kSpanTokens : 0);
    if (shareable_.back() > 0) {
      members_.push_back(s);
    } else {
      add_tiles(group, s, {}, window);
    }
  }
  const auto before = [&](int a, int b) {
    const auto beginning = [&](int s) {
      return table_of(group, s).first(static_cast<size_t>(shareable_[static_cast<size_t>(s)] * kernels::kSpanBlocks));
    };
    return std::ranges::lexicographical_compare(beginning(a), beginning(b), {}, &kv::BlockId::value,
                                                &kv::BlockId::value);
  };
  std::ranges::sort(members_, before);
  share(group, {0, static_cast<int>(members_.size())}, 0, -1, window);
}

int BatchBuilder::common_spans(const models::GroupBatch& group, int a, int b) const {
  const int most = std::min(shareable_[static_cast<size_t>(a)], shareable_[static_cast<size_t>(b)]);
  const auto blocks = table_of(group, a).first(static_cast<size_t>(most * kernels::kSpanBlocks));
  const auto first_other = std::ranges::mismatch(blocks, table_of(group, b)).in1;
  return static_cast<int>(first_other - blocks.begin()) / kernels::kSpanBlocks;
}

// Members [members), all of which have spans [0, first_span) in common behind them, in pass `parent`: runs of those that have more.
void BatchBuilder::share(models::GroupBatch& group, models::Rows members, int first_span, int parent, int window) {
  const auto member = [&](int i) { return members_[static_cast<size_t>(i)]; };
  const auto n_rows = [&](int i) { return batch_.sequences[static_cast<size_t>(member(i))].rows.size(); };
  int parent_row = 0;
  for (int begin = members.begin, end = begin; begin < members.end; begin = end) {
    int rows = n_rows(end++);
    while (end < members.end && rows + n_rows(end) <= tile_tokens_ &&
           common_spans(group, member(begin), member(end)) > first_span)
      rows += n_rows(end++);
    models::AttentionWork work;
    work.spans.begin = first_span;
    work.parent = parent;
    work.parent_row = parent_row;
    parent_row += rows;
    if (end - begin == 1) {
      add_tiles(group, member(begin), work, window);
      continue;
    }
    work.sequence = member(begin);
    work.spans.end = common_spans(group, member(begin), member(end - 1));
    work.shared = true;
    work.rows.begin = static_cast<int>(group.rows.size());
    for (int i = begin; i < end; ++i) append_rows(group, batch_.sequences[static_cast<size_t>(member(i))].rows);
    work.rows.end = static_cast<int>(group.rows.size());
    group.work.push_back(work);
    share(group, {begin, end}, work.spans.end, static_cast<int>(group.work.size()) - 1, window);
  }
}

// The sequence's own passes, in tiles: all that its rows see, or what follows a shared pass.
void BatchBuilder::add_tiles(models::GroupBatch& group, int index, models::AttentionWork work, int window) const {
  const models::SequenceRows& sequence = batch_.sequences[static_cast<size_t>(index)];
  const auto position = [&](int row) { return sequence.first_position + row - sequence.rows.begin; };
  for (int row = sequence.rows.begin; row < sequence.rows.end; row += tile_tokens_) {
    const models::Rows rows{row, std::min(row + tile_tokens_, sequence.rows.end)};
    const int first_seen = window == 0 ? 0 : std::max(0, position(rows.begin) - window + 1);
    if (work.parent < 0) work.spans.begin = first_seen / kernels::kSpanTokens;
    work.spans.end = position(rows.end - 1) / kernels::kSpanTokens + 1;
    work.sequence = index;
    work.rows.begin = static_cast<int>(group.rows.size());
    append_rows(group, rows);
    work.rows.end = static_cast<int>(group.rows.size());
    group.work.push_back(work);
  }
}

}  // namespace pagoda::engine
