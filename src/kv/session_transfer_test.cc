// Sessions that leave a server and come to another, in parts; and what they are written as.
#include "kv/session_transfer.h"

#include <gtest/gtest.h>

#include <fstream>

#include "kv/session_files.h"
#include "kv/test_tier_world.h"
#include "kv/test_tiered_world.h"

namespace pagoda::kv {
namespace {

constexpr Sha256 kIdentity{std::byte{1}};  // as PrefixWorld sets it for its first model
const std::vector<std::byte> kSecret(32, std::byte{7});
const SessionKey kChat{{{5, 6}}, "chat"};

struct Server : TieredWorld {
  explicit Server(FakeTier::Objects& objects, size_t n_extents = 40,
                  const std::vector<std::vector<GroupSpec>>& models = kOneGroup,
                  const std::vector<std::byte>& secret = kSecret)
      : TieredWorld(n_extents, objects, models),
        transfer({pool, index, io, *sessions, tiering.get()}, secret, 3 * 256 * models[0].size()) {}

  void turn(std::span<const TokenId> tokens) {
    const SessionId id = sessions->enter(kChat);
    KvLease lease(ModelId(0), kChat.cache_namespace);
    lease.session = id;
    compute(lease, tokens);
    release(lease);
    sessions->leave(id);
    poll();
  }
  Result<SessionTransfer::Exported> part(uint32_t number) {
    for (int i = 0; i < 10; ++i) {
      auto made = transfer.export_part(kChat, number, kIdentity, Patience::kMayWait);
      if (!made) return fail(made.error());
      if (auto* whole = std::get_if<SessionTransfer::Exported>(&*made)) return std::move(*whole);
      ++n_waits;
      poll();
    }
    return fail(ErrorCode::kInternal, "it waits for ever");
  }
  std::vector<std::vector<std::byte>> parts() {
    std::vector<std::vector<std::byte>> all;
    for (uint32_t n = 1; all.size() < n;) {
      auto one = part(static_cast<uint32_t>(all.size()));
      if (!one) {
        ADD_FAILURE() << one.error().message;
        return all;
      }
      n = one->n_parts;
      all.push_back(std::move(one->bytes));
    }
    return all;
  }
  Status import(std::span<const std::byte> bytes, const SessionKey& key = kChat) {
    const Status status = transfer.import_part(key, ModelId(0), bytes, kIdentity);
    sound({});
    const Status counts = sessions->check_integrity();
    EXPECT_TRUE(counts) << counts.error().message;
    return status;
  }

