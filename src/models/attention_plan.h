// AttentionPlan: one step's attention over one group, cut into segments of nearly equal cost for a number of parts. The same for
// every layer of the group.
//   pass     an AttentionWork as kernels want it: a row is one query head, of those that share a KV head, of one token
//   item     a (pass, KV head); its rows are finished together
//   chunk    some of an item's spans. The first of an item folds them; each later one leaves every span's partial apart, in slots,
//            and whoever finishes the item's last chunk folds the slots in order
//   segment  consecutive chunks, which one part takes
//   level    segments that may run at once; the passes of the next one continue from this one's results
// Threads: build() between phases; the rest by all parts.     No allocation within the limits given at creation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/kernels.h"
#include "models/batch.h"
#include "models/countdown.h"

namespace pagoda::models {

class AttentionPlan {
 public:
  struct Shape {
    int n_kv_heads = 0;
    int heads_per_kv = 0;
    int head_dim = 0;
    int row_stride = 0;    // floats from one row of the step to the next, in the buffer of queries
    int max_rows = 0;      // of a step
    int n_parts = 0;       // to cut for
    size_t max_slots = 0;  // partials there is room for, beside the folds
  };
  struct Pass {
    int table = 0;         // of its blocks in the group's list
    int n_rows = 0;        // kernel rows
    int first = 0;         // into row_offset and position
    kernels::Range rows;   // of the step; consecutive unless shared
    kernels::Range spans;  // absolute
    size_t fold = 0;       // partial of the first row and KV head in the folds
    int fold_stride = 0;   // partials to the next KV head's
    int level = 0;
    bool shared = false;
  };
  struct Chunk {
    int pass = 0;
    int kv_head = 0;
    kernels::Range spans;
    size_t slots = 0;  // partial of its first span and row; of no meaning in an item's first chunk
  };

  explicit AttentionPlan(const Shape& shape);

  // `step_row[r]` is where row r of the batch stands in this phase's buffers; negative: nobody needs it.
  void build(const Batch& batch, const GroupBatch& group, std::span<const int32_t> step_row);

  std::span<const kernels::Range> levels() const { return levels_; }  // of segments
  std::span<const Chunk> segment(int i) const;
  const Pass& pass(const Chunk& chunk) const { return passes_[static_cast<size_t>(chunk.pass)]; }
  std::span<const Chunk> item(const Chunk& chunk) const;  // all its chunks, in order
  const uint32_t* row_offset(const Pass& pass) const { return row_offset_.data() + pass.first; }
  const int32_t* position(const Pass& pass) const { return position_.data() + pass.first; }

  // True for the last finisher of an item's chunks, or of a pass's items.
  bool finish_chunk(const Chunk& chunk) { return items_left_[item_index(chunk)].arrive(); }
  bool finish_item(const Chunk& chunk) { return heads_left_[static_cast<size_t>(chunk.pass)].arrive(); }

 private:
  size_t item_index(const Chunk& chunk) const {
    return static_cast<size_t>(chunk.pass) * static_cast<size_t>(shape_.n_kv_heads) +
           static_cast<size_t>(chunk.kv_head);
  }
  void add_pass(const Batch& batch, const GroupBatch& group, const AttentionWork& work,
                std::span<const int32_t> step_row);
  int64_t cost(const Pass& pass, kernels::Range spans) const;
  void cut_level(int level);
  void cut_item(int pass, int kv_head);
  void close_segment();

  const Shape shape_;
  std::vector<Pass> passes_;  // by AttentionWork
  std::vector<uint32_t> row_offset_;
  std::vector<int32_t> position_;
  std::vector<Chunk> chunks_;
  std::vector<kernels::Range> items_;     // of chunks, by item_index
  std::vector<kernels::Range> segments_;  // of chunks
  std::vector<kernels::Range> levels_;
  std::unique_ptr<Countdown[]> items_left_;
  std::unique_ptr<Countdown[]> heads_left_;
  size_t n_folds_ = 0;
  size_t n_slots_ = 0;
  // While a level is cut: what all of it costs, in how many segments, what has been given out, and the segment that is being filled.
  int64_t level_cost_ = 0;
  int64_t level_segments_ = 0;
  int64_t given_ = 0;
  int64_t open_segment_ = 0;
  int segment_begin_ = 0;
};

}  // namespace pagoda::models
