// FakeTier: a tier in memory whose completions come when a test says so, in the order it says, with the faults it says. Tests only.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kv/block_io.h"
#include "kv/tier.h"

namespace pagoda::kv {

class FakeTier final : public TierStore {
 public:
  // What is stored: outlives the store, as a disk does.
  using Objects = std::unordered_map<TierObject, std::vector<std::byte>, TierObjectHash>;

  enum class Index { kKept, kAskedFor };          // disk, Redis
  enum class Answers { kAtOnce, kWhenFinished };  // at the next take_done, or after finish()

  FakeTier(Objects& objects, BlockIo& io, Index index = Index::kKept, Answers answers = Answers::kAtOnce)
      : answers(answers), objects_(objects), io_(io), index_(index) {}

  Presence presence(const TierObject& object) const override {
    if (index_ == Index::kAskedFor) return Presence::kUnknown;
    return objects_.contains(object) ? Presence::kYes : Presence::kNo;
  }
  bool ask(TicketId ticket, std::span<const TierObject> objects) override {
    ++n_asks;
    if (is_down) return false;
    TierDone done{ticket, TierVerb::kAsk, TierOutcome::kDone, {}};
    for (const TierObject& object : objects) done.is_present.push_back(objects_.contains(object) ? 1 : 0);
    work_.push_back([done] { return done; });
    return true;
  }
  bool put(TicketId ticket, const TierObject& object, const TierBlock& block, std::optional<uint32_t>) override {
    if (is_down || work_.size() >= most_queued || objects_.contains(object)) return false;
    work_.push_back([=, this] {
      std::vector<std::byte> bytes(block.bytes);
      io_.copy_out(block.model, object.group, block.block, bytes);
      n_replays += block.use == TierUse::kReplay ? 1 : 0;
      objects_[object] = std::move(bytes);
      return TierDone{ticket, TierVerb::kPut, TierOutcome::kDone, {}};
    });
    return true;
  }
  bool get(TicketId ticket, const TierObject& object, const TierBlock& block) override {
    if (is_down || work_.size() >= most_queued) return false;
    if (index_ == Index::kKept && !objects_.contains(object)) return false;
    ++n_gets;
    work_.push_back([=, this] {
      TierDone done{ticket, TierVerb::kGet, TierOutcome::kDone, {}};
      const auto fault = faults.find(object.key.bytes);
      const auto at = objects_.find(object);
      if (fault != faults.end()) {
        done.outcome = fault->second;
        if (done.outcome == TierOutcome::kCorrupt) objects_.erase(object);  // quarantined
      } else if (at == objects_.end()) {
        done.outcome = TierOutcome::kAbsent;
      } else {
        io_.copy_in(block.model, object.group, block.block, at->second);
      }
      return done;
    });
    return true;
  }
  void erase(const TierObject& object) override { objects_.erase(object); }
  bool clear(TicketId) override { return false; }
  void take_done(std::vector<TierDone>& out) override {
    if (answers == Answers::kAtOnce) finish(work_.size());
    std::ranges::move(done_, std::back_inserter(out));
    done_.clear();
  }
  TierStats stats() const override { return given_stats; }

  size_t n_waiting() const { return work_.size(); }
  // The i-th of what waits is done.
  void finish_at(size_t i) {
    done_.push_back(work_[i]());
    work_.erase(work_.begin() + static_cast<ptrdiff_t>(i));
  }
  void finish(size_t n) {
    for (; n > 0 && !work_.empty(); --n) finish_at(0);
  }

  Answers answers;
  bool is_down = false;
  size_t most_queued = 1000;
  std::map<std::array<std::byte, 32>, TierOutcome> faults;  // of gets, by key
  TierStats given_stats;
  int n_asks = 0, n_gets = 0;
  int n_replays = 0;  // puts of windows' blocks

 private:
  Objects& objects_;
  BlockIo& io_;
  Index index_;
  std::vector<std::function<TierDone()>> work_;
  std::vector<TierDone> done_;
};

}  // namespace pagoda::kv
