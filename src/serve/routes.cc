#include "serve/routes.h"

#include <algorithm>
#include <filesystem>

#include "api/error_map.h"
#include "api/json_text.h"
#include "base/clock.h"
#include "base/log.h"
#include "serve/kv_json.h"
#include "serve/model_names.h"
#include "serve/query.h"

namespace pagoda::serve {
namespace {

constexpr size_t kInlineBodyBytes = 64 * 1024;  // under a millisecond to parse

api::ModelCard card_of(const engine::ModelInfo& model) {
  return {model.name,
          std::filesystem::path(model.path).filename().string(),
          model.created,
          model.context_tokens,
          model.trained_context_tokens,
          model.vocab_size,
          model.n_params,
          model.file_bytes};
}

// A client's own request id is kept if it is harmless in a header and a log line.
bool is_usable_id(std::string_view id) {
  return !id.empty() && id.size() <= 128 && std::all_of(id.begin(), id.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '_' ||
           c == '.';
  });
}

http::HttpResponse not_found(std::string_view message) {
  return {404, "application/json", {}, api::openai_error(404, message)};
}

}  // namespace

std::string IdSource::next() {
  const std::lock_guard lock(mutex_);
  return fmt::format("{:016x}{:08x}", random_(), static_cast<uint32_t>(random_()));
}

http::Router Routes::router() {
  using http::HttpRequest;
  using http::Responder;
  http::Router router;
  for (const auto& [path, endpoint] : {std::pair{"/v1/chat/completions", Endpoint{api::parse_chat, "chatcmpl-"}},
                                       std::pair{"/v1/completions", Endpoint{api::parse_completion, "cmpl-"}}}) {
    router.add("POST", path, [this, endpoint = endpoint](HttpRequest request, Responder responder) {
      generate(endpoint, std::move(request), std::move(responder));
    });
  }
  router.add("GET", "/v1/models", [this](HttpRequest, Responder responder) { responder.send(models()); });
  router.add("GET", "/v1/models/{id...}",
             [this](HttpRequest request, Responder responder) { responder.send(model(request.path_value("id"))); });
  for (const char* path : {"/health", "/ping"}) {
    router.add("GET", path, [this](HttpRequest, Responder responder) { responder.send(health()); });
  }
  router.add("GET", "/version", [this](HttpRequest, Responder responder) {
    responder.send(
        {200, "application/json", {}, fmt::format(R"({{"version":{}}})", api::json_string(options_.version))});
  });
  router.add("GET", "/v1/engine", [this](HttpRequest, Responder responder) { responder.send(engine_stats()); });
  router.add("GET", "/v1/kv", [this](HttpRequest, Responder responder) { kv(std::move(responder)); });
  router.add("GET", "/v1/kv/blocks",
             [this](const HttpRequest& request, Responder responder) { kv_blocks(request, std::move(responder)); });
  router.add("GET", "/v1/requests/{id}/cache", [this](const HttpRequest& request, Responder responder) {
    responder.send(request_cache(request.path_value("id")));
  });
  sessions_.add_to(router);
  router.add("GET", "/",
             [](HttpRequest, Responder responder) { responder.send({200, "text/plain", {}, "Pagoda is running\n"}); });
  return router;
}

void Routes::generate(Endpoint endpoint, http::HttpRequest request, http::Responder responder) {
  const std::string_view own_id = request.header("x-request-id");
  const bool is_own = is_usable_id(own_id);
  Call::Origin origin{is_own ? std::string(own_id) : "req-" + ids_.next(),
                      is_own ? Call::Origin::IdBy::kClient : Call::Origin::IdBy::kServer, request.path,
                      std::chrono::steady_clock::now()};
  if (request.body.size() <= kInlineBodyBytes || is_draining_) {
    return begin(endpoint, std::move(origin), endpoint.parse(request.body), std::move(responder));
  }
  worker_.push([this, endpoint, origin = std::move(origin), body = std::move(request.body), responder]() mutable {
    auto parsed = std::make_shared<Result<api::OpenAiCall>>(endpoint.parse(body));
    body = {};
    responder.post([this, endpoint, origin = std::move(origin), parsed, responder]() mutable {
      begin(endpoint, std::move(origin), std::move(*parsed), std::move(responder));
    });
  });
}

