// Intake: from what a client wrote to token ids, on worker threads, so that a megabyte of prompt stalls nobody's stream. Renders
// templates, tokenizes, checks against the model's limits, and fixes everything random.
// Large texts are prepared one at a time, so that a worker is left for the small ones; what takes memory reserves it first, and a text that
// cannot fit the context is refused before it is tokenized.
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
#include "engine/traffic_memory.h"
#include "kv/ids.h"

namespace pagoda::engine {

// What a prompt and its answer must fit.
struct ContextLimit {
  int tokens = 0;
  int trained_tokens = 0;   // so many could be served
  bool is_tenants = false;  // what it is less by: not the server's options
};

// What rendering and tokenizing may take.
struct TextLimits {
  TrafficMemory* memory = nullptr;  // whose `work` it is counted in: who finds no room waits; null: nobody counts
  std::optional<int> most_tokens;   // what is longer for certain is kContextExceeded
  ContextLimit context{};           // that says so
};

// Tokens of a request's prompt. kInvalidArgument, kContextExceeded, kUnsupported: the message names the field or both numbers.
// Of a chat without its oldest turns; others have none.
Result<std::vector<TokenId>> tokenize_prompt(const ServedModel& model, const Prompt& prompt, int dropped_turns = 0,
                                             const TextLimits& limits = {});

// Whose cached blocks a tenant's are: the shared space's, else its own, else everybody's (empty). No space is a tenant, whatever their names.
std::string cache_owner(std::string_view tenant, std::string_view cache_space);

// Who may share cached blocks: HMAC over owner and salt; all zero where neither is set.
kv::CacheNamespace cache_namespace(std::span<const std::byte> secret, std::string_view owner, std::string_view salt);
kv::CacheNamespace cache_namespace(std::span<const std::byte> secret, const Request& request);

class Intake {
 public:
  using Ready = std::function<void(std::shared_ptr<ActiveRequest>)>;
  using Refused = std::function<void(const std::shared_ptr<ActiveRequest>&, Error)>;

  // model and memory outlive it.
  Intake(const ServedModel& model, TrafficMemory& memory, int n_workers, size_t max_queued, Ready ready,
         Refused refused);
  ~Intake();

  // Refused as kOverloaded, on this thread, if max_queued are waiting already.
  void push(std::shared_ptr<ActiveRequest> active);

 private:
  using Queue = std::deque<std::shared_ptr<ActiveRequest>>;

  void work();
  // Whose first one is to be prepared next; null: there is nothing to do.
  Queue* next_queue();
  Status prepare(ActiveRequest& active);
  Status fit_context(ActiveRequest& active, const ContextPolicy& policy);
  Status fit_turns(ActiveRequest& active, int most_tokens);
  TextLimits limits_of(const ActiveRequest& active, const ContextPolicy& policy) const;

  const ServedModel& model_;
  TrafficMemory& memory_;
  const size_t max_queued_;
  const size_t large_text_bytes_;
  const Ready ready_;
  const Refused refused_;
  std::mutex mutex_;
  std::condition_variable wake_;
  Queue small_;                    // guarded by mutex_
  Queue large_;                    // likewise
  bool is_large_running_ = false;  // likewise
  std::random_device entropy_;     // guarded by mutex_
  bool stopping_ = false;          // guarded by mutex_
  std::vector<std::thread> workers_;
};

}  // namespace pagoda::engine
