// FakeExecutor: a block store, model and sampler for scheduler tests. Its "K and V" of a token are {position + 1, token}, written into a real
// arena through the block tables; its model reads them back through the tables and answers a hash of the whole prefix. So a token is
// right only if every block was zeroed, written, kept and dropped as it should be.
// Tests only.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "kv/block_io.h"
#include "kv/cache.h"
#include "sched/scheduler.h"

namespace pagoda::sched {

// The fake model: the token after a prefix. Folded token by token, so it depends on every token and its position.
class PrefixHash {
 public:
  void add(TokenId token) {
    state_ = (state_ ^ (static_cast<uint64_t>(token.value) + 0x9E3779B97F4A7C15U)) * 0xD6E8FEB86659FD93U + 1;
  }
  TokenId next() const { return TokenId(static_cast<int32_t>(state_ >> 40 & 0x7FFF)); }

 private:
  uint64_t state_ = 0;
};

// The tokens that follow `prompt`, had it run alone.
inline std::vector<TokenId> expected_tokens(std::span<const TokenId> prompt, int n) {
  PrefixHash hash;
  for (const TokenId token : prompt) hash.add(token);
  std::vector<TokenId> tokens;
  for (int i = 0; i < n; ++i) {
    tokens.push_back(hash.next());
    hash.add(tokens.back());
  }
  return tokens;
}

class FakeExecutor final : public kv::BlockIo {
 public:
  static constexpr size_t kSlotBytes = 8;  // a token's K and V: the smallest block has 256 bytes

  explicit FakeExecutor(const kv::BlockPool& pool)
      : extent_bytes_(pool.extent_bytes()), arena_(pool.n_extents() * pool.extent_bytes(), 0xAA) {}

  // Runs the plan as an executor would: block ops, K and V of every row, then a token for each sequence that samples.
  // ASSERTs that whatever a row may see is in the blocks.
  void run(const Scheduler& scheduler, const kv::Cache& cache, const StepPlan& plan,
           std::vector<StepOutcome>& outcomes) {
    for (const kv::BlockOp& op : plan.block_ops) apply(cache, op);
    outcomes.clear();
    for (const SeqRows& rows : plan.rows) {
      const Sequence* seq = scheduler.find(rows.seq);
      ASSERT_NE(seq, nullptr);
      ASSERT_EQ(rows.first_position, seq->n_computed());
      ASSERT_EQ(rows.sampling == Sampling::kLastRow, rows.first_position + rows.n_tokens == seq->n_tokens());
      for (int32_t p = rows.first_position; p < rows.first_position + rows.n_tokens; ++p) write(cache, *seq, p);
      for (uint32_t g = 0; g < cache.n_groups(); ++g) check_visible(cache, kv::GroupId(g), *seq, rows);
      if (testing::Test::HasFatalFailure()) return;
      outcomes.push_back(
          rows.sampling == Sampling::kNone
              ? StepOutcome{}
              : StepOutcome{StepOutcome::Kind::kSampled, sample(cache, *seq, rows.first_position + rows.n_tokens)});
    }
  }

  void copy_out(kv::ModelId, kv::GroupId, kv::BlockId block, std::span<std::byte> to) const override {
    std::memcpy(to.data(), arena_.data() + block.extent() * extent_bytes_ + block.slot() * to.size(), to.size());
  }
  void copy_in(kv::ModelId, kv::GroupId, kv::BlockId block, std::span<const std::byte> from) override {
    std::memcpy(arena_.data() + block.extent() * extent_bytes_ + block.slot() * from.size(), from.data(), from.size());
  }
  uint32_t checksum(kv::ModelId, kv::GroupId, kv::BlockId) const override { return 0; }

 private:
  struct Stored {
    int32_t position_plus_1;
    int32_t token;
  };

  uint8_t* block_bytes(const kv::Cache& cache, kv::GroupId group, kv::BlockId block) {
    return arena_.data() + block.extent() * extent_bytes_ + block.slot() * cache.group(group).block_bytes;
  }

  void apply(const kv::Cache& cache, const kv::BlockOp& op) {
    uint8_t* to = block_bytes(cache, op.group, op.block);
    std::memset(to, 0, cache.group(op.group).block_bytes);
    if (op.kind != kv::BlockOpKind::kCopy) return;
    ASSERT_NE(op.block, op.source);
    std::memcpy(to, block_bytes(cache, op.group, op.source), static_cast<size_t>(op.n_tokens) * kSlotBytes);
  }

  void write(const kv::Cache& cache, const Sequence& seq, int32_t position) {
    const Stored stored{position + 1, seq.tokens()[static_cast<size_t>(position)].value};
    for (uint32_t g = 0; g < cache.n_groups(); ++g) {
      const kv::BlockId block = seq.lease.blocks(kv::GroupId(g))[static_cast<size_t>(position / kv::kBlockTokens)];
      ASSERT_FALSE(block.is_none());
      std::memcpy(block_bytes(cache, kv::GroupId(g), block) + position % kv::kBlockTokens * kSlotBytes, &stored,
                  sizeof(stored));
    }
  }

  Stored read(const kv::Cache& cache, kv::GroupId group, const Sequence& seq, int32_t position) {
    const kv::BlockId block = seq.lease.blocks(group)[static_cast<size_t>(position / kv::kBlockTokens)];
    Stored stored{};
    if (!block.is_none()) {
      std::memcpy(&stored, block_bytes(cache, group, block) + position % kv::kBlockTokens * kSlotBytes, sizeof(stored));
    }
    return stored;
  }

  // The first row's window is the one that reaches back farthest; slots behind the last row are still zero.
  void check_visible(const kv::Cache& cache, kv::GroupId group, const Sequence& seq, const SeqRows& rows) {
    const int32_t window = cache.group(group).window_tokens;
    const int32_t end = rows.first_position + rows.n_tokens;
    const int32_t first_seen = window == 0 ? 0 : std::max(0, rows.first_position - window + 1);
    for (int32_t p = first_seen; p < end; ++p) {
      const Stored stored = read(cache, group, seq, p);
      ASSERT_EQ(stored.position_plus_1, p + 1) << "sequence " << seq.id().value << " group " << group.value;
      ASSERT_EQ(stored.token, seq.tokens()[static_cast<size_t>(p)].value);
    }
    for (int32_t p = end; p % kv::kBlockTokens != 0; ++p) ASSERT_EQ(read(cache, group, seq, p).position_plus_1, 0);
  }

  TokenId sample(const kv::Cache& cache, const Sequence& seq, int32_t end) {
    PrefixHash hash;
    for (int32_t p = 0; p < end; ++p) hash.add(TokenId(read(cache, kv::GroupId(0), seq, p).token));
    return hash.next();
  }

  size_t extent_bytes_;
  std::vector<uint8_t> arena_;
};

}  // namespace pagoda::sched
