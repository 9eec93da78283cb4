#include "serve/routes.h"

#include <algorithm>
#include <filesystem>

#include "api/error_map.h"
#include "api/json_fields.h"
#include "api/json_text.h"
#include "base/clock.h"
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

tl::unexpected<Error> stopping() { return fail(ErrorCode::kUnavailable, "the server is stopping"); }

tl::unexpected<Error> no_place(size_t most) {
  return fail(ErrorCode::kOverloaded, "{} requests are being answered already (--max-streams)", most);
}

Status check_model(const Tenant& tenant, const std::string& model) {
  if (tenant.may_use(model)) return {};
  return fail(Error{ErrorCode::kForbidden, fmt::format("this key may not use the model {}", model), "model"});
}

// What a request's texts take, and its tokens at most: each choice has them twice, and its history.
uint64_t held_bytes(const engine::Request& request, const engine::ModelInfo& model) {
  constexpr uint64_t kTokenBytes = 12, kObjectBytes = 2048;
  uint64_t text_bytes = 0, kept_bytes = 0;
  if (const auto* text = std::get_if<engine::TextPrompt>(&request.prompt)) {
    kept_bytes = text_bytes = text->text.size();
  } else if (const auto* tokens = std::get_if<engine::TokenPrompt>(&request.prompt)) {
    text_bytes = tokens->tokens.size();
    kept_bytes = tokens->tokens.size() * sizeof(TokenId);
  } else if (const auto* chat = std::get_if<engine::ChatPrompt>(&request.prompt)) {
    text_bytes = chat->messages_json.size() + chat->tools_json.size() + chat->template_kwargs_json.size();
    kept_bytes = text_bytes;
    for (const std::string& text : chat->message_texts) kept_bytes += text.size() + sizeof text;
  }
  const uint64_t n_tokens = std::min<uint64_t>(text_bytes, static_cast<uint64_t>(model.context_tokens));
  return kObjectBytes + kept_bytes + static_cast<uint64_t>(request.n_choices) * (kObjectBytes + kTokenBytes * n_tokens);
}

// Counts what is kept of a call in what its body was counted in, which its requests hold from now on.
Status hold(api::OpenAiCall& call, const engine::ModelInfo& model, const ByteBudget& budget,
            const std::shared_ptr<ByteReservation>& memory) {
  if (!memory) return {};
  uint64_t needed = 0;
  for (const engine::Request& request : call.requests) needed += held_bytes(request, model);
  if (needed > budget.most_bytes()) {
    return fail(ErrorCode::kInvalidArgument,
                "the request would take {} bytes of memory, but {} are left for it: a shorter prompt, fewer choices or "
                "prompts, or a larger --memory",
                needed, budget.most_bytes());
  }
  memory->shrink_to(needed);
  if (!memory->grow_to(needed)) {
    return fail(ErrorCode::kUnavailable,
                "there is no memory for this request now, beside the requests and answers that there are");
  }
  for (engine::Request& request : call.requests) request.memory = memory;
  return {};
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
  router.add("GET", "/v1/models",
             [this](const HttpRequest& request, Responder responder) { responder.send(models(request)); });
  router.add("GET", "/v1/models/{id...}",
             [this](const HttpRequest& request, Responder responder) { responder.send(model(request)); });
  router.add("GET", "/livez",
             [this](HttpRequest, Responder responder) { responder.send(probe_response(why_not_live(health()))); });
  router.add("GET", "/readyz",
             [this](HttpRequest, Responder responder) { responder.send(probe_response(why_not_ready(health()))); });
  for (const char* path : {"/health", "/ping"}) {  // as vLLM: no body; a full queue is no fault
    router.add("GET", path, [this](HttpRequest, Responder responder) {
      const bool is_well = !is_stopping_ && why_not_live(health()).empty();
      responder.send({is_well ? 200 : 503, "text/plain", {}, ""});
    });
  }
  router.add("GET", "/version", [this](HttpRequest, Responder responder) {
    responder.send(
        {200, "application/json", {}, fmt::format(R"({{"version":{}}})", api::json_string(options_.version))});
  });
  router.add("GET", "/v1/engine", [this](HttpRequest, Responder responder) { responder.send(engine_stats()); });
  router.add("GET", "/v1/kv", [this](HttpRequest, Responder responder) { kv(std::move(responder)); });
  router.add("GET", "/v1/kv/blocks",
             [this](const HttpRequest& request, Responder responder) { kv_blocks(request, std::move(responder)); });
  router.add("GET", "/v1/requests/{id}/cache",
             [this](const HttpRequest& request, Responder responder) { responder.send(request_cache(request)); });
  sessions_.add_to(router);
  router.add("GET", "/",
             [](HttpRequest, Responder responder) { responder.send({200, "text/plain", {}, "Pagoda is running\n"}); });
  return router;
}

