#include <cstdio>
#include <cstdlib>

#include "api/json_text.h"
#include "cmd/commands.h"
#include "cmd/version.h"
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
  serve::AuthOptions auth{.api_key = options.api_key, .key_file = options.api_keys};
  if (const char* key = std::getenv("PAGODA_API_KEY"); key != nullptr && auth.api_key.empty()) auth.api_key = key;
  if (options.no_auth && auth.has_keys())
    return fail(Error{ErrorCode::kInvalidArgument, "keys are set, so nobody is let in without one", "--no-auth"});
  return auth;
}

}  // namespace

Status serve(const Options& options) {
  serve::ServeOptions serving;
  TRY_ASSIGN(serving.auth, auth_options(options));
  serving.exposure = options.no_auth ? serve::Exposure::kAnyone : serve::Exposure::kKeys;
  serving.host = options.host;
  TRY(serve::check_options(serving));
  TRY_ASSIGN(engine::EngineConfig config, engine_config(options));
  if (options.kv_probe == "idle") config.idle.make = tools::idle_probe(config);
  TRY_ASSIGN(const auto engine, engine::Engine::create(config));
  serving.port = options.port;
  serving.model_names = options.strict_model ? serve::ModelNames::kStrict : serve::ModelNames::kAny;
  serving.reports = config.explain == engine::Explain::kOn ? serve::CacheReporting::kOn : serve::CacheReporting::kOff;
  serving.cors_origin = options.cors_origin;
  serving.version = kVersion;
  TRY_ASSIGN(const auto server, serve::Server::create(*engine, serving));
  say_ready(options, engine->models().front(), server->url(), serving.auth);
  server->run();
  return {};
}

}  // namespace pagoda::cmd
