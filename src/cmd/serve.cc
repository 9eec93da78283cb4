#include "base/log.h"
#include "cmd/commands.h"
#include "cmd/read_file.h"
#include "cmd/version.h"
#include "serve/server.h"

namespace pagoda::cmd {

Status serve(const Options& options) {
  TRY_ASSIGN(engine::EngineConfig config, engine_config(options));
  if (!options.chat_template.empty()) {
    TRY_ASSIGN(config.chat_template, read_text(options.chat_template));
  }
  TRY_ASSIGN(const auto engine, engine::Engine::create(config));
  serve::ServeOptions serving;
  serving.host = options.host;
  serving.port = options.port;
  serving.model_names = options.strict_model ? serve::ModelNames::kStrict : serve::ModelNames::kAny;
  serving.cors_origin = options.cors_origin;
  serving.version = kVersion;
  TRY_ASSIGN(const auto server, serve::Server::create(*engine, serving));
  LOG_INFO("serving {} at {}/v1", engine->models().front().name, server->url());
  server->run();
  return {};
}

}  // namespace pagoda::cmd
