// What the tier tests share: blocks whose bytes follow from their object, a folder that goes away, and a caller that waits.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "base/check.h"
#include "base/digest.h"
#include "base/test_folder.h"
#include "kv/block_io.h"
#include "kv/tier.h"
#include "kv/tier_io.h"

namespace pagoda::kv {

// The bytes that `object` stands for in tests, quickly.
inline void fill_with(const TierObject& object, std::span<std::byte> bytes) {
  uint64_t word = 0;
  for (int i = 0; i < 8; ++i) word = word << 8 | std::to_integer<uint64_t>(object.key.bytes[i]);
  word += object.group.value;
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (i % 8 == 0) word = word * 6364136223846793005ULL + 1442695040888963407ULL;
    bytes[i] = static_cast<std::byte>(word >> (8 * (i % 8)));
  }
}
inline std::vector<std::byte> bytes_of(const TierObject& object, size_t n_bytes) {
  std::vector<std::byte> bytes(n_bytes);
  fill_with(object, bytes);
  return bytes;
}
inline TierObject test_object(uint64_t number, uint32_t group = 0) {
  return {.key = tier_root(std::as_bytes(std::span(&number, 1))), .group = GroupId(group)};
}

// An arena of equal blocks.
class TestBlocks final : public BlockIo {
 public:
  TestBlocks(size_t n_blocks, size_t block_bytes) : blocks_(n_blocks, std::vector<std::byte>(block_bytes)) {}

  TierBlock block(uint32_t id) const {
    return {.model = ModelId(0), .block = BlockId{id}, .bytes = blocks_[id].size()};
  }
  std::vector<std::byte>& bytes(uint32_t id) { return blocks_[id]; }

  void copy_out(ModelId, GroupId, BlockId id, std::span<std::byte> to) const override {
    std::ranges::copy(blocks_[id.value], to.begin());
  }
  void copy_in(ModelId, GroupId, BlockId id, std::span<const std::byte> from) override {
    std::ranges::copy(from, blocks_[id.value].begin());
  }
  uint32_t checksum(ModelId, GroupId, BlockId id) const override { return crc32c(blocks_[id.value]); }

 private:
  std::vector<std::vector<std::byte>> blocks_;
};

class TempDir {
 public:
  const std::string& path() const { return path_; }
  std::vector<std::filesystem::path> files(std::string_view suffix) const {
    std::vector<std::filesystem::path> found;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      if (entry.path().string().ends_with(suffix)) found.push_back(entry.path());
    }
    std::ranges::sort(found);
    return found;
  }
  uint64_t bytes() const {
    uint64_t sum = 0;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      std::error_code gone;
      if (const uint64_t n = entry.file_size(gone); !gone) sum += n;
    }
    return sum;
  }

 private:
  TestFolder folder_;
  std::string path_ = folder_.path().string();
};

// What a disk may do. Values are errno, 0: none.
struct Faults {
  std::atomic<int> read_errno{0}, write_errno{0}, allocate_errno{0};
  std::atomic<bool> is_piecemeal{false};  // a few bytes at a time
};
class FaultyIo final : public DiskIo {
 public:
  explicit FaultyIo(Faults& faults) : faults_(faults), io_(make_sync_io()) {}
  std::string_view name() const override { return "faulty"; }
  size_t depth() const override { return 1; }
  void submit(const DiskOp& op) override {
    error_ = op.kind == DiskOp::Kind::kRead ? faults_.read_errno : faults_.write_errno;
    owner_ = op.owner;
    if (error_ != 0) return;
    DiskOp part = op;
    if (faults_.is_piecemeal) part.bytes = op.bytes.first(std::min<size_t>(op.bytes.size(), 1000));
    io_->submit(part);
  }
  DiskResult wait() override { return error_ != 0 ? DiskResult{.owner = owner_, .n = -error_} : io_->wait(); }
  int allocate(int fd, uint64_t bytes) override {
    return faults_.allocate_errno != 0 ? faults_.allocate_errno.load() : io_->allocate(fd, bytes);
  }

