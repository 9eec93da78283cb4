// Sequence: one token stream and its hold on the cache, as the scheduler sees it. No text, no tensors, no sampler.
//
//   tokens     [prompt ............ | generated ......]
//   positions  [0 ........ n_computed) [n_computed ...... n_tokens)     the second part is what the next steps compute
//
//   waiting -> prefilling -> decoding -> finished       preempted: its blocks are gone, its tokens are not; it computes them again
//      ^___________ preempted <-|                       and continues with the token it would have sampled anyway
//
// Units: tokens and positions (int32), microseconds of the scheduler's clock.   Owned by: Scheduler.   Threads: engine thread only.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/id.h"
#include "base/token_id.h"
#include "kv/cache.h"
#include "kv/ids.h"
#include "kv/lease.h"

namespace pagoda::sched {

using SeqId = Id<struct SeqIdTag, uint64_t>;
using TenantId = Id<struct TenantIdTag, uint32_t>;

// Whose sequence it is, as far as fairness is concerned.
struct Share {
  TenantId tenant{};     // 0: no tenant, which is one too
  int32_t weight = 1;    // computed tokens are shared out between tenants by it
  int32_t priority = 0;  // of the tenant; the lower goes first, whatever the weights
};

enum class SeqState : uint8_t { kWaiting, kPrefilling, kDecoding, kPreempted, kFinished };

enum class FinishReason : uint8_t {
  kNone,       // not finished
  kStop,       // end token, stop string or stop id
  kLength,     // max_tokens, the context, or the memory for it, is used up
  kCancelled,  // the client went away
  kFailed,     // this sequence's computation failed
  kTimeout,    // its deadline passed
};

// Which rows' logits the engine wants besides the row that samples.
enum class PromptLogits : uint8_t {
  kNone,
  kAll,  // every position once (prompt logprobs, eval)
};

// What a sequence got from the cache, and what it did not get and why. Other tiers' tokens will be counted beside.
struct CacheUse {
  static constexpr size_t kMostMisses = 4;
  struct Miss {
    int32_t position = 0;  // of the first token that had to be computed
    kv::MissReason reason = kv::MissReason::kNone;
    kv::Divergence divergence;
    int32_t n_edits = 0;  // that the list had been replaced before: positions are the new list's
  };
  int32_t reused_tokens = 0;             // of the prompt, taken over and never computed by this sequence
  int32_t copied_tokens = 0;             // of those, by copy-on-write
  int32_t recomputed_tokens = 0;         // rows of positions that were there before: what a preemption or an edit costs
  int64_t waited_us = 0;                 // for rows that another sequence computed
  int64_t load_waited_us = 0;            // for blocks that a tier had
  std::array<Miss, kMostMisses> misses;  // the first ones: each begins a run of computed tokens
  uint32_t n_misses = 0;                 // at most kMostMisses
};

// What intake decides about a sequence. Plain data.
struct SequenceSpec {
  SeqId id{};
  kv::ModelId model{};
  kv::CacheNamespace cache_namespace{};
  kv::CacheNamespace open_namespace{};  // KvLease::open_namespace
  kv::SessionId session{};              // KvLease::session
  std::vector<TokenId> prompt;
  PromptLogits prompt_logits = PromptLogits::kNone;
  kv::PrefixReuse reuse = kv::PrefixReuse::kMatch;  // kNone where all prompt logits are wanted, whatever it says
  Share share{};
  int32_t priority = 0;  // among its tenant's own; the lower goes first
  int64_t arrival_us = 0;
  int64_t deadline_us = 0;  // 0: none
};

class Sequence {
 public:
  // `order`: place in the line of all submissions; queued_us: when it joined.
  Sequence(SequenceSpec spec, uint64_t order, int64_t queued_us = 0);

  SeqId id() const { return id_; }
  kv::ModelId model() const { return lease.model(); }
  uint64_t order() const { return order_; }
  const Share& share() const { return share_; }
  int32_t priority() const { return priority_; }
  int64_t arrival_us() const { return arrival_us_; }
  int64_t deadline_us() const { return deadline_us_; }
  int64_t queued_us() const { return queued_us_; }  // by the scheduler's clock
  PromptLogits prompt_logits() const { return prompt_logits_; }

  SeqState state() const { return state_; }
  FinishReason finish_reason() const { return finish_reason_; }
  // Set while it is set aside, in whatever state.
  const std::optional<kv::WaitOn>& waiting_on() const { return waiting_on_; }
  bool is_running() const { return state_ == SeqState::kPrefilling || state_ == SeqState::kDecoding; }

  // Prompt and generated tokens, by position; or what they were replaced by.
  std::span<const TokenId> tokens() const { return tokens_; }
  int32_t n_tokens() const { return static_cast<int32_t>(tokens_.size()); }
  int32_t n_prompt() const { return n_prompt_; }
  int32_t n_computed() const { return lease.n_committed(); }
  int32_t n_to_compute() const { return n_tokens() - n_computed(); }
  const CacheUse& cache_use() const { return use_; }
  // Positions [0, n_logits_done) have had their logits delivered; a recomputation does not deliver them again.
  int32_t n_logits_done() const { return n_logits_done_; }

  // Transitions; any other one is a bug -> CHECK.
  void start();  // waiting, preempted -> prefilling
  // After admit: positions [0, n_computed) are there, what follows to n_written is computed. Returns how many tokens more are reused.
  int32_t rows_granted(const kv::Granted& granted);
  void rows_withdrawn();       // they are not computed after all
  void rows_done();            // after commit: positions [0, n_computed) are delivered
  void append(TokenId token);  // prefilling, decoding -> decoding: the token sampled at the last position
  void recompute();            // decoding -> prefilling: its blocks were given back by design (KvReuse::kOff)
  void preempt();              // prefilling, decoding, waiting with blocks -> preempted, once its blocks are returned
  void finish(FinishReason reason);  // any but finished -> finished
  // Any but finished, once its blocks are returned; running -> prefilling. From now on the list is its prompt, whose logits nobody wants.
  void replace_tokens(std::vector<TokenId> tokens);

  void set_aside(const kv::WaitOn& wait, int64_t now_us);
  void resume(int64_t now_us);  // from being set aside

  kv::KvLease lease;
  int32_t hit_tokens = 0;  // what the cache may have for it: an estimate, made at hit_us
  int64_t hit_us = -1;

 private:
  SeqId id_;
  uint64_t order_;
  std::vector<TokenId> tokens_;
  int32_t n_prompt_;
  int32_t n_logits_done_ = 0;
  int32_t n_seen_ = 0;  // positions that were there at some time
  CacheUse use_;
  int32_t n_edits_ = 0;
  int32_t n_again_ = 0;  // recomputed_tokens of the rows granted last
  std::optional<kv::WaitOn> waiting_on_;
  int64_t set_aside_us_ = 0;
  Share share_;
  int32_t priority_;
  int64_t arrival_us_;
  int64_t deadline_us_;
  int64_t queued_us_;
  PromptLogits prompt_logits_;
  kv::PrefixReuse reuse_;  // as asked for
  SeqState state_ = SeqState::kWaiting;
  FinishReason finish_reason_ = FinishReason::kNone;
};

}  // namespace pagoda::sched
