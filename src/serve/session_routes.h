// SessionRoutes: /v1/sessions and what is below it. What is asked is answered on the engine thread between two steps and rendered on the io
// thread.
//
//   POST   /v1/sessions               {session_id?, ttl_seconds?, cache_salt?}       201
//   GET    /v1/sessions               ?limit= &after=                                those of the caller's namespace
//   GET    /v1/sessions/{id}          DELETE the same                                200, 204
//   POST   /v1/sessions/{id}/fork     {session_id?}                                  201: the new one
//   POST   /v1/sessions/{id}/pin      DELETE the same: unpin                         200; 409 beyond the limit
//   GET    /v1/sessions/{id}/export   ?part=                                         octets; x-pagoda-parts says how many there are
//   POST   /v1/sessions/{id}/import   a part as exported                             200
//
// cache_salt: the body's, or the header x-pagoda-cache-salt where there is no JSON body. To another salt a session is unknown: 404.
// A session is its tenant's: to another it is unknown likewise.
// Threads: handlers run on io threads.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "engine/engine.h"
#include "http/router.h"
#include "serve/auth.h"

namespace pagoda::serve {

class IdSource;

class SessionRoutes {
 public:
  SessionRoutes(engine::Engine& engine, IdSource& ids, const Auth& auth) : engine_(engine), ids_(ids), auth_(auth) {}
  // This object must outlive the router.
  void add_to(http::Router& router);

 private:
  using Verb = engine::SessionAsk::Verb;
  // Of the request's tenant.
  Result<engine::SessionAsk> begin_ask(Verb verb, const http::HttpRequest& request) const;
  void with_body(Verb verb, const http::HttpRequest& request, http::Responder responder);
  void without_body(Verb verb, http::HttpRequest request, http::Responder responder);
  // `memory`: what the ask or its answer is counted in; null: both are small.
  void ask(engine::SessionAsk ask, std::shared_ptr<ByteReservation> memory, http::Responder responder);

  engine::Engine& engine_;
  IdSource& ids_;
  const Auth& auth_;
};

// Whether the route is the import's: a part has at least a block, and a block may be larger than other bodies may be.
bool takes_session_parts(std::string_view method, std::string_view path);

// Any answer, as `verb` was asked. Pure.
http::HttpResponse session_response(engine::SessionAsk::Verb verb, const engine::SessionAnswer& answer);

}  // namespace pagoda::serve
