#include "serve/server.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>

#include "api/error_map.h"
#include "base/log.h"
#include "http/loopback.h"
#include "http/server.h"
#include "serve/monitoring.h"
#include "serve/routes.h"
#include "serve/session_routes.h"

namespace pagoda::serve {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

class HttpFrontedServer final : public Server {
 public:
  HttpFrontedServer(engine::Engine& engine, const ServeOptions& options, std::unique_ptr<Auth> auth)
      : engine_(engine),
        options_(options),
        auth_(std::move(auth)),
        monitoring_(engine, access_log_, options),
        routes_(engine, options, *auth_, access_log_) {}
  ~HttpFrontedServer() override {
    if (http_) http_->stop();
    monitoring_.stop();  // it looks at http_
  }

  Status start() {
    http::HttpOptions http_options;
    http_options.host = options_.host;
    http_options.port = options_.port;
    http_options.cors_origin = options_.cors_origin;
    engine::TrafficMemory& traffic = engine_.traffic();
    http_options.max_connections = options_.max_connections;
    http_options.tls = options_.tls;
    http_options.max_head_bytes = options_.max_head_bytes;
    http_options.max_body_bytes = std::min(options_.max_body_bytes, traffic.most_body_bytes());
    if (http_options.max_body_bytes < options_.max_body_bytes) {
      http_options.body_limit_hint = ", which is what the memory limit leaves for one (--memory)";
    } else if (http_options.max_body_bytes < engine::TrafficMemory::kMostBodyBytes) {
      http_options.body_limit_hint = ", which is the limit (--max-body)";
    }
    http_options.memory = &traffic.held;
    http_options.body_copies = engine::TrafficMemory::kBodyCopies;
    http_options.large_bodies.are_taken = takes_session_parts;
    for (const engine::ModelInfo& model : engine_.models())
      http_options.large_bodies.bytes = std::max(http_options.large_bodies.bytes, model.session_part_bytes);
    http_options.large_bodies.bytes = std::min<size_t>(http_options.large_bodies.bytes,
                                                       traffic.held.most_bytes() / engine::TrafficMemory::kBodyCopies);
    if (options_.auth.has_keys()) {
      http_options.gate = [this](const http::HttpRequest& request) -> std::optional<http::HttpResponse> {
        const Result<Caller> caller = auth_->admit(request);
        if (caller) return std::nullopt;
        return error_response(caller.error());
      };
    }
    http_options.render_error = [](int status, std::string_view message) {
      return http::HttpResponse{status, "application/json", {}, api::openai_error(status, message)};
    };
    http::Router router = routes_.router();
    monitoring_.add_to(router);
    TRY_ASSIGN(http_, http::HttpServer::create(std::move(http_options), std::move(router)));
    monitoring_.watch(*http_);
    http_->watch_signals([this](int) { begin_stop(); });
    return {};
  }

  uint16_t port() const override { return http_->port(); }
  std::string url() const override { return http_->url(); }

  void begin_stop() override {
    const std::lock_guard lock(mutex_);
    ++n_stop_requests_;
    changed_.notify_all();
  }

  void run() override {
    wait_for_stop_requests(1, steady_clock::time_point::max());
    routes_.say_stopping();
    if (options_.drain_delay.count() > 0) {
      LOG_INFO("stopping: new requests are taken for {} s more", options_.drain_delay.count());
      wait_for_stop_requests(2, steady_clock::now() + options_.drain_delay);
    }
    routes_.refuse_new_work();
    LOG_INFO("stopping: {} requests are still running; a second signal cuts them", http_->active_requests());
    engine_.drain();
    http_->drain();
    const auto limit = steady_clock::now() + options_.drain_limit;
    while (http_->active_requests() > 0 && steady_clock::now() < limit) {
      if (wait_for_stop_requests(2, steady_clock::now() + milliseconds(10))) break;
    }
    http_->stop();
    LOG_INFO("stopped");
  }

 private:
  // True once that many have come; false if the time is up before.
  bool wait_for_stop_requests(int wanted, steady_clock::time_point until) {
    std::unique_lock lock(mutex_);
    const auto has_come = [&] { return n_stop_requests_ >= wanted; };
    if (until != steady_clock::time_point::max()) return changed_.wait_until(lock, until, has_come);
    changed_.wait(lock, has_come);
    return true;
  }

  engine::Engine& engine_;
  const ServeOptions options_;
  const std::unique_ptr<Auth> auth_;
  AccessLog access_log_;
  Monitoring monitoring_;
  Routes routes_;
  std::unique_ptr<http::HttpServer> http_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int n_stop_requests_ = 0;  // guarded by mutex_
};

}  // namespace

Status check_options(const ServeOptions& options) {
  if (!options.auth.key_file.empty()) TRY(load_key_file(options.auth.key_file));
  const std::string& host = options.host;
  if (options.auth.has_keys() || options.exposure == Exposure::kAnyone || http::is_loopback(host)) return {};
  return fail(
      Error{ErrorCode::kInvalidArgument,
            fmt::format("other machines can reach {}, and no key is set: set one with --api-key or --api-keys, or "
                        "let anybody in with --no-auth",
                        host),
            "--host"});
}

Result<std::unique_ptr<Server>> Server::create(engine::Engine& engine, const ServeOptions& options) {
  static const SteadyClock kClock;
  TRY(check_options(options));
  if (!options.auth.has_keys()) {
    if (http::is_loopback(options.host)) {
      LOG_INFO("no keys are set: only this machine can ask, on {}", options.host);
    } else {
      LOG_WARN("no keys are set: whoever can reach {} may use this server", options.host);
    }
  }
  TRY_ASSIGN(auto auth, Auth::create(options.auth, kClock));
  auto server = std::make_unique<HttpFrontedServer>(engine, options, std::move(auth));
  TRY(server->start());
  return server;
}

}  // namespace pagoda::serve
