// Routes: what each path does.     Threads: handlers run on io threads; the state they share is atomic or guarded.
#pragma once

#include <atomic>
#include <mutex>
#include <random>
#include <string>

#include "api/openai.h"
#include "engine/engine.h"
#include "http/router.h"
#include "serve/server.h"

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
  Routes(engine::Engine& engine, const ServeOptions& options) : engine_(engine), options_(options) {}
  // The handlers hold this object: it must outlive the router.
  http::Router router();
  // From now on new work is answered with 503.
  void refuse_new_work() { is_draining_ = true; }

 private:
  using Parse = Result<api::OpenAiCall> (*)(std::string_view body);

  void generate(Parse parse, std::string_view id_prefix, const http::HttpRequest& request, http::Responder responder);
  Status start_call(Parse parse, std::string_view id_prefix, const http::HttpRequest& request,
                    const std::string& request_id, const http::Responder& responder);
  http::HttpResponse models() const;
  http::HttpResponse model(std::string_view id) const;
  http::HttpResponse health() const;
  http::HttpResponse engine_stats() const;

  engine::Engine& engine_;
  const ServeOptions options_;
  IdSource ids_;
  std::atomic<bool> is_draining_{false};
};

}  // namespace pagoda::serve
