// The Redis tier against Debian's redis-server, and against servers that are slow, gone or hostile.
#include "kv/tier_redis.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <random>

#include "base/eventually.h"
#include "kv/test_redis_server.h"
#include "kv/test_tier_world.h"
#include "kv/tier_format.h"

namespace pagoda::kv {
namespace {

using namespace std::chrono_literals;

constexpr size_t kBlockBytes = 20'000;

// A TCP server that answers whatever it is sent with what it was told.
class FakeServer {
 public:
  explicit FakeServer(std::string answer) : answer_(std::move(answer)), thread_([this] { serve(); }) {}
  ~FakeServer() {
    is_closing_ = true;
    ::shutdown(listener_.fd, SHUT_RDWR);
    thread_.join();
  }
  RedisAddress address() const { return {.host = "127.0.0.1", .port = listener_.port}; }

 private:
  void serve() {
    while (!is_closing_) {
      const int fd = ::accept(listener_.fd, nullptr, nullptr);
      if (fd < 0) return;
      timeval slice{.tv_sec = 0, .tv_usec = 20'000};
      ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &slice, sizeof slice);
      char buffer[4096];
      while (!is_closing_) {
        const ssize_t n = ::recv(fd, buffer, sizeof buffer, 0);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK)) break;
        if (n > 0 && !answer_.empty()) (void)::send(fd, answer_.data(), answer_.size(), MSG_NOSIGNAL);
      }
      ::close(fd);
    }
  }
  std::string answer_;
  Listener listener_;
  std::atomic<bool> is_closing_{false};
  std::thread thread_;
};

