// TestLog: while it lives, the log's lines ("level text") go into a string. Tests only; one at a time.
#pragma once

#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <sstream>
#include <string>

namespace pagoda {

class TestLog {
 public:
  TestLog() : before_(spdlog::default_logger()) {
    auto logger = std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::ostream_sink_mt>(out_));
    logger->set_pattern("%l %v");
    spdlog::set_default_logger(std::move(logger));
  }
  ~TestLog() { spdlog::set_default_logger(before_); }
  TestLog(const TestLog&) = delete;
  TestLog& operator=(const TestLog&) = delete;

  // When nobody writes any more.
  std::string text() const { return out_.str(); }

 private:
  std::ostringstream out_;
  const std::shared_ptr<spdlog::logger> before_;
};

}  // namespace pagoda
