// eventually(): whether something that other threads bring about comes true in time; looked at every millisecond. Tests only.
#pragma once

#include <chrono>
#include <functional>
#include <thread>

namespace pagoda {

inline bool eventually(const std::function<bool()>& condition, int timeout_ms = 5000) {
  for (int i = 0; i < timeout_ms; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

}  // namespace pagoda
