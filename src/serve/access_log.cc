#include "serve/access_log.h"

#include <algorithm>

#include "api/error_map.h"
#include "base/log_line.h"

namespace pagoda::serve {
namespace {

constexpr std::string_view kCut = " [cut]";

// Up to kMostBytes, in whole UTF-8 characters, and a mark where something is missing.
void append_cut(std::string& out, std::string_view text) {
  if (out.ends_with(kCut)) return;
  size_t n = LoggedContent::kMostBytes - std::min(out.size(), LoggedContent::kMostBytes);
  if (text.size() <= n) {
    out += text;
    return;
  }
  while (n > 0 && (static_cast<unsigned char>(text[n]) & 0xc0) == 0x80) --n;
  out += text.substr(0, n);
  out += kCut;
}

double milliseconds(int64_t us) { return static_cast<double>(us) / 1000; }

std::string_view or_dash(std::string_view text) { return text.empty() ? "-" : text; }

}  // namespace

void LoggedContent::add_prompt(const engine::Prompt& asked) {
  if (const auto* text = std::get_if<engine::TextPrompt>(&asked)) {
    append_cut(prompt, text->text);
  } else if (const auto* chat = std::get_if<engine::ChatPrompt>(&asked)) {
    append_cut(prompt, chat->messages_json);
  } else if (const auto* tokens = std::get_if<engine::TokenPrompt>(&asked)) {
    for (const TokenId token : tokens->tokens) {
      if (prompt.size() >= kMostBytes) break;
      append_cut(prompt, std::to_string(token.value) + " ");
    }
  }
}

void LoggedContent::add_answer(std::string_view text) { append_cut(answer, text); }

AccessLog::AccessLog() : outcomes_{{"done", 0}, {"gone", 0}} {
  for (const ErrorCode code :
       {ErrorCode::kInvalidArgument, ErrorCode::kContextExceeded, ErrorCode::kNotFound, ErrorCode::kOverloaded,
        ErrorCode::kUnavailable, ErrorCode::kTimeout, ErrorCode::kResourceExhausted})
    outcomes_.emplace(api::error_face(code).label, 0);
}

void AccessLog::write(const AccessEntry& entry) {
  {
    const std::lock_guard lock(mutex_);
    ++outcomes_[entry.outcome];
  }
  LogLine line("request");
  line.add("id", entry.id).add("route", entry.route).add("model", or_dash(entry.model));
  line.add("tenant", or_dash(entry.tenant)).add("status", entry.status).add("outcome", entry.outcome);
  if (!entry.field.empty()) line.add("field", entry.field);
  if (entry.n_prompts > 0) {
    line.add("finish", or_dash(entry.finish)).add("stream", entry.is_stream).add("prompts", entry.n_prompts);
    line.add("prompt_tokens", entry.usage.prompt_tokens).add("cached_tokens", entry.usage.cached_tokens);
    line.add("completion_tokens", entry.usage.completion_tokens);
    line.add("dropped_tokens", entry.usage.context.dropped_tokens);
    const engine::Timing timing = entry.timing.value_or(engine::Timing{-1000, -1000, -1000});
    line.add("queue_ms", milliseconds(timing.queue_us)).add("prefill_ms", milliseconds(timing.prefill_us));
    line.add("decode_ms", milliseconds(timing.decode_us)).add("first_token_ms", entry.first_token_ms);
  }
  line.add("total_ms", entry.total_ms);
  if (entry.content != nullptr) line.add("prompt", entry.content->prompt).add("answer", entry.content->answer);
  line.write();
}

std::vector<std::pair<std::string_view, uint64_t>> AccessLog::outcomes() const {
  const std::lock_guard lock(mutex_);
  return {outcomes_.begin(), outcomes_.end()};
}

engine::Timing longest(const std::optional<engine::Timing>& a, const engine::Timing& b) {
  if (!a) return b;
  return {std::max(a->queue_us, b.queue_us), std::max(a->prefill_us, b.prefill_us),
          std::max(a->decode_us, b.decode_us)};
}

}  // namespace pagoda::serve
