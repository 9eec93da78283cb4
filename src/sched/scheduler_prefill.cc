// Scheduler, prefills: whose prompts are computed next and how much of them, and who may start at all.
#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "base/check.h"
#include "sched/scheduler.h"

namespace pagoda::sched {
namespace {

constexpr int64_t kTargetUs = 100'000;  // automatic
constexpr double kMargin = 0.9;         // of the target is planned for: steps differ
constexpr double kDecodeShare =
    0.4;  // of the target: more sequences do not run at once, so that a prompt that comes finds time
constexpr int64_t kAutoSteps = 4;     // of a single row
constexpr int64_t kQuietTargets = 4;  // a step in which nobody waits for the next token may take as many
constexpr int32_t kFirstRows = 64;    // beside decodes, while nothing is known of what a row costs
constexpr int32_t kLeastRows = 16;    // of a chunk that others had their share before: fewer cost nearly as much
constexpr size_t kLeastRunning = 4;   // however slow they are together
constexpr size_t kMostStarts = 64;    // of one step

bool wants_prefill(const Sequence& seq) { return seq.state() == SeqState::kPrefilling && !seq.waiting_on(); }

}  // namespace

// The automatic one follows the machine: no step is shorter than that of a single row.
int64_t Scheduler::target_us(const ModelLine& line) const {
  if (config_.target_us != kAutoTarget) return config_.target_us;
  StepLoad one;
  one.add_decode(0);
  return std::max(kTargetUs, static_cast<int64_t>(kAutoSteps * line.step_time.predict_us(one)));
}

// Prefills get at least a tenth of a step, in rows and in time.
Scheduler::Budget Scheduler::budget_of(const ModelLine& line, const StepPlan& plan) const {
  const int32_t n_decodes = static_cast<int32_t>(plan.rows.size());
  const int32_t step_tokens = n_decodes == 0 ? config_.max_prefill_rows() : config_.step_tokens;
  Budget budget{std::max(step_tokens - n_decodes, std::max(1, config_.step_tokens / 10)),
                std::numeric_limits<double>::infinity()};
  const auto target = static_cast<double>(target_us(line));
  if (target == 0) return budget;
  if (!line.step_time.knows_prefills()) {
    if (n_decodes > 0) budget.rows = std::min(budget.rows, kFirstRows);
    return budget;
  }
  const double decodes_us = line.step_time.predict_us(plan.load());
  budget.us = n_decodes == 0 ? kQuietTargets * target
                             : std::max(kMargin * target - decodes_us, std::max(target, decodes_us) / 10);
  return budget;
}

bool Scheduler::Candidate::ranks_before(const Candidate& other) const {
  return std::tuple(priority, !is_owed, served, work, seq->order()) <
         std::tuple(other.priority, !other.is_owed, other.served, other.work, other.seq->order());
}

// Tenants that are two steps apart, at most, are even: who has a little to compute does not wait for a little advantage.
Scheduler::Candidate Scheduler::candidate_of(Sequence& seq) const {
  const Share& share = seq.share();
  const int32_t hit_tokens = seq.is_running() ? 0 : seq.hit_tokens;
  const int64_t waited_us = seq.is_running() ? 0 : clock_.now_us() - seq.queued_us();
  return {.seq = &seq,
          .priority = std::max(best_priority_, share.priority - waited_us / config_.age_us),
          .is_owed = shares_.is_owed(share.tenant),
          .served = std::max(0.0, shares_.served(share.tenant) - shares_.least_served() - 2 * config_.step_tokens),
          .work = std::max(1, seq.n_to_compute() - hit_tokens)};
}

// Who wants prefill rows. Those in line keep the order in which they are to start; no step starts more than some.
void Scheduler::rank(ModelLine& line) {
  ranked_.clear();
  best_priority_ = INT64_MAX;
  for (const Sequence* seq : line.running) best_priority_ = std::min<int64_t>(best_priority_, seq->share().priority);
  for (const Sequence* seq : line.waiting) best_priority_ = std::min<int64_t>(best_priority_, seq->share().priority);
  for (Sequence* seq : line.running) {
    if (wants_prefill(*seq)) ranked_.push_back(candidate_of(*seq));
  }
  std::ranges::sort(ranked_, [](const Candidate& a, const Candidate& b) { return a.ranks_before(b); });
  if (line.waiting.empty()) return;
  estimate_hits(line);
  size_t at = 0, n_starts = 0;
  for (Sequence* seq : start_order_.of(line.waiting, clock_.now_us(), shares_)) {
    if (seq->waiting_on() || (n_starts >= kMostStarts && !is_pinned(*seq))) continue;
    ++n_starts;
    const Candidate candidate = candidate_of(*seq);
    while (at < ranked_.size() && !candidate.ranks_before(ranked_[at])) ++at;
    ranked_.insert(ranked_.begin() + static_cast<ptrdiff_t>(at++), candidate);
  }
}

// The first in line goes first, for it must find room: with a quarter of the budget, or what those that rank before it, and can run, leave.
Scheduler::Budget Scheduler::first_budget(const ModelLine& line, Sequence& first, const Budget& budget) const {
  const Candidate own = candidate_of(first);
  const size_t n_taken = line.running.size() + pinned_.size(), n_most = static_cast<size_t>(config_.max_running);
  size_t n_slots = blocked_ || !is_within_target(line) ? 0 : n_most - std::min(n_most, n_taken);
  Budget left = budget;
  for (const Candidate& other : ranked_) {
    if (!other.ranks_before(own) || left.rows == 0 || left.us <= 0) break;
    if (!other.seq->is_running() && !other.is_owed) {
      if (n_slots == 0) continue;
      --n_slots;
    }
    left.rows -= std::min(left.rows, other.work);
    left.us -= line.step_time.prefill_us(other.work, other.seq->n_computed());
  }
  const int kept = ranked_.empty() || !ranked_.front().is_owed ? 4 : 16;  // whoever is owed has one step of it
  return {std::max(left.rows, std::max(1, budget.rows / kept)), std::max(left.us, budget.us / kept)};
}

void Scheduler::plan_prefills(ModelLine& line, Budget budget, StepPlan& plan) {
  rank(line);
  const auto plan_one = [&](Sequence& seq, const Budget& most) {
    const int32_t chunk = chunk_in(line, seq, most, plan);
    if (chunk == 0) return;
    const bool has_rows = wants_prefill(seq) ? grant(line, seq, chunk, plan) == Grant::kRows
                                             : !seq.is_running() && plan_start(line, seq, chunk, plan);
    if (!has_rows) return;
    const SeqRows& rows = plan.rows.back();
    budget.rows -= rows.n_tokens;
    budget.us -= line.step_time.prefill_us(rows.n_tokens, rows.first_position);
  };
  const auto first = std::ranges::find_if(line.running, [](const Sequence* seq) { return wants_prefill(*seq); });
  const Sequence* const favoured = first == line.running.end() ? nullptr : *first;
  if (favoured) plan_one(**first, first_budget(line, **first, budget));
  for (const Candidate& candidate : ranked_) {
    if (candidate.seq != favoured) plan_one(*candidate.seq, budget);
  }
}

// Rows that the budget has for a sequence; 0: none, or so few that they wait for a step of their own.
int32_t Scheduler::chunk_in(const ModelLine& line, const Sequence& seq, const Budget& most,
                            const StepPlan& plan) const {
  if (most.rows <= 0 || most.us <= 0) return 0;
  const int32_t chunk = chunk_of(line, seq, most);
  const bool is_crumb = std::isfinite(most.us) && chunk < std::min(kLeastRows, seq.n_to_compute());
  return is_crumb && plan.load().prefill_rows > 0 ? 0 : chunk;
}

// One that finds no room, or waits, holds up those behind it in line only.
bool Scheduler::plan_start(ModelLine& line, Sequence& seq, int32_t chunk, StepPlan& plan) {
  const Slot slot = slot_for(line, seq);
  if (!slot.is_there) return false;
  if (!may_start(line, seq)) {
    block(seq);
    return false;
  }
  if (slot.victim) preempt(*slot.victim, plan);
  if (grant(line, seq, chunk, plan) != Grant::kRows) return false;
  std::erase(line.waiting, &seq);
  std::erase(pinned_, &seq);
  insert_in_order(line.running, seq);
  shares_.start(seq.share().tenant);
  seq.start();
  return true;
}

// Whether one more may run, those that were set aside in line counted in. A tenant of which nobody runs may go beyond the target; that one, and
// whoever is of a better priority, take another's place.
Scheduler::Slot Scheduler::slot_for(const ModelLine& line, const Sequence& seq) const {
  if (is_pinned(seq)) return {.is_there = true};
  const bool is_full = line.running.size() + pinned_.size() >= static_cast<size_t>(config_.max_running);
  if (!is_full && (is_within_target(line) || shares_.is_owed(seq.share().tenant))) return {.is_there = true};
  Sequence* const victim = last_of_many(seq);
  if (!victim || victim->model() != seq.model()) return {};
  return {.is_there = true, .victim = victim};
}

// With one more, as long as the others on average. Where rows cost what they cost, more at once would not be faster.
bool Scheduler::is_within_target(const ModelLine& line) const {
  const int64_t target = target_us(line);
  if (target == 0 || line.running.size() < kLeastRunning) return true;
  StepLoad load;
  for (const Sequence* seq : line.running) load.add_decode(seq->n_tokens());
  load.add_decode(static_cast<int32_t>(load.decode_context / load.decode_rows));
  return line.step_time.predict_us(load) <= kDecodeShare * static_cast<double>(target);
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

// Nobody overtakes one who waits for room, but a tenant of which nobody runs. Whoever starts has room for all it knows by now, and leaves the
// others a block each to grow into: starting only to be preempted at once is work for nothing. Where nobody runs, it may try in any case.
bool Scheduler::may_start(const ModelLine& line, const Sequence& seq) const {
  if (shares_.is_owed(seq.share().tenant)) return true;
  if (blocked_ && policy_.before(*blocked_, seq)) return false;
  if (std::ranges::all_of(lines_, [](const ModelLine& other) { return other.running.empty(); })) return true;
  const int32_t chunk = std::max(1, chunk_of(line, seq, {config_.step_tokens, 1e12}));
  return line.cache->has_room(seq.lease, seq.tokens(), chunk, static_cast<uint32_t>(line.running.size()));
}

// Whose place or blocks `seq` may have though it waits: the last one of a worse priority, or, for a tenant of which nobody runs, of another
// of which several do. Null: nobody's.
Sequence* Scheduler::last_of_many(const Sequence& seq) const {
  if (seq.is_running() || !shares_.are_several()) return nullptr;
  const bool is_owed = shares_.is_owed(seq.share().tenant);
  Sequence* last = nullptr;
  for (const ModelLine& line : lines_) {
    for (Sequence* other : line.running) {
      const bool is_worse = other->share().priority > seq.share().priority && policy_.before(seq, *other);
      const bool has_more =
          is_owed && shares_.n_running(other->share().tenant) > 1 && other->share().priority >= seq.share().priority;
      if ((is_worse || has_more) && (!last || policy_.before(*last, *other))) last = other;
    }
  }
  return last;
}

// 0: a step's logits are used up, or its time.
int32_t Scheduler::chunk_of(const ModelLine& line, const Sequence& seq, const Budget& budget) const {
  int32_t most = config_.chunk_tokens > 0 ? std::min(config_.chunk_tokens, budget.rows) : budget.rows;
  if (std::isfinite(budget.us)) {
    const int32_t context = std::max(seq.n_computed(), seq.is_running() ? 0 : seq.hit_tokens);
    most = std::min(most, std::max(1, line.step_time.prefill_rows_within(budget.us, context)));
  }
  if (seq.prompt_logits() == PromptLogits::kAll) {
    most = std::min(most, std::max(0, seq.n_logits_done() - seq.n_computed()) + logits_left_);
  }
  return std::min(seq.n_to_compute(), most);
}

}  // namespace pagoda::sched
