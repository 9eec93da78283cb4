#include "serve/call.h"

#include <algorithm>
#include <utility>

#include "api/error_map.h"
#include "base/log.h"
#include "serve/kv_json.h"

namespace pagoda::serve {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRetryAfterSeconds = 1;  // memory comes and goes
constexpr const char* kCacheHeader = "x-pagoda-cache";

double milliseconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}

// request_log.h
std::vector<std::string> report_ids(const api::OpenAiCall& call, const api::AnswerHead& head,
                                    const Call::Origin& origin) {
  const bool is_open =
      std::ranges::all_of(call.requests, [](const engine::Request& one) { return one.cache_salt.empty(); });
  std::vector<std::string> ids{head.id};
  if (is_open || origin.id_by == Call::Origin::IdBy::kServer) ids.push_back(origin.request_id);
  return ids;
}

}  // namespace

http::HttpResponse error_response(const Error& error, int overload_seconds) {
  http::HttpResponse response;
  response.status = api::error_face(error.code).status;
  response.body = api::openai_error(error);
  if (error.code == ErrorCode::kUnauthenticated) response.headers.push_back({"WWW-Authenticate", "Bearer"});
  int64_t seconds = error.retry_after_s;
  if (seconds == 0 && error.code == ErrorCode::kOverloaded) seconds = overload_seconds;
  if (seconds == 0 && error.code == ErrorCode::kUnavailable) seconds = kRetryAfterSeconds;
  if (seconds > 0) response.headers.push_back({"Retry-After", std::to_string(seconds)});
  return response;
}

Call::Call(engine::Engine& engine, Logs logs, const api::OpenAiCall& call, api::AnswerHead head, Origin origin,
           std::unique_ptr<Admission> admission, http::Responder responder)
    : engine_(engine),
      logs_(logs),
      origin_(std::move(origin)),
      admission_(std::move(admission)),
      responder_(std::move(responder)),
      model_(head.model),
      ids_(report_ids(call, head, origin_)),
      cache_(call.requests.size()),
      answer_memory_(std::make_shared<ByteReservation>(&engine.traffic().held)) {
  if (call.delivery == api::OpenAiCall::Delivery::kStream) {
    stream_.emplace(call, std::move(head));
  } else {
    answer_.emplace(call, std::move(head));
  }
  if (logs_.content == LogContent::kOff) return;
  content_ = std::make_unique<LoggedContent>();
  for (const engine::Request& request : call.requests) content_->add_prompt(request.prompt);
}

void Call::start(engine::Engine& engine, Logs logs, api::OpenAiCall call, api::AnswerHead head, Origin origin,
                 std::unique_ptr<Admission> admission, http::Responder responder) {
  const auto self = std::make_shared<Call>(engine, logs, call, std::move(head), std::move(origin), std::move(admission),
                                           std::move(responder));
  self->responder_.on_drained([self] {
    self->is_paused_ = false;
    self->unwritten_.clear();
    self->pump();
  });
  self->submit(std::move(call.requests));
  self->responder_.on_gone([self] { self->on_gone(); });
}

void Call::submit(std::vector<engine::Request> requests) {
  prompts_.reserve(requests.size());
  for (engine::Request& request : requests) {
    prompts_.push_back(engine_.submit(std::move(request), [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->wake();
    }));
  }
}

// Any thread. Events that come while a pump is due wait for it.
void Call::wake() {
  if (is_woken_.exchange(true)) return;
  responder_.post([self = shared_from_this()] { self->pump(); });
}

void Call::pump() {
  is_woken_ = false;
  if (has_ended_ || (is_paused_ && !is_overrun())) return;
  std::vector<ByteReservation> memory(prompts_.size());
  for (size_t i = 0; i < prompts_.size(); ++i) {
    for (const engine::Event& event : prompts_[i].stream->take(memory[i])) {
      if (!handle(static_cast<int>(i), event)) return;
    }
  }
  if (!stream_) return send_whole();
  unwritten_ = std::move(memory);
  send_stream();
}

bool Call::handle(int prompt, const engine::Event& event) {
  if (const auto* failed = std::get_if<engine::Failed>(&event)) {
    fail(failed->error);
    return false;
  }
  if (const auto* accepted = std::get_if<engine::Accepted>(&event)) {
    ++n_accepted_;
    if (const Status room = admission_->accepted(static_cast<size_t>(prompt), accepted->prompt_tokens); !room) {
      fail(room.error());
      return false;
    }
  }
  if (std::holds_alternative<engine::Delta>(event)) admission_->answered(static_cast<size_t>(prompt));
  if (!first_token_ && std::holds_alternative<engine::Delta>(event)) first_token_ = Clock::now();
  note(prompt, event);
  if (stream_) {
    frames_ += stream_->frames(prompt, event);
  } else if (count(event)) {
    answer_->add(prompt, event);
  } else {
    fail({ErrorCode::kResourceExhausted, "the memory for answers is used up: fewer tokens, choices or logprobs", {}});
    return false;
  }
  return true;
}

