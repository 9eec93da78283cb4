#include <cstdio>

#include "api/json_text.h"
#include "base/cpu.h"
#include "base/named.h"
#include "cmd/commands.h"
#include "cmd/version.h"
#include "http/file_limit.h"
#include "http/tls_keys.h"
#include "serve/server.h"
#include "tools/idle_probe.h"

namespace pagoda::cmd {
namespace {

// One line that works when pasted.
void say_ready(const Options& options, const engine::ModelInfo& model, const std::string& url,
               const serve::AuthOptions& auth) {
  const std::string name = api::json_string(model.name);
  const char* key = auth.has_keys() ? " -H \"Authorization: Bearer $PAGODA_API_KEY\"" : "";
  if (options.json) {
    std::printf("{\"url\":\"%s\",\"model\":%s}\n", url.c_str(), name.c_str());
  } else if (model.has_chat_template) {
    std::printf(
        "%s is ready at %s/v1. Try: curl %s/v1/chat/completions%s -H 'Content-Type: application/json' "
        "-d '{\"messages\":[{\"role\":\"user\",\"content\":\"Hello!\"}]}'\n",
        model.name.c_str(), url.c_str(), url.c_str(), key);
  } else {
    std::printf(
        "%s is ready at %s/v1. Try: curl %s/v1/completions%s -H 'Content-Type: application/json' "
        "-d '{\"prompt\":\"Once upon a time\",\"max_tokens\":32}'\n",
        model.name.c_str(), url.c_str(), url.c_str(), key);
  }
  std::fflush(stdout);
}

Result<serve::AuthOptions> auth_options(const Options& options) {
  serve::AuthOptions auth{.api_key = api_key_of(options), .key_file = options.api_keys};
  if (options.no_auth && auth.has_keys())
    return fail(Error{ErrorCode::kInvalidArgument, "keys are set, so nobody is let in without one", "--no-auth"});
  return auth;
}

constexpr uint64_t kLeastHeadBytes = 1024, kMostHeadBytes = 1 << 20;

// What is wrong with them is said before a model is loaded.
Result<serve::ServeOptions> serve_options(const Options& options) {
  serve::ServeOptions serving;
  TRY_ASSIGN(serving.auth, auth_options(options));
  serving.exposure = options.no_auth ? serve::Exposure::kAnyone : serve::Exposure::kKeys;
  serving.host = options.host;
  TRY(serve::check_options(serving));
  serving.port = options.port;
  serving.model_names = options.strict_model ? serve::ModelNames::kStrict : serve::ModelNames::kAny;
  serving.cors_origin = options.cors_origin;
  serving.log_content = options.log_content ? serve::LogContent::kOn : serve::LogContent::kOff;
  serving.version = kVersion;
  serving.max_connections = static_cast<size_t>(options.max_connections);
  serving.max_streams = static_cast<size_t>(options.max_streams);
  serving.stall_limit = std::chrono::seconds(options.stall_limit_seconds);
  serving.drain_delay = std::chrono::seconds(options.drain_delay_seconds);
  serving.drain_limit = std::chrono::seconds(options.drain_limit_seconds);
  TRY_ASSIGN(serving.max_body_bytes, named("--max-body", parse_bytes(options.max_body)));
  if (serving.max_body_bytes < 1 || serving.max_body_bytes > engine::TrafficMemory::kMostBodyBytes)
    return fail(Error{ErrorCode::kInvalidArgument, "a body may have 1 to 16777216 bytes", "--max-body"});
  TRY_ASSIGN(serving.max_head_bytes, named("--max-header", parse_bytes(options.max_header)));
  if (serving.max_head_bytes < kLeastHeadBytes || serving.max_head_bytes > kMostHeadBytes)
    return fail(Error{ErrorCode::kInvalidArgument, "a head may have 1024 to 1048576 bytes", "--max-header"});
  if (options.tls_cert.empty() && !options.tls_key.empty())
    return fail(Error{ErrorCode::kInvalidArgument, "this needs --tls-cert FILE", "--tls-key"});
  serving.tls = {options.tls_cert, options.tls_key.empty() ? options.tls_cert : options.tls_key};
  if (serving.tls.is_used()) TRY(http::TlsKeys::load(serving.tls));
  return serving;
}

}  // namespace

Status serve(const Options& options) {
  TRY_ASSIGN(serve::ServeOptions serving, serve_options(options));
  TRY_ASSIGN(engine::EngineConfig config, engine_config(options));
  if (options.kv_probe == "idle") config.idle.make = tools::idle_probe(config);
  TRY_ASSIGN(const auto engine, engine::Engine::create(config));
  serving.reports = config.explain == engine::Explain::kOn ? serve::CacheReporting::kOn : serve::CacheReporting::kOff;
  http::raise_file_limit(serving.max_connections);
  serving.n_threads = config.n_threads > 0 ? config.n_threads : usable_cores();
  TRY_ASSIGN(const auto server, serve::Server::create(*engine, serving));
  say_ready(options, engine->models().front(), server->url(), serving.auth);
  server->run();
  return {};
}

}  // namespace pagoda::cmd