 private:
  Faults& faults_;
  std::unique_ptr<DiskIo> io_;
  int error_ = 0;
  void* owner_ = nullptr;
};

inline std::vector<std::unique_ptr<DiskIo>> one(std::unique_ptr<DiskIo> io) {
  std::vector<std::unique_ptr<DiskIo>> ios;
  ios.push_back(std::move(io));
  return ios;
}

// Calls a store as the engine thread would, but waits for each answer.
class TierCaller {
 public:
  TierStore* store = nullptr;

  std::function<void()> wake() {
    return [this] {
      const std::lock_guard lock(mutex_);
      ++n_wakes_;
      woken_.notify_one();
    };
  }

  TierDone wait(TicketId ticket) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    for (;;) {
      std::unique_lock lock(mutex_);
      const uint64_t seen = n_wakes_;
      lock.unlock();
      fetch();
      if (const auto found = done_.find(ticket.value); found != done_.end()) {
        TierDone done = std::move(found->second);
        done_.erase(found);
        return done;
      }
      lock.lock();
      CHECK(woken_.wait_until(lock, deadline, [&] { return n_wakes_ != seen; }));
    }
  }
  // Completions that were fetched while another was waited for.
  void take_rest(std::vector<TierDone>& out) {
    out.clear();
    for (auto& [ticket, done] : done_) out.push_back(std::move(done));
    done_.clear();
  }
  TicketId next_ticket() { return TicketId(++last_ticket_); }

  // nullopt: no completion follows.
  std::optional<TierOutcome> put(const TierObject& object, const TierBlock& block, std::optional<uint32_t> crc = {}) {
    const TicketId ticket = next_ticket();
    if (!store->put(ticket, object, block, crc)) return std::nullopt;
    return wait(ticket).outcome;
  }
  std::optional<TierOutcome> get(const TierObject& object, const TierBlock& block) {
    const TicketId ticket = next_ticket();
    if (!store->get(ticket, object, block)) return std::nullopt;
    return wait(ticket).outcome;
  }
  std::optional<std::vector<uint8_t>> ask(std::span<const TierObject> objects) {
    const TicketId ticket = next_ticket();
    if (!store->ask(ticket, objects)) return std::nullopt;
    TierDone done = wait(ticket);
    if (done.outcome != TierOutcome::kDone) return std::nullopt;
    return std::move(done.is_present);
  }

  // Fills block 0 with the object's bytes and puts it.
  std::optional<TierOutcome> put_made(TestBlocks& blocks, const TierObject& object) {
    fill_with(object, blocks.bytes(0));
    return put(object, blocks.block(0), crc32c(blocks.bytes(0)));
  }
  // Gets into block 1, and looks at every byte: kDone only with the right ones; the block is untouched otherwise.
  std::optional<TierOutcome> get_checked(TestBlocks& blocks, const TierObject& object) {
    std::ranges::fill(blocks.bytes(1), std::byte{0xEE});
    const std::vector<std::byte> untouched = blocks.bytes(1);
    const auto outcome = get(object, blocks.block(1));
    const bool is_hit = outcome == TierOutcome::kDone;
    EXPECT_TRUE(blocks.bytes(1) == (is_hit ? bytes_of(object, blocks.bytes(1).size()) : untouched));
    return outcome;
  }

 private:
  void fetch() {
    std::vector<TierDone> fetched;
    store->take_done(fetched);
    for (TierDone& done : fetched) CHECK(done_.emplace(done.ticket.value, std::move(done)).second);
  }

  uint64_t last_ticket_ = 0;
  std::map<uint64_t, TierDone> done_;
  std::mutex mutex_;
  std::condition_variable woken_;
  uint64_t n_wakes_ = 0;  // guarded by mutex_
};

}  // namespace pagoda::kv
