// LongestTokens: how few tokens a text can be, without tokenizing it.
//
//   tokens >= sum over the text's bytes of 1 / longest[byte]        longest[b]: the most bytes of a token that has byte b
//
// because the bytes of one token t each add 1 / longest[b] <= 1 / |t|, so |t| of them add 1 at most.
// It holds for texts that are tokens' bytes joined: who drops or changes bytes on the way says so by drop().
// Units: bytes.   Threads: const once filled.   Cost: one look per byte.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace pagoda::text {

class LongestTokens {
 public:
  void add(std::string_view token) {
    for (const char c : token) raise(c, token.size());
    most_bytes_ = std::max(most_bytes_, token.size());
  }
  // The byte may be part of a token of that many bytes.
  void raise(char byte, size_t token_bytes) {
    size_t& longest = longest_[static_cast<uint8_t>(byte)];
    if (longest != kDropped) longest = std::max(longest, token_bytes);
  }
  // The byte may vanish: it stands for no token.
  void drop(char byte) { longest_[static_cast<uint8_t>(byte)] = kDropped; }

  size_t of(char byte) const { return longest_[static_cast<uint8_t>(byte)]; }  // 0: in no token
  bool is_dropped(char byte) const { return of(byte) == kDropped; }
  size_t most_bytes() const { return most_bytes_; }  // of any token

 private:
  static constexpr size_t kDropped = ~size_t{0};
  std::array<size_t, 256> longest_{};
  size_t most_bytes_ = 0;
};

}  // namespace pagoda::text
