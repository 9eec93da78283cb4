// One answer of an engine in this process, as `run` wants it: text while it comes, figures when it ended.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "cmd/terminal.h"
#include "engine/engine.h"

namespace pagoda::cmd {

struct Answer {
  std::string text;
  engine::FinishReason reason = engine::FinishReason::kStop;  // kCancelled: Ctrl-C
  int prompt_tokens = 0;
  int cached_tokens = 0;
  int completion_tokens = 0;
  int64_t dropped_tokens = 0;  // by the context policy
  double prefill_s = 0;        // from the first row computed to the first token
  double decode_s = 0;         // from there to the last token

  // 0 where nothing was measured.
  double prefill_rate() const { return prefill_s > 0 ? (prompt_tokens - cached_tokens) / prefill_s : 0; }
  double decode_rate() const { return decode_s > 0 ? (completion_tokens - 1) / decode_s : 0; }
};

// Asks for one choice and waits; on_text gets whole characters; its error ends the answer.
// Ctrl-C stops it and is no error.
// Consumes the engine's request records.
Result<Answer> ask(engine::Engine& engine, engine::Request request, Interrupts& interrupts,
                   const std::function<Status(std::string_view)>& on_text);

// {"model":...,"text":...,"finish_reason":...,"usage":{...},"timings":{...}}
std::string to_json(const Answer& answer, std::string_view model);

}  // namespace pagoda::cmd
