#include "serve/call_places.h"

#include <algorithm>
#include <utility>

namespace pagoda::serve {

void CallPlaces::Place::answered() {
  if (std::exchange(is_held_, false)) places_.give_back(End::kAnswered);
}

void CallPlaces::Place::leave() {
  if (std::exchange(is_held_, false)) places_.give_back(End::kOther);
}

std::shared_ptr<CallPlaces::Place> CallPlaces::take() {
  {
    const std::lock_guard lock(mutex_);
    if (taken_ >= most_) return nullptr;
    if (taken_++ == 0) rate_.begin_busy();
  }
  return std::make_shared<Place>(*this);
}

void CallPlaces::give_back(End end) {
  const std::lock_guard lock(mutex_);
  // Who was refused or went away says nothing about how fast answers are made.
  if (end == End::kAnswered) rate_.count_answered();
  if (--taken_ == 0) rate_.end_busy();
}

size_t CallPlaces::taken() const {
  const std::lock_guard lock(mutex_);
  return taken_;
}

int CallPlaces::retry_after_seconds(int n_running) const {
  const std::lock_guard lock(mutex_);
  return rate_.seconds_until(taken_ - std::min(taken_, static_cast<size_t>(std::max(0, n_running))));
}

}  // namespace pagoda::serve
