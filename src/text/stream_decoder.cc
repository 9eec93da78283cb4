#include "text/stream_decoder.h"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace pagoda::text {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// Length of the character that starts with this byte, 0 if none does (table 3-7 of the Unicode standard).
size_t character_length(uint8_t lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return 2;
  if (lead >= 0xE0 && lead <= 0xEF) return 3;
  if (lead >= 0xF0 && lead <= 0xF4) return 4;
  return 0;
}

// Whether `byte` can follow the incomplete character `partial`: the second byte's range depends on the first.
bool continues(std::string_view partial, uint8_t byte) {
  uint8_t low = 0x80, high = 0xBF;
  if (partial.size() == 1) {
    switch (static_cast<uint8_t>(partial[0])) {
      case 0xE0:
        low = 0xA0;
        break;
      case 0xED:
        high = 0x9F;
        break;
      case 0xF0:
        low = 0x90;
        break;
      case 0xF4:
        high = 0x8F;
        break;
      default:
        break;
    }
  }
  return byte >= low && byte <= high;
}

std::vector<size_t> failure_function(std::string_view pattern) {
  std::vector<size_t> fallback(pattern.size(), 0);
  size_t k = 0;
  for (size_t i = 1; i < pattern.size(); ++i) {
    while (k > 0 && pattern[i] != pattern[k]) k = fallback[k - 1];
    if (pattern[i] == pattern[k]) ++k;
    fallback[i] = k;
  }
  return fallback;
}

}  // namespace

StreamDecoder::StreamDecoder(std::vector<std::string> stops) {
  for (size_t i = 0; i < stops.size(); ++i) {
    if (stops[i].empty()) continue;
    StreamDecoder cleaner;  // a stop string is text too: what the output can contain is its valid form
    std::string text = cleaner.push(stops[i]).text + cleaner.flush().text;
    std::vector<size_t> fallback = failure_function(text);
    stops_.push_back({std::move(text), std::move(fallback), i, 0});
  }
}

StreamDecoder::Delta StreamDecoder::push(std::string_view bytes) {
  Delta delta;
  for (const char byte : bytes) {
    if (stopped_) break;
    if (!partial_.empty() && !continues(partial_, static_cast<uint8_t>(byte))) {
      partial_.clear();
      append_character(kReplacement, delta);
      if (stopped_) break;
    }
    if (partial_.empty() && character_length(static_cast<uint8_t>(byte)) == 0) {
      append_character(kReplacement, delta);
      continue;
    }
    partial_ += byte;
    if (partial_.size() == character_length(static_cast<uint8_t>(partial_[0]))) {
      const std::string character = std::exchange(partial_, {});
      append_character(character, delta);
    }
  }
  if (!stopped_) release_safe_text(delta);
  return delta;
}

StreamDecoder::Delta StreamDecoder::flush() {
  Delta delta;
  if (stopped_) return delta;
  if (!partial_.empty()) {
    partial_.clear();
    append_character(kReplacement, delta);
  }
  if (!stopped_) {
    delta.text += held_;
    held_.clear();
    for (Stop& stop : stops_) stop.matched = 0;
  }
  return delta;
}

void StreamDecoder::append_character(std::string_view character, Delta& delta) {
  if (stops_.empty()) {
    delta.text += character;
    return;
  }
  for (const char byte : character) {
    held_ += byte;
    match_byte(byte, delta);
    if (stopped_) return;
  }
}

// Advances every stop string's match by the byte just added to held_; on a complete one, emits the text before it and
// stops.
void StreamDecoder::match_byte(char byte, Delta& delta) {
  const Stop* complete = nullptr;
  for (Stop& stop : stops_) {
    while (stop.matched > 0 && stop.text[stop.matched] != byte) stop.matched = stop.fallback[stop.matched - 1];
    if (stop.text[stop.matched] == byte) ++stop.matched;
    const bool longer = complete == nullptr || stop.text.size() > complete->text.size();
    if (stop.matched == stop.text.size() && longer) complete = &stop;
    if (stop.matched == stop.text.size()) stop.matched = 0;  // nothing reads it again: the decoder stops
  }
  if (complete == nullptr) return;
  delta.text.append(held_, 0, held_.size() - complete->text.size());
  delta.matched_stop = complete->index;
  held_.clear();
  partial_.clear();
  stopped_ = true;
}

// Moves what can no longer be part of a stop string from held_ to the delta.
void StreamDecoder::release_safe_text(Delta& delta) {
  size_t longest = 0;
  for (const Stop& stop : stops_) longest = std::max(longest, stop.matched);
  const size_t n_safe = held_.size() - longest;
  delta.text.append(held_, 0, n_safe);
  held_.erase(0, n_safe);
}

}  // namespace pagoda::text
