// StreamDecoder: one answer's token bytes to UTF-8 text deltas, cut at the first stop string.
// Never emits part of a character: an incomplete one waits for its next bytes; invalid bytes become U+FFFD, one per
// maximal subpart (Unicode 16, section 3.9). Text that could still become a stop string is held back until it can't.
// Invariant: for any split of the bytes, the deltas concatenated through flush() equal the whole decoded text up to the
// stop. The first stop to be complete wins; of several ending at once, the one that starts first, then the first in the
// list. Threads: one owner. Cost: O(bytes) amortised (Knuth-Morris-Pratt per stop string).
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pagoda::text {

class StreamDecoder {
 public:
  struct Delta {
    std::string text;                    // valid UTF-8, may be empty
    std::optional<size_t> matched_stop;  // index into stops; text ends just before the stop string
  };

  // Empty stop strings are ignored.
  explicit StreamDecoder(std::vector<std::string> stops = {});

  // Bytes of the next token. After a stop matched, further pushes return empty deltas.
  Delta push(std::string_view bytes);
  // The end of the answer: an incomplete character becomes U+FFFD (which may still complete a stop), held text is
  // released.
  Delta flush();

  bool stopped() const { return stopped_; }

 private:
  struct Stop {
    std::string text;
    std::vector<size_t> fallback;  // KMP failure function
    size_t index = 0;              // in the caller's list
    size_t matched = 0;            // bytes of text matched by the end of held_
  };

  void append_character(std::string_view character, Delta& delta);
  void match_byte(char byte, Delta& delta);
  void release_safe_text(Delta& delta);

  std::vector<Stop> stops_;
  std::string partial_;  // bytes of a character not yet complete
  std::string held_;     // decoded text not yet emitted
  bool stopped_ = false;
};

}  // namespace pagoda::text
