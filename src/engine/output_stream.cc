#include "engine/output_stream.h"

#include <iterator>

namespace pagoda::engine {
namespace {

// Appends `next` to `last` if both are Deltas of one choice.
bool merge(Event& last, Event& next) {
  auto* into = std::get_if<Delta>(&last);
  auto* from = std::get_if<Delta>(&next);
  if (into == nullptr || from == nullptr || into->choice != from->choice) return false;
  into->text += from->text;
  into->tokens.insert(into->tokens.end(), from->tokens.begin(), from->tokens.end());
  into->logprobs.insert(into->logprobs.end(), std::make_move_iterator(from->logprobs.begin()),
                        std::make_move_iterator(from->logprobs.end()));
  return true;
}

}  // namespace

void OutputStream::push(Event event) {
  {
    const std::lock_guard lock(mutex_);
    if (!events_.empty()) {
      if (!merge(events_.back(), event)) events_.push_back(std::move(event));
      return;
    }
    events_.push_back(std::move(event));
  }
  wake_();
}

std::vector<Event> OutputStream::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(events_, {});
}

}  // namespace pagoda::engine
