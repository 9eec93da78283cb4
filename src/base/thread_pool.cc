#include "base/thread_pool.h"

#include <immintrin.h>

#include <algorithm>

#include "base/check.h"
#include "base/cpu.h"

namespace pagoda {
namespace {

constexpr uint32_t kParked = 0;
constexpr uint32_t kSpinning = 1;
constexpr uint32_t kStopped = 2;
constexpr int kSpins = 10000;   // some 300 us
constexpr int kPatience = 100;  // some 3 us

// Returns whether `value` became what it is waited for within some spins.
template <typename Done>
bool spin_until(int spins, Done&& done) {
  for (int i = 0; i < spins; ++i) {
    if (done()) return true;
    _mm_pause();
  }
  return done();
}

// Returns when `value` is no longer `old`: spins first, then sleeps, since a machine may have fewer free cores than
// workers, and who yields instead stands behind every other program's turn.
template <typename T>
void wait_while(const std::atomic<T>& value, T old, int spins) {
  if (!spin_until(spins, [&] { return value.load(std::memory_order_acquire) != old; }))
    value.wait(old, std::memory_order_acquire);
}

}  // namespace

ThreadPool::ThreadPool(int n_workers, const std::function<void()>& on_start)
    : n_workers_(n_workers),
      spins_(n_workers <= usable_cores() ? kSpins : 0),
      patience_(spins_ > 0 ? kPatience : 0),
      parts_(static_cast<size_t>(std::max(n_workers, 0))),
      state_(kParked) {
  CHECK(n_workers >= 1);
  for (int worker = 1; worker < n_workers; ++worker) {
    threads_.emplace_back([this, worker, on_start] {
      on_start();
      work(worker);
    });
  }
}

ThreadPool::~ThreadPool() {
  state_.store(kStopped);
  state_.notify_all();
  run_.fetch_add(1);  // for those asleep between two runs
  run_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

// Sequentially consistent stores: notify_all() looks for sleepers, and must not do so before the store is seen.
void ThreadPool::wake() {
  state_.store(kSpinning);
  state_.notify_all();
}

void ThreadPool::park() { state_.store(kParked, std::memory_order_release); }

void ThreadPool::run_erased(Task task, void* context) {
  DCHECK(state_.load(std::memory_order_relaxed) == kSpinning);
  task_ = task;
  context_ = context;
  const uint32_t run = run_.fetch_add(1) + 1;
  run_.notify_all();
  expected_ += static_cast<uint32_t>(n_workers_);
  if (take_part(run, 0)) --expected_;
  if (spin_until(patience_, [&] { return finished_.load(std::memory_order_acquire) == expected_; })) return;
  expected_ -= take_other_parts(run, 0);
  for (uint32_t done = finished_.load(std::memory_order_acquire); done != expected_;
       done = finished_.load(std::memory_order_acquire))
    wait_while(finished_, done, spins_);
}

bool ThreadPool::take_part(uint32_t run, int part) {
  std::atomic<uint32_t>& taken = parts_[static_cast<size_t>(part)].taken;
  uint32_t before = run - 1;
  if (taken.load(std::memory_order_relaxed) != before) return false;
  if (!taken.compare_exchange_strong(before, run, std::memory_order_relaxed)) return false;
  task_(context_, part);
  return true;
}

uint32_t ThreadPool::take_other_parts(uint32_t run, int own) {
  uint32_t n = 0;
  for (int i = 1; i < n_workers_; ++i) {
    const int part = own + i < n_workers_ ? own + i : own + i - n_workers_;
    if (!take_part(run, part)) continue;
    ++n;
    if (own == 0) continue;
    finished_.fetch_add(1);
    finished_.notify_one();
  }
  return n;
}

void ThreadPool::work(int worker) {
  uint32_t seen = 0;
  while (true) {
    const uint32_t run = run_.load(std::memory_order_acquire);
    const uint32_t state = state_.load(std::memory_order_acquire);  // after run_, which the destructor raises last
    if (state == kStopped) return;
    if (run != seen) {
      seen = run;
      if (take_part(run, worker)) {
        finished_.fetch_add(1);
        finished_.notify_one();
      }
      if (!spin_until(patience_, [&] { return run_.load(std::memory_order_acquire) != run; }))
        take_other_parts(run, worker);
    } else if (state == kParked) {
      state_.wait(kParked, std::memory_order_acquire);
    } else {
      wait_while(run_, seen, spins_);
    }
  }
}

}  // namespace pagoda
