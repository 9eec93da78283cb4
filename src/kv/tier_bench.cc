// What the tiers move per second, beside what the disk can read: SmolLM2's q8 blocks (380,160 bytes) in batches, as a restore does it.
// Cold: the page cache is told to forget the files before each round. Redis: a server that this program starts on loopback.
#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "base/check.h"
#include "kv/block_io.h"
#include "kv/tier_disk.h"
#include "kv/tier_redis.h"

namespace pagoda::kv {
namespace {

constexpr size_t kBlockBytes = 380'160;
constexpr uint32_t kBlocks = 64;  // 2k tokens
constexpr uint32_t kSets = 8;

class Arena final : public BlockIo {
 public:
  Arena() : bytes_(kBlockBytes * kBlocks, std::byte{7}) {}
  void copy_out(ModelId, GroupId, BlockId id, std::span<std::byte> to) const override {
    std::copy_n(bytes_.begin() + static_cast<ptrdiff_t>(id.value * kBlockBytes), kBlockBytes, to.begin());
  }
  void copy_in(ModelId, GroupId, BlockId id, std::span<const std::byte> from) override {
    std::copy_n(from.begin(), kBlockBytes, bytes_.begin() + static_cast<ptrdiff_t>(id.value * kBlockBytes));
  }
  uint32_t checksum(ModelId, GroupId, BlockId) const override { return 0; }

 private:
  std::vector<std::byte> bytes_;
};

TierObject object(uint32_t set, uint32_t n) {
  const std::array<uint32_t, 2> name{set, n};
  return {.key = tier_root(std::as_bytes(std::span(name))), .group = GroupId(0)};
}
TierBlock block(uint32_t id) { return {.model = ModelId(0), .block = BlockId{id}, .bytes = kBlockBytes}; }

// Begins one request for every block, and waits for all.
template <typename Begin>
void move_all(TierStore& store, Begin&& begin) {
  size_t n_under_way = 0;
  for (uint32_t n = 0; n < kBlocks; ++n) n_under_way += begin(n);
  CHECK(n_under_way == kBlocks);
  std::vector<TierDone> done;
  for (size_t n_done = 0; n_done < kBlocks; n_done += done.size()) {
    done.clear();
    store.take_done(done);
    for (const TierDone& one : done) CHECK(one.outcome == TierOutcome::kDone);
    if (done.empty()) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}
void put_set(TierStore& store, uint32_t set) {
  move_all(store, [&](uint32_t n) { return store.put(TicketId(n), object(set, n), block(n), std::nullopt); });
}
void get_set(TierStore& store, uint32_t set) {
  move_all(store, [&](uint32_t n) { return store.get(TicketId(n), object(set, n), block(n)); });
}

struct Dir {
  Dir() {
    std::string made = (std::filesystem::current_path() / "tier_bench_XXXXXX").string();
    CHECK(::mkdtemp(made.data()) != nullptr);
    path = made;
  }
  ~Dir() { std::filesystem::remove_all(path); }
  // Nothing of it is in RAM any more.
  void chill() const {
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      const int fd = ::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
      (void)::fdatasync(fd);
      (void)::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
      ::close(fd);
    }
  }
  std::string path;
};

enum Kind : int64_t { kUring, kPread };

std::unique_ptr<DiskTier> open_disk(const Dir& dir, BlockIo& arena, int64_t kind) {
  DiskTierConfig config{.dir = dir.path, .budget_bytes = uint64_t{1} << 30};
  for (int i = 0; kind == kPread && i < 4; ++i) config.workers.push_back(make_sync_io());
  auto tier = DiskTier::open(std::move(config), arena, nullptr);
  CHECK(tier.has_value());
  return std::move(*tier);
}

void count_bytes(benchmark::State& state) {
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * kBlocks * kBlockBytes));
}

// The measure: the store's files, cold, read to the end with direct I/O of 1 MiB, eight threads side by side.
void disk_raw_read(benchmark::State& state) {
  Arena arena;
  const Dir dir;
  auto tier = open_disk(dir, arena, kUring);
  for (uint32_t set = 0; set < kSets; ++set) put_set(*tier, set);
  tier.reset();
  dir.chill();
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(dir.path)) files.push_back(entry.path().string());
  constexpr size_t kReadBytes = 1 << 20;
  int64_t n_bytes = 0;
  for (auto _ : state) {
    std::atomic<size_t> next{0};
    std::atomic<int64_t> n_read{0};
    std::vector<std::thread> readers;
    for (int t = 0; t < 8; ++t) {
      readers.emplace_back([&] {
        void* buffer = std::aligned_alloc(4096, kReadBytes);
        for (size_t i; (i = next++) < files.size();) {
          const int fd = ::open(files[i].c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
          ssize_t n;
          for (off_t at = 0; (n = ::pread(fd, buffer, kReadBytes, at)) > 0; at += n) n_read += n;
          ::close(fd);
        }
        std::free(buffer);
      });
    }
    for (std::thread& reader : readers) reader.join();
    n_bytes += n_read;
  }
  state.SetBytesProcessed(n_bytes);
}
BENCHMARK(disk_raw_read)->UseRealTime()->Unit(benchmark::kMillisecond);

