// Scheduler: continuous batching over every loaded model. It decides which rows run next and asks each model's cache for room; it never
// sees a tensor, so it runs on a fake executor and clock too.
//
//   loop { next_step(plan); <build batch, run, sample>; commit_step(plan, outcomes); finish(...) for those that ended }
//
// A step belongs to one model (models take turns) and holds its decodes first, then prefill chunks, under a budget of rows and of time: while
// sequences wait for their next token, what the model of step times (StepTimeModel) says fits into the target. Tenants share computed tokens by
// their weights (FairShares); the first prefill in line has a quarter of the budget, the shortest ones go first with the rest.
// Out of blocks: who waits, waits; who runs takes the blocks of the last in line (OrderPolicy), who then recomputes. A sequence that
// could not fit even alone is refused at submit, or ends with FinishReason::kLength when it has grown that far.
// Owns: sequences and their leases.   Invariants: (1) one plan in flight at most.  (2) whoever holds blocks is running, or was set aside.
// (3) the first in line is never without rows for want of blocks: always progress.   check_integrity(): tests and idle.
// Threads: engine thread only; stats() from any thread.   Errors: refusals are a Status; per-sequence failures are outcomes.
// Cost: O(running + new blocks) per step; a plan's vectors are reused, nothing else is allocated but the growth of token lists and tables.
// Source: Yu et al. 2022 (Orca), Agrawal et al. 2024 (Sarathi-Serve).
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "kv/cache.h"
#include "kv/snapshot.h"
#include "sched/fair_shares.h"
#include "sched/order_policy.h"
#include "sched/sequence.h"
#include "sched/start_order.h"
#include "sched/step_plan.h"
#include "sched/step_time.h"

namespace pagoda::sched {

enum class KvReuse : uint8_t {
  kOn,
  kOff,  // after every sampled token the blocks are given back, and the whole prefix is computed again (--kv-cache off)
};

inline constexpr int64_t kAgeUs = 10'000'000;
// 100 ms, or four times what a single row takes, if that is longer.
inline constexpr int64_t kAutoTarget = -1;

struct SchedConfig {
  int32_t step_tokens = 512;   // rows of one step; decodes come first, but prefills always get a tenth
  int32_t quiet_factor = 1;    // as many times step_tokens are a step's rows while no sequence waits for its next token
  int32_t chunk_tokens = 0;    // the most rows of one prefill chunk; 0: what the step has left
  int32_t max_logits = 512;    // rows of one step whose logits are wanted; more than max_running
  int32_t max_running = 256;   // sequences of one model that compute at once
  int32_t max_waiting = 1024;  // of all models; submit refuses beyond
  KvReuse kv_reuse = KvReuse::kOn;
  int64_t overtake_us = 1'000'000;  // who waits to start for longer is not overtaken by longer cached prefixes any more
  int64_t age_us = kAgeUs;          // of waiting: what one step of priority is worth
  // How long a step may take while sequences wait for their next token (StepTimeModel). Prefills get at least a tenth of it all the same.
  int64_t target_us = 0;  // 0: however long it takes; kAutoTarget

  // The most rows that a plan can have.
  int32_t max_prefill_rows() const { return step_tokens * quiet_factor; }  // of one step
  int32_t max_step_rows() const;
  // The most of them whose logits are wanted.
  int32_t max_step_logits() const;
};

struct SchedStats {
  uint64_t running = 0;    // sequences, now
  uint64_t waiting = 0;    // sequences, now; preempted ones included
  uint64_t submitted = 0;  // sequences, ever; likewise below
  uint64_t finished = 0;
  uint64_t preemptions = 0;
  uint64_t steps = 0;
  uint64_t computed_tokens = 0;  // rows of committed steps
  uint64_t sampled_tokens = 0;
  uint64_t reused_tokens = 0;  // prompt tokens that no row was spent on
  uint64_t timeouts = 0;       // sequences whose deadline passed
  uint64_t late_steps = 0;     // that took longer than target_us while sequences waited for their next token
  int64_t target_us = 0;       // now; 0: none
  double predicted_us = 0;     // of the last step
};

class Scheduler {
 public:
  // The clock, the policy and every cache must outlive the scheduler. Requires positive limits in the config.
  Scheduler(const SchedConfig& config, const Clock& clock, const OrderPolicy& policy);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Requires a model id not added before. All caches share one pool.
  void add_model(kv::Cache& cache);

