// Server: the engine behind HTTP. Routes, model names, streaming, cancelling for vanished clients, draining.
// Routes: POST /v1/chat/completions /v1/completions; GET /v1/models /v1/models/{id} /v1/requests/{id}/cache
// /v1/kv /v1/kv/blocks /v1/engine /livez /readyz /health /ping /version /metrics /; and those of session_routes.h.
// Who may ask for what: auth.h.
// Threads: handlers run on the io thread: they parse, submit and render, and wait for nothing.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "base/error.h"
#include "engine/engine.h"
#include "http/tls_files.h"
#include "serve/access_log.h"
#include "serve/auth.h"

namespace pagoda::serve {

// kAny: with one model loaded every `model` is served by it, and the answer names the served one. kStrict: another name is a 404.
enum class ModelNames : uint8_t { kAny, kStrict };

enum class CacheReporting : uint8_t { kOn, kOff };  // off: the engine makes no reports

// kKeys: where other machines can reach the server there must be keys. kAnyone: they need not.
enum class Exposure : uint8_t { kKeys, kAnyone };

struct ServeOptions {
  std::string host = "127.0.0.1";
  AuthOptions auth{};
  Exposure exposure = Exposure::kKeys;
  uint16_t port = 8000;  // 0: the system picks one, see Server::port
  ModelNames model_names = ModelNames::kAny;
  CacheReporting reports = CacheReporting::kOn;
  LogContent log_content = LogContent::kOff;
  std::string cors_origin;        // empty: no CORS headers; "*" or an origin
  std::string version = "0.1.0";  // shown by /version and in system_fingerprint
  http::TlsFiles tls{};           // none: plain HTTP
  int n_threads = 0;              // that compute: /v1/diagnosis
  size_t max_body_bytes = 16 * 1024 * 1024;
  size_t max_head_bytes = 32 * 1024;
  size_t max_connections = 16'384;        // fewer where descriptors or --memory allow fewer
  size_t max_streams = 4096;              // calls that are answered at once, streams or not; more get 429
  std::chrono::seconds stall_limit{300};  // a step that takes longer hangs: /livez says so
  std::chrono::seconds drain_delay{0};    // after the first signal new work is still taken for that long
  std::chrono::seconds drain_limit{600};  // running streams have that long to finish from then on
};

// What can be told before a model is loaded: a wrong key file, and a server without keys that other machines could reach though nobody said
// that they may. `where` is the option.
Status check_options(const ServeOptions& options);

class Server {
 public:
  // Listens and serves from then on. The engine must outlive the server.
  static Result<std::unique_ptr<Server>> create(engine::Engine& engine, const ServeOptions& options);
  // Cuts what still runs.
  virtual ~Server() = default;

  virtual uint16_t port() const = 0;
  // "http://127.0.0.1:8000"
  virtual std::string url() const = 0;

  // Waits for SIGINT, SIGTERM or begin_stop(): then it is not ready any more, after drain_delay new work is refused with 503, running
  // requests finish (a second signal or drain_limit cuts them) and run returns with nothing left running.
  virtual void run() = 0;
  // As a signal does; any thread.
  virtual void begin_stop() = 0;
};

}  // namespace pagoda::serve
