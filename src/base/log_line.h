// LogLine: a log line of named values (base/log.h), and the log as JSON.
//   text   2026-01-31T12:00:00.000 info request id=a tokens=3
//   json   {"time":"2026-01-31T12:00:00.000Z","level":"info","event":"request","id":"a","tokens":3}; other lines have a "message"
// Threads: any.
#pragma once

#include <spdlog/common.h>

#include <concepts>
#include <string>
#include <string_view>

namespace pagoda {

// Once, after start_log: from now on every line is a JSON object.
void use_json_log();

// LogLine("request").add("id", id).add("tokens", 3).write();
// Texts are quoted where they would be read otherwise; names are plain words.
class LogLine {
 public:
  explicit LogLine(std::string_view event);
  LogLine& add(std::string_view name, std::string_view text);
  LogLine& add(std::string_view name, const char* text) { return add(name, std::string_view(text)); }
  LogLine& add(std::string_view name, bool value) { return add_plain(name, value ? "true" : "false"); }
  LogLine& add(std::string_view name, std::integral auto value) { return add_plain(name, std::to_string(value)); }
  LogLine& add(std::string_view name, double value);  // to one decimal
  void write(spdlog::level::level_enum level = spdlog::level::info) const;

 private:
  LogLine& add_plain(std::string_view name, std::string_view value);

  const bool is_json_;
  std::string text_;
};

}  // namespace pagoda
