#include "base/thread_pool.h"

#include <immintrin.h>

#include "base/check.h"
#include "base/cpu.h"

namespace pagoda {
namespace {

constexpr uint32_t kParked = 0;
constexpr uint32_t kSpinning = 1;
constexpr uint32_t kStopped = 2;
constexpr int kSpins = 10000;  // some 300 us

// Returns when `value` is no longer `old`: spins first, then sleeps, since a machine may have fewer free cores than
// workers, and who yields instead stands behind every other program's turn.
template <typename T>
void wait_while(const std::atomic<T>& value, T old, int spins) {
  for (int i = 0; i < spins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    _mm_pause();
  }
  value.wait(old, std::memory_order_acquire);
}

}  // namespace

ThreadPool::ThreadPool(int n_workers, const std::function<void()>& on_start)
    : n_workers_(n_workers), spins_(n_workers <= usable_cores() ? kSpins : 0), state_(kParked) {
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
  unfinished_.store(n_workers_ - 1, std::memory_order_relaxed);
  run_.fetch_add(1);
  run_.notify_all();
  task(context, 0);
  for (int left = unfinished_.load(std::memory_order_acquire); left != 0;
       left = unfinished_.load(std::memory_order_acquire))
    wait_while(unfinished_, left, spins_);
}

void ThreadPool::work(int worker) {
  uint32_t seen = 0;
  while (true) {
    const bool has_run = run_.load(std::memory_order_acquire) != seen;
    const uint32_t state = state_.load(std::memory_order_acquire);  // after run_, which the destructor raises last
    if (state == kStopped) return;
    if (has_run) {
      ++seen;
      task_(context_, worker);
      if (unfinished_.fetch_sub(1) == 1) unfinished_.notify_one();
    } else if (state == kParked) {
      state_.wait(kParked, std::memory_order_acquire);
    } else {
      wait_while(run_, seen, spins_);
    }
  }
}

}  // namespace pagoda
