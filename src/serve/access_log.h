// AccessLog: the one line that every API request leaves when it ends, and how many ended how. No key, and no content unless asked for.
//   request id=req-1 route=/v1/chat/completions model=smollm2 tenant=- status=200 outcome=done finish=stop stream=true prompts=1
//   prompt_tokens=40 cached_tokens=32 completion_tokens=12 dropped_tokens=0 queue_ms=0.1 prefill_ms=9.8 decode_ms=101.0
//   first_token_ms=10.6 total_ms=111.9
// Threads: any.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/request.h"

namespace pagoda::serve {

enum class LogContent : uint8_t { kOff, kOn };  // on: prompts and answers, up to LoggedContent::kMostBytes each

// What was asked and answered, cut where it is long.
struct LoggedContent {
  static constexpr size_t kMostBytes = 4096;
  std::string prompt;
  std::string answer;

  void add_prompt(const engine::Prompt& asked);
  void add_answer(std::string_view text);
};

struct AccessEntry {
  std::string_view id;
  std::string_view route;
  std::string_view model{};   // as served; empty: none was found
  std::string_view tenant{};  // empty: none
  int status = 0;
  std::string_view outcome;   // "done", "gone" or an error's label (api/error_map.h); of the program's life
  std::string_view field{};   // of the request that was wrong
  std::string_view finish{};  // of its choices: "stop", "length", "timeout", "mixed"
  bool is_stream = false;
  size_t n_prompts = 0;
  engine::Usage usage{};
  std::optional<engine::Timing>
      timing{};  // the longest of its prompts; none: none has finished, and -1 is said, as for what follows
  double first_token_ms = -1;
  double total_ms = 0;
  const LoggedContent* content = nullptr;
};

class AccessLog {
 public:
  AccessLog();
  void write(const AccessEntry& entry);
  // How many requests ended with each outcome; the usual ones are there from the start.
  std::vector<std::pair<std::string_view, uint64_t>> outcomes() const;

 private:
  mutable std::mutex mutex_;
  std::map<std::string_view, uint64_t> outcomes_;  // guarded by mutex_
};

// The longer of both, part by part; the other one, if there is only one.
engine::Timing longest(const std::optional<engine::Timing>& a, const engine::Timing& b);

}  // namespace pagoda::serve
