// IdleWork: what an engine does while nobody wants anything of it, a piece at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace pagoda::engine {

class StepRunner;

class IdleWork {
 public:
  virtual ~IdleWork() = default;
  // About as much as a short step: who comes meanwhile waits for it. Engine thread, between steps. False: there is nothing left to do.
  virtual bool do_piece() = 0;
};

struct IdleConfig {
  // Called once, when the engine has been idle for that long; null: there is nothing to do. The runner outlives what it makes.
  std::function<std::unique_ptr<IdleWork>(const StepRunner& runner)> make{};
  int64_t after_us = 60'000'000;  // since the last step; again after every request
};

}  // namespace pagoda::engine