void Routes::generate(Endpoint endpoint, http::HttpRequest request, http::Responder responder) {
  const std::string_view own_id = request.header("x-request-id");
  const bool is_own = is_usable_id(own_id);
  Call::Origin origin{is_own ? std::string(own_id) : "req-" + ids_.next(),
                      is_own ? Call::Origin::IdBy::kClient : Call::Origin::IdBy::kServer,
                      request.path,
                      std::chrono::steady_clock::now(),
                      {},
                      {}};
  Result<Caller> caller = auth_.admit(request);
  if (!caller) return begin(endpoint, std::move(origin), fail(caller.error()), {}, std::move(responder));
  origin.caller = std::move(*caller);
  if (is_draining_) return begin(endpoint, std::move(origin), stopping(), {}, std::move(responder));
  origin.place = places_.take();
  if (!origin.place) return begin(endpoint, std::move(origin), no_place(places_.most()), {}, std::move(responder));
  if (parses_inline(request.body)) {
    Result<api::OpenAiCall> parsed = endpoint.parse(request.body);
    request.body = {};
    return begin(endpoint, std::move(origin), std::move(parsed), std::move(request.memory), std::move(responder));
  }
  worker_.push([this, endpoint, origin = std::move(origin), body = std::move(request.body),
                memory = std::move(request.memory), responder]() mutable {
    auto parsed = std::make_shared<Result<api::OpenAiCall>>(parse_large(endpoint, body));
    body = {};
    responder.post(
        [this, endpoint, origin = std::move(origin), parsed, memory = std::move(memory), responder]() mutable {
          begin(endpoint, std::move(origin), std::move(*parsed), std::move(memory), std::move(responder));
        });
  });
}

bool Routes::parses_inline(std::string_view body) const {
  const uint64_t most = engine_.traffic().small_work_bytes;
  return body.size() <= kInlineBodyBytes &&
         (body.size() <= most / api::kMostParseFactor || api::parse_work_bytes(body) <= most);
}

Result<api::OpenAiCall> Routes::parse_large(Endpoint endpoint, std::string_view body) const {
  engine::TrafficMemory& memory = engine_.traffic();
  const uint64_t needed = api::parse_work_bytes(body), most = memory.work.most_bytes();
  if (needed > most) {
    return fail(ErrorCode::kInvalidArgument,
                "the body's JSON would take {} bytes of memory to read, but {} are left for it: fewer values, or a "
                "larger --memory",
                needed, most);
  }
  ByteReservation room;
  if (needed > memory.small_work_bytes) room = memory.work.reserve(needed);
  return endpoint.parse(body);
}

void Routes::begin(Endpoint endpoint, Call::Origin origin, Result<api::OpenAiCall> parsed, Memory memory,
                   http::Responder responder) {
  const Status started = start(endpoint, origin, std::move(parsed), memory, responder);
  if (started) return;
  const api::ErrorFace face = api::error_face(started.error().code);
  const std::chrono::duration<double, std::milli> total = std::chrono::steady_clock::now() - origin.received;
  access_.write({.id = origin.request_id,
                 .route = origin.route,
                 .status = face.status,
                 .outcome = face.label,
                 .field = started.error().where,
                 .total_ms = total.count()});
  http::HttpResponse response = error_response(started.error(), places_.retry_after_seconds(engine_.stats().running));
  response.headers.push_back({"x-request-id", origin.request_id});
  responder.send(std::move(response));
}

Status Routes::start(Endpoint endpoint, const Call::Origin& origin, Result<api::OpenAiCall> parsed,
                     const Memory& memory, const http::Responder& responder) {
  if (is_draining_) return stopping();
  TRY_ASSIGN(api::OpenAiCall call, std::move(parsed));
  TRY_ASSIGN(const engine::ModelInfo model, resolve_model(engine_.models(), call.model, options_.model_names));
  TRY(hold(call, model, engine_.traffic().held, memory));
  const Caller& caller = origin.caller;
  TRY(check_model(*caller.tenant, model.name));
  for (engine::Request& one : call.requests) {
    one.model = model.name;
    caller.sign(one);
  }
  TRY_ASSIGN(std::unique_ptr<Admission> admission, caller.use->admit(caller.tenant, model, call.requests));
  api::AnswerHead head{fmt::format("{}{}", endpoint.id_prefix, ids_.next()), unix_seconds(), model.name,
                       "pagoda-" + options_.version};
  Call::start(engine_, {log_, access_, options_.log_content}, std::move(call), std::move(head), origin,
              std::move(admission), responder);
  return {};
}

http::HttpResponse Routes::models(const http::HttpRequest& request) const {
  const Result<Caller> caller = auth_.admit(request);
  if (!caller) return error_response(caller.error());
  std::vector<api::ModelCard> cards;
  for (const engine::ModelInfo& model : engine_.models()) {
    if (caller->tenant->may_use(model.name)) cards.push_back(card_of(model));
  }
  return {200, "application/json", {}, api::openai_models(cards)};
}

http::HttpResponse Routes::model(const http::HttpRequest& request) const {
  const Result<Caller> caller = auth_.admit(request);
  if (!caller) return error_response(caller.error());
  const auto found = resolve_model(engine_.models(), request.path_value("id"), ModelNames::kStrict);
  if (!found) return error_response(found.error());
  if (const Status allowed = check_model(*caller->tenant, found->name); !allowed)
    return error_response(allowed.error());
  return {200, "application/json", {}, api::openai_model(card_of(*found))};
}

HealthFacts Routes::health() const {
  return {engine_.stats(), options_.stall_limit, places_.taken(), places_.most(), is_stopping_};
}

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

http::HttpResponse Routes::request_cache(const http::HttpRequest& request) const {
  const std::string_view id = request.path_value("id");
  const Result<Caller> caller = auth_.admit(request);
  if (!caller) return error_response(caller.error());
  if (options_.reports == CacheReporting::kOff)
    return not_found("no cache reports are kept: the server runs with --explain off");
  const std::optional<CacheReports> reports = log_.find(caller->tenant->name, id);
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
