#include "sched/sequence.h"

#include <gtest/gtest.h>

#include <vector>

namespace pagoda::sched {
namespace {

// A cache with room for 16 blocks, and a sequence of three tokens that wants to be computed.
struct Fixture {
  kv::BlockPool pool{{.budget_bytes = 1024, .extent_bytes = 256}};
  kv::Cache cache{pool, kv::ModelId(0), std::vector<kv::GroupSpec>{{.block_bytes = 64}}};
  std::vector<kv::BlockOp> ops;
  Sequence seq{{.id = SeqId(1), .prompt = {TokenId(4), TokenId(5), TokenId(6)}, .arrival_us = 12}, 0};

  ~Fixture() { cache.release(seq.lease); }
  void compute(int32_t n) {
    ASSERT_TRUE(std::holds_alternative<kv::Granted>(cache.admit(seq.lease, seq.tokens(), n, ops)));
    cache.commit(seq.lease, n);
    seq.rows_done();
  }
};

TEST(SequenceTest, CountsWhatIsLeftToCompute) {
  Fixture f;
  EXPECT_EQ(f.seq.state(), SeqState::kWaiting);
  EXPECT_EQ(f.seq.arrival_us(), 12);
  f.seq.start();
  f.compute(2);
  EXPECT_EQ(f.seq.n_to_compute(), 1);
  f.compute(1);
  EXPECT_EQ(f.seq.n_to_compute(), 0);
  f.seq.append(TokenId(9));
  EXPECT_EQ(f.seq.state(), SeqState::kDecoding);
  EXPECT_EQ(f.seq.n_to_compute(), 1);
  EXPECT_EQ(f.seq.n_prompt(), 3);
  EXPECT_EQ(f.seq.tokens().back(), TokenId(9));
}

TEST(SequenceTest, PreemptionKeepsTokensAndWhatWasDelivered) {
  Fixture f;
  f.seq.start();
  f.compute(3);
  f.seq.append(TokenId(9));
  f.cache.release(f.seq.lease);
  f.seq.preempt();
  EXPECT_EQ(f.seq.state(), SeqState::kPreempted);
  EXPECT_EQ(f.seq.n_to_compute(), 4);
  EXPECT_EQ(f.seq.n_logits_done(), 3);
  f.seq.start();
  f.compute(1);
  EXPECT_EQ(f.seq.n_logits_done(), 3);
  f.cache.release(f.seq.lease);
  f.seq.finish(FinishReason::kCancelled);
  EXPECT_EQ(f.seq.state(), SeqState::kFinished);
  EXPECT_EQ(f.seq.finish_reason(), FinishReason::kCancelled);
}

}  // namespace
}  // namespace pagoda::sched
