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

// Half-open range of a context's spans (kernels::kSpanTokens tokens each).
struct Spans {
  int begin = 0;
  int end = 0;
  int size() const { return end - begin; }
};

// The rows of one sequence: consecutive tokens at consecutive positions.
struct SequenceRows {
  Rows rows;
  int first_position = 0;
};

// One pass of attention, for every layer and KV head of the group: some rows against a range of spans, read through one sequence's
// table. Rows of several sequences share a pass over spans whose blocks they have in common; what each of them sees behind those is
// a pass of its own, which continues from the shared one's results.
struct AttentionWork {
  int sequence = 0;     // index into Batch::sequences: whose table
  Rows rows;            // into GroupBatch::rows; consecutive rows of that sequence, unless shared
  Spans spans;          // absolute
  int parent = -1;      // earlier in the list: the pass that these rows come from; -1: they start here
  int parent_row = 0;   // where they begin in the parent's rows
  bool shared = false;  // others continue from it, and end at it in no row
};

struct GroupBatch {
  std::vector<kv::BlockId> blocks;  // the sequences' tables, one after another
  std::vector<int> table_begin;     // [n_sequences + 1], into blocks
  std::vector<int32_t> rows;        // of the batch: the passes' rows, one pass after another
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
  std::vector<SampleRow> samples;  // rows in ascending order, each once

  int n_rows() const { return static_cast<int>(tokens.size()); }
};

}  // namespace pagoda::models
