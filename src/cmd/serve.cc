#include <cstdio>

#include "api/json_text.h"
#include "cmd/commands.h"
#include "cmd/version.h"
#include "serve/server.h"
#include "tools/idle_probe.h"

namespace pagoda::cmd {
namespace {

// One line that works when pasted.
void say_ready(const Options& options, const engine::ModelInfo& model, const std::string& url) {
  const std::string name = api::json_string(model.name);
  if (options.json) {
    std::printf("{\"url\":\"%s\",\"model\":%s}\n", url.c_str(), name.c_str());
  } else if (model.has_chat_template) {
    std::printf(
        "%s is ready at %s/v1. Try: curl %s/v1/chat/completions -H 'Content-Type: application/json' "
        "-d '{\"messages\":[{\"role\":\"user\",\"content\":\"Hello!\"}]}'\n",
        model.name.c_str(), url.c_str(), url.c_str());
  } else {
    std::printf(
        "%s is ready at %s/v1. Try: curl %s/v1/completions -H 'Content-Type: application/json' "
        "-d '{\"prompt\":\"Once upon a time\",\"max_tokens\":32}'\n",
        model.name.c_str(), url.c_str(), url.c_str());
  }
  std::fflush(stdout);
}

}  // namespace

Status serve(const Options& options) {
  TRY_ASSIGN(engine::EngineConfig config, engine_config(options));
  if (options.kv_probe == "idle") config.idle.make = tools::idle_probe(config);
  TRY_ASSIGN(const auto engine, engine::Engine::create(config));
  serve::ServeOptions serving;
  serving.host = options.host;
  serving.port = options.port;
  serving.model_names = options.strict_model ? serve::ModelNames::kStrict : serve::ModelNames::kAny;
  serving.reports = config.explain == engine::Explain::kOn ? serve::CacheReporting::kOn : serve::CacheReporting::kOff;
  serving.cors_origin = options.cors_origin;
  serving.version = kVersion;
  TRY_ASSIGN(const auto server, serve::Server::create(*engine, serving));
  say_ready(options, engine->models().front(), server->url());
  server->run();
  return {};
}

}  // namespace pagoda::cmd
