// FakeEngine: an Engine without a model, for tests: it remembers what is asked of it, and its owner says what it answers.
// Threads: as Engine.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "engine/engine.h"

namespace pagoda::serve {

class FakeEngine final : public engine::Engine {
 public:
  struct Asked {
    engine::RequestId id;
    engine::Request request;
    std::shared_ptr<engine::OutputStream> stream;
  };

  explicit FakeEngine(uint64_t traffic_bytes = engine::kMostTrafficBytes) : memory(traffic_bytes) { add_model("tiny"); }

  Submitted submit(engine::Request request, std::function<void()> wake) override {
    auto stream = std::make_shared<engine::OutputStream>(
        std::move(wake), std::shared_ptr<ByteBudget>(std::shared_ptr<void>(), &memory.held));
    Asked asked;
    std::function<void(const Asked&)> script;
    {
      const std::lock_guard lock(mutex_);
      request.id = engine::RequestId(++last_id_);
      asked = {request.id, std::move(request), stream};
      asked_.emplace(asked.id.value, asked);
      script = script_;
    }
    if (script) script(asked);
    return {asked.id, stream};
  }
  void cancel(engine::RequestId id) override {
    const std::lock_guard lock(mutex_);
    cancelled_.insert(id.value);
  }
  void drain() override {
    const std::lock_guard lock(mutex_);
    is_draining_ = true;
  }
  bool is_drained() const override { return true; }
  std::vector<engine::ModelInfo> models() const override { return models_; }
  engine::EngineStats stats() const override {
    const std::lock_guard lock(mutex_);
    return stats_;
  }
  void set_stats(engine::EngineStats stats) {
    const std::lock_guard lock(mutex_);
    stats_ = std::move(stats);
  }
  void ask_kv(std::function<void(kv::Account)> reply) override {
    if (answers_kv) reply(account);
  }
  void ask_kv_blocks(uint64_t page, std::function<void(kv::BlockMapPage)> reply) override {
    kv::BlockMapPage map = block_map;
    map.page = page;
    reply(std::move(map));
  }
  void ask_session(engine::SessionAsk ask, std::function<void(Result<engine::SessionAnswer>)> reply) override {
    session_asks.push_back(std::move(ask));
    reply(session_answer);
  }
  engine::TrafficMemory& traffic() override { return memory; }
  engine::Records& records() override { return records_; }

  engine::TrafficMemory memory;  // first: what is reserved in it goes before
  std::vector<engine::SessionAsk> session_asks;
  Result<engine::SessionAnswer> session_answer = engine::SessionEnded{};
  kv::Account account;
  bool answers_kv = true;  // false: as one that is in a long step
  kv::BlockMapPage block_map{.n_pages = 1, .extents = {}};

  // Called at every submit, on the submitting thread.
  void on_submit(std::function<void(const Asked&)> script) { script_ = std::move(script); }
  void set_session_part_bytes(size_t bytes) { models_.front().session_part_bytes = bytes; }
  void add_model(std::string name) {
    engine::ModelInfo model;
    model.path = "/models/" + name + ".gguf";
    model.name = std::move(name);
    model.context_tokens = 512;
    models_.push_back(std::move(model));
  }
  size_t n_asked() const {
    const std::lock_guard lock(mutex_);
    return asked_.size();
  }
  Asked asked(uint64_t id) const {
    const std::lock_guard lock(mutex_);
    return asked_.at(id);
  }
  bool was_cancelled(uint64_t id) const {
    const std::lock_guard lock(mutex_);
    return cancelled_.count(id) > 0;
  }
  // As an engine whose requests have ended.
  void forget() {
    const std::lock_guard lock(mutex_);
    asked_.clear();
  }
  bool is_draining() const {
    const std::lock_guard lock(mutex_);
    return is_draining_;
  }

  // One whole answer: accepted, the text in pieces of one byte per token, finished; for every choice.
  static void answer(const Asked& asked, const std::string& text, int prompt_tokens = 3) {
    asked.stream->push(engine::Accepted{prompt_tokens});
    engine::Usage usage{prompt_tokens, 0, 0};
    for (int choice = 0; choice < asked.request.n_choices; ++choice) {
      for (const char c : text) {
        ++usage.completion_tokens;
        asked.stream->push(
            engine::Delta{.choice = choice, .text = std::string(1, c), .tokens = {TokenId(c)}, .logprobs = {}});
      }
      asked.stream->push(engine::Finished{.choice = choice,
                                          .reason = engine::FinishReason::kStop,
                                          .stop_string = {},
                                          .stop_token = {},
                                          .usage = usage});
    }
  }

 private:
  mutable std::mutex mutex_;
  uint64_t last_id_ = 0;  // guarded by mutex_, as what follows
  std::map<uint64_t, Asked> asked_;
  std::set<uint64_t> cancelled_;
  bool is_draining_ = false;
  engine::EngineStats stats_{.running = 1, .waiting = 2, .steps = 3, .kv_live_blocks = 4};
  std::function<void(const Asked&)> script_;
  std::vector<engine::ModelInfo> models_;
  engine::Records records_;
};

}  // namespace pagoda::serve
