// TierCatalogue: what a disk tier knows without I/O: its segments, which slot holds which object, and which segments go for room.
//
// Room. Replay points (tier.h's TierUse) have a part of the budget to themselves, the other blocks the rest; what one does not use the other
// may, until it is wanted: whichever has more than its part gives up the segment used longest ago.
//
// Owns: the segments and their open files.   Units: bytes; last_use counts uses.
// Invariants: (1) used_bytes() <= budget: every file of the folder that is ours counts, whole, from before it is made until after it is
//   gone.  (2) an object has at most one slot.  (3) a pinned segment (I/O queued or under way) keeps its file.  (4) a slot is written once.
// Threads: guarded by the owner.   Errors: none; misuse is a bug -> CHECK.
// Cost: O(1); room for a segment O(segments + objects of the victims).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "kv/tier_format.h"

namespace pagoda::kv {

// An open segment file. Closed when destroyed; its file stays.
struct Segment {
  Segment() = default;
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;
  ~Segment();

  SegmentShape shape;
  std::string path;
  int fd = -1;
  std::vector<SlotRecord> records;   // [n_slots]; bytes 0: no object
  std::vector<uint32_t> free_slots;  // never used since the store was opened; the last one goes next
  uint32_t n_objects = 0;
  uint32_t n_pins = 0;
  uint64_t last_use = 0;
  int64_t stamped_us = 0;  // when the file's time last said that it is in use
  bool is_doomed = false;  // goes with its last pin
};

// A file that counts until it is deleted: a reclaimed or cleared segment, or one that is not understood.
struct TierGarbage {
  std::string path{};
  uint64_t bytes = 0;
  std::unique_ptr<Segment> segment{};  // none: quarantined
};

class TierCatalogue {
 public:
  struct Place {
    Segment* segment = nullptr;
    uint32_t slot = 0;
    const SlotRecord& record() const { return segment->records[slot]; }
  };

  // `replay_budget_bytes`: of budget_bytes.
  TierCatalogue(uint64_t budget_bytes, uint64_t replay_budget_bytes)
      : budget_bytes_(budget_bytes), replay_budget_bytes_(replay_budget_bytes) {}

  uint64_t budget_bytes() const { return budget_bytes_; }
  uint64_t used_bytes() const { return used_bytes_; }
  uint64_t replay_bytes() const;  // O(segments)
  size_t n_objects() const { return index_.size(); }
  size_t n_segments() const { return segments_.size(); }

  std::optional<Place> find(const TierObject& object) const;
  // Marks the segment as used last.
  void use(Segment& segment) { segment.last_use = ++now_; }
  void pin(Segment& segment) { ++segment.n_pins; }
  // What must be deleted if this was the last pin of a doomed segment; freed() is due when it is gone.
  std::optional<TierGarbage> unpin(Segment& segment);

  // A slot of this size and use, of a segment that becomes pinned by it.
  std::optional<Place> take_slot(uint64_t slot_bytes, TierUse use);
  // The object's bytes and record are in the slot. Not if it has one already, or the segment is doomed.
  void publish(Place place, const SlotRecord& record);
  // The object has no place any more. False if it had none.
  bool forget(const TierObject& object);

  // Its objects are gone at once, its file with its last pin. Requires that it is pinned.
  void doom(Segment& segment);
  bool has_doomed() const;  // O(segments)

  // What must be deleted before a new file of file_bytes fits: quarantined files first, then segments. None: room cannot be had, and nothing
  // changed.
  std::optional<std::vector<TierGarbage>> make_room(uint64_t file_bytes, TierUse use);
  // Counts a file that is about to be made. False: there is no room (any more).
  bool reserve(uint64_t file_bytes);
  void add_reserved(std::unique_ptr<Segment> segment);
  // Files that were there when the store was opened. What they have over the budget is for shrink().
  void add(std::unique_ptr<Segment> segment);
  void add_quarantined(std::string path, uint64_t bytes);
  // What must be deleted so that the budget holds.
  std::vector<TierGarbage> shrink() { return victims_down_to(budget_bytes_, 0); }
  // Everything. Pinned segments are doomed, their objects are gone at once.
  std::vector<TierGarbage> clear();
  // A file is gone, or was never made.
  void freed(uint64_t bytes) { used_bytes_ -= bytes; }

  // O(slots): tests.
  Status check_integrity() const;

  uint64_t reclaimed_segments() const { return reclaimed_segments_; }
  uint64_t reclaimed_objects() const { return reclaimed_objects_; }

 private:
  std::unique_ptr<Segment> detach(size_t at);
  TierGarbage detach_as_garbage(size_t at);
  std::optional<size_t> oldest(TierUse use) const;
  std::optional<size_t> next_segment(uint64_t new_replay_bytes) const;
  std::optional<TierGarbage> next_victim(uint64_t new_replay_bytes);
  std::vector<TierGarbage> victims_down_to(uint64_t bytes, uint64_t new_replay_bytes);
  void forget_all(Segment& segment);

  uint64_t budget_bytes_;
  uint64_t replay_budget_bytes_;
  uint64_t used_bytes_ = 0;
  uint64_t now_ = 0;
  std::vector<std::unique_ptr<Segment>> segments_;
  std::vector<TierGarbage> quarantined_;
  std::unordered_map<TierObject, Place, TierObjectHash> index_;
  uint64_t reclaimed_segments_ = 0, reclaimed_objects_ = 0;
};

}  // namespace pagoda::kv
