#include "serve/session_routes.h"

#include <algorithm>
#include <array>
#include <span>

#include "api/json_text.h"
#include "api/session_body.h"
#include "base/overloaded.h"
#include "http/url.h"
#include "serve/call.h"
#include "serve/query.h"
#include "serve/routes.h"

namespace pagoda::serve {
namespace {

constexpr std::string_view kSaltHeader = "x-pagoda-cache-salt";
constexpr uint64_t kListed = 100, kMostListed = 1000;
constexpr double kMicro = 1e-6;

Result<std::string> salt_of(const http::HttpRequest& request) {
  std::string salt(request.header(kSaltHeader));
  if (salt.size() <= 1024) return salt;
  return pagoda::fail(
      Error{ErrorCode::kInvalidArgument, "the salt must have at most 1024 characters", std::string(kSaltHeader)});
}

// Members of a session's object, without the braces.
std::string info_json(const kv::SessionInfo& info) {
  return fmt::format(
      R"("object":"session","id":{},"tokens":{},"pinned":{},"pinned_tokens":{},"running_requests":{},"turns":{},)"
      R"("ttl_seconds":{:.0f},"idle_seconds":{:.3f},"expires_in_seconds":{})",
      api::json_string(info.name), info.n_tokens, info.is_pinned, info.pinned_tokens, info.n_running, info.n_turns,
      static_cast<double>(info.ttl_us) * kMicro, static_cast<double>(info.idle_us) * kMicro,
      info.left_us ? fmt::format("{:.3f}", static_cast<double>(*info.left_us) * kMicro) : "null");
}

std::string report_json(const engine::SessionReport& report) {
  const kv::SessionPlaces& places = report.places;
  std::string tiers;
  for (size_t i = 0; i < report.tier_names.size(); ++i)
    tiers += fmt::format(R"(,"{}":{})", report.tier_names[i], places.tier_blocks[i]);
  return fmt::format(R"({{{},"blocks":{},"blocks_by_tier":{{"ram":{}{},"elsewhere":{}}},"ram_bytes":{}}})",
                     info_json(report.info), places.n_blocks, places.ram_blocks, tiers, places.absent_blocks,
                     places.ram_bytes);
}

std::string page_json(const engine::SessionPage& page) {
  std::string rows;
  for (const kv::SessionInfo& info : page.sessions) rows += (rows.empty() ? "{" : ",{") + info_json(info) + "}";
  return fmt::format(R"({{"object":"list","data":[{}],"last":{}}})", rows,
                     page.sessions.empty() ? "null" : api::json_string(page.sessions.back().name));
}

http::HttpResponse bytes_response(const engine::SessionBytes& part) {
  return {200,
          "application/octet-stream",
          {{"x-pagoda-parts", std::to_string(part.n_parts)}},
          std::string(reinterpret_cast<const char*>(part.bytes.data()), part.bytes.size())};
}

}  // namespace

bool takes_session_parts(std::string_view method, std::string_view path) {
  constexpr std::string_view kBegin = "/v1/sessions/", kEnd = "/import";
  return method == "POST" && path.size() > kBegin.size() + kEnd.size() && path.starts_with(kBegin) &&
         path.ends_with(kEnd);
}

http::HttpResponse session_response(engine::SessionAsk::Verb verb, const engine::SessionAnswer& answer) {
  using Verb = engine::SessionAsk::Verb;
  const int status = verb == Verb::kCreate || verb == Verb::kFork ? 201 : 200;
  return std::visit(Overloaded{[&](const engine::SessionReport& report) {
                                 return http::HttpResponse{status, "application/json", {}, report_json(report)};
                               },
                               [](const engine::SessionPage& page) {
                                 return http::HttpResponse{200, "application/json", {}, page_json(page)};
                               },
                               [](const engine::SessionBytes& part) { return bytes_response(part); },
                               [](const engine::SessionEnded&) { return http::HttpResponse{204, "", {}, ""}; }},
                    answer);
}

void SessionRoutes::add_to(http::Router& router) {
  using http::HttpRequest;
  using http::Responder;
  struct Route {
    const char* method;
    const char* path;
    Verb verb;
  };
  for (const Route& route :
       {Route{"POST", "/v1/sessions", Verb::kCreate}, Route{"POST", "/v1/sessions/{id}/fork", Verb::kFork},
        Route{"POST", "/v1/sessions/{id}/pin", Verb::kPin}, Route{"DELETE", "/v1/sessions/{id}/pin", Verb::kUnpin},
        Route{"DELETE", "/v1/sessions/{id}", Verb::kDelete}}) {
    router.add(route.method, route.path, [this, verb = route.verb](const HttpRequest& request, Responder responder) {
      with_body(verb, request, std::move(responder));
    });
  }
  for (const Route& route : {Route{"GET", "/v1/sessions", Verb::kList}, Route{"GET", "/v1/sessions/{id}", Verb::kGet},
                             Route{"GET", "/v1/sessions/{id}/export", Verb::kExport},
                             Route{"POST", "/v1/sessions/{id}/import", Verb::kImport}}) {
    router.add(route.method, route.path, [this, verb = route.verb](HttpRequest request, Responder responder) {
      without_body(verb, std::move(request), std::move(responder));
    });
  }
}

Result<engine::SessionAsk> SessionRoutes::begin_ask(Verb verb, const http::HttpRequest& request) const {
  TRY_ASSIGN(const Caller caller, auth_.admit(request));
  TRY_ASSIGN(std::string salt, salt_of(request));
  return engine::SessionAsk{.verb = verb,
                            .tenant = caller.tenant->name,
                            .cache_space = caller.tenant->cache_space,
                            .cache_salt = std::move(salt),
                            .name = std::string(request.path_value("id")),
                            .new_name = {},
                            .ttl_us = {},
                            .bytes = {}};
}

void SessionRoutes::with_body(Verb verb, const http::HttpRequest& request, http::Responder responder) {
  static constexpr std::array<std::string_view, 3> kFields{"cache_salt", "session_id", "ttl_seconds"};
  const bool makes_one = verb == Verb::kCreate || verb == Verb::kFork;
  const size_t n_fields = makes_one ? kFields.size() : 1;  // of another the path says which
  const Result<api::SessionBody> body = api::parse_session_body(request.body, std::span(kFields).first(n_fields));
  if (!body) return responder.send(error_response(body.error()));
  Result<engine::SessionAsk> begun = begin_ask(verb, request);
  if (!begun) return responder.send(error_response(begun.error()));
  engine::SessionAsk ask = std::move(*begun);
  if (!body->cache_salt.empty()) ask.cache_salt = body->cache_salt;
  if (body->ttl_seconds) ask.ttl_us = *body->ttl_seconds * 1'000'000;
  if (makes_one) {
    std::string id = body->session_id.empty() ? "sess-" + ids_.next() : body->session_id;
    (verb == Verb::kCreate ? ask.name : ask.new_name) = std::move(id);
  }
  this->ask(std::move(ask), {}, std::move(responder));
}

void SessionRoutes::without_body(Verb verb, http::HttpRequest request, http::Responder responder) {
  Result<engine::SessionAsk> begun = begin_ask(verb, request);
  if (!begun) return responder.send(error_response(begun.error()));
  engine::SessionAsk ask = std::move(*begun);
  if (verb == Verb::kImport && !kv::is_session_name(ask.name)) {
    return responder.send(error_response({ErrorCode::kInvalidArgument, "no session can have that id", "session_id"}));
  }
  if (verb == Verb::kList || verb == Verb::kExport) {
    const char* name = verb == Verb::kList ? "limit" : "part";
    const Result<std::optional<uint64_t>> number = query_number(request.query, name);
    if (!number) return responder.send(error_response(number.error()));
    const uint64_t otherwise = verb == Verb::kList ? kListed : 0;
    const uint64_t most = verb == Verb::kList ? kMostListed : UINT32_MAX;
    ask.number = static_cast<uint32_t>(std::min(number->value_or(otherwise), most));
    if (verb == Verb::kList) {
      const std::string_view after = query_value(request.query, "after").value_or("");
      ask.name = http::percent_decode(after).value_or(std::string(after));
    }
  }
  if (verb == Verb::kImport) ask.bytes = std::move(request.body);
  std::shared_ptr<ByteReservation> memory = std::move(request.memory);
  if (verb == Verb::kExport) {
    constexpr size_t kPartCopies = 2;  // the engine's and the answer's
    engine::TrafficMemory& traffic = engine_.traffic();
    auto room = traffic.held.try_reserve(kPartCopies * traffic.most_body_bytes());
    if (!room) {
      return responder.send(
          error_response({ErrorCode::kUnavailable,
                          "there is no memory for a session's part now, beside the requests and answers that "
                          "there are",
                          {}}));
    }
    memory = std::make_shared<ByteReservation>(std::move(*room));
  }
  this->ask(std::move(ask), std::move(memory), std::move(responder));
}

void SessionRoutes::ask(engine::SessionAsk ask, std::shared_ptr<ByteReservation> memory, http::Responder responder) {
  const Verb verb = ask.verb;
  engine_.ask_session(std::move(ask), [verb, memory = std::move(memory),
                                       responder = std::move(responder)](Result<engine::SessionAnswer> answer) {
    responder.post([verb, memory, responder, answer = std::move(answer)]() mutable {
      http::HttpResponse response = answer ? session_response(verb, *answer) : error_response(answer.error());
      answer = engine::SessionEnded{};  // the response has its own copy
      if (verb == Verb::kExport) {
        memory->shrink_to(response.body.size());
        response.memory = std::move(memory);
      }
      responder.send(std::move(response));
    });
  });
}

}  // namespace pagoda::serve
