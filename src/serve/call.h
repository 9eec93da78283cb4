// Call: one API request from the moment it is parsed to its answer's last byte: submits its prompts to the engine, turns their events
// into the answer or the stream, and cancels them if the client goes.
// The HTTP status stays open until every prompt is accepted, so what fails before is a real status; after that an error is a stream's
// last frame.
// Owned by the exchange (its callbacks hold it) until answered or gone.     Threads: the connection's io thread; wake from any.
// Bounds: while the client does not read, events stay in their OutputStreams, which coalesce, and are counted. So is an answer that is
// collected; one that finds no room fails.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "api/openai.h"
#include "engine/engine.h"
#include "http/responder.h"
#include "serve/access_log.h"
#include "serve/auth.h"
#include "serve/call_places.h"
#include "serve/request_log.h"

namespace pagoda::serve {

class Call : public std::enable_shared_from_this<Call> {
 public:
  // What HTTP knows of the request.
  struct Origin {
    std::string request_id;
    enum class IdBy : uint8_t { kServer, kClient } id_by = IdBy::kServer;
    std::string route;
    std::chrono::steady_clock::time_point received;
    Caller caller{};
    std::shared_ptr<CallPlaces::Place> place{};
  };
  // What it leaves behind.
  struct Logs {
    RequestLog& reports;
    AccessLog& access;
    LogContent content;
  };
  // Submits and returns; the rest happens as events come. Engine and logs outlive the call.
  static void start(engine::Engine& engine, Logs logs, api::OpenAiCall call, api::AnswerHead head, Origin origin,
                    std::unique_ptr<Admission> admission, http::Responder responder);

  Call(engine::Engine& engine, Logs logs, const api::OpenAiCall& call, api::AnswerHead head, Origin origin,
       std::unique_ptr<Admission> admission, http::Responder responder);

 private:
  void submit(std::vector<engine::Request> requests);
  void wake();
  void pump();
  // False if the call has ended by it.
  bool handle(int prompt, const engine::Event& event);
  bool is_overrun() const;
  // Whether the answer with this event finds room.
  bool count(const engine::Event& event);
  void send_stream();
  void send_whole();
  void log_reports();
  engine::Usage usage() const { return stream_ ? stream_->usage() : answer_->usage(); }
  void note(int prompt, const engine::Event& event);
  void fail(const Error& error);
  void on_gone();
  void cancel_all();
  void end(int status, std::string_view outcome);

  engine::Engine& engine_;
  const Logs logs_;
  const Origin origin_;
  const std::unique_ptr<Admission> admission_;
  http::Responder responder_;
  const std::string model_;
  std::vector<std::string> ids_;  // that may ask for the cache reports
  std::vector<engine::Engine::Submitted> prompts_;
  CacheReports cache_;
  std::optional<api::OpenAiStream> stream_;  // one of the two
  std::optional<api::OpenAiAnswer> answer_;
  std::string frames_;                      // rendered, not yet written
  std::vector<ByteReservation> unwritten_;  // of a stream's frames that wait for the client
  std::shared_ptr<ByteReservation> answer_memory_;
  uint64_t answer_bytes_ = 0;
  size_t n_accepted_ = 0;
  bool is_open_ = false;    // the stream's head is on its way
  bool is_paused_ = false;  // the client must read first
  bool has_ended_ = false;
  std::atomic<bool> is_woken_{false};
  std::optional<std::chrono::steady_clock::time_point> first_token_;
  std::string_view finish_;  // of the choices so far
  std::optional<engine::Timing> timing_;
  std::unique_ptr<LoggedContent> content_;  // null: not asked for
};

// The answer to an error that comes before any byte: status, body, Retry-After where waiting helps. `overload_seconds`: how long where the
// server is overloaded.
http::HttpResponse error_response(const Error& error, int overload_seconds = 1);

}  // namespace pagoda::serve
