#include "sched/sequence.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace pagoda::sched {

Sequence::Sequence(SequenceSpec spec, uint64_t order)
    : lease(spec.model, spec.cache_namespace),
      id_(spec.id),
      order_(order),
      tokens_(std::move(spec.prompt)),
      n_prompt_(static_cast<int32_t>(tokens_.size())),
      priority_(spec.priority),
      arrival_us_(spec.arrival_us),
      deadline_us_(spec.deadline_us),
      prompt_logits_(spec.prompt_logits) {}

void Sequence::start() {
  CHECK(state_ == SeqState::kWaiting || state_ == SeqState::kPreempted);
  state_ = SeqState::kPrefilling;
}

void Sequence::rows_done() {
  CHECK(is_running());
  n_logits_done_ = std::max(n_logits_done_, n_computed());
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

}  // namespace pagoda::sched