struct RedisWorld {
  explicit RedisWorld(const RedisAddress& address, RedisTierConfig config = quick()) : blocks(64, kBlockBytes) {
    config.address = address;
    tier = std::make_unique<RedisTier>(config, blocks, caller.wake());
    caller.store = tier.get();
  }
  static RedisTierConfig quick() { return {.breaker_open_us = 50'000}; }
  static RedisTierConfig impatient(int64_t exchange_us) {
    return {.timeouts = {.exchange_us = exchange_us}, .breaker_open_us = 50'000};
  }
  // Once the breaker is open it stays open, however long the test takes.
  static RedisTierConfig unforgiving(RedisTierConfig config) {
    config.breaker_open_us = 600'000'000;
    return config;
  }
  std::optional<TierOutcome> put(uint64_t n) { return caller.put_made(blocks, test_object(n)); }
  std::optional<TierOutcome> get(uint64_t n) { return caller.get_checked(blocks, test_object(n)); }
  uint64_t faults(TierFault fault) const { return tier->stats().faulted(fault); }

  TestBlocks blocks;
  TierCaller caller;
  std::unique_ptr<RedisTier> tier;
};

TEST(RedisTier, TwoServersShareBlocks) {
  RedisServer redis;
  RedisWorld a(redis.address()), b(redis.address());
  EXPECT_EQ(a.tier->presence(test_object(1)), Presence::kUnknown);
  for (uint64_t n = 0; n < 5; ++n) ASSERT_EQ(a.put(n), TierOutcome::kDone);
  const std::array objects{test_object(4), test_object(5), test_object(0)};
  EXPECT_EQ(b.caller.ask(objects), (std::vector<uint8_t>{1, 0, 1}));
  for (uint64_t n = 0; n < 5; ++n) ASSERT_EQ(b.get(n), TierOutcome::kDone);
  EXPECT_EQ(b.get(5), TierOutcome::kAbsent);
  EXPECT_EQ(b.put(0), TierOutcome::kDone);  // there already: nothing is sent
  EXPECT_EQ(b.tier->stats().put_bytes, 0u);
  EXPECT_EQ(a.tier->stats().put_bytes, 5 * kBlockBytes);
  EXPECT_EQ(b.tier->stats().hits, 5u);
  EXPECT_EQ(b.tier->stats().misses, 1u);
  EXPECT_GT(b.tier->stats().read_bytes_per_s, 0);
  b.tier->erase(test_object(4));
  EXPECT_EQ(b.get(3), TierOutcome::kDone);
  // A question may overtake it: the other worker's.
  EXPECT_TRUE(eventually([&] { return b.caller.ask(objects) == std::vector<uint8_t>{0, 0, 1}; }));
}

TEST(RedisTier, ManyAtOnce) {
  RedisServer redis;
  RedisWorld w(redis.address());
  std::vector<TicketId> tickets;
  for (uint32_t n = 0; n < 64; ++n) {
    fill_with(test_object(n), w.blocks.bytes(n));
    tickets.push_back(w.caller.next_ticket());
    ASSERT_TRUE(w.tier->put(tickets.back(), test_object(n), w.blocks.block(n), std::nullopt));
  }
  for (const TicketId ticket : tickets) ASSERT_EQ(w.caller.wait(ticket).outcome, TierOutcome::kDone);
  tickets.clear();
  for (uint32_t n = 0; n < 64; ++n) {
    std::ranges::fill(w.blocks.bytes(n), std::byte{});
    tickets.push_back(w.caller.next_ticket());
    ASSERT_TRUE(w.tier->get(tickets.back(), test_object(n), w.blocks.block(n)));
  }
  for (const TicketId ticket : tickets) ASSERT_EQ(w.caller.wait(ticket).outcome, TierOutcome::kDone);
  for (uint32_t n = 0; n < 64; ++n) ASSERT_TRUE(w.blocks.bytes(n) == bytes_of(test_object(n), kBlockBytes));
  EXPECT_EQ(w.tier->stats().queued_put_bytes, 0u);
}

TEST(RedisTier, TtlDatabaseAndPassword) {
  RedisServer redis;
  ASSERT_EQ(redis.command({"CONFIG", "SET", "requirepass", "se cret"}), "OK");
  RedisTierConfig config = RedisWorld::quick();
  config.ttl_seconds = 100;
  RedisAddress address = redis.address();
  address.password = "se cret";
  address.db = 2;
  {
    RedisWorld w(address, config);
    ASSERT_EQ(w.put(1), TierOutcome::kDone);
    ASSERT_EQ(w.put(1), TierOutcome::kDone);
    ASSERT_EQ(w.get(1), TierOutcome::kDone);
  }
  std::atomic<bool> never{false};
  RedisLink link(address, {}, never);
  ASSERT_EQ(link.open(), std::nullopt);
  const std::string key = redis_key(test_object(1));
  link.append(std::array<std::string_view, 2>{"TTL", key});
  int64_t ttl = 0;
  ASSERT_EQ(link.exchange(0, [&](size_t, const RedisReply& reply) { ttl = reply.integer; }), std::nullopt);
  EXPECT_GT(ttl, 90);
  EXPECT_LE(ttl, 100);
  address.password = "wrong";
  RedisLink refused(address, {}, never);
  EXPECT_EQ(refused.open(), TierFault::kRefused);
  EXPECT_NE(refused.last_error().find("WRONGPASS"), std::string::npos);
}

TEST(RedisTierFaults, WrongAndHostileValuesAreRefusedAndRemoved) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  RedisServer redis;
  RedisWorld w(redis.address());
  ASSERT_EQ(w.put(1), TierOutcome::kDone);
  const std::string key = redis_key(test_object(1));
  const std::string good = redis.command({"GET", key});
  ASSERT_EQ(good.size(), kTierValueHeaderBytes + kBlockBytes);
  std::vector<std::string> bad{
      "x",        good.substr(0, 63),        good.substr(0, 64), good.substr(0, good.size() - 1),
      good + "x", std::string(900'000, 'y'), good + good};
  for (int i = 0; i < 50; ++i) {
    bad.push_back(good);
    const size_t n_bits = (i % 2 == 0 ? 64 : good.size()) * 8;
    const size_t bit = random() % n_bits;
    bad.back()[bit / 8] = static_cast<char>(bad.back()[bit / 8] ^ (1 << (bit % 8)));
  }
  for (const std::string& value : bad) {
    ASSERT_EQ(redis.command({"SET", key, value}), "OK");
    ASSERT_EQ(w.get(1), TierOutcome::kCorrupt);
    ASSERT_EQ(w.get(1), TierOutcome::kAbsent);
  }
  EXPECT_EQ(w.faults(TierFault::kRefused) + w.faults(TierFault::kCorrupt), bad.size());
  EXPECT_EQ(w.tier->stats().quarantined_objects, bad.size());
  ASSERT_EQ(redis.command({"SET", redis_key(test_object(2)), good}), "OK");  // another object's
  EXPECT_EQ(w.get(2), TierOutcome::kCorrupt);
  ASSERT_EQ(redis.command({"LPUSH", redis_key(test_object(3)), "x"}), "1");  // not a string
  EXPECT_EQ(w.get(3), TierOutcome::kFailed);
  EXPECT_EQ(w.tier->stats().breaker_openings, 0u);
}

TEST(RedisTierFaults, AFullServerDropsPuts) {
  RedisServer redis;
  RedisWorld w(redis.address());
  ASSERT_EQ(w.put(1), TierOutcome::kDone);
  ASSERT_EQ(redis.command({"CONFIG", "SET", "maxmemory", "1"}), "OK");
  EXPECT_EQ(w.put(2), TierOutcome::kDropped);
  EXPECT_EQ(w.tier->stats().dropped(TierDrop::kNoRoom), 1u);
  EXPECT_EQ(w.get(1), TierOutcome::kDone);
}

TEST(RedisTierFaults, KilledAndBackAgain) {
  RedisServer redis;
  RedisWorld w(redis.address());
  for (int round = 0; round < 3; ++round) {
    ASSERT_EQ(w.put(1), TierOutcome::kDone);
    ASSERT_EQ(w.get(1), TierOutcome::kDone);
    redis.stop();
    while (w.tier->presence(test_object(1)) != Presence::kNo) {
      const auto outcome = w.get(1);
      ASSERT_TRUE(outcome == TierOutcome::kFailed || outcome == std::nullopt);
    }
    EXPECT_EQ(w.get(1), std::nullopt);
    EXPECT_EQ(w.put(1), std::nullopt);
    redis.start();
    while (w.tier->presence(test_object(1)) == Presence::kNo) ::usleep(5'000);
    EXPECT_EQ(w.get(1), TierOutcome::kAbsent);
  }
  const TierStats stats = w.tier->stats();
  EXPECT_EQ(stats.breaker_openings, 3u);
  EXPECT_GE(stats.probes, 3u);
  EXPECT_GE(stats.dropped(TierDrop::kUnavailable), 3u);
}

TEST(RedisTierFaults, AnIdleConnectionClosedByTheServerIsNoFailure) {
  RedisServer redis;
  RedisTierConfig config = RedisWorld::quick();
  config.n_workers = 1;
  RedisWorld w(redis.address(), config);
  ASSERT_EQ(w.put(1), TierOutcome::kDone);
  ASSERT_NE(redis.command({"CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"}), "0");
  EXPECT_EQ(w.get(1), TierOutcome::kDone);
  EXPECT_EQ(w.faults(TierFault::kIo), 0u);
}

TEST(RedisTierFaults, AServerThatNeverAnswersCostsATimeoutAndThenNothing) {
  FakeServer server("");
  constexpr std::chrono::milliseconds kTimeout(500);
  RedisWorld w(server.address(), RedisWorld::unforgiving(RedisWorld::impatient(kTimeout / 1us)));
  const auto start = std::chrono::steady_clock::now();
  std::vector<TicketId> tickets;
  for (uint32_t n = 0; n < 64; ++n) {
    const TicketId ticket = w.caller.next_ticket();
    if (w.tier->get(ticket, test_object(n), w.blocks.block(n))) tickets.push_back(ticket);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, kTimeout);  // nobody waited
  for (const TicketId ticket : tickets) EXPECT_EQ(w.caller.wait(ticket).outcome, TierOutcome::kFailed);
  EXPECT_LT(std::chrono::steady_clock::now() - start, 16 * kTimeout);  // of the 32 that 64 would take two workers
  EXPECT_GE(w.faults(TierFault::kTimeout), 3u);
  EXPECT_EQ(w.tier->stats().breaker_openings, 1u);
  EXPECT_EQ(w.get(1), std::nullopt);
}

TEST(RedisTierFaults, NobodyListens) {
  Listener free;
  const RedisAddress nowhere{.host = "127.0.0.1", .port = free.port};
  free.close();
  RedisWorld w(nowhere, RedisWorld::unforgiving({}));
  while (const auto outcome = w.get(1)) ASSERT_EQ(outcome, TierOutcome::kFailed);
  EXPECT_EQ(w.faults(TierFault::kIo), 3u);
  RedisWorld unknown({.host = "no-such-host.invalid", .port = 1});
  EXPECT_EQ(unknown.get(1), TierOutcome::kFailed);
}

TEST(RedisTierFaults, GarbageRepliesEndTheConnectionAndNothingElse) {
  const std::string pong = "+PONG\r\n";
  for (const std::string& answer :
       {std::string("HTTP/1.1 200 OK\r\n\r\n"), std::string("$-5\r\n"), std::string("*2147483647\r\n"),
        std::string("*3\r\n:1\r\n:1\r\n:1\r\n"), std::string("$99999999999\r\n") + std::string(3'000'000, 'x'),
        std::string(100'000, '\0'), std::string(":1\r\n:1\r\n:1\r\n"), pong, pong + pong, std::string("$5\r\nhel"),
        std::string("-ERR no\r\n"), std::string("$20064\r\n") + std::string(20'064, 'z') + "\r\n"}) {
    FakeServer server(answer);
    RedisWorld w(server.address(), RedisWorld::impatient(50'000));
    for (int i = 0; i < 8; ++i) {
      const auto got = w.get(1);
      ASSERT_NE(got, TierOutcome::kDone) << answer.substr(0, 20);
      (void)w.put(2);
      const std::array objects{test_object(1)};
      (void)w.caller.ask(objects);
    }
    const TierStats stats = w.tier->stats();
    uint64_t n_faults = stats.misses;
    for (const uint64_t n : stats.faults) n_faults += n;
    EXPECT_GT(n_faults, 0u) << answer.substr(0, 20);
  }
}

}  // namespace
}  // namespace pagoda::kv
