#include "sched/sequence.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace pagoda::sched {

Sequence::Sequence(SequenceSpec spec, uint64_t order, int64_t queued_us)
    : lease(spec.model, spec.cache_namespace),
      id_(spec.id),
      order_(order),
      tokens_(std::move(spec.prompt)),
      n_prompt_(static_cast<int32_t>(tokens_.size())),
      share_(spec.share),
      priority_(spec.priority),
      arrival_us_(spec.arrival_us),
      deadline_us_(spec.deadline_us),
      queued_us_(queued_us),
      prompt_logits_(spec.prompt_logits),
      reuse_(spec.reuse) {
  lease.open_namespace = spec.open_namespace;
  lease.session = spec.session;
  lease.reuse = prompt_logits_ == PromptLogits::kAll ? kv::PrefixReuse::kNone : spec.reuse;
}

void Sequence::start() {
  CHECK(state_ == SeqState::kWaiting || state_ == SeqState::kPreempted);
  state_ = SeqState::kPrefilling;
}

// What it computed before it was preempted does not count when it is found again.
int32_t Sequence::rows_granted(const kv::Granted& granted) {
  const int32_t n_new = std::max(0, std::min(n_computed(), n_prompt_) - n_seen_);
  use_.reused_tokens += n_new;
  use_.copied_tokens += std::min(n_new, granted.copied_tokens);
  n_again_ = std::max(0, std::min(n_seen_, lease.n_written()) - n_computed());
  use_.recomputed_tokens += n_again_;
  n_seen_ = std::max(n_seen_, n_computed());
  const bool is_start = !is_running() || granted.reused_tokens > 0;
  if (is_start && granted.miss != kv::MissReason::kNone && use_.n_misses < CacheUse::kMostMisses) {
    use_.misses[use_.n_misses++] = {n_computed(), granted.miss, granted.divergence, n_edits_};
  }
  return n_new;
}

void Sequence::rows_withdrawn() { use_.recomputed_tokens -= n_again_; }

void Sequence::set_aside(const kv::WaitOn& wait, int64_t now_us) {
  CHECK(lease.patience == kv::Patience::kMayWait);
  waiting_on_ = wait;
  set_aside_us_ = now_us;
}

void Sequence::resume(int64_t now_us) {
  (waiting_on_->waits_for == kv::WaitOn::For::kRows ? use_.waited_us : use_.load_waited_us) += now_us - set_aside_us_;
  waiting_on_.reset();
}

void Sequence::rows_done() {
  CHECK(is_running());
  n_logits_done_ = std::max(n_logits_done_, n_computed());
  n_seen_ = std::max(n_seen_, n_computed());
}

void Sequence::append(TokenId token) {
  CHECK(is_running() && n_to_compute() == 0);
  tokens_.push_back(token);
  state_ = SeqState::kDecoding;
}

void Sequence::recompute() {
  CHECK(state_ == SeqState::kDecoding && !lease.holds_blocks());
  state_ = SeqState::kPrefilling;
}

void Sequence::preempt() {
  CHECK(state_ != SeqState::kFinished && !lease.holds_blocks());
  state_ = SeqState::kPreempted;
}

void Sequence::finish(FinishReason reason) {
  CHECK(state_ != SeqState::kFinished && reason != FinishReason::kNone && !lease.holds_blocks());
  finish_reason_ = reason;
  state_ = SeqState::kFinished;
}

void Sequence::replace_tokens(std::vector<TokenId> tokens) {
  CHECK(state_ != SeqState::kFinished && !lease.holds_blocks() && !tokens.empty());
  tokens_ = std::move(tokens);
  n_prompt_ = n_tokens();
  ++n_edits_;
  prompt_logits_ = PromptLogits::kNone;
  lease.reuse = reuse_;
  hit_us = -1;
  if (state_ == SeqState::kDecoding) state_ = SeqState::kPrefilling;
}

}  // namespace pagoda::sched
