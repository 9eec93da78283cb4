// Health: what a probe is told. Live: the engine thread turns. Ready: new work is taken.     Threads: pure.
#pragma once

#include <chrono>
#include <string>

#include "engine/engine.h"
#include "http/message.h"

namespace pagoda::serve {

struct HealthFacts {
  engine::EngineStats engine{};
  std::chrono::seconds stall_limit{0};  // a turn of the engine thread that takes longer hangs
  size_t calls = 0;                     // that are being answered
  size_t most_calls = 0;
  bool is_stopping = false;
};

// Why not; empty: it is.
std::string why_not_live(const HealthFacts& facts);
std::string why_not_ready(const HealthFacts& facts);

// 200 {"status":"ok"}, or 503 {"status":"unavailable","reason":...}.
http::HttpResponse probe_response(const std::string& why_not);

}  // namespace pagoda::serve
