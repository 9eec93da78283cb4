// Intake: from what a client wrote to token ids, on worker threads, so that a megabyte of prompt stalls nobody's stream. Renders
// templates, tokenizes, checks against the model's limits, and fixes everything random.
// Threads: push from any; `ready` and `refused` are called on an intake worker.     Errors: as values, to `refused`.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "engine/generation.h"
#include "engine/served_model.h"
#include "kv/ids.h"

namespace pagoda::engine {

// Tokens of a request's prompt. kInvalidArgument, kContextExceeded, kUnsupported: the message names the field or both numbers.
// Of a chat without its oldest turns; others have none.
Result<std::vector<TokenId>> tokenize_prompt(const ServedModel& model, const Prompt& prompt, int dropped_turns = 0);

// Who may share cached blocks: HMAC over tenant and salt; all zero where neither is set.
kv::CacheNamespace cache_namespace(std::span<const std::byte> secret, std::string_view tenant, std::string_view salt);

class Intake {
 public:
  using Ready = std::function<void(std::shared_ptr<ActiveRequest>)>;
  using Refused = std::function<void(const std::shared_ptr<ActiveRequest>&, Error)>;

  Intake(const ServedModel& model, int n_workers, size_t max_queued, Ready ready, Refused refused);
  ~Intake();

  // Refused as kOverloaded, on this thread, if max_queued are waiting already.
  void push(std::shared_ptr<ActiveRequest> active);

 private:
  void work();
  Status prepare(ActiveRequest& active);
  Status fit_context(ActiveRequest& active);
  Status fit_turns(ActiveRequest& active, int most_tokens);

  const ServedModel& model_;
  const size_t max_queued_;
  const Ready ready_;
  const Refused refused_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::shared_ptr<ActiveRequest>> queue_;  // guarded by mutex_
  std::random_device entropy_;                        // guarded by mutex_
  bool stopping_ = false;                             // guarded by mutex_
  std::vector<std::thread> workers_;
};

}  // namespace pagoda::engine
