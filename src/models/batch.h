// Batch: what one forward runs. Plain data that could cross a wire: ids and numbers, no pointers, no thread numbers; each executor
// turns block ids into addresses of its own.   Built by engine/batch_builder, read by executors.
#pragma once

#include <cstdint>
#include <vector>

#include "base/token_id.h"
#include "kv/view.h"

namespace pagoda::models {

// Half-open range of rows.
struct Rows {
  int begin = 0;
  int end = 0;
  int size() const { return end - begin; }
};

// The rows of one sequence: consecutive tokens at consecutive positions.
struct SequenceRows {
  Rows rows;
  int first_position = 0;
};

// A tile of one sequence's rows against all spans that they see, for every layer and KV head of the group.
struct AttentionWork {
  int sequence = 0;  // index into Batch::sequences
  Rows rows;
};

struct GroupBatch {
  std::vector<kv::BlockId> blocks;  // the sequences' tables, one after another
  std::vector<int> table_begin;     // [n_sequences + 1], into blocks
  std::vector<AttentionWork> work;
};

enum class SampleMode : uint8_t {
  kGreedy,  // the index of the largest logit is enough
  kLogits,  // the whole row
};

struct SampleRow {
  int row = 0;
  SampleMode mode = SampleMode::kLogits;
};

struct Batch {
  kv::ModelId model;
  std::vector<TokenId> tokens;     // [n_rows]
  std::vector<int32_t> positions;  // [n_rows]
  std::vector<uint16_t> adapters;  // [n_rows] 0 = none
  std::vector<SequenceRows> sequences;
  std::vector<GroupBatch> groups;  // by attention group of the model
  std::vector<SampleRow> samples;  // rows in ascending order

  int n_rows() const { return static_cast<int>(tokens.size()); }
};

}  // namespace pagoda::models
