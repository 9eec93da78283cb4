#include "base/log_line.h"

#include <spdlog/formatter.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <ctime>
#include <memory>

namespace pagoda {
namespace {

// The default logger's name tells the format; a line of LogLine comes through the other one, whose text is members already.
constexpr const char* kJsonLogger = "pagoda.json";
constexpr const char* kLineLogger = "pagoda.line";

void append_quoted(std::string& out, std::string_view text) {
  out += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      (out += '\\') += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  out += '"';
}

bool needs_quotes(std::string_view text) {
  return text.empty() || std::ranges::any_of(text, [](char c) {
           return static_cast<unsigned char>(c) <= 0x20 || c == '"' || c == '=' || c == '\\' || c == 0x7f;
         });
}

// One object a line.
class JsonFormatter final : public spdlog::formatter {
 public:
  void format(const spdlog::details::log_msg& msg, spdlog::memory_buf_t& dest) override {
    using namespace std::chrono;
    const std::time_t seconds = system_clock::to_time_t(msg.time);
    const auto millis = duration_cast<milliseconds>(msg.time.time_since_epoch()).count() % 1000;
    std::tm utc{};
    gmtime_r(&seconds, &utc);
    char time[32];
    std::strftime(time, sizeof time, "%Y-%m-%dT%H:%M:%S", &utc);
    const spdlog::string_view_t level = spdlog::level::to_string_view(msg.level);
    std::string line = fmt::format(R"({{"time":"{}.{:03}Z","level":"{}",)", time, millis,
                                   std::string_view(level.data(), level.size()));
    const std::string_view payload(msg.payload.data(), msg.payload.size());
    if (std::string_view(msg.logger_name.data(), msg.logger_name.size()) == kLineLogger) {
      line += payload;
    } else {
      line += "\"message\":";
      append_quoted(line, payload);
    }
    line += "}\n";
    dest.append(line.data(), line.data() + line.size());
  }
  std::unique_ptr<spdlog::formatter> clone() const override { return std::make_unique<JsonFormatter>(); }
};

}  // namespace

void use_json_log() {
  const auto text = spdlog::default_logger();
  auto json = std::make_shared<spdlog::logger>(kJsonLogger, text->sinks().begin(), text->sinks().end());
  json->set_level(text->level());
  json->set_formatter(std::make_unique<JsonFormatter>());
  spdlog::set_default_logger(std::move(json));
}

LogLine::LogLine(std::string_view event) : is_json_(spdlog::default_logger_raw()->name() == kJsonLogger) {
  if (is_json_) {
    add("event", event);
  } else {
    text_ = event;
  }
}

LogLine& LogLine::add(std::string_view name, std::string_view text) {
  std::string quoted;
  if (!is_json_ && !needs_quotes(text)) return add_plain(name, text);
  append_quoted(quoted, text);
  return add_plain(name, quoted);
}

LogLine& LogLine::add(std::string_view name, double value) { return add_plain(name, fmt::format("{:.1f}", value)); }

LogLine& LogLine::add_plain(std::string_view name, std::string_view value) {
  text_ +=
      is_json_ ? fmt::format("{}\"{}\":{}", text_.empty() ? "" : ",", name, value) : fmt::format(" {}={}", name, value);
  return *this;
}

void LogLine::write(spdlog::level::level_enum level) const {
  spdlog::logger& log = *spdlog::default_logger_raw();
  if (!log.should_log(level)) return;
  if (!is_json_) return log.log(level, "{}", text_);
  spdlog::logger(kLineLogger, log.sinks().begin(), log.sinks().end()).log(level, "{}", text_);
}

}  // namespace pagoda
