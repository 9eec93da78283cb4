#include "tools/machine_probe.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>

namespace pagoda::tools {
namespace {

using kernels::DotKind;
using kernels::DotLoop;
using kernels::Isa;

constexpr double kWindowSeconds = 0.0003;
constexpr double kMeetingSeconds = 0.01;  // how long threads wait for one that has no core
constexpr double kPatience = 10;          // times the seconds asked for, on a busy machine
constexpr size_t kLeastWindows = 5;
constexpr int kTries = 5;
constexpr size_t kLine = 64;

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// The shortest of some tries.
template <typename Work>
double seconds_of(Work&& work) {
  double best = INFINITY;
  for (int i = 0; i < kTries; ++i) {
    const double begin = now_s();
    work();
    best = std::min(best, now_s() - begin);
  }
  return best;
}

// How often a loop goes round in a window.
template <typename Loop>
int64_t rounds_of_window(Loop&& loop) {
  for (int64_t n = 64; n < int64_t{1} << 40; n *= 2) {
    const double s = seconds_of([&] { loop(n); });
    if (s >= kWindowSeconds / 4)
      return std::max<int64_t>(1, static_cast<int64_t>(static_cast<double>(n) * kWindowSeconds / s));
  }
  return 1;
}

double best_of(const std::vector<double>& seconds) { return *std::ranges::min_element(seconds); }

double upper_quartile_of(std::vector<double> seconds) {
  const auto at = seconds.begin() + static_cast<ptrdiff_t>(seconds.size() / 4);
  std::ranges::nth_element(seconds, at);
  return *at;
}

}  // namespace

MachineProbe::MachineProbe(int n_threads, tensor::AlignedBuffer buffer)
    : pool_(std::make_unique<ThreadPool>(n_threads, kernels::set_float_mode)), buffer_(std::move(buffer)) {}

Result<MachineProbe> MachineProbe::make(int n_threads, size_t max_bytes) {
  kernels::set_float_mode();
  TRY_ASSIGN(tensor::AlignedBuffer buffer, tensor::AlignedBuffer::allocate(max_bytes));
  MachineProbe probe(n_threads, std::move(buffer));
  const size_t part = max_bytes / static_cast<size_t>(n_threads);
  auto touch = [&](int worker) {  // who reads a part touches it first, so that its memory lies near
    std::memset(probe.buffer_.data() + static_cast<size_t>(worker) * part, 1, part);
  };
  {
    const ThreadPool::Step step(*probe.pool_);
    probe.pool_->run(touch);
  }
  return probe;
}

// Seconds that work(worker) took on the threads asked for, from when all were ready to when all were done; none if one of them got no core
// in time, and then work was not done. kAll wants a living Step.
template <typename Work>
std::optional<double> MachineProbe::window(Threads threads, Work&& work) {
  if (threads == Threads::kOne || n_threads() == 1) {
    const double begin = now_s();
    work(0);
    return now_s() - begin;
  }
  std::atomic<int> ready{0};
  std::atomic<bool> late{false};
  std::atomic<double> begin{0};
  pool_->run([&](int worker) {
    ready.fetch_add(1);
    const double give_up = now_s() + kMeetingSeconds;
    while (ready.load() < n_threads()) {
      if (late.load() || now_s() > give_up) {
        late.store(true);
        return;  // and this thread may find the others' parts left to it
      }
    }
    begin.store(now_s());
    work(worker);
  });
  if (late.load()) return std::nullopt;
  return now_s() - begin.load();
}

// Of windows until `seconds` are over and there are kLeastWindows; empty only if the threads do not meet for a long time.
template <typename Work>
std::vector<double> MachineProbe::windows(Threads threads, double seconds, Work&& work) {
  std::vector<double> found;
  const double begin = now_s();
  const double patience = kPatience * std::max(seconds, kMeetingSeconds);
  while (found.size() < kLeastWindows || now_s() - begin < seconds) {
    if (const auto s = window(threads, work)) found.push_back(*s);
    if (now_s() - begin > (found.empty() ? kPatience * patience : patience)) break;
  }
  return found;
}

double MachineProbe::read_rate(Isa isa, size_t bytes, Threads threads, double seconds) {
  const size_t n = threads == Threads::kOne ? 1 : static_cast<size_t>(n_threads());
  const size_t part = std::min(bytes, buffer_.size()) / n / kLine * kLine;  // of each thread
  if (part == 0) return 0;
  const auto read = [&](int worker, size_t at, size_t size) {
    kernels::read_bytes(isa, buffer_.bytes().subspan(static_cast<size_t>(worker) * part + at, size));
  };
  const double part_s = seconds_of([&] { read(0, 0, std::min(part, size_t{1} << 22)); });
  const double per_window = static_cast<double>(std::min(part, size_t{1} << 22)) * kWindowSeconds / part_s;
  const size_t chunk = std::clamp(static_cast<size_t>(per_window) / kLine * kLine, kLine, part);
  const auto repeats = std::max<int64_t>(1, static_cast<int64_t>(per_window / static_cast<double>(chunk)));
  // Windows go on where the one before ended, so that a large working set is read as a whole.
  const size_t n_chunks = part / chunk;
  std::vector<size_t> next(n);
  const ThreadPool::Step step(*pool_);
  const std::vector<double> found = windows(threads, seconds, [&](int worker) {
    const size_t at = next[static_cast<size_t>(worker)]++ % n_chunks * chunk;
    for (int64_t i = 0; i < repeats; ++i) read(worker, at, chunk);
  });
  if (found.empty()) return read_rate(isa, bytes, Threads::kOne, seconds);  // one core is all that there is
  return static_cast<double>(n * chunk) * static_cast<double>(repeats) / upper_quartile_of(found);
}

double MachineProbe::dot_rate(Isa isa, DotKind kind, Threads threads, double seconds) {
  const DotLoop loop = kernels::dot_loop(isa, kind);
  if (loop.run == nullptr) return 0;
  const int64_t rounds = rounds_of_window(loop.run);
  const ThreadPool::Step step(*pool_);
  const std::vector<double> found = windows(threads, seconds, [&](int) { loop.run(rounds); });
  const double n = threads == Threads::kOne ? 1 : n_threads();
  if (found.empty()) return dot_rate(isa, kind, Threads::kOne, seconds);
  return n * loop.ops_per_round * static_cast<double>(rounds) / best_of(found);
}

DotRates MachineProbe::dot_rates(Isa isa, double seconds_each) {
  DotRates rates{};
  for (size_t i = 0; i < rates.size(); ++i) {
    const auto kind = static_cast<DotKind>(i);
    const bool same =
        i > 0 && kernels::dot_loop(isa, static_cast<DotKind>(i - 1)).run == kernels::dot_loop(isa, kind).run;
    rates[i] = same ? rates[i - 1] : dot_rate(isa, kind, Threads::kAll, seconds_each);
  }
  double& bf16 = rates[static_cast<size_t>(DotKind::kBf16)];
  if (bf16 == 0) bf16 = rates[static_cast<size_t>(DotKind::kF32)];
  return rates;
}

MachineProbe::Clock MachineProbe::clock(Isa isa, double seconds) {
  const DotLoop loop = kernels::dot_loop(isa, DotKind::kF32);
  const int64_t rounds = rounds_of_window(loop.run);
  const int64_t chain = rounds_of_window(kernels::multiply_chain);
  const auto chain_hz = [&] {
    const double begin = now_s();
    kernels::multiply_chain(chain);
    return static_cast<double>(chain) * kernels::kMultiplyCycles / (now_s() - begin);
  };
  Clock clock;
  const auto for_a_third = [&](auto&& work) {
    const double begin = now_s();
    do work();
    while (now_s() - begin < seconds / 3);
  };
  for_a_third([&] { clock.alone = std::max(clock.alone, chain_hz()); });
  for_a_third([&] {
    for (int i = 0; i < 4; ++i) loop.run(rounds);
    clock.after_vectors = std::max(clock.after_vectors, chain_hz());
  });
  if (n_threads() == 1) return clock;
  const ThreadPool::Step step(*pool_);
  // The others' vectors last longer than the chain.
  windows(Threads::kAll, seconds / 3, [&](int worker) {
    if (worker == 0)
      clock.beside_vectors = std::max(clock.beside_vectors.value_or(0), chain_hz());
    else
      loop.run(2 * rounds);
  });
  return clock;
}

}  // namespace pagoda::tools
