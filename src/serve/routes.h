// Routes: what each path does.     Threads: handlers run on io threads; the state they share is atomic or guarded.
#pragma once

#include <atomic>
#include <mutex>
#include <random>
#include <string>

#include "api/openai.h"
#include "base/clock.h"
#include "engine/engine.h"
#include "http/router.h"
#include "serve/access_log.h"
#include "serve/call.h"
#include "serve/call_places.h"
#include "serve/health.h"
#include "serve/request_log.h"
#include "serve/server.h"
#include "serve/session_routes.h"
#include "serve/worker.h"

namespace pagoda::serve {

// Ids for answers: 96 random bits in hex. Any thread.
class IdSource {
 public:
  std::string next();

 private:
  std::mutex mutex_;
  std::mt19937_64 random_{std::random_device{}()};  // guarded by mutex_
};

class Routes {
 public:
  // Auth and access log outlive it.
  Routes(engine::Engine& engine, const ServeOptions& options, const Auth& auth, AccessLog& access)
      : engine_(engine), options_(options), auth_(auth), access_(access) {}
  // The handlers hold this object: it must outlive the router.
  http::Router router();
  // From now on no probe finds the server ready.
  void say_stopping() { is_stopping_ = true; }
  // From now on new work is answered with 503.
  void refuse_new_work() { is_draining_ = true; }

 private:
  // One of the two dialect functions that make text.
  struct Endpoint {
    Result<api::OpenAiCall> (*parse)(std::string_view body);
    std::string_view id_prefix;
  };

  // Small bodies are parsed at once, large ones on the worker, so that they stall nobody's stream.
  void generate(Endpoint endpoint, http::HttpRequest request, http::Responder responder);
  bool parses_inline(std::string_view body) const;
  // On the worker: waits until there is memory for it.
  Result<api::OpenAiCall> parse_large(Endpoint endpoint, std::string_view body) const;
  // On the io thread: a parsed call goes to the engine, anything else is answered as what it is.
  using Memory = std::shared_ptr<ByteReservation>;
  void begin(Endpoint endpoint, Call::Origin origin, Result<api::OpenAiCall> parsed, Memory memory,
             http::Responder responder);
  Status start(Endpoint endpoint, const Call::Origin& origin, Result<api::OpenAiCall> parsed, const Memory& memory,
               const http::Responder& responder);
  http::HttpResponse models(const http::HttpRequest& request) const;
  http::HttpResponse model(const http::HttpRequest& request) const;
  HealthFacts health() const;
  http::HttpResponse engine_stats() const;
  http::HttpResponse request_cache(const http::HttpRequest& request) const;
  // Both are counted on the engine thread and rendered on the io thread.
  void kv(http::Responder responder);
  void kv_blocks(const http::HttpRequest& request, http::Responder responder);

  engine::Engine& engine_;
  const ServeOptions options_;
  const Auth& auth_;
  AccessLog& access_;
  SteadyClock clock_;
  CallPlaces places_{options_.max_streams, clock_};
  IdSource ids_;
  SessionRoutes sessions_{engine_, ids_, auth_};
  RequestLog log_;
  std::atomic<bool> is_stopping_{false};
  std::atomic<bool> is_draining_{false};
  Worker worker_;
};

}  // namespace pagoda::serve
