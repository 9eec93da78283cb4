// World: a scheduler over two models, one pool, a fake clock and a fake executor, run a step at a time. Tests only.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "kv/tiering.h"
#include "sched/fake_executor.h"
#include "sched/scheduler.h"

namespace pagoda::sched {

#define ASSERT_SOUND(object)                       \
  do {                                             \
    const Status sound_ = (object);                \
    ASSERT_TRUE(sound_) << sound_.error().message; \
  } while (0)

inline constexpr kv::ModelId kModel{0}, kOther{1};

inline std::vector<TokenId> prompt_of(int n, int salt) {
  std::vector<TokenId> tokens;
  for (int i = 0; i < n; ++i) {
    tokens.push_back(TokenId(static_cast<int32_t>((int64_t{i} * 7919 + int64_t{salt} * 104729 + 1) % 32003)));
  }
  return tokens;
}

// A cache that makes chosen sequences wait: those whose first prompt token is a key, for its ticket.
class WaitingCache final : public kv::Cache {
 public:
  using Cache::Cache;
  kv::Admission admit(kv::KvLease& lease, std::span<const TokenId> token_ids, int32_t n_new,
                      std::vector<kv::BlockOp>& ops) override {
    ++n_asked[token_ids[0].value];
    const auto wait = waits.find(token_ids[0].value);
    if (wait != waits.end() && lease.n_written() == wait->second.at && lease.patience == kv::Patience::kMayWait) {
      return kv::WaitOn{wait->second.ticket, wait->second.deadline_us};
    }
    const auto scattered = scattered_at.find(token_ids[0].value);
    if (scattered != scattered_at.end() && lease.reuse == kv::PrefixReuse::kMatch &&
        lease.n_written() >= scattered->second) {
      return kv::NoSpace{1};
    }
    return Cache::admit(lease, token_ids, n_new, ops);
  }
  struct Wait {
    kv::TicketId ticket;
    int64_t deadline_us;
    int32_t at = 0;  // n_written at which it waits
  };
  std::map<int32_t, Wait> waits;
  std::map<int32_t, int> n_asked;
  // By first prompt token: n_written at which its blocks lie so badly that no more fit.
  std::map<int32_t, int32_t> scattered_at;
};

enum class Prefixes { kOff, kOn, kTiered };

// Two models over one pool: model 0 has a full and a window group, model 1 a full one. Extents of 1 KiB hold 4, 3 and 2 blocks.
struct World {
  World(size_t n_extents, const SchedConfig& config, Prefixes prefixes = Prefixes::kOff)
      : pool({.budget_bytes = n_extents * 1024, .extent_bytes = 1024}),
        index(pool, 11),
        scheduler(config, clock, policy),
        executor(pool) {
    std::optional<kv::PrefixConfig> prefix;
    if (prefixes != Prefixes::kOff) prefix = {.index = &index, .clock = &clock};
    if (prefixes == Prefixes::kTiered) {
      tiering = std::make_unique<kv::Tiering>(pool, index, executor, clock);
      prefix->tiering = tiering.get();
    }
    caches.push_back(std::make_unique<WaitingCache>(
        pool, kModel, std::vector<kv::GroupSpec>{{.block_bytes = 256}, {.block_bytes = 320, .window_tokens = 40}},
        prefix));
    caches.push_back(
        std::make_unique<WaitingCache>(pool, kOther, std::vector<kv::GroupSpec>{{.block_bytes = 512}}, prefix));
    for (auto& cache : caches) {
      scheduler.add_model(*cache);
      if (tiering) tiering->set_identity(cache->model(), Sha256{std::byte(cache->model().value + 1)});
    }
  }

  Status submit(int id, int n_prompt, int n_wanted, kv::ModelId model = kModel) {
    return submit({.id = SeqId(static_cast<uint64_t>(id)), .model = model, .prompt = prompt_of(n_prompt, id)},
                  n_wanted);
  }
  Status submit(SequenceSpec spec, int n_wanted) {
    const SeqId id = spec.id;
    const std::vector<TokenId> prompt = spec.prompt;
    TRY(scheduler.submit(std::move(spec)));
    prompts[id] = prompt;
    wanted[id] = n_wanted;
    return {};
  }

