#include "base/thread_pool.h"

#include <immintrin.h>

#include "base/check.h"

namespace pagoda {
namespace {

constexpr uint32_t kParked = 0;
constexpr uint32_t kSpinning = 1;
constexpr uint32_t kStopped = 2;

// Waits a moment: busy at first, then lets others run, since a machine may have fewer free cores than workers.
class Backoff {
 public:
  void pause() {
    if (++spins_ < kBusySpins)
      _mm_pause();
    else
      std::this_thread::yield();
  }

 private:
  static constexpr int kBusySpins = 4000;
  int spins_ = 0;
};

}  // namespace

ThreadPool::ThreadPool(int n_workers, const std::function<void()>& on_start) : n_workers_(n_workers), state_(kParked) {
  CHECK(n_workers >= 1);
  for (int worker = 1; worker < n_workers; ++worker) {
    threads_.emplace_back([this, worker, on_start] {
      on_start();
      work(worker);
    });
  }
}

ThreadPool::~ThreadPool() {
  state_.store(kStopped, std::memory_order_release);
  state_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::wake() {
  state_.store(kSpinning, std::memory_order_release);
  state_.notify_all();
}

void ThreadPool::park() { state_.store(kParked, std::memory_order_release); }

void ThreadPool::run_erased(Task task, void* context) {
  DCHECK(state_.load(std::memory_order_relaxed) == kSpinning);
  task_ = task;
  context_ = context;
  unfinished_.store(n_workers_ - 1, std::memory_order_relaxed);
  run_.fetch_add(1, std::memory_order_release);
  task(context, 0);
  Backoff backoff;
  while (unfinished_.load(std::memory_order_acquire) != 0) backoff.pause();
}

void ThreadPool::work(int worker) {
  uint64_t seen = 0;
  Backoff backoff;
  while (true) {
    if (run_.load(std::memory_order_acquire) != seen) {
      ++seen;
      task_(context_, worker);
      unfinished_.fetch_sub(1, std::memory_order_release);
      backoff = {};
      continue;
    }
    const uint32_t state = state_.load(std::memory_order_acquire);
    if (state == kStopped) return;
    if (state == kParked)
      state_.wait(kParked, std::memory_order_acquire);
    else
      backoff.pause();
  }
}

}  // namespace pagoda
