#include "kv/sessions.h"

#include <gtest/gtest.h>

#include <map>

#include "kv/test_tiered_world.h"

namespace pagoda::kv {
namespace {

SessionKey named(std::string name, uint64_t space = 0) { return {{{space, 0}}, std::move(name)}; }

// What a keeper was told last, by name.
class Memory final : public SessionKeeper {
 public:
  void save(SessionRecord record) override { records[record.key.name] = std::move(record); }
  void forget(const SessionKey& key, const Hash128&) override { records.erase(key.name); }
  std::map<std::string, SessionRecord> records;
};

// A turn of a session: computes all of the tokens, and ends.
template <typename World>
Granted turn(World& w, const SessionKey& key, std::span<const TokenId> tokens) {
  const SessionId id = w.sessions->enter(key);
  EXPECT_NE(id, SessionId());
  KvLease lease(ModelId(0), key.cache_namespace);
  lease.session = id;
  const Granted granted = w.compute(lease, tokens);
  w.check(lease);
  w.release(lease);
  w.sessions->leave(id);
  return granted;
}

template <typename World>
void sound(World& w) {
  ASSERT_SOUND(w.caches[0]->check_integrity({}));
  ASSERT_SOUND(w.sessions->check_integrity());
}

uint64_t held(const PrefixWorld& w) { return w.index.stats().held_bytes; }

TEST(Sessions, AHeldPathGoesAfterAllOthers) {
  PrefixWorld w(16, kOneGroup);  // 64 blocks
  const std::vector<TokenId> chat = salted_tokens(330);
  turn(w, named("a"), chat);
  EXPECT_EQ(held(w), 10 * 256u);
  for (int i = 1; i < 20; ++i) {
    w.pass(salted_tokens(640, i));
    sound(w);
  }
  EXPECT_EQ(w.index.stats().evicted_held, 0u);
  EXPECT_EQ(turn(w, named("a"), branch_of(chat, 330, 400, 1)).reused_tokens, 320);
  // The same without a session is gone.
  PrefixWorld without(16, kOneGroup);
  without.pass(chat);
  for (int i = 1; i < 20; ++i) without.pass(salted_tokens(640, i));
  EXPECT_EQ(without.pass(branch_of(chat, 330, 400, 1)).reused_tokens, 0);
}

TEST(Sessions, WorkThatNeedsAllTheMemoryGetsIt) {
  PrefixWorld w(16, kOneGroup);
  for (int i = 0; i < 6; ++i) turn(w, named("s" + std::to_string(i)), salted_tokens(320, i));
  ASSERT_TRUE(w.sessions->pin(named("s0"), Sessions::Pin::kOn));
  EXPECT_EQ(held(w), 60 * 256u);
  KvLease lease;
  w.compute(lease, salted_tokens(64 * 32, 99));
  EXPECT_EQ(held(w), 0u);
  EXPECT_EQ(w.index.stats().pinned_bytes, 0u);
  w.release(lease);
  sound(w);
  // They are still known, and hold again what they compute again.
  EXPECT_EQ(turn(w, named("s0"), salted_tokens(320, 0)).reused_tokens, 0);
  EXPECT_EQ(w.index.stats().pinned_bytes, 10 * 256u);
  sound(w);
}

TEST(Sessions, PinnedGoLast) {
  PrefixWorld w(16, kOneGroup);
  turn(w, named("pinned"), salted_tokens(320, 1));
  ASSERT_TRUE(w.sessions->pin(named("pinned"), Sessions::Pin::kOn));
  for (int i = 2; i < 7; ++i) turn(w, named("s" + std::to_string(i)), salted_tokens(320, i));
  KvLease lease;
  w.compute(lease, salted_tokens(54 * 32, 99));
  EXPECT_EQ(held(w), 10 * 256u);
  EXPECT_EQ(w.index.stats().pinned_bytes, 10 * 256u);
  w.release(lease);
  sound(w);
}

TEST(Sessions, PinsAreLimitedToHalfOfTheBudget) {
  PrefixWorld w(16, kOneGroup);
  turn(w, named("a"), salted_tokens(20 * 32, 1));
  turn(w, named("b"), salted_tokens(20 * 32, 2));
  ASSERT_TRUE(w.sessions->pin(named("a"), Sessions::Pin::kOn));
  const Status refused = w.sessions->pin(named("b"), Sessions::Pin::kOn);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kConflict);
  EXPECT_NE(refused.error().message.find("8192"), std::string::npos) << refused.error().message;
  // A pinned session that grows pins what the limit lets it, and holds the rest.
  turn(w, named("a"), salted_tokens(40 * 32, 1));
  EXPECT_EQ(w.index.stats().pinned_bytes, 32 * 256u);
  EXPECT_EQ(w.sessions->info(named("a"))->pinned_tokens, 32 * 32u);
  sound(w);
  ASSERT_TRUE(w.sessions->pin(named("a"), Sessions::Pin::kOff));
  EXPECT_EQ(w.index.stats().pinned_bytes, 0u);
  ASSERT_TRUE(w.sessions->pin(named("b"), Sessions::Pin::kOn));
  sound(w);
}

TEST(Sessions, AForkCopiesNothing) {
  PrefixWorld w(16, kOneGroup);
  turn(w, named("a"), salted_tokens(330));
  const uint64_t blocks = w.cached_blocks(), bytes = held(w);
  ASSERT_TRUE(w.sessions->fork(named("a"), "b"));
  EXPECT_EQ(w.cached_blocks(), blocks);
  EXPECT_EQ(held(w), bytes);
  EXPECT_EQ(w.sessions->info(named("b"))->n_tokens, 330u);
  EXPECT_EQ(w.sessions->info(named("b"))->ttl_us, kTestTtlUs);
  ASSERT_TRUE(w.sessions->fork(named("a"), "short", 5));
  EXPECT_EQ(w.sessions->info(named("short"))->ttl_us, 5);
  ASSERT_TRUE(w.sessions->remove(named("short")));
  sound(w);
  // Each goes its own way, and what they share stays while one of them holds it.
  turn(w, named("b"), branch_of(salted_tokens(330), 330, 400, 1));
  turn(w, named("a"), branch_of(salted_tokens(330), 330, 400, 2));
  ASSERT_TRUE(w.sessions->remove(named("a")));
  EXPECT_EQ(held(w), 12 * 256u);
  sound(w);
  const Status taken = w.sessions->fork(named("b"), "b");
  ASSERT_FALSE(taken);
  EXPECT_EQ(taken.error().code, ErrorCode::kConflict);
  EXPECT_EQ(w.sessions->fork(named("a"), "c").error().code, ErrorCode::kNotFound);
}

TEST(Sessions, TheLatestTurnIsHeldUnlessItIsABeginning) {
  PrefixWorld w(32, kOneGroup);
  const std::vector<TokenId> list = salted_tokens(320);
  turn(w, named("a"), list);
  turn(w, named("a"), std::span(list).first(100));
  EXPECT_EQ(w.sessions->info(named("a"))->n_tokens, 320u);
  EXPECT_EQ(held(w), 10 * 256u);
  turn(w, named("a"), branch_of(list, 64, 160, 1));
  EXPECT_EQ(w.sessions->info(named("a"))->n_tokens, 160u);
  EXPECT_EQ(held(w), 5 * 256u);
  sound(w);
  // Two at once: both run, and what ends last is held.
  const SessionId one = w.sessions->enter(named("a")), two = w.sessions->enter(named("a"));
  EXPECT_EQ(one, two);
  KvLease first, second;
  first.session = second.session = one;
  w.compute(first, branch_of(list, 320, 400, 2));
  w.compute(second, branch_of(list, 320, 350, 3));
  w.release(first);
  w.sessions->leave(one);
  EXPECT_EQ(w.sessions->info(named("a"))->n_running, 1);
  w.release(second);
  w.sessions->leave(one);
  EXPECT_EQ(w.sessions->info(named("a"))->n_tokens, 350u);
  sound(w);
}

// A session that is not pinned holds windows of nodes that another one pins.
TEST(Sessions, NoWindowPassesTheLimitOfPins) {
  PrefixWorld w(16, kWindowed);  // 64 blocks: 32 may be pinned
  const std::vector<TokenId> list = salted_tokens(640);
  turn(w, named("a"), list);
  ASSERT_TRUE(w.sessions->pin(named("a"), Sessions::Pin::kOn));
  EXPECT_EQ(w.index.stats().pinned_bytes, (20 + 3) * 256u);
  turn(w, named("b"), salted_tokens(192, 1));
  ASSERT_TRUE(w.sessions->pin(named("b"), Sessions::Pin::kOn));
  EXPECT_EQ(w.index.stats().pinned_bytes, 32 * 256u) << "to the byte";
  turn(w, named("c"), std::span(list).first(320));
  EXPECT_EQ(w.sessions->info(named("c"))->n_tokens, 320u);
  EXPECT_LE(w.index.stats().pinned_bytes, w.sessions->stats().pin_limit_bytes);
  sound(w);
  // Where there is room, it does.
  ASSERT_TRUE(w.sessions->remove(named("b")));
  turn(w, named("c"), std::span(list).first(320));
  EXPECT_EQ(w.index.stats().pinned_bytes, (20 + 3 + 3) * 256u);
  sound(w);
}

TEST(Sessions, ATurnShorterThanABlockLeavesWhatIsHeld) {
  PrefixWorld w(32, kOneGroup);
  const std::vector<TokenId> list = salted_tokens(330), other = salted_tokens(20, 9), longer = salted_tokens(70, 9);
  turn(w, named("a"), list);
  const SessionId id = w.sessions->enter(named("a"));
  EXPECT_EQ(w.sessions->tokens_after(id, ModelId(0), other), 330u);
  EXPECT_EQ(w.sessions->tokens_after(id, ModelId(0), std::span(list).first(100)), 330u);
  EXPECT_EQ(w.sessions->tokens_after(id, ModelId(0), {}), 330u);
  EXPECT_EQ(w.sessions->tokens_after(id, ModelId(0), longer), 70u);
  w.sessions->leave(id);
  turn(w, named("a"), other);
  EXPECT_EQ(w.sessions->info(named("a"))->n_tokens, 330u);
  EXPECT_EQ(w.sessions->info(named("a"))->n_turns, 2u) << "a turn nevertheless";
  EXPECT_EQ(held(w), 10 * 256u);
  sound(w);
}

// Its TTL counts from then, in this process and in the next.
TEST(Sessions, TheLastRequestIsRememberedWhateverItComputed) {
  FakeTier::Objects objects;
  Memory memory;
  TieredWorld w(16, objects, kOneGroup, FakeTier::Index::kKept, {}, &memory);
  w.sessions->leave(w.sessions->enter(named("visited")));
  ASSERT_TRUE(memory.records.contains("visited"));
  turn(w, named("short"), salted_tokens(20));
  ASSERT_TRUE(memory.records.contains("short"));
  turn(w, named("a"), salted_tokens(330));
  w.clock.advance_us(kTestTtlUs / 2);
  w.sessions->leave(w.sessions->enter(named("a")));
  EXPECT_EQ(memory.records["a"].left_us, kTestTtlUs);
}

// A lease's list has room for twice its tokens; the table counts four bytes for each.
TEST(Sessions, KeepNoMoreThanTheTokens) {
  PrefixWorld w(16, kOneGroup);
  const SessionId id = w.sessions->enter(named("a"));
  KvLease lease;
  lease.session = id;
  for (int n = 100; n <= 400; n += 60) w.compute(lease, branch_of(salted_tokens(330), 0, n, 1));
  w.release(lease);
  EXPECT_EQ(w.sessions->path(named("a"))->token_ids->size(), 400u);
  EXPECT_EQ(w.sessions->path(named("a"))->token_ids->capacity(), 400u);
  w.sessions->leave(id);
}

// A request that is preempted, or whose admission finds no room beside its hits, has not ended.
TEST(Sessions, OnlyAnEndedRequestIsATurn) {
  PrefixWorld w(16, kOneGroup);
  turn(w, named("a"), salted_tokens(320));
  const SessionId id = w.sessions->enter(named("a"));
  KvLease lease, other;
  lease.session = id;
  w.compute(other, salted_tokens(50 * 32, 9));
  std::vector<BlockOp> ops;
  ASSERT_TRUE(std::holds_alternative<NoSpace>(
      w.caches[0]->admit(lease, branch_of(salted_tokens(320), 320, 1600, 1), 1280, ops)));
  w.release(other);
  EXPECT_EQ(w.sessions->info(named("a"))->n_turns, 1u);
  w.compute(lease, branch_of(salted_tokens(320), 320, 400, 1));
  w.caches[0]->release(lease, LeaseEnd::kPause);
  EXPECT_EQ(w.sessions->info(named("a"))->n_turns, 1u);
  EXPECT_EQ(w.sessions->info(named("a"))->n_tokens, 400u) << "held until it goes on";
  w.compute(lease, branch_of(salted_tokens(320), 320, 400, 1));
  w.release(lease);
  w.sessions->leave(id);
  EXPECT_EQ(w.sessions->info(named("a"))->n_turns, 2u);
  EXPECT_EQ(w.sessions->stats().turns, 2u);
  sound(w);
}

TEST(Sessions, ExpireWhenTheyAreIdle) {
  PrefixWorld w(16, kOneGroup);
  turn(w, named("a"), salted_tokens(320, 1));
  turn(w, named("pinned"), salted_tokens(320, 2));
  ASSERT_TRUE(w.sessions->pin(named("pinned"), Sessions::Pin::kOn));
  const SessionId running = w.sessions->enter(named("running"));
  EXPECT_EQ(*w.sessions->next_us(), kTestTtlUs);
  w.clock.advance_us(kTestTtlUs - 1);
  w.sessions->poll();
  EXPECT_TRUE(w.sessions->info(named("a")));
  w.clock.advance_us(1);
  w.sessions->poll();
  EXPECT_FALSE(w.sessions->info(named("a")));
  EXPECT_TRUE(w.sessions->info(named("pinned")));
  EXPECT_TRUE(w.sessions->info(named("running")));
  EXPECT_FALSE(w.sessions->next_us());
  EXPECT_EQ(held(w), 10 * 256u);
  // Its blocks are ordinary cached ones: a hit, as long as nobody needs the room.
  EXPECT_EQ(w.pass(branch_of(salted_tokens(320, 1), 320, 350, 1)).reused_tokens, 320);
  w.sessions->leave(running);
  sound(w);
}

TEST(Sessions, TheOldestIdleOneGoesWhenThereAreTooMany) {
  PrefixWorld w(16, kOneGroup);
  for (size_t i = 0; i < kTestSessions; ++i) {
    w.clock.advance_us(1);
    ASSERT_TRUE(w.sessions->create(named("s" + std::to_string(i)), std::nullopt));
  }
  ASSERT_TRUE(w.sessions->pin(named("s0"), Sessions::Pin::kOn));
  ASSERT_TRUE(w.sessions->create(named("new"), std::nullopt));
  EXPECT_TRUE(w.sessions->info(named("s0")));
  EXPECT_FALSE(w.sessions->info(named("s1")));
  sound(w);
  for (const SessionInfo& info : w.sessions->list({}, "", 100)) {
    ASSERT_TRUE(w.sessions->pin(named(info.name), Sessions::Pin::kOn));
  }
  // A request runs all the same, without one.
  EXPECT_EQ(w.sessions->enter(named("more")), SessionId());
  const Status full = w.sessions->create(named("more"), std::nullopt);
  ASSERT_FALSE(full);
  EXPECT_EQ(full.error().code, ErrorCode::kConflict);
}

// 512 bytes a session and four a token.
TEST(Sessions, TheTableStaysWithinItsBytes) {
  PrefixWorld w(16, kOneGroup);
  const uint64_t most_bytes = 4 * (512 + 40 * 4);
  Sessions small({.index = &w.index, .pool = &w.pool, .clock = &w.clock, .most_table_bytes = most_bytes});
  small.add_model({ModelId(0), 0, {}, {{w.caches[0]->size_class(GroupId(0)), 0}}});
  const auto turn = [&](const std::string& name, int n_tokens) {
    w.clock.advance_us(1);
    const SessionId id = small.enter(named(name));
    const std::vector<TokenId> tokens = salted_tokens(n_tokens);
    w.pass(tokens);
    std::vector<NodeId> path;
    w.index.find_path(w.index.find_root(0, {}, {}), tokens, path);
    const size_t n_after = small.tokens_after(id, ModelId(0), tokens);
    small.take({.session = id, .model = ModelId(0), .token_ids = tokens, .path = path});
    small.leave(id);
    ASSERT_EQ(small.info(named(name))->n_tokens, n_after);
    ASSERT_LE(small.stats().table_bytes, most_bytes);
    ASSERT_SOUND(small.check_integrity());
  };
  const auto put = [&](const std::string& name, int n_tokens) {
    return small.put(named(name), ModelId(0), std::make_shared<const std::vector<TokenId>>(salted_tokens(n_tokens)));
  };
  for (const char* name : {"a", "b", "c", "d"}) turn(name, 40);
  EXPECT_EQ(small.stats().sessions, 4u);
  turn("b", 51);
  EXPECT_FALSE(small.info(named("a"))) << "the one not used for longest";
  turn("e", 51);
  EXPECT_FALSE(small.info(named("c")));
  EXPECT_EQ(small.info(named("b"))->n_tokens, 51u);
  EXPECT_EQ(small.info(named("e"))->n_tokens, 51u);
  // What could never fit costs nobody his session; what fits alone ends all that are idle.
  EXPECT_EQ(put("f", 560).error().code, ErrorCode::kConflict);
  EXPECT_EQ(small.stats().sessions, 3u);
  ASSERT_TRUE(small.pin(named("b"), Sessions::Pin::kOn));
  EXPECT_FALSE(put("f", 460));
  ASSERT_TRUE(small.pin(named("b"), Sessions::Pin::kOff));
  ASSERT_TRUE(put("f", 460));
  EXPECT_EQ(small.stats().sessions, 1u);
  // A turn that finds no room leaves what is held.
  turn("f", 600);
  EXPECT_EQ(small.info(named("f"))->n_tokens, 460u);
  EXPECT_LE(small.stats().table_bytes, most_bytes);
}

TEST(Sessions, NamespacesKnowNothingOfEachOther) {
  PrefixWorld w(16, kOneGroup);
  turn(w, named("a", 1), salted_tokens(320));
  EXPECT_FALSE(w.sessions->info(named("a", 2)));
  EXPECT_EQ(w.sessions->remove(named("a", 2)).error().message, w.sessions->remove(named("a", 3)).error().message);
  EXPECT_EQ(w.sessions->list({{{1, 0}}}, "", 10).size(), 1u);
  EXPECT_TRUE(w.sessions->list({{{2, 0}}}, "", 10).empty());
  EXPECT_TRUE(w.sessions->create(named("a", 2), std::nullopt));
  EXPECT_EQ(w.sessions->info(named("a", 2))->n_tokens, 0u);
}

TEST(Sessions, ListsByNameInPages) {
  PrefixWorld w(16, kOneGroup);
  for (const char* name : {"d", "b", "a", "c"}) ASSERT_TRUE(w.sessions->create(named(name), std::nullopt));
  const auto page = w.sessions->list({}, "a", 2);
  ASSERT_EQ(page.size(), 2u);
  EXPECT_EQ(page[0].name, "b");
  EXPECT_EQ(page[1].name, "c");
}

TEST(Sessions, ADeletedSessionsTurnIsNobodys) {
  PrefixWorld w(16, kOneGroup);
  const SessionId id = w.sessions->enter(named("a"));
  KvLease lease;
  lease.session = id;
  w.compute(lease, salted_tokens(320));
  ASSERT_TRUE(w.sessions->remove(named("a")));
  w.release(lease);
  w.sessions->leave(id);
  EXPECT_FALSE(w.sessions->info(named("a")));
  EXPECT_EQ(held(w), 0u);
  sound(w);
}

// gemma3: behind the end of the turn the windows are there, however many others came meanwhile.
TEST(Sessions, HoldTheWindowsAtTheEndOfTheTurn) {
  PrefixWorld w(40, kWindowed);
  const std::vector<TokenId> chat = salted_tokens(330);
  turn(w, named("a"), chat);
  EXPECT_EQ(held(w), (10 + 3) * 256u);  // 80 tokens behind position 320
  for (int i = 1; i < 30; ++i) {
    w.pass(salted_tokens(500, i));
    sound(w);
  }
  EXPECT_EQ(turn(w, named("a"), branch_of(chat, 330, 400, 1)).reused_tokens, 320);
  sound(w);
  ASSERT_TRUE(w.sessions->remove(named("a")));
  EXPECT_EQ(held(w), 0u);
  sound(w);
}

TEST(Sessions, SinkToTheTierAndComeBack) {
  FakeTier::Objects objects;
  Memory memory;
  {
    TieredWorld w(16, objects);
    w.tier->most_queued = 2;  // most blocks find no room on their way
    turn(w, named("a"), salted_tokens(330));
    EXPECT_LT(objects.size(), 10u);
    for (int i = 0; i < 100 && w.sessions->next_us() && w.sessions->stats().sinking > 0; ++i) {
      w.poll();
      w.clock.advance_us(20'000);
      w.sessions->poll();
    }
    w.poll();
    EXPECT_EQ(objects.size(), 10u);
    w.index.clear();
    const SessionPlaces places = *w.sessions->places(named("a"));
    EXPECT_EQ(places.n_blocks, 10u);
    EXPECT_EQ(places.ram_blocks, 0u);
    EXPECT_EQ(places.tier_blocks[0], 10u);
  }
  TieredWorld w(16, objects);
  EXPECT_EQ(w.serve(branch_of(salted_tokens(330), 330, 400, 1)).reused_tokens, 320);
}

// Lists that are sinking have a quarter of the table, sessions the rest: together no more than all of it.
TEST(Sessions, WhatIsSinkingIsWithinTheTablesBytes) {
  FakeTier::Objects objects;
  TieredWorld w(16, objects);
  const uint64_t most_bytes = 8 * (512 + 64 * 4);
  Sessions small({.index = &w.index,
                  .pool = &w.pool,
                  .clock = &w.clock,
                  .tiering = w.tiering.get(),
                  .most_table_bytes = most_bytes});
  small.add_model({ModelId(0), 0, {}, {{w.caches[0]->size_class(GroupId(0)), 0}}});
  for (int i = 0; i < 20; ++i) {
    w.clock.advance_us(1);
    ASSERT_TRUE(small.put(named("s" + std::to_string(i)), ModelId(0),
                          std::make_shared<const std::vector<TokenId>>(salted_tokens(64, i))));
    ASSERT_LE(small.stats().table_bytes, most_bytes);
    ASSERT_SOUND(small.check_integrity());
  }
  EXPECT_EQ(small.stats().sessions, 6u);
  EXPECT_EQ(small.stats().sinking, 6u);
}

// What the tier has dropped by the time a session expires it is given again.
TEST(Sessions, SinkWhenTheyExpire) {
  FakeTier::Objects objects;
  TieredWorld w(16, objects);
  turn(w, named("a"), salted_tokens(330));
  w.poll();
  ASSERT_EQ(objects.size(), 10u);
  objects.clear();
  w.clock.advance_us(kTestTtlUs);
  w.sessions->poll();
  w.poll();
  EXPECT_FALSE(w.sessions->info(named("a")));
  EXPECT_EQ(objects.size(), 10u);
}

TEST(Sessions, ComeBackAfterARestart) {
  Memory memory;
  std::vector<SessionRecord> records;
  {
    PrefixWorld w(16, kOneGroup);
    Sessions kept({.index = &w.index, .pool = &w.pool, .clock = &w.clock, .keeper = &memory, .ttl_us = kTestTtlUs});
    kept.add_model({ModelId(0), 0, {}, {{w.caches[0]->size_class(GroupId(0)), 0}}});
    const auto tokens = std::make_shared<const std::vector<TokenId>>(salted_tokens(20));
    ASSERT_TRUE(kept.put(named("a"), ModelId(0), tokens));
    ASSERT_TRUE(kept.fork(named("a"), "b"));
    ASSERT_TRUE(kept.pin(named("b"), Sessions::Pin::kOn));
    ASSERT_TRUE(kept.create(named("c"), std::nullopt));
    ASSERT_TRUE(kept.remove(named("c")));
    for (const auto& [name, record] : memory.records) records.push_back(record);
  }
  ASSERT_EQ(records.size(), 2u);
  records[1].left_us = 0;  // pinned: it stays
  records.push_back(records[0]);
  records.back().key.name = "late";
  records.back().left_us = -1;
  records.push_back(records[0]);
  records.back().key.name = "other-model";
  records.back().fingerprint = {1, 2};
  PrefixWorld w(16, kOneGroup);
  w.sessions->restore(records);
  EXPECT_EQ(w.sessions->info(named("a"))->n_tokens, 20u);
  EXPECT_TRUE(w.sessions->info(named("b"))->is_pinned);
  EXPECT_EQ(w.sessions->list({}, "", 10).size(), 2u);
  EXPECT_EQ(w.sessions->stats().restored, 2u);
  EXPECT_EQ(w.sessions->stats().created, 0u);
  sound(w);
  w.clock.advance_us(kTestTtlUs);
  w.sessions->poll();
  EXPECT_EQ(w.sessions->list({}, "", 10).size(), 1u);
}

// An engine lets the session go before the sequence's blocks: what was kept was the turn before.
TEST(SessionsTest, ATurnIsKeptThoughItsRequestHasLeft) {
  Memory memory;
  PrefixWorld w(16, kOneGroup);
  Sessions kept({.index = &w.index, .pool = &w.pool, .clock = &w.clock, .keeper = &memory, .ttl_us = kTestTtlUs});
  kept.add_model({ModelId(0), 0, {}, {{w.caches[0]->size_class(GroupId(0)), 0}}});
  const SessionId id = kept.enter(named("a"));
  kept.leave(id);
  const std::vector<TokenId> tokens = salted_tokens(40);
  w.pass(tokens);
  std::vector<NodeId> path;
  w.index.find_path(w.index.find_root(0, {}, {}), tokens, path);
  kept.take({.session = id, .model = ModelId(0), .token_ids = tokens, .path = path});
  ASSERT_TRUE(memory.records.contains("a"));
  EXPECT_EQ(*memory.records["a"].token_ids, tokens);
}

// A smaller --max-sessions takes the pinned ones and those used last, and the others do not come back at a later start.
TEST(SessionsTest, RestoreTakesTheLastUsedAndForgetsTheRest) {
  PrefixWorld w(16, kOneGroup);
  Memory memory;
  Sessions few({.index = &w.index, .pool = &w.pool, .clock = &w.clock, .keeper = &memory, .most_sessions = 2});
  const Hash128 fingerprint{1, 2};
  few.add_model({ModelId(0), 0, fingerprint, {{w.caches[0]->size_class(GroupId(0)), 0}}});
  std::vector<SessionRecord> records;
  for (int i = 0; i < 4; ++i) {
    const SessionRecord record{.key = named("s" + std::to_string(i)),
                               .fingerprint = fingerprint,
                               .token_ids = std::make_shared<const std::vector<TokenId>>(salted_tokens(20)),
                               .ttl_us = kTestTtlUs,
                               .left_us = kTestTtlUs / 2 + i,
                               .is_pinned = i == 1};
    memory.records[record.key.name] = record;
    records.push_back(record);
  }
  few.restore(records);
  EXPECT_TRUE(few.info(named("s1")));
  EXPECT_TRUE(few.info(named("s3")));
  EXPECT_EQ(memory.records.size(), 2u);
}

}  // namespace
}  // namespace pagoda::kv
