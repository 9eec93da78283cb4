#include "engine/batch_builder.h"

#include <algorithm>

#include "kernels/kernels.h"

namespace pagoda::engine {

void BatchBuilder::begin(kv::ModelId model, size_t n_groups) {
  batch_.model = model;
  batch_.tokens.clear();
  batch_.positions.clear();
  batch_.adapters.clear();
  batch_.sequences.clear();
  batch_.samples.clear();
  batch_.groups.resize(n_groups);
  for (models::GroupBatch& group : batch_.groups) {
    group.blocks.clear();
    group.table_begin.assign(1, 0);
    group.work.clear();
  }
}

void BatchBuilder::add_rows(const sched::SeqRows& rows, const sched::Sequence& sequence, int heads_per_kv,
                            models::SampleMode mode) {
  const int begin = batch_.n_rows();
  const auto tokens =
      sequence.tokens().subspan(static_cast<size_t>(rows.first_position), static_cast<size_t>(rows.n_tokens));
  batch_.tokens.insert(batch_.tokens.end(), tokens.begin(), tokens.end());
  for (int i = 0; i < rows.n_tokens; ++i) batch_.positions.push_back(rows.first_position + i);
  batch_.adapters.resize(batch_.tokens.size(), 0);
  const int end = batch_.n_rows();
  const int index = static_cast<int>(batch_.sequences.size());
  batch_.sequences.push_back({{begin, end}, rows.first_position});

  const int tile_tokens = std::max(1, kernels::kAttentionMaxRows / heads_per_kv);
  for (size_t g = 0; g < batch_.groups.size(); ++g) {
    models::GroupBatch& group = batch_.groups[g];
    const auto blocks = sequence.lease.blocks(kv::GroupId(static_cast<uint32_t>(g)));
    group.blocks.insert(group.blocks.end(), blocks.begin(), blocks.end());
    group.table_begin.push_back(static_cast<int>(group.blocks.size()));
    for (int row = begin; row < end; row += tile_tokens)
      group.work.push_back({index, {row, std::min(row + tile_tokens, end)}});
  }
  for (int row = end - rows.n_logits; row < end; ++row) {
    batch_.samples.push_back({row, row + 1 == end ? mode : models::SampleMode::kLogits});
  }
}

}  // namespace pagoda::engine