  SessionTransfer transfer;
};

TEST(SessionTransfer, ANewServerGoesOnWhereTheOldOneWas) {
  for (const auto& models : {kOneGroup, kWindowed}) {
    FakeTier::Objects here, there;
    Server from(here, 60, models), to(there, 60, models);
    from.turn(salted_tokens(330));
    const auto parts = from.parts();
    EXPECT_EQ(parts.size(), 4u);
    for (const auto& bytes : parts) ASSERT_TRUE(to.import(bytes));
    EXPECT_EQ(to.sessions->info(kChat)->n_tokens, 330u);
    EXPECT_GT(to.index.stats().held_bytes, 0u);
    const Granted granted = to.serve(branch_of(salted_tokens(330), 330, 400, 1), kChat.cache_namespace);
    EXPECT_EQ(granted.reused_tokens, 320);
    // The tiers have them too.
    to.index.clear();
    EXPECT_EQ(to.serve(branch_of(salted_tokens(330), 330, 400, 2), kChat.cache_namespace).reused_tokens, 320);
    // Again, and over what is there: nothing changes.
    for (const auto& bytes : parts) ASSERT_TRUE(to.import(bytes));
    const uint64_t blocks = to.cached_blocks();
    for (const auto& bytes : parts) ASSERT_TRUE(to.import(bytes));
    EXPECT_EQ(to.cached_blocks(), blocks);
  }
}

TEST(SessionTransfer, WhatSleepsInATierIsLoadedFirst) {
  FakeTier::Objects here, there;
  Server from(here), to(there);
  from.turn(salted_tokens(330));
  from.index.clear();
  from.tiering->set_compute_cost(ModelId(0), 1e-3);  // whatever computing takes
  from.tier->given_stats.read_bytes_per_s = 1;
  for (const auto& bytes : from.parts()) ASSERT_TRUE(to.import(bytes));
  EXPECT_GT(from.n_waits, 0);
  EXPECT_EQ(to.serve(branch_of(salted_tokens(330), 330, 400, 1), kChat.cache_namespace).reused_tokens, 320);
}

TEST(SessionTransfer, WhatNobodyHasAnyMoreIsLeftOut) {
  FakeTier::Objects here, there;
  Server from(here), to(there);
  from.turn(salted_tokens(330));
  from.index.clear();
  here.clear();
  for (const auto& bytes : from.parts()) ASSERT_TRUE(to.import(bytes));
  EXPECT_EQ(to.sessions->info(kChat)->n_tokens, 330u);
  EXPECT_EQ(to.cached_blocks(), 0u);
}

// A block of Llama-2-13B in bf16 is 25 MiB: more than a part should have, and than bodies of other requests may.
TEST(SessionTransfer, APartHasAtLeastABlockAndItsSizeIsKnownBefore) {
  FakeTier::Objects here, there;
  Server from(here, 60, kWindowed), to(there, 60, kWindowed);
  SessionTransfer narrow({from.pool, from.index, from.io, *from.sessions, from.tiering.get()}, kSecret, 100);
  from.turn(salted_tokens(330));
  for (uint32_t n = 0; n < 10; ++n) {
    auto made = narrow.export_part(kChat, n, kIdentity, Patience::kMayWait);
    ASSERT_TRUE(made);
    const auto& part = std::get<SessionTransfer::Exported>(*made);
    EXPECT_EQ(part.n_parts, 10u);
    ASSERT_TRUE(to.import(part.bytes));
  }
  EXPECT_EQ(to.sessions->info(kChat)->n_tokens, 330u);
  SessionTransfer wide({from.pool, from.index, from.io, *from.sessions, from.tiering.get()}, kSecret);
  const auto all = wide.export_part(kChat, 0, kIdentity, Patience::kMayWait);
  ASSERT_TRUE(all);
  constexpr std::array<size_t, 2> kSmall{256, 256};
  EXPECT_LE(std::get<SessionTransfer::Exported>(*all).bytes.size(), SessionTransfer::most_part_bytes(kSmall, 330));
  const size_t llama = size_t{40} * 2 * 5120 * 2 * kBlockTokens;
  const SessionPart part{.root = {},
                         .name = std::string(kMaxSessionName, 'x'),
                         .token_ids = salted_tokens(4096),
                         .blocks = {{0, GroupId(0), std::vector<std::byte>(llama)}}};
  const size_t most = SessionTransfer::most_part_bytes(std::span(&llama, 1), 4096);
  EXPECT_LE(encode_part(part, kSecret).size(), most);
  EXPECT_GT(most, size_t{16} << 20);
}

TEST(SessionTransfer, APartThatIsNotThereIsNamed) {
  FakeTier::Objects here;
  Server from(here);
  from.turn(salted_tokens(330));
  const auto beyond = from.part(4);
  ASSERT_FALSE(beyond);
  EXPECT_EQ(beyond.error().code, ErrorCode::kNotFound);
  EXPECT_EQ(beyond.error().where, "part");
}

TEST(SessionTransfer, ARefusedPartChangesNothing) {
  FakeTier::Objects here, there;
  Server from(here), to(there);
  from.turn(salted_tokens(330));
  const auto parts = from.parts();
  const Status early = to.import(parts[1]);
  ASSERT_FALSE(early);
  EXPECT_EQ(early.error().code, ErrorCode::kConflict);
  EXPECT_FALSE(to.sessions->info(kChat));
  EXPECT_EQ(to.cached_blocks(), 0u);
  EXPECT_EQ(to.sessions->stats().created, 0u);
  for (const auto& bytes : parts) ASSERT_TRUE(to.import(bytes));
}

TEST(SessionTransfer, RefusesWhatItCannotTrust) {
  FakeTier::Objects here, there;
  const std::vector<std::byte> other_secret(32, std::byte{8});
  Server from(here), to(there), stranger(there, 40, kOneGroup, other_secret);
  from.turn(salted_tokens(330));
  const auto parts = from.parts();
  const auto code_of = [](const Status& status) { return status ? std::optional<ErrorCode>() : status.error().code; };
  EXPECT_EQ(code_of(stranger.import(parts[0])), ErrorCode::kConflict);
  EXPECT_EQ(code_of(to.import(parts[0], {{{5, 7}}, "chat"})), ErrorCode::kConflict) << "another namespace";
  EXPECT_EQ(code_of(to.transfer.import_part(kChat, ModelId(0), parts[0], Sha256{})), ErrorCode::kConflict);
  EXPECT_EQ(code_of(to.import(parts[1])), ErrorCode::kConflict) << "out of order";
  for (size_t at = 0; at < parts[0].size(); at += 13) {
    std::vector<std::byte> damaged = parts[0];
    damaged[at] ^= std::byte{4};
    const auto code = code_of(to.import(damaged));
    EXPECT_TRUE(code == ErrorCode::kInvalidArgument || code == ErrorCode::kUnsupported) << at;
    EXPECT_NE(code_of(to.import(std::span(parts[0]).first(at))), std::nullopt);
  }
  EXPECT_FALSE(to.sessions->info(kChat)) << "nothing of it was taken";
  EXPECT_EQ(to.cached_blocks(), 0u);
  // It holds other tokens.
  to.turn(salted_tokens(100, 9));
  EXPECT_EQ(code_of(to.import(parts[0])), ErrorCode::kConflict);
  EXPECT_EQ(code_of(to.import(parts[0], {kChat.cache_namespace, "other"})), std::nullopt);
}

TEST(SessionTransfer, WithoutRoomItSaysSo) {
  FakeTier::Objects here, there;
  Server from(here), to(there, 8);
  from.turn(salted_tokens(330));
  KvLease lease;
  to.compute(lease, salted_tokens(30 * 32, 9));
  const auto parts = from.parts();
  const Status status = to.transfer.import_part(kChat, ModelId(0), parts[0], kIdentity);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kResourceExhausted);
  to.sound({&lease});
  to.release(lease);
}

SessionRecord some_record() {
  return {.key = kChat,
          .fingerprint = {3, 4},
          .token_ids = std::make_shared<const std::vector<TokenId>>(salted_tokens(77)),
          .ttl_us = 60'000'000,
          .left_us = 50'000'000,
          .is_pinned = true};
}

TEST(SessionRecord, IsReadAsItWasWritten) {
  const SessionRecord record = some_record();
  const auto bytes = encode_session(record, 1000);
  const auto read = parse_session(bytes, 1020);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->key, record.key);
  EXPECT_EQ(read->fingerprint, record.fingerprint);
  EXPECT_EQ(*read->token_ids, *record.token_ids);
  EXPECT_EQ(read->ttl_us, record.ttl_us);
  EXPECT_EQ(read->left_us, 30'000'000);
  EXPECT_TRUE(read->is_pinned);
  EXPECT_EQ(parse_session(bytes, 10)->left_us, 50'000'000) << "a clock that went back";
  EXPECT_LT(parse_session(bytes, int64_t{1} << 62)->left_us, 0);
}

