// Scheduler, the planning half: what runs next, and whose blocks it takes.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "sched/scheduler.h"

namespace pagoda::sched {

void Scheduler::next_step(StepPlan& plan) {
  CHECK(!in_flight_);
  plan.clear();
  planned_.clear();
  complete_tickets();
  resume_late();
  do {
    plan_any(plan);
  } while (plan.empty() && resume_stuck());
  in_flight_ = !plan.empty();
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
  const int32_t n_decodes = static_cast<int32_t>(plan.rows.size());
  const int32_t step_tokens = n_decodes == 0 ? config_.max_prefill_rows() : config_.step_tokens;
  int32_t budget = std::max(step_tokens - n_decodes, std::max(1, config_.step_tokens / 10));
  budget = plan_prefills(line, budget, plan);
  plan_starts(line, budget, plan);
  if (plan.empty()) plan.block_ops.clear();  // their blocks were taken back
}

// In the loops below grant() removes nothing in front of index i: victims stand behind, and an ended sequence is the one at i.
void Scheduler::plan_decodes(ModelLine& line, StepPlan& plan) {
  for (size_t i = 0; i < line.running.size();) {
    Sequence& seq = *line.running[i];
    const bool wants_row = seq.state() == SeqState::kDecoding && !seq.waiting_on();
    if (!wants_row || grant(line, seq, 1, plan) != Grant::kEnded) ++i;
  }
}

// Returns what is left of the budget.
int32_t Scheduler::plan_prefills(ModelLine& line, int32_t budget, StepPlan& plan) {
  for (size_t i = 0; i < line.running.size() && budget > 0;) {
    Sequence& seq = *line.running[i];
    const int32_t chunk = chunk_of(seq, budget);
    if (seq.state() != SeqState::kPrefilling || seq.waiting_on() || chunk == 0) {
      ++i;
      continue;
    }
    const Grant grant_given = grant(line, seq, chunk, plan);
    if (grant_given == Grant::kRows) budget -= plan.rows.back().n_tokens;
    if (grant_given != Grant::kEnded) ++i;
  }
  return budget;
}

// One that finds no room, or waits, holds up those behind it in line only.
void Scheduler::plan_starts(ModelLine& line, int32_t budget, StepPlan& plan) {
  if (line.waiting.empty() || budget <= 0 || line.running.size() >= static_cast<size_t>(config_.max_running)) return;
  estimate_hits(line);
  for (Sequence* seq : start_order_.of(line.waiting, clock_.now_us())) {
    if (budget <= 0 || line.running.size() >= static_cast<size_t>(config_.max_running)) return;
    const int32_t chunk = chunk_of(*seq, budget);
    if (chunk == 0) return;
    if (seq->waiting_on()) continue;
    // Those that were set aside in line will run: no more than can.
    const bool is_full = line.running.size() + pinned_.size() >= static_cast<size_t>(config_.max_running);
    if (is_full && std::ranges::find(pinned_, seq) == pinned_.end()) continue;
    if (!may_start(line, *seq)) {
      block(*seq);
      continue;
    }
    if (grant(line, *seq, chunk, plan) != Grant::kRows) continue;
    budget -= plan.rows.back().n_tokens;
    std::erase(line.waiting, seq);
    std::erase(pinned_, seq);
    insert_in_order(line.running, *seq);
    seq->start();
  }
}

// A glance at the index for those who may start soon; what it says holds for a while.
void Scheduler::estimate_hits(const ModelLine& line) {
  constexpr int64_t kFreshUs = 100'000;
  if (line.waiting.size() < 2) return;
  const int64_t now_us = clock_.now_us();
  for (size_t i = 0; i < std::min(line.waiting.size(), StartOrder::kLookAhead); ++i) {
    Sequence& seq = *line.waiting[i];
    if (seq.hit_us >= 0 && now_us - seq.hit_us < kFreshUs) continue;
    const bool may_match = seq.lease.reuse == kv::PrefixReuse::kMatch;
    seq.hit_tokens = may_match ? line.cache->match_tokens(seq.lease.cache_namespace(), seq.tokens()) : 0;
    seq.hit_us = now_us;
  }
}

// Nobody overtakes one who waits for room. Whoever starts has room for all it knows by now, and leaves the others a block each to
// grow into: starting only to be preempted at once is work for nothing. Where nobody runs, it may try in any case.
bool Scheduler::may_start(const ModelLine& line, const Sequence& seq) const {
  if (blocked_ && policy_.before(*blocked_, seq)) return false;
  if (std::ranges::all_of(lines_, [](const ModelLine& other) { return other.running.empty(); })) return true;
  const int32_t chunk = std::max(1, chunk_of(seq, config_.step_tokens));
  return line.cache->has_room(seq.lease, seq.tokens(), chunk, static_cast<uint32_t>(line.running.size()));
}

// 0: a step's logits are used up.
int32_t Scheduler::chunk_of(const Sequence& seq, int32_t budget) const {
  int32_t most = config_.chunk_tokens > 0 ? std::min(config_.chunk_tokens, budget) : budget;
  if (seq.prompt_logits() == PromptLogits::kAll) {
    most = std::min(most, std::max(0, seq.n_logits_done() - seq.n_computed()) + logits_left_);
  }
  return std::min(seq.n_to_compute(), most);
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
  if (policy_.before(seq, *victim) && (seq.is_running() || !victim->is_running())) {
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
    insert_in_order(line.waiting, victim);
  }
  victim.preempt();
  plan.preempted.push_back(victim.id());
  ++stats_.preemptions;
}

}  // namespace pagoda::sched
