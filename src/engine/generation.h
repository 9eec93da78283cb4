// Generation: one choice of one request while it runs: from logits to tokens to text, and the decision to stop.
// Owned by the engine, engine thread only. Speaks to its client through the request's OutputStream.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/context_policy.h"
#include "engine/executor.h"
#include "engine/output_stream.h"
#include "engine/records.h"
#include "engine/request.h"
#include "engine/sampler.h"
#include "engine/served_model.h"
#include "sched/scheduler.h"
#include "text/stream_decoder.h"

namespace pagoda::engine {

// What the choices of a request share.
struct ActiveRequest {
  Request request;
  std::shared_ptr<OutputStream> stream;
  std::vector<TokenId> prompt;
  ContextPlan context;
  int max_tokens = 0;  // without a context policy clamped to the context
  uint64_t seed = 0;
  int unfinished = 0;  // choices
  Usage usage;
  sched::CacheUse cache_use;  // of the first choice
  Explain explain = Explain::kOff;
  kv::SessionId session;                    // engine thread; none: no session, or no room for one more
  int32_t held_tokens = 0;                  // by the session, with what the first choice left it, in whole blocks
  std::span<const std::string> tier_names;  // the engine's
  RequestRecord record;
  std::atomic<bool> cancelled{false};  // set by any thread; whoever holds the request next lets it go
};

class Generation {
 public:
  // `model` must outlive it.
  Generation(std::shared_ptr<ActiveRequest> active, int choice, const ServedModel& model);

  models::SampleMode mode() const;
  // The step's logits of this sequence's last rows; their last row samples if rows.sampling says so. Emits what became sayable and
  // returns what the scheduler needs to know; finished() is then up to date.
  sched::StepOutcome read(const sched::SeqRows& rows, std::span<const SampleResult> results, Sampler& sampler);
  // Whether the token read last left no room for another one in the sequence's list. Then the sequence goes on with edit_context(list).
  bool fills_context() const { return window_.is_full(list_tokens_); }
  std::vector<TokenId> edit_context(std::span<const TokenId> list);
  // The scheduler ended the sequence itself (its memory cannot grow).
  void end(FinishReason reason);

  std::optional<FinishReason> finished() const;
  // Says so to the client, once, with the report: what the request's session holds is known by now.
  void say_finished(int64_t now_us);
  // Of the token that is drawn now, since the one before; nothing for the first.
  std::optional<int64_t> token_gap_us(int64_t now_us);
  ActiveRequest& active() { return *active_; }
  const std::shared_ptr<ActiveRequest>& active_ptr() const { return active_; }
  int choice() const { return choice_; }
  int n_generated() const { return n_generated_; }

 private:
  void read_prompt_logits(const sched::SeqRows& rows, std::span<const SampleResult> results, Sampler& sampler);
  void emit_prompt();
  TokenId pick(const SampleResult& result, Sampler& sampler);
  void take(TokenId token, const SampleResult& result, Sampler& sampler);
  bool decode(TokenId token, Delta& delta, Finished& finished);
  std::optional<TokenId> stop_token(TokenId token) const;
  bool may_stop() const;  // min_tokens are there
  void name_bytes(TokenLogprob& entry) const;
  std::shared_ptr<const CacheReport> cache_report() const;

  std::shared_ptr<ActiveRequest> active_;
  const int choice_;
  const text::Tokenizer& tokenizer_;
  text::StreamDecoder decoder_;
  TokenHistory history_;
  std::vector<TokenId> banned_;  // while min_tokens are missing
  std::vector<TokenId> unsaid_;  // generated, but their text is still held back
  std::vector<TokenLogprob> prompt_logprobs_;
  ContextWindow window_;
  int list_tokens_;  // of the sequence
  int n_generated_ = 0;
  std::optional<int64_t> last_token_us_;
  bool prompt_emitted_ = false;
  std::optional<Finished> finished_;
};

}  // namespace pagoda::engine
