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

constexpr uint64_t kStepBytes = 16 * 1024;

uint64_t entry_bytes(const TokenLogprob& entry) {
  // Of JSON: names and digits, and each byte as a number besides.
  constexpr uint64_t kEntryJson = 96, kByteJson = 8;
  const auto one = [](const std::string& bytes, size_t object) {
    return object + kEntryJson + bytes.size() * kByteJson;
  };
  uint64_t sum = one(entry.bytes, sizeof(TokenLogprob));
  for (const TokenLogprob::Alternative& other : entry.top) sum += one(other.bytes, sizeof(TokenLogprob::Alternative));
  return sum;
}

}  // namespace

uint64_t event_bytes(const Event& event) {
  const auto* delta = std::get_if<Delta>(&event);
  if (delta == nullptr) return sizeof(Event);
  uint64_t sum = 3 * delta->text.size() + 3 * sizeof(TokenId) * delta->tokens.size();
  for (const TokenLogprob& entry : delta->logprobs) sum += entry_bytes(entry);
  return sum;
}

OutputStream::OutputStream(std::function<void()> wake, std::shared_ptr<ByteBudget> memory)
    : budget_(std::move(memory)), memory_(budget_.get()), wake_(std::move(wake)) {}

bool OutputStream::count(const Event& event) {
  unread_bytes_ += event_bytes(event);
  if (budget_ == nullptr || unread_bytes_ <= kUncountedAnswerBytes || unread_bytes_ <= memory_.bytes()) return true;
  return memory_.grow_to(unread_bytes_ + kStepBytes) || memory_.grow_to(unread_bytes_);
}

bool OutputStream::is_overrun() const {
  const std::lock_guard lock(mutex_);
  return is_overrun_;
}

void OutputStream::push(Event event) {
  {
    const std::lock_guard lock(mutex_);
    if (is_overrun_) return;
    if (!count(event)) {
      is_overrun_ = true;
      events_.clear();
      event = Failed{{ErrorCode::kResourceExhausted,
                      "the answer is not read as fast as it is made, and the memory for unread answers is used up",
                      {}}};
    } else if (!events_.empty()) {
      if (!merge(events_.back(), event)) events_.push_back(std::move(event));
      return;
    }
    events_.push_back(std::move(event));
  }
  wake_();
}

std::vector<Event> OutputStream::take() {
  ByteReservation memory;
  return take(memory);
}

std::vector<Event> OutputStream::take(ByteReservation& memory) {
  const std::lock_guard lock(mutex_);
  unread_bytes_ = 0;
  memory = std::exchange(memory_, ByteReservation(budget_.get()));
  return std::exchange(events_, {});
}

}  // namespace pagoda::engine