  // Between steps.
  void replace(SeqId id, const std::vector<TokenId>& list) {
    scheduler.replace_tokens(id, list);
    begin_list(id, list);
  }
  // What it generated so far is judged by its old list, what comes by the new one; it wants as many tokens as before.
  void begin_list(SeqId id, const std::vector<TokenId>& list) {
    if (!scheduler.find(id)) return;
    ASSERT_EQ(tokens[id], expected_tokens(prompts[id], static_cast<int>(tokens[id].size())));
    wanted[id] -= static_cast<int>(tokens[id].size());
    tokens[id].clear();
    prompts[id] = list;
  }

  // One turn: plan, run, commit, finish those that have all they wanted. False if there was nothing to run.
  bool step() {
    scheduler.next_step(plan);
    for (const EndedSeq& ended : plan.ended) reasons[ended.seq] = ended.reason;
    if (plan.empty()) return false;
    EXPECT_LE(plan.n_tokens(), max_rows);
    executor.run(scheduler, *caches[plan.model.value], plan, outcomes);
    if (testing::Test::HasFatalFailure()) return false;
    scheduler.cancel(cancel_while_running);
    for (const auto& [id, list] : replace_while_running) scheduler.replace_tokens(id, list);
    commit();
    for (const auto& [id, list] : replace_while_running) begin_list(id, list);
    replace_while_running.clear();
    return true;
  }

  void commit() {
    for (size_t i = 0; i < plan.rows.size(); ++i) {
      if (fails.contains(plan.rows[i].seq)) outcomes[i].kind = StepOutcome::Kind::kFailed;
    }
    const std::vector<SeqRows> rows = plan.rows;
    scheduler.commit_step(plan, outcomes);
    for (size_t i = 0; i < rows.size(); ++i) {
      const SeqId id = rows[i].seq;
      if (outcomes[i].kind != StepOutcome::Kind::kSampled || !scheduler.find(id)) continue;
      tokens[id].push_back(outcomes[i].token);
      if (static_cast<int>(tokens[id].size()) < wanted[id]) continue;
      reasons[id] = FinishReason::kStop;
      scheduler.finish(id, FinishReason::kStop);
    }
    clock.advance_us(1000);
  }

  // Until nothing is left. `budget` bounds the steps: no progress is a failure, not a hang.
  void run_all(int budget = 100000) {
    while (step() && --budget > 0 && !testing::Test::HasFatalFailure()) {
    }
    ASSERT_GT(budget, 0) << "no progress";
  }

  // Every sequence that stopped by itself has the tokens of a lone run; nothing is held.
  void check_done() {
    ASSERT_TRUE(scheduler.idle());
    ASSERT_EQ(pool.stats().live_blocks, 0u);
    index.clear();
    ASSERT_EQ(pool.stats().free_extents, pool.n_extents());
    for (const auto& [id, prompt] : prompts) {
      const std::vector<TokenId>& got = tokens[id];
      ASSERT_EQ(got, expected_tokens(prompt, static_cast<int>(got.size()))) << "sequence " << id.value;
      if (reasons[id] == FinishReason::kStop) {
        ASSERT_EQ(got.size(), static_cast<size_t>(wanted[id]));
      }
    }
  }

  kv::BlockPool pool;
  kv::PrefixIndex index;
  FakeClock clock;
  Fcfs policy;
  std::unique_ptr<kv::Tiering> tiering;  // null: none. Tests give it its stores
  std::vector<std::unique_ptr<WaitingCache>> caches;
  Scheduler scheduler;
  FakeExecutor executor;
  StepPlan plan;
  std::vector<StepOutcome> outcomes;
  std::map<SeqId, std::vector<TokenId>> prompts, tokens;
  std::map<SeqId, int> wanted;
  std::map<SeqId, FinishReason> reasons;
  std::set<SeqId> fails;
  SeqId cancel_while_running;
  std::map<SeqId, std::vector<TokenId>> replace_while_running;  // in the next step
  int32_t max_rows = 1 << 30;
};

inline SeqId seq(uint64_t id) { return SeqId(id); }

}  // namespace pagoda::sched