void disk_get_cold(benchmark::State& state) {
  Arena arena;
  const Dir dir;
  auto tier = open_disk(dir, arena, state.range(0));
  for (uint32_t set = 0; set < kSets; ++set) put_set(*tier, set);
  uint32_t set = 0;
  for (auto _ : state) {
    if (set % kSets == 0) {
      state.PauseTiming();
      dir.chill();
      state.ResumeTiming();
    }
    get_set(*tier, set++ % kSets);
  }
  count_bytes(state);
  state.SetLabel(std::string(tier->io_name()));
  state.counters["measured_MB/s"] = tier->stats().read_bytes_per_s / 1e6;
}
BENCHMARK(disk_get_cold)->Arg(kUring)->Arg(kPread)->UseRealTime()->Unit(benchmark::kMillisecond);

void disk_get_warm(benchmark::State& state) {
  Arena arena;
  const Dir dir;
  auto tier = open_disk(dir, arena, state.range(0));
  put_set(*tier, 0);
  for (auto _ : state) get_set(*tier, 0);
  count_bytes(state);
  state.SetLabel(std::string(tier->io_name()));
}
BENCHMARK(disk_get_warm)->Arg(kUring)->Arg(kPread)->UseRealTime()->Unit(benchmark::kMillisecond);

// Into the page cache, with segments reclaimed once the budget is used up.
void disk_put(benchmark::State& state) {
  Arena arena;
  const Dir dir;
  auto tier = open_disk(dir, arena, state.range(0));
  uint32_t set = 0;
  for (auto _ : state) put_set(*tier, set++);
  count_bytes(state);
  state.SetLabel(std::string(tier->io_name()));
}
BENCHMARK(disk_put)->Arg(kUring)->Arg(kPread)->UseRealTime()->Unit(benchmark::kMillisecond)->Iterations(60);

// What the engine thread pays.
void disk_presence(benchmark::State& state) {
  Arena arena;
  const Dir dir;
  auto tier = open_disk(dir, arena, kUring);
  put_set(*tier, 0);
  const TierObject there = object(0, 5);
  for (auto _ : state) benchmark::DoNotOptimize(tier->presence(there));
}
BENCHMARK(disk_presence);

void key_of_block(benchmark::State& state) {
  TierKey key = tier_root({});
  const std::array<TokenId, kBlockTokens> tokens{};
  for (auto _ : state) key = tier_key(key, tokens);
  benchmark::DoNotOptimize(key);
}
BENCHMARK(key_of_block);

constexpr uint16_t kRedisPort = 46379;

class RedisServer {
 public:
  RedisServer() {
    pid_ = ::fork();
    CHECK(pid_ >= 0);
    if (pid_ == 0) {
      const int null = ::open("/dev/null", O_RDWR);
      ::dup2(null, 1);
      ::execlp("redis-server", "redis-server", "--port", std::to_string(kRedisPort).c_str(), "--bind", "127.0.0.1",
               "--save", "", "--appendonly", "no", nullptr);
      ::_exit(127);
    }
  }
  ~RedisServer() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

 private:
  pid_t pid_;
};

enum class Move : uint8_t { kPut, kGet };

void redis(benchmark::State& state, Move move) {
  const RedisServer server;
  Arena arena;
  RedisTierConfig config{.address = {.host = "127.0.0.1", .port = kRedisPort}};
  config.breaker_open_us = 50'000;
  std::unique_ptr<RedisTier> tier = std::make_unique<RedisTier>(config, arena, nullptr);
  std::vector<TierDone> done;
  for (int i = 0; i < 200 && (done.empty() || done.back().outcome != TierOutcome::kDone); ++i) {
    (void)tier->ask(TicketId(1), std::array{object(0, 0)});
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    tier->take_done(done);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  tier->take_done(done);
  if (done.empty() || done.back().outcome != TierOutcome::kDone) {
    state.SkipWithError("no redis-server; scripts/setup test installs it");
    return;
  }
  uint32_t set = 0;
  put_set(*tier, set);
  for (auto _ : state) {
    if (move == Move::kPut) {
      put_set(*tier, ++set);
    } else {
      get_set(*tier, 0);
    }
  }
  count_bytes(state);
}
void redis_put(benchmark::State& state) { redis(state, Move::kPut); }
void redis_get(benchmark::State& state) { redis(state, Move::kGet); }
BENCHMARK(redis_put)->UseRealTime()->Unit(benchmark::kMillisecond)->Iterations(20);
BENCHMARK(redis_get)->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace pagoda::kv
