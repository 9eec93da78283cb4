// Hashes: XXH3 for keys and fingerprints that stay in the process, SHA-256 and HMAC for those that leave it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace pagoda {

struct Hash128 {
  uint64_t low = 0, high = 0;
  friend bool operator==(const Hash128&, const Hash128&) = default;
};

uint64_t xxh3_64(std::span<const std::byte> bytes, uint64_t seed = 0);
Hash128 xxh3_128(std::span<const std::byte> bytes, uint64_t seed = 0);

// CRC-32C (Castagnoli), as in iSCSI; seeds chain: crc32c(b, crc32c(a)) == crc32c(ab).
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t seed = 0);

using Sha256 = std::array<std::byte, 32>;
Sha256 sha256(std::span<const std::byte> bytes);
Sha256 hmac_sha256(std::span<const std::byte> key, std::span<const std::byte> message);

// Whether both are the same, in a time that depends on their sizes only.
bool equal_in_constant_time(std::span<const std::byte> a, std::span<const std::byte> b);

// Lower-case hex, high digit first.
std::string to_hex(std::span<const std::byte> bytes);
std::string to_hex(uint64_t value);
// The bytes that hex digits of either case stand for; false, and nothing of use in `bytes`, if they are not so many.
bool from_hex(std::string_view digits, std::span<std::byte> bytes);

// Streaming XXH3-64, for hashes over data that arrives in pieces (logits hashes).
class Xxh3Stream {
 public:
  Xxh3Stream();
  ~Xxh3Stream();
  Xxh3Stream(const Xxh3Stream&) = delete;
  Xxh3Stream& operator=(const Xxh3Stream&) = delete;
  void update(std::span<const std::byte> bytes);
  uint64_t digest() const;

 private:
  void* state_;
};

}  // namespace pagoda