  // Puts a sequence in line. Any time. Requires an id never used before.
  // Errors: kNotFound (model), kInvalidArgument (empty prompt), kResourceExhausted (the prompt cannot fit in the whole budget),
  // kOverloaded (the line is full).
  Status submit(SequenceSpec spec);

  // Fills `plan` with what to run now; plan.empty() if nothing can. Requires that the last non-empty plan was committed.
  void next_step(StepPlan& plan);

  // Reports that the step ran: one outcome per plan.rows, in their order. Commits the K and V, appends sampled tokens, ends failed
  // sequences. Requires the plan that next_step filled last.
  void commit_step(const StepPlan& plan, std::span<const StepOutcome> outcomes);

  // Ends a sequence and frees its blocks: at once, or in commit_step if it is in the plan that runs. Any time; unknown ids are ignored.
  void finish(SeqId seq, FinishReason reason);
  void cancel(SeqId seq) { finish(seq, FinishReason::kCancelled); }

  // From now on the sequence's tokens are these: at once, or in commit_step if it is in the plan that runs, after the token it sampled.
  // Its blocks are returned and the list is prefilled like a prompt, prefix hits included; its place in line stays. Prompt logits that
  // are still missing will not come. Any time; unknown ids are ignored. Requires 1 to capacity_tokens() tokens.
  void replace_tokens(SeqId seq, std::vector<TokenId> tokens);

  // What the ticket's owner reports; unknown tickets are ignored.
  void complete(kv::TicketId ticket);
  // When next_step should be asked again though nothing else happens: the earliest deadline of a ticket.
  std::optional<int64_t> wake_us() const;

  // Null once it ended. Valid until the next call.
  const Sequence* find(SeqId seq) const;
  // Of all sequences that hold memory, appended. Between steps, and valid until the next.
  void list_leases(std::vector<const kv::KvLease*>& leases) const;
  bool idle() const { return sequences_.empty(); }
  SchedStats stats() const { return snapshot_.load(); }

  Status check_integrity() const;

 private:
  // The sequences of one model, both lines in policy order.
  struct ModelLine {
    kv::Cache* cache = nullptr;
    std::deque<Sequence*> waiting;
    std::vector<Sequence*> running;
    StepTimeModel step_time{};
  };
  struct Planned {
    Sequence* seq = nullptr;
    FinishReason end = FinishReason::kNone;  // asked for while the step runs, likewise:
    std::vector<TokenId> tokens{};           // empty: not replaced
  };
  enum class Grant : uint8_t { kRows, kSetAside, kNoSpace, kEnded };
  enum class Room : uint8_t { kAskAgain, kNone, kEnded };