// For the reports and the log line.
void Call::note(int prompt, const engine::Event& event) {
  if (const auto* finished = std::get_if<engine::Finished>(&event)) {
    cache_[static_cast<size_t>(prompt)] = finished->cache;
    timing_ = longest(timing_, finished->timing);
    const std::string_view finish = finished->reason == engine::FinishReason::kLength    ? "length"
                                    : finished->reason == engine::FinishReason::kTimeout ? "timeout"
                                                                                         : "stop";
    finish_ = finish_.empty() || finish_ == finish ? finish : "mixed";
  } else if (const auto* delta = std::get_if<engine::Delta>(&event); delta != nullptr && content_ != nullptr) {
    content_->add_answer(delta->text);
  }
}

bool Call::is_overrun() const {
  return std::ranges::any_of(prompts_, [](const auto& prompt) { return prompt.stream->is_overrun(); });
}

bool Call::count(const engine::Event& event) {
  constexpr uint64_t kStepBytes = 16 * 1024;
  answer_bytes_ += engine::event_bytes(event);
  if (answer_bytes_ <= engine::kUncountedAnswerBytes || answer_bytes_ <= answer_memory_->bytes()) return true;
  return answer_memory_->grow_to(answer_bytes_ + kStepBytes) || answer_memory_->grow_to(answer_bytes_);
}

void Call::send_stream() {
  if (!is_open_) {
    if (n_accepted_ < prompts_.size()) return;
    is_open_ = true;
    http::StreamHead head;
    head.headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}, {"x-request-id", origin_.request_id}};
    head.keepalive = ": ping\n\n";
    responder_.open_stream(std::move(head));
    // A completion has no frame of its own yet: a comment takes the head along, so that the client knows it is in.
    if (frames_.empty()) frames_ = ": accepted\n\n";
  }
  const bool is_complete = stream_->is_complete();
  if (is_complete) {
    // Its head went before anything was known: a comment, which readers of event streams skip.
    if (const std::string summary = cache_summary(cache_); !summary.empty()) {
      frames_ += fmt::format(": {} {}\n\n", kCacheHeader, summary);
    }
    frames_ += stream_->end();
  }
  if (!frames_.empty()) is_paused_ = responder_.write(frames_) == http::Room::kFull;
  frames_ = {};
  if (!is_paused_) unwritten_.clear();
  if (!is_complete) return;
  log_reports();
  responder_.close();
  end(200, "done");
}

void Call::send_whole() {
  if (!answer_->is_complete()) return;
  http::HttpResponse response{200, "application/json", {{"x-request-id", origin_.request_id}}, answer_->json()};
  if (answer_memory_->bytes() > 0) response.memory = answer_memory_;
  if (std::string summary = cache_summary(cache_); !summary.empty()) {
    response.headers.push_back({kCacheHeader, std::move(summary)});
  }
  log_reports();
  responder_.send(std::move(response));
  end(200, "done");
}

// Before the last byte leaves: who has the answer may ask, and ask for more.
void Call::log_reports() {
  if (std::ranges::any_of(cache_, [](const auto& report) { return report != nullptr; }))
    logs_.reports.add(origin_.caller.tenant->name, ids_, cache_);
  admission_->settle(usage());
}

void Call::fail(const Error& error) {
  const api::ErrorFace face = api::error_face(error.code);
  if (face.status >= 500) LOG_WARN("request id={} failed: {}", origin_.request_id, error.to_string());
  if (is_open_) {
    responder_.write(frames_ + api::openai_error_frame(error));
    responder_.close();
  } else {
    http::HttpResponse response = error_response(error, origin_.place->retry_after_seconds(engine_.stats().running));
    response.headers.push_back({"x-request-id", origin_.request_id});
    responder_.send(std::move(response));
  }
  cancel_all();
  end(face.status, face.label);
}

void Call::on_gone() {
  if (has_ended_) return;
  cancel_all();
  for (size_t i = 0; i < prompts_.size(); ++i) {  // for the log line: what came and was not written any more
    for (const engine::Event& event : prompts_[i].stream->take()) {
      if (!std::holds_alternative<engine::Failed>(event)) handle(static_cast<int>(i), event);
    }
  }
  if (!has_ended_) end(api::error_face(ErrorCode::kCancelled).status, "gone");
}

void Call::cancel_all() {
  for (const auto& prompt : prompts_) engine_.cancel(prompt.id);
}

void Call::end(int status, std::string_view outcome) {
  has_ended_ = true;
  status == 200 ? origin_.place->answered() : origin_.place->leave();
  admission_->settle(usage());
  logs_.access.write({.id = origin_.request_id,
                      .route = origin_.route,
                      .model = model_,
                      .tenant = origin_.caller.tenant->name,
                      .status = status,
                      .outcome = outcome,
                      .finish = finish_,
                      .is_stream = stream_.has_value(),
                      .n_prompts = prompts_.size(),
                      .usage = usage(),
                      .timing = timing_,
                      .first_token_ms = first_token_ ? milliseconds_between(origin_.received, *first_token_) : -1.0,
                      .total_ms = milliseconds_between(origin_.received, Clock::now()),
                      .content = content_.get()});
}

}  // namespace pagoda::serve
