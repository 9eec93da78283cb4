#include "kv/tier.h"

#include <algorithm>
#include <cstring>

namespace pagoda::kv {
namespace {

constexpr std::string_view kRootTag = "pagoda kv tier root 1";
constexpr std::string_view kBlockTag = "pagoda kv tier block 1";

TierKey digest(std::span<const std::byte> bytes) { return {sha256(bytes)}; }

}  // namespace

TierKey tier_root(std::span<const std::byte> root) {
  std::vector<std::byte> bytes(kRootTag.size() + root.size());
  std::memcpy(bytes.data(), kRootTag.data(), kRootTag.size());
  if (!root.empty()) std::memcpy(bytes.data() + kRootTag.size(), root.data(), root.size());
  return digest(bytes);
}

TierKey tier_root(const Sha256& identity, const CacheNamespace& cache_namespace) {
  std::array<std::byte, sizeof(Sha256) + 16> root;
  std::byte* at = std::ranges::copy(identity, root.data()).out;
  for (const uint64_t word : cache_namespace.bits) {
    for (int shift = 0; shift < 64; shift += 8) *at++ = static_cast<std::byte>(word >> shift);
  }
  return tier_root(root);
}

TierKey tier_key(const TierKey& parent, std::span<const TokenId, kBlockTokens> tokens) {
  std::array<std::byte, kBlockTag.size() + sizeof(TierKey) + kBlockTokens * 4> bytes;
  std::byte* at = bytes.data();
  std::memcpy(at, kBlockTag.data(), kBlockTag.size());
  at += kBlockTag.size();
  std::memcpy(at, parent.bytes.data(), parent.bytes.size());
  at += parent.bytes.size();
  for (const TokenId token : tokens) {
    const auto value = static_cast<uint32_t>(token.value);
    for (int shift = 0; shift < 32; shift += 8) *at++ = static_cast<std::byte>(value >> shift);
  }
  return digest(bytes);
}

size_t TierObjectHash::operator()(const TierObject& object) const noexcept {
  size_t word;
  std::memcpy(&word, object.key.bytes.data(), sizeof word);
  return word + object.group.value;
}

std::string_view to_string(TierDrop drop) {
  switch (drop) {
    case TierDrop::kQueueFull:
      return "queue_full";
    case TierDrop::kDiskFull:
      return "disk_full";
    case TierDrop::kNoRoom:
      return "no_room";
    case TierDrop::kUnavailable:
      return "unavailable";
  }
  return "unavailable";
}

std::string_view to_string(TierFault fault) {
  switch (fault) {
    case TierFault::kIo:
      return "io";
    case TierFault::kTimeout:
      return "timeout";
    case TierFault::kCorrupt:
      return "corrupt";
    case TierFault::kRefused:
      return "refused";
    case TierFault::kStale:
      return "stale";
  }
  return "io";
}

void TierDoneQueue::post(TierDone done) {
  {
    const std::lock_guard lock(mutex_);
    done_.push_back(std::move(done));
  }
  if (wake_) wake_();
}

void TierDoneQueue::take(std::vector<TierDone>& out) {
  const std::lock_guard lock(mutex_);
  for (TierDone& done : done_) out.push_back(std::move(done));
  done_.clear();
}

}  // namespace pagoda::kv