  void plan_any(StepPlan& plan);
  void plan_model(ModelLine& line, StepPlan& plan);
  void plan_decodes(ModelLine& line, StepPlan& plan);
  // What is left of a step for prefill rows.
  struct Budget {
    int32_t rows = 0;
    double us = 0;
  };
  // A sequence that wants prefill rows, and how it ranks: less first.
  struct Candidate {
    Sequence* seq = nullptr;
    int64_t priority = 0;
    bool is_owed = false;  // nothing of its tenant runs
    double served = 0;
    int32_t work = 0;  // rows to compute
    bool ranks_before(const Candidate& other) const;
  };
  Budget budget_of(const ModelLine& line, const StepPlan& plan) const;
  void plan_prefills(ModelLine& line, Budget budget, StepPlan& plan);
  void rank(ModelLine& line);
  Candidate candidate_of(Sequence& seq) const;
  Budget first_budget(const ModelLine& line, Sequence& first, const Budget& budget) const;
  int32_t chunk_in(const ModelLine& line, const Sequence& seq, const Budget& most, const StepPlan& plan) const;
  bool plan_start(ModelLine& line, Sequence& seq, int32_t chunk, StepPlan& plan);
  bool may_start(const ModelLine& line, const Sequence& seq) const;
  struct Slot {
    bool is_there = false;
    Sequence* victim = nullptr;  // whose it is to be
  };
  Slot slot_for(const ModelLine& line, const Sequence& seq) const;
  bool is_within_target(const ModelLine& line) const;
  bool is_pinned(const Sequence& seq) const { return std::ranges::find(pinned_, &seq) != pinned_.end(); }
  Sequence* last_of_many(const Sequence& except) const;
  int32_t chunk_of(const ModelLine& line, const Sequence& seq, const Budget& budget) const;
  int64_t target_us(const ModelLine& line) const;
  Grant grant(ModelLine& line, Sequence& seq, int32_t n_tokens, StepPlan& plan);
  Room make_room(Sequence& seq, int32_t& n_tokens, StepPlan& plan);
  Room start_over(Sequence& seq);
  void add_rows(Sequence& seq, const kv::Granted& granted, StepPlan& plan);

  Sequence* last_holder(const Sequence& except) const;
  void preempt(Sequence& victim, StepPlan& plan);
  void block(const Sequence& seq);
  void set_aside(Sequence& seq, const kv::WaitOn& wait);
  void resume(Sequence& seq);
  void resume_late();
  bool resume_stuck();
  void complete_tickets();
  void expire(StepPlan& plan);
  void learn(ModelLine& line);
  void estimate_hits(const ModelLine& line);
  void commit_rows(ModelLine& line, Sequence& seq, const SeqRows& rows, const StepOutcome& outcome);
  void replace(Sequence& seq, std::vector<TokenId> tokens);
  void erase(Sequence& seq, FinishReason reason);
  ModelLine* find_line(kv::ModelId model);
  template <typename Line>
  void insert_in_order(Line& line, Sequence& seq) const {
    const auto before = [this](const Sequence* a, const Sequence* b) { return policy_.before(*a, *b); };
    line.insert(std::upper_bound(line.begin(), line.end(), &seq, before), &seq);
  }
  void publish();
  Status check_line(const ModelLine& line) const;

  SchedConfig config_;
  const Clock& clock_;
  const OrderPolicy& policy_;
  std::vector<ModelLine> lines_;
  size_t turn_ = 0;  // index of the line that plans first
  std::unordered_map<SeqId, std::unique_ptr<Sequence>> sequences_;
  std::vector<Planned> planned_;       // of the plan in flight, by index in plan.rows
  std::vector<Sequence*> set_aside_;   // those with waiting_on()
  std::vector<Sequence*> pinned_;      // in a waiting line and holding blocks, since they were set aside there
  const Sequence* blocked_ = nullptr;  // first in line of those that found no room: nobody behind it may start
  FairShares shares_;
  StartOrder start_order_;
  std::set<std::pair<int64_t, SeqId>> deadlines_;
  std::vector<Candidate> ranked_;  // of the step being planned, as best_priority_: of all in the line
  int64_t best_priority_ = 0;
  StepLoad load_;  // of the plan in flight, likewise:
  int64_t begin_us_ = 0;
  std::vector<kv::TicketId> tickets_;  // scratch
  uint64_t next_order_ = 0;
  int32_t logits_left_ = 0;  // of the step being planned
  bool in_flight_ = false;
  SchedStats stats_;
  kv::Snapshot<SchedStats> snapshot_;
};

}  // namespace pagoda::sched
