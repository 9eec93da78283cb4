#include "kv/tier_catalogue.h"

#include <unistd.h>

#include <algorithm>

#include "base/check.h"

namespace pagoda::kv {
Segment::~Segment() {
  if (fd >= 0) ::close(fd);
}

std::optional<TierCatalogue::Place> TierCatalogue::find(const TierObject& object) const {
  const auto found = index_.find(object);
  if (found == index_.end()) return std::nullopt;
  return found->second;
}

std::optional<TierGarbage> TierCatalogue::unpin(Segment& segment) {
  CHECK(segment.n_pins > 0);
  if (--segment.n_pins > 0 || !segment.is_doomed) return std::nullopt;
  const auto at = std::ranges::find_if(segments_, [&](const auto& s) { return s.get() == &segment; });
  CHECK(at != segments_.end());
  return detach_as_garbage(static_cast<size_t>(at - segments_.begin()));
}

std::optional<TierCatalogue::Place> TierCatalogue::take_slot(uint64_t slot_bytes, TierUse use) {
  for (const auto& segment : segments_) {
    if (segment->shape.slot_bytes != slot_bytes || segment->shape.use != use) continue;
    if (segment->is_doomed || segment->free_slots.empty()) continue;
    const uint32_t slot = segment->free_slots.back();
    segment->free_slots.pop_back();
    pin(*segment);
    return Place{.segment = segment.get(), .slot = slot};
  }
  return std::nullopt;
}

void TierCatalogue::publish(Place place, const SlotRecord& record) {
  Segment& segment = *place.segment;
  if (segment.is_doomed || !index_.try_emplace(record.object, place).second) return;
  segment.records[place.slot] = record;
  ++segment.n_objects;
  use(segment);
}

bool TierCatalogue::forget(const TierObject& object) {
  const auto found = index_.find(object);
  if (found == index_.end()) return false;
  Segment& segment = *found->second.segment;
  segment.records[found->second.slot] = {};
  --segment.n_objects;
  index_.erase(found);
  return true;
}

void TierCatalogue::forget_all(Segment& segment) {
  for (SlotRecord& record : segment.records) {
    if (record.bytes > 0) index_.erase(record.object);
    record = {};
  }
  segment.n_objects = 0;
  segment.free_slots.clear();
}

void TierCatalogue::doom(Segment& segment) {
  CHECK(segment.n_pins > 0);
  forget_all(segment);
  segment.is_doomed = true;
}

std::unique_ptr<Segment> TierCatalogue::detach(size_t at) {
  std::unique_ptr<Segment> segment = std::move(segments_[at]);
  segments_[at] = std::move(segments_.back());
  segments_.pop_back();
  return segment;
}

TierGarbage TierCatalogue::detach_as_garbage(size_t at) {
  std::unique_ptr<Segment> segment = detach(at);
  forget_all(*segment);
  return {.path = segment->path, .bytes = segment->shape.file_bytes(), .segment = std::move(segment)};
}

uint64_t TierCatalogue::replay_bytes() const {
  uint64_t bytes = 0;
  for (const auto& segment : segments_)
    bytes += segment->shape.use == TierUse::kReplay ? segment->shape.file_bytes() : 0;
  return bytes;
}

// Of those without pins.
std::optional<size_t> TierCatalogue::oldest(TierUse use) const {
  std::optional<size_t> oldest;
  for (size_t i = 0; i < segments_.size(); ++i) {
    if (segments_[i]->n_pins > 0 || segments_[i]->shape.use != use) continue;
    if (!oldest || segments_[i]->last_use < segments_[*oldest]->last_use) oldest = i;
  }
  return oldest;
}

// The one to go next, if so many bytes of replay points are to come.
std::optional<size_t> TierCatalogue::next_segment(uint64_t new_replay_bytes) const {
  const std::optional<size_t> replay = oldest(TierUse::kReplay), context = oldest(TierUse::kContext);
  if (!replay || !context) return replay ? replay : context;
  return replay_bytes() + new_replay_bytes > replay_budget_bytes_ ? replay : context;
}

std::optional<TierGarbage> TierCatalogue::next_victim(uint64_t new_replay_bytes) {
  if (!quarantined_.empty()) {
    TierGarbage garbage = std::move(quarantined_.back());
    quarantined_.pop_back();
    return garbage;
  }
  const std::optional<size_t> at = next_segment(new_replay_bytes);
  if (!at) return std::nullopt;
  ++reclaimed_segments_;
  reclaimed_objects_ += segments_[*at]->n_objects;
  return detach_as_garbage(*at);
}

std::optional<std::vector<TierGarbage>> TierCatalogue::make_room(uint64_t file_bytes, TierUse use) {
  uint64_t removable = 0;
  for (const TierGarbage& file : quarantined_) removable += file.bytes;
  for (const auto& segment : segments_) removable += segment->n_pins == 0 ? segment->shape.file_bytes() : 0;
  if (file_bytes > budget_bytes_ || used_bytes_ - removable > budget_bytes_ - file_bytes) return std::nullopt;
  return victims_down_to(budget_bytes_ - file_bytes, use == TierUse::kReplay ? file_bytes : 0);
}

bool TierCatalogue::reserve(uint64_t file_bytes) {
  if (used_bytes_ > budget_bytes_ || file_bytes > budget_bytes_ - used_bytes_) return false;
  used_bytes_ += file_bytes;
  return true;
}

void TierCatalogue::add_reserved(std::unique_ptr<Segment> segment) {
  use(*segment);
  segments_.push_back(std::move(segment));
}

void TierCatalogue::add(std::unique_ptr<Segment> segment) {
  Segment& added = *segment;
  used_bytes_ += added.shape.file_bytes();
  add_reserved(std::move(segment));
  for (uint32_t slot = 0; slot < added.records.size(); ++slot) {
    SlotRecord& record = added.records[slot];
    if (record.bytes == 0) continue;
    if (index_.try_emplace(record.object, Place{&added, slot}).second) {
      ++added.n_objects;
    } else {
      record = {};  // written again after an erase
    }
  }
}

void TierCatalogue::add_quarantined(std::string path, uint64_t bytes) {
  used_bytes_ += bytes;
  quarantined_.push_back({.path = std::move(path), .bytes = bytes, .segment = nullptr});
}

std::vector<TierGarbage> TierCatalogue::victims_down_to(uint64_t bytes, uint64_t new_replay_bytes) {
  std::vector<TierGarbage> victims;
  uint64_t going = 0;
  while (used_bytes_ - going > bytes) {
    std::optional<TierGarbage> victim = next_victim(new_replay_bytes);
    if (!victim) break;
    going += victim->bytes;
    victims.push_back(std::move(*victim));
  }
  return victims;
}

bool TierCatalogue::has_doomed() const {
  return std::ranges::any_of(segments_, [](const auto& segment) { return segment->is_doomed; });
}

std::vector<TierGarbage> TierCatalogue::clear() {
  std::vector<TierGarbage> victims = std::move(quarantined_);
  quarantined_.clear();
  for (size_t i = segments_.size(); i-- > 0;) {
    if (segments_[i]->n_pins == 0) {
      victims.push_back(detach_as_garbage(i));
    } else {
      doom(*segments_[i]);
    }
  }
  return victims;
}

Status TierCatalogue::check_integrity() const {
  uint64_t bytes = 0;
  size_t n_objects = 0;
  for (const TierGarbage& file : quarantined_) bytes += file.bytes;
  for (const auto& segment : segments_) {
    bytes += segment->shape.file_bytes();
    uint32_t n_here = 0;
    for (uint32_t slot = 0; slot < segment->records.size(); ++slot) {
      const SlotRecord& record = segment->records[slot];
      if (record.bytes == 0) continue;
      ++n_here;
      const auto place = find(record.object);
      if (!place || place->segment != segment.get() || place->slot != slot) {
        return fail(ErrorCode::kInternal, "slot {} of {} is not where the index says", slot, segment->path);
      }
      if (std::ranges::find(segment->free_slots, slot) != segment->free_slots.end()) {
        return fail(ErrorCode::kInternal, "slot {} of {} is used and free", slot, segment->path);
      }
    }
    if (n_here != segment->n_objects) return fail(ErrorCode::kInternal, "{} miscounts its objects", segment->path);
    if (segment->is_doomed && segment->n_pins == 0)
      return fail(ErrorCode::kInternal, "{} should be gone", segment->path);
    n_objects += n_here;
  }
  if (n_objects != index_.size())
    return fail(ErrorCode::kInternal, "the index has {} objects, not {}", index_.size(), n_objects);
  // Files being deleted are in no list, and still count.
  if (bytes > used_bytes_ || used_bytes_ > budget_bytes_) {
    return fail(ErrorCode::kInternal, "{} bytes in files, {} counted, {} allowed", bytes, used_bytes_, budget_bytes_);
  }
  return {};
}

}  // namespace pagoda::kv
