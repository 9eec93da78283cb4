#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>

#include <memory>

namespace pagoda {

void start_log(const char* level) {
  auto logger = std::make_shared<spdlog::logger>("pagoda", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e %^%l%$ %v");
  const auto parsed = spdlog::level::from_str(level);
  logger->set_level(parsed == spdlog::level::off ? spdlog::level::info : parsed);
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace pagoda
