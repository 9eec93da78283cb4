#include "engine/edited_logits.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>

namespace pagoda::engine {

using kernels::kLogitsTile;

void EditedLogits::reset(const LogitsRow& row) {
  row_ = row;
  tiles_.assign(row.tiles.begin(), row.tiles.end());
  if (tiles_.empty()) {
    tiles_.resize((row.logits.size() + kLogitsTile - 1) / kLogitsTile);
    kernels_.logit_tiles(row.logits.data(), static_cast<int>(row.logits.size()), tiles_.data());
  }
  for (const Edit& edit : edits_) edit_of_[static_cast<size_t>(edit.id)] = kNone;
  edits_.clear();
  first_edit_.assign(tiles_.size(), kNone);
}

float* EditedLogits::edit(TokenId token) {
  if (token.value < 0 || static_cast<size_t>(token.value) >= row_.logits.size()) return nullptr;
  if (edit_of_.size() < row_.logits.size()) edit_of_.resize(row_.logits.size(), kNone);
  const auto id = static_cast<size_t>(token.value);
  if (edit_of_[id] == kNone) {
    const size_t tile = id / kLogitsTile;
    edit_of_[id] = static_cast<int32_t>(edits_.size());
    edits_.push_back({.id = token.value, .logit = row_.logits[id], .next = first_edit_[tile]});
    first_edit_[tile] = edit_of_[id];
  }
  return &edits_[static_cast<size_t>(edit_of_[id])].logit;
}

void EditedLogits::finish() {
  lowered_.clear();
  for (const Edit& edit : edits_) {
    kernels::LogitTile& tile = tile_of(edit);
    if (edit.id != tile.index) continue;
    if (!(edit.logit >= tile.max)) lowered_.push_back(edit.id / kLogitsTile);
    tile.max = edit.logit;
  }
  for (const Edit& edit : edits_) {
    kernels::LogitTile& tile = tile_of(edit);
    if (edit.logit > tile.max || (edit.logit == tile.max && edit.id < tile.index)) tile = {edit.logit, edit.id};
  }
  for (const int tile : lowered_) find_maximum(tile);
}

void EditedLogits::find_maximum(int i) {
  const std::span<const float> logits = tile(i);
  kernels::LogitTile& largest = tiles_[static_cast<size_t>(i)];
  kernels_.logit_tiles(logits.data(), static_cast<int>(logits.size()), &largest);
  largest.index += first_id(i);
}

std::span<const float> EditedLogits::tile(int i) {
  const auto begin = static_cast<size_t>(first_id(i));
  const auto original = row_.logits.subspan(begin, std::min<size_t>(kLogitsTile, row_.logits.size() - begin));
  int32_t e = first_edit_[static_cast<size_t>(i)];
  if (e == kNone) return original;
  std::memcpy(edited_, original.data(), original.size_bytes());
  while (e != kNone) {
    const Edit& edit = edits_[static_cast<size_t>(e)];
    edited_[edit.id - first_id(i)] = edit.logit;
    e = edit.next;
  }
  return {edited_, original.size()};
}

float EditedLogits::reached_by(int n) {
  if (n > n_tiles()) return -std::numeric_limits<float>::infinity();
  maxima_.clear();
  for (const kernels::LogitTile& tile : tiles_) maxima_.push_back(tile.max);
  const auto nth = maxima_.begin() + (n - 1);
  std::nth_element(maxima_.begin(), nth, maxima_.end(), std::greater<>());
  return *nth;
}

}  // namespace pagoda::engine
