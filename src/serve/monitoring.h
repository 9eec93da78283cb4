// Monitoring: the record pump, its sinks, GET /metrics and GET /v1/diagnosis.
// A scrape is rendered on the pump's thread, from what was counted and from the engine's figures of the moment: it waits for no step. The
// cache's account, which only the engine thread can make, is asked for every kAccountEvery while scrapes come, and a scrape shows the last one.
// Owns: pump and metrics.     Threads: handlers on io threads; the account comes on the engine thread.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "engine/engine.h"
#include "http/router.h"
#include "http/server.h"
#include "serve/access_log.h"
#include "serve/diagnosing.h"
#include "serve/metrics.h"
#include "serve/record_pump.h"
#include "serve/server.h"

namespace pagoda::serve {

class Monitoring final : private RecordSink {
 public:
  static constexpr std::chrono::seconds kAccountEvery{1};
  static constexpr std::chrono::minutes kWatched{5};  // since the last scrape

  // Engine and log outlive it. It is the only reader of the engine's records.
  Monitoring(engine::Engine& engine, const AccessLog& access, const ServeOptions& options);
  ~Monitoring() override { stop(); }

  // Before the server starts; the handlers hold this object.
  void add_to(http::Router& router);
  // Whose connections are counted, until stop().
  void watch(const http::HttpServer& server) { server_ = &server; }
  // No scrape is answered any more. Idempotent.
  void stop() { pump_.reset(); }

 private:
  // Where the engine thread leaves the account, also when nobody is there any more to read it.
  struct Accounts {
    std::mutex mutex;
    std::optional<kv::Account> last;  // guarded by mutex
    bool is_asked = false;            // guarded by mutex: the answer is on its way
  };

  void scrape(http::Responder responder);
  void answer_diagnosis(http::Responder responder);
  std::optional<kv::Account> last_account();
  // The pump's thread.
  void on_request(const engine::RequestRecord&) override {}
  void on_step(const engine::StepRecord&) override {}
  void on_tick() override;
  MetricsReading read();
  void ask_account();

  engine::Engine& engine_;
  const AccessLog& access_;
  std::atomic<const http::HttpServer*> server_{nullptr};
  const std::shared_ptr<Accounts> accounts_ = std::make_shared<Accounts>();
  std::chrono::steady_clock::time_point asked_at_{};  // the pump's thread, likewise:
  std::chrono::steady_clock::time_point scraped_at_{};
  Metrics metrics_;
  Diagnosing diagnosing_;
  std::unique_ptr<RecordPump> pump_;  // null: stopped
};

}  // namespace pagoda::serve
