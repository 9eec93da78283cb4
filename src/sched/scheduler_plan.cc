// Scheduler, planning: what runs next, and whose blocks it takes. Prefills and starts: scheduler_prefill.cc.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "sched/scheduler.h"

namespace pagoda::sched {
void Scheduler::next_step(StepPlan& plan) {
  CHECK(!in_flight_);
  plan.clear();
  planned_.clear();
  begin_us_ = clock_.now_us();
  expire(plan);
  complete_tickets();
  resume_late();
  do {
    plan_any(plan);
  } while (plan.empty() && resume_stuck());
  in_flight_ = !plan.empty();
  load_ = plan.load();
  publish();
}

void Scheduler::plan_any(StepPlan& plan) {
  for (size_t i = 0; i < lines_.size() && plan.empty(); ++i) {
    const size_t index = (turn_ + i) % lines_.size();
    plan.model = lines_[index].cache->model();
    plan_model(lines_[index], plan);
    if (!plan.empty()) turn_ = (index + 1) % lines_.size();
  }
}

void Scheduler::plan_model(ModelLine& line, StepPlan& plan) {
  // Each sequence that may have rows has one logits row of its own; prompts share the rest.
  const size_t n_most = std::min(line.running.size() + line.waiting.size(), static_cast<size_t>(config_.max_running));
  logits_left_ = config_.max_logits - static_cast<int32_t>(n_most);
  plan_decodes(line, plan);
  plan_prefills(line, budget_of(line, plan), plan);
  if (plan.empty()) plan.block_ops.clear();  // their blocks were taken back
}

// grant() removes nothing in front of index i: victims stand behind, and an ended sequence is the one at i.
void Scheduler::plan_decodes(ModelLine& line, StepPlan& plan) {
  for (size_t i = 0; i < line.running.size();) {
    Sequence& seq = *line.running[i];
    const bool wants_row = seq.state() == SeqState::kDecoding && !seq.waiting_on();
    if (!wants_row || grant(line, seq, 1, plan) != Grant::kEnded) ++i;
  }
}

// Asks the cache for room for the sequence's next n tokens, and puts them in the plan.
Scheduler::Grant Scheduler::grant(ModelLine& line, Sequence& seq, int32_t n_tokens, StepPlan& plan) {
  CHECK(n_tokens > 0);
  for (;;) {
    const kv::Admission answer = line.cache->admit(seq.lease, seq.tokens(), n_tokens, plan.block_ops);
    if (const auto* granted = std::get_if<kv::Granted>(&answer)) {
      add_rows(seq, *granted, plan);
      return Grant::kRows;
    }
    if (const auto* wait = std::get_if<kv::WaitOn>(&answer)) {
      set_aside(seq, *wait);
      return Grant::kSetAside;
    }
    const Room room = make_room(seq, n_tokens, plan);
    if (room != Room::kAskAgain) return room == Room::kNone ? Grant::kNoSpace : Grant::kEnded;
  }
}

// After NoSpace: takes the blocks of the last in line, if that one stands behind `seq`. Who only waits takes none from who runs.
// When nobody else holds any, the chunk is too long for the budget; and if it is one token, so is the sequence: or its blocks lie
// scattered, as hits do, and leave no whole extent to another group.
Scheduler::Room Scheduler::make_room(Sequence& seq, int32_t& n_tokens, StepPlan& plan) {
  Sequence* victim = last_holder(seq);
  // What is being loaded is nobody's, and comes free or cached when it has come: next_step is asked again then.
  if (!victim && find_line(seq.model())->cache->is_loading()) {
    block(seq);
    return Room::kNone;
  }
  if (!victim && n_tokens > 1) {
    n_tokens /= 2;
    return Room::kAskAgain;
  }
  if (!victim && seq.lease.reuse == kv::PrefixReuse::kMatch && seq.lease.holds_blocks() &&
      seq.n_tokens() <= find_line(seq.model())->cache->capacity_tokens()) {
    return start_over(seq);
  }
  if (!victim) {
    plan.ended.push_back({seq.id(), FinishReason::kLength});
    erase(seq, FinishReason::kLength);
    return Room::kEnded;
  }
  const bool may_take = policy_.before(seq, *victim) && (seq.is_running() || !victim->is_running());
  if (!may_take) victim = last_of_many(seq);
  if (victim) {
    preempt(*victim, plan);
    return Room::kAskAgain;
  }
  block(seq);
  return Room::kNone;
}

// Alone, in an empty pool, one block after the other.
Scheduler::Room Scheduler::start_over(Sequence& seq) {
  find_line(seq.model())->cache->release(seq.lease, kv::LeaseEnd::kPause);
  seq.lease.reuse = kv::PrefixReuse::kNoRoom;
  if (seq.state() != SeqState::kDecoding) return Room::kAskAgain;
  seq.recompute();
  return Room::kNone;  // its turn comes with the prefills
}

// The rows are what the cache granted: where it found tokens already computed, the first position is behind them.
void Scheduler::add_rows(Sequence& seq, const kv::Granted& granted, StepPlan& plan) {
  if (blocked_ == &seq) blocked_ = nullptr;
  stats_.reused_tokens += static_cast<uint64_t>(seq.rows_granted(granted));
  SeqRows rows{
      .seq = seq.id(), .first_position = seq.n_computed(), .n_tokens = seq.lease.n_written() - seq.n_computed()};
  if (seq.prompt_logits() == PromptLogits::kAll) {
    rows.n_logits = std::clamp(seq.lease.n_written() - seq.n_logits_done(), 0, rows.n_tokens);
    if (seq.state() != SeqState::kDecoding) logits_left_ -= rows.n_logits;
  }
  if (seq.lease.n_written() == seq.n_tokens()) {
    rows.sampling = Sampling::kLastRow;
    rows.n_logits = std::max(rows.n_logits, 1);
  }
  plan.rows.push_back(rows);
  planned_.push_back({.seq = &seq});
}

// Of all that hold blocks, the last in line; null if only `except` does.
Sequence* Scheduler::last_holder(const Sequence& except) const {
  Sequence* last = nullptr;
  const auto consider = [&](Sequence* seq) {
    if (seq == &except || !seq->lease.holds_blocks()) return false;
    if (!last || policy_.before(*last, *seq)) last = seq;
    return true;
  };
  for (const ModelLine& line : lines_) {
    for (auto seq = line.running.rbegin(); seq != line.running.rend() && !consider(*seq); ++seq) {
    }
  }
  for (Sequence* seq : pinned_) consider(seq);
  return last;
}

void Scheduler::preempt(Sequence& victim, StepPlan& plan) {
  ModelLine& line = *find_line(victim.model());
  line.cache->release(victim.lease, kv::LeaseEnd::kPause);
  victim.lease.patience = kv::Patience::kMayWait;
  if (victim.waiting_on()) resume(victim);
  const auto planned = std::ranges::find(planned_, &victim, &Planned::seq);
  if (planned != planned_.end()) {
    victim.rows_withdrawn();
    plan.rows.erase(plan.rows.begin() + (planned - planned_.begin()));
    planned_.erase(planned);
  }
  std::erase(pinned_, &victim);
  if (victim.is_running()) {
    std::erase(line.running, &victim);
    shares_.stop(victim.share().tenant);
    insert_in_order(line.waiting, victim);
  }
  victim.preempt();
  plan.preempted.push_back(victim.id());
  ++stats_.preemptions;
}

}  // namespace pagoda::sched