TEST(SessionRecord, NoDamageIsOverlooked) {
  const auto bytes = encode_session(some_record(), 1000);
  for (size_t at = 0; at < bytes.size(); ++at) {
    auto damaged = bytes;
    damaged[at] ^= std::byte{16};
    EXPECT_FALSE(parse_session(damaged, 1000)) << at;
    EXPECT_FALSE(parse_session(std::span(bytes).first(at), 1000)) << at;
  }
}

TEST(SessionFiles, KeepWhatTheyWereToldLast) {
  const TestFolder folder;
  const auto path = folder.path() / "sessions";
  SessionRecord one = some_record(), two = some_record(), late = some_record();
  two.key.name = "two";
  late.key.name = "late";
  late.left_us = 0;
  late.is_pinned = false;
  {
    auto files = SessionFiles::open(path);
    ASSERT_TRUE(files) << files.error().message;
    EXPECT_TRUE((*files)->load().empty());
    (*files)->save(one);
    (*files)->save(two);
    (*files)->save(late);
    one.is_pinned = false;
    (*files)->save(one);
    (*files)->forget(two.key, two.fingerprint);
  }
  auto files = SessionFiles::open(path);
  ASSERT_TRUE(files);
  const auto records = (*files)->load();
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].key, one.key);
  EXPECT_FALSE(records[0].is_pinned);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(path), {}), 1) << "what has expired is gone";
  // A damaged file goes; nothing else is lost.
  (*files)->save(two);
  files->reset();
  const auto victim = std::filesystem::directory_iterator(path)->path();
  std::filesystem::resize_file(victim, std::filesystem::file_size(victim) - 3);
  files = SessionFiles::open(path);
  EXPECT_EQ((*files)->load().size(), 1u);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(path), {}), 1);
}

TEST(SessionFiles, ModelsThatShareAFolderKeepTheirOwn) {
  const TestFolder folder;
  const SessionRecord one = some_record();
  SessionRecord other = one;
  other.fingerprint = {77, 78};
  {
    auto files = SessionFiles::open(folder.path() / "sessions");
    (*files)->save(one);
    (*files)->save(other);
  }
  {
    auto files = SessionFiles::open(folder.path() / "sessions");
    EXPECT_EQ((*files)->load().size(), 2u);
    (*files)->forget(one.key, one.fingerprint);
  }
  auto files = SessionFiles::open(folder.path() / "sessions");
  const auto records = (*files)->load();
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].fingerprint, other.fingerprint);
}

TEST(SessionFiles, WhatWasHalfWrittenGoes) {
  const TestFolder folder;
  const auto path = folder.path() / "sessions";
  const auto files = SessionFiles::open(path);
  std::ofstream(path / "00.session.new") << "PGDA";
  EXPECT_TRUE((*files)->load().empty());
  EXPECT_TRUE(std::filesystem::is_empty(path));
}

TEST(SessionFiles, AFolderThatCannotBeIsAnError) {
  const TestFolder folder;
  const auto files = SessionFiles::open(folder.path() / "not" / "there");
  ASSERT_FALSE(files);
  EXPECT_EQ(files.error().code, ErrorCode::kIo);
}

}  // namespace
}  // namespace pagoda::kv
