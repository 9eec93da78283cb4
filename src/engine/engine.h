// Engine: all loaded models, one step loop. Requests come in through intake workers (template, tokens), wait in the scheduler's queue,
// share steps, and leave as events on their OutputStream.
// Owns: models, block arena and pool, scheduler, compute pool and threads. One per process.
// Threads: every public call from any thread; the engine thread (also compute worker 0) runs steps and is the only one to touch
// scheduler, cache and models.     Errors: a failed request gets one Failed event; a failed load is a Result.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/config.h"
#include "engine/output_stream.h"
#include "engine/records.h"
#include "engine/request.h"
#include "engine/session.h"
#include "engine/traffic_memory.h"
#include "kv/accounting.h"
#include "kv/tiering_stats.h"

namespace pagoda::engine {

// What a client may know of a loaded model.
struct ModelInfo {
  std::string name;  // as served
  std::string path;
  std::string architecture;
  int context_tokens = 0;  // served
  int trained_context_tokens = 0;
  int vocab_size = 0;
  uint64_t n_params = 0;
  uint64_t file_bytes = 0;
  bool has_chat_template = false;
  std::string kv_format;          // as the log tells it
  uint64_t kv_block_bytes = 0;    // of one block of each attention group
  int64_t created = 0;            // unix seconds of the load
  uint64_t kv_token_bytes = 0;    // of a token of context, as if no layer had a window
  size_t session_part_bytes = 0;  // of an exported session, at most; 0: there are no sessions
};

// One tier of KV blocks.
struct TierReport {
  std::string name{};  // "disk", "redis"
  kv::TierStats store{};
  uint64_t loaded_bytes = 0;
  uint64_t restored_tokens = 0;  // of loaded blocks that a request then used
};

// A moment's figures, from any thread.
struct EngineStats {
  int running = 0;       // sequences with blocks
  int waiting = 0;       // sequences without
  int most_waiting = 0;  // beyond, requests are refused
  int64_t turn_us = 0;   // how long the engine thread has been in its present turn; 0: it sleeps, with nothing to do
  uint64_t steps = 0;
  uint64_t preemptions = 0;
  uint64_t kv_budget_bytes = 0;
  uint64_t kv_live_bytes = 0;
  uint64_t kv_live_blocks = 0;
  uint64_t kv_cached_bytes = 0;  // kept for later hits, given up when room is needed
  uint64_t kv_free_bytes = 0;
  uint64_t kv_overhead_bytes = 0;  // budget = live + cached + free + overhead
  uint64_t reused_tokens = 0;      // prompt tokens that were found cached, ever
  kv::TieringStats tiering{};
  std::vector<TierReport> tiers{};  // the fastest first
};

class Engine {
 public:
  // Loads the model, sizes the cache, starts the threads. Says on the log what it chose.
  static Result<std::unique_ptr<Engine>> create(const EngineConfig& config);
  virtual ~Engine() = default;

  // Never blocks and never fails: what goes wrong arrives as a Failed event. `wake` as in OutputStream.
  struct Submitted {
    RequestId id;
    std::shared_ptr<OutputStream> stream;
  };
  virtual Submitted submit(Request request, std::function<void()> wake) = 0;
  // Frees the request's blocks within one step; its stream hears nothing more. Unknown or finished ids are ignored.
  virtual void cancel(RequestId id) = 0;

  // Refuses new requests (kUnavailable) and lets running ones finish; true once none is left.
  virtual void drain() = 0;
  virtual bool is_drained() const = 0;

  virtual std::vector<ModelInfo> models() const = 0;
  virtual EngineStats stats() const = 0;
  // What the KV memory holds, counted between two steps; ModelIds are indices of models(). `reply` runs on the engine thread and must
  // only hand over; if the engine ends first it is dropped.
  virtual void ask_kv(std::function<void(kv::Account)> reply) = 0;
  virtual void ask_kv_blocks(uint64_t page, std::function<void(kv::BlockMapPage)> reply) = 0;
  // `reply` as above.
  virtual void ask_session(SessionAsk ask, std::function<void(Result<SessionAnswer>)> reply) = 0;
  // What its clients' requests and answers share. Longer-lived than they are.
  virtual TrafficMemory& traffic() = 0;
  // The two record rings (records.h); one consumer.
  virtual Records& records() = 0;
};

}  // namespace pagoda::engine
