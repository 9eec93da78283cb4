#include "cmd/answer.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <thread>

#include "api/json_text.h"

namespace pagoda::cmd {
namespace {

// An eventfd shared with the engine's threads, which may signal it after the answer was given up.
class Bell {
 public:
  Bell() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}
  ~Bell() { close(fd_); }
  Bell(const Bell&) = delete;
  Bell& operator=(const Bell&) = delete;

  int fd() const { return fd_; }
  void ring() { static_cast<void>(eventfd_write(fd_, 1)); }
  void silence() {
    eventfd_t count = 0;
    static_cast<void>(eventfd_read(fd_, &count));
  }

 private:
  int fd_;
};

// The record follows the last event within the same step.
std::optional<engine::RequestRecord> record_of(engine::Engine& engine, engine::RequestId id) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  while (std::chrono::steady_clock::now() < deadline) {
    if (const auto record = engine.records().requests.pop()) {
      if (record->id == id) return record;
      continue;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return std::nullopt;
}

void add_figures(Answer& answer, const engine::RequestRecord& record) {
  answer.prompt_tokens = record.prompt_tokens;
  answer.cached_tokens = record.cached_tokens;
  answer.completion_tokens = record.completion_tokens;
  answer.dropped_tokens = record.dropped_tokens;
  if (record.first_token_us == 0) return;
  answer.prefill_s = static_cast<double>(record.first_token_us - record.started_us) * 1e-6;
  answer.decode_s = static_cast<double>(record.finished_us - record.first_token_us) * 1e-6;
}

const char* name_of(engine::FinishReason reason) {
  switch (reason) {
    case engine::FinishReason::kStop:
      return "stop";
    case engine::FinishReason::kLength:
      return "length";
    case engine::FinishReason::kTimeout:
      return "timeout";
    case engine::FinishReason::kCancelled:
      return "cancelled";
  }
  return "unknown";
}

}  // namespace

Result<Answer> ask(engine::Engine& engine, engine::Request request, Interrupts& interrupts,
                   const std::function<Status(std::string_view)>& on_text) {
  const auto bell = std::make_shared<Bell>();
  const engine::Engine::Submitted submitted = engine.submit(std::move(request), [bell] { bell->ring(); });
  Answer answer;
  for (bool done = false; !done;) {
    if (!interrupts.wait_readable(bell->fd())) {
      engine.cancel(submitted.id);
      answer.reason = engine::FinishReason::kCancelled;
      break;
    }
    bell->silence();
    for (const engine::Event& event : submitted.stream->take()) {
      if (const auto* failed = std::get_if<engine::Failed>(&event)) return fail(failed->error);
      if (const auto* delta = std::get_if<engine::Delta>(&event); delta != nullptr && !delta->text.empty()) {
        answer.text += delta->text;
        if (const Status heard = on_text(delta->text); !heard) {
          engine.cancel(submitted.id);
          return fail(heard.error());
        }
      }
      if (const auto* finished = std::get_if<engine::Finished>(&event)) {
        answer.reason = finished->reason;
        done = true;
      }
    }
  }
  if (const auto record = record_of(engine, submitted.id)) add_figures(answer, *record);
  return answer;
}

std::string to_json(const Answer& a, std::string_view model) {
  return fmt::format(
      "{{\"model\":{},\"text\":{},\"finish_reason\":\"{}\","
      "\"usage\":{{\"prompt_tokens\":{},\"completion_tokens\":{},\"total_tokens\":{},\"cached_tokens\":{},\"dropped_"
      "tokens\":{}}},"
      "\"timings\":{{\"prefill_s\":{:.6f},\"decode_s\":{:.6f},\"prefill_tokens_per_s\":{:.2f},\"decode_tokens_per_s\":{"
      ":.2f}}}}}",
      api::json_string(model), api::json_string(a.text), name_of(a.reason), a.prompt_tokens, a.completion_tokens,
      a.prompt_tokens + a.completion_tokens, a.cached_tokens, a.dropped_tokens, a.prefill_s, a.decode_s,
      a.prefill_rate(), a.decode_rate());
}

}  // namespace pagoda::cmd
