// EditedLogits: a row of logits with some tokens' changed, seen tile by tile. Edits are a sparse list: the row is never copied, and a
// tile is searched for its maximum again only if that was lowered.
// Threads: engine thread only; reused from row to row, so nothing is allocated but for the largest vocabulary.
// Cost: reset O(tiles + edits), an edit O(1), finish O(edits + lowered tiles), tile() of an edited one a copy of 4 KB.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/token_id.h"
#include "kernels/kernels.h"

namespace pagoda::engine {

// What the executor delivers of one sampling row.
struct LogitsRow {
  std::span<const float> logits;                   // [vocab]
  std::span<const kernels::LogitTile> tiles = {};  // [ceil(vocab / kLogitsTile)]; empty: whoever wants them finds them
};

class EditedLogits {
 public:
  explicit EditedLogits(const kernels::KernelTable& kernels) : kernels_(kernels) {}

  // The row without a change; it must outlive its use here.
  void reset(const LogitsRow& row);
  // The token's logit, to be changed before the next call; null if the row has no such token. After the last one, finish().
  float* edit(TokenId token);
  void finish();

  int n_tiles() const { return static_cast<int>(tiles_.size()); }
  float tile_max(int i) const { return tiles_[static_cast<size_t>(i)].max; }
  static int32_t first_id(int tile) { return tile * kernels::kLogitsTile; }
  // Valid until the next call.
  std::span<const float> tile(int i);
  // The largest logit, the lowest id on ties.
  kernels::LogitTile largest() const { return kernels::largest_tile(tiles_); }
  // At least n logits are this large, and few more: the n-th largest of the tiles' maxima. -inf if n exceeds the tiles.
  float reached_by(int n);

 private:
  static constexpr int32_t kNone = -1;
  struct Edit {
    int32_t id;
    float logit;
    int32_t next;  // edit of the same tile
  };

  kernels::LogitTile& tile_of(const Edit& edit) { return tiles_[static_cast<size_t>(edit.id / kernels::kLogitsTile)]; }
  void find_maximum(int tile);

  const kernels::KernelTable& kernels_;
  LogitsRow row_;
  std::vector<kernels::LogitTile> tiles_;
  std::vector<Edit> edits_;
  std::vector<int32_t> edit_of_;        // [vocab] index into edits_, or kNone
  std::vector<int32_t> first_edit_;     // [n_tiles] likewise
  std::vector<int> lowered_;            // scratch: tiles
  float edited_[kernels::kLogitsTile];  // scratch: the tile last asked for
  std::vector<float> maxima_;           // scratch
};

}  // namespace pagoda::engine
