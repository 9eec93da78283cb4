// Structured log lines on stderr. LOG_INFO("loaded {} in {} ms", ...). Never content of requests, never keys.
#pragma once

#include <spdlog/spdlog.h>

#define LOG_DEBUG(...) ::spdlog::debug(__VA_ARGS__)
#define LOG_INFO(...) ::spdlog::info(__VA_ARGS__)
#define LOG_WARN(...) ::spdlog::warn(__VA_ARGS__)
#define LOG_ERROR(...) ::spdlog::error(__VA_ARGS__)

namespace pagoda {

// Once, from main: to stderr, with time and level; `level` is debug, info, warn or error (anything else: info).
void start_log(const char* level);

}  // namespace pagoda