void Routes::begin(Endpoint endpoint, Call::Origin origin, Result<api::OpenAiCall> parsed, http::Responder responder) {
  const Status started = start(endpoint, origin, std::move(parsed), responder);
  if (started) return;
  const api::ErrorFace face = api::error_face(started.error().code);
  LOG_INFO("request id={} route={} status={} outcome={} field={}", origin.request_id, origin.route, face.status,
           face.label, started.error().where.empty() ? "-" : started.error().where);
  http::HttpResponse response = error_response(started.error());
  response.headers.push_back({"x-request-id", origin.request_id});
  responder.send(std::move(response));
}

Status Routes::start(Endpoint endpoint, const Call::Origin& origin, Result<api::OpenAiCall> parsed,
                     const http::Responder& responder) {
  if (is_draining_) return fail(ErrorCode::kUnavailable, "the server is stopping");
  TRY_ASSIGN(api::OpenAiCall call, std::move(parsed));
  TRY_ASSIGN(const engine::ModelInfo model, resolve_model(engine_.models(), call.model, options_.model_names));
  for (engine::Request& one : call.requests) one.model = model.name;
  api::AnswerHead head{fmt::format("{}{}", endpoint.id_prefix, ids_.next()), unix_seconds(), model.name,
                       "pagoda-" + options_.version};
  Call::start(engine_, log_, std::move(call), std::move(head), origin, responder);
  return {};
}

http::HttpResponse Routes::models() const {
  std::vector<api::ModelCard> cards;
  for (const engine::ModelInfo& model : engine_.models()) cards.push_back(card_of(model));
  return {200, "application/json", {}, api::openai_models(cards)};
}

http::HttpResponse Routes::model(std::string_view id) const {
  const auto found = resolve_model(engine_.models(), id, ModelNames::kStrict);
  if (!found) return error_response(found.error());
  return {200, "application/json", {}, api::openai_model(card_of(*found))};
}

http::HttpResponse Routes::health() const { return {is_draining_ ? 503 : 200, "text/plain", {}, ""}; }

http::HttpResponse Routes::engine_stats() const {
  const engine::EngineStats stats = engine_.stats();
  return {
      200,
      "application/json",
      {},
      fmt::format(R"({{"running":{},"waiting":{},"steps":{},"preemptions":{},"kv_budget_bytes":{},"kv_live_bytes":{},)"
                  R"("kv_live_blocks":{}}})",
                  stats.running, stats.waiting, stats.steps, stats.preemptions, stats.kv_budget_bytes,
                  stats.kv_live_bytes, stats.kv_live_blocks)};
}

http::HttpResponse Routes::request_cache(std::string_view id) const {
  if (options_.reports == CacheReporting::kOff)
    return not_found("no cache reports are kept: the server runs with --explain off");
  const std::optional<CacheReports> reports = log_.find(id);
  if (reports) return {200, "application/json", {}, cache_reports_json(id, *reports)};
  return not_found(
      fmt::format("no cache report for {}: it is unknown, has not finished, failed, or is not among the last {}", id,
                  RequestLog::kMostCalls));
}

void Routes::kv(http::Responder responder) {
  engine_.ask_kv([this, responder = std::move(responder)](pagoda::kv::Account account) {
    responder.post([this, responder, account = std::move(account)]() mutable {
      responder.send({200, "application/json", {}, account_json(account, engine_.models(), engine_.stats().tiers)});
    });
  });
}

void Routes::kv_blocks(const http::HttpRequest& request, http::Responder responder) {
  const Result<std::optional<uint64_t>> page = query_number(request.query, "page");
  if (!page) return responder.send(error_response(page.error()));
  engine_.ask_kv_blocks(page->value_or(0), [this, responder = std::move(responder)](pagoda::kv::BlockMapPage map) {
    responder.post([this, responder, map = std::move(map)]() mutable {
      if (map.page >= map.n_pages) {
        return responder.send(not_found(fmt::format("there is no page {}: the map has {}", map.page, map.n_pages)));
      }
      responder.send({200, "application/json", {}, block_map_json(map, engine_.models())});
    });
  });
}

}  // namespace pagoda::serve
