#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <numeric>
#include <thread>

#include "base/cpu.h"

namespace pagoda {
namespace {

TEST(ThreadPoolTest, EveryWorkerRunsOncePerRun) {
  for (const int n : {1, 2, 3, 7}) {
    ThreadPool pool(n);
    std::vector<int> calls(static_cast<size_t>(n), 0);
    for (int step = 0; step < 5; ++step) {
      const ThreadPool::Step guard(pool);
      for (int run = 0; run < 50; ++run) pool.run([&](int worker) { ++calls[static_cast<size_t>(worker)]; });
    }
    for (const int c : calls) EXPECT_EQ(c, 250);
  }
}

TEST(ThreadPoolTest, ARunSeesWhatTheLastOneWrote) {
  ThreadPool pool(3);
  std::vector<int> values(300, 1);
  std::vector<int> sums(3);
  const ThreadPool::Step guard(pool);
  for (int round = 0; round < 200; ++round) {
    pool.run([&](int worker) {
      const Slice s = slice_of(300, 1, worker, 3);
      for (int i = s.begin; i < s.end; ++i) ++values[static_cast<size_t>(i)];
    });
    pool.run([&](int worker) { sums[static_cast<size_t>(worker)] = std::accumulate(values.begin(), values.end(), 0); });
    for (const int sum : sums) ASSERT_EQ(sum, 300 * (round + 2));
  }
}

// Spinning or yielding, 64 workers on a few cores take seconds for this.
TEST(ThreadPoolTest, MoreWorkersThanCoresSleep) {
  ThreadPool pool(std::max(64, 4 * usable_cores()));
  std::atomic<int> calls = 0;
  const ThreadPool::Step guard(pool);
  for (int run = 0; run < 20; ++run) pool.run([&](int) { ++calls; });
  EXPECT_EQ(calls, 20 * pool.n_workers());
}

// One thread is held up inside its part: the others take everything that is left, and each part still runs once.
TEST(ThreadPoolTest, PartsOfAWaitingThreadAreTakenByOthers) {
  ThreadPool pool(4);
  std::array<std::atomic<int>, 4> calls{};
  std::atomic<int> done = 0;
  const ThreadPool::Step guard(pool);
  for (int run = 0; run < 50; ++run) {
    done = 0;
    std::atomic<bool> held = false;
    pool.run([&](int worker) {
      ++calls[static_cast<size_t>(worker)];
      if (!held.exchange(true)) {
        while (done < 3) std::this_thread::yield();  // whoever came first waits for all the others' parts
      }
      ++done;
    });
  }
  for (const auto& c : calls) EXPECT_EQ(c, 50);
}

TEST(ThreadPoolTest, StopsWhetherOrNotItEverRan) {
  for (int i = 0; i < 50; ++i) {
    ThreadPool pool(4);
    if (i % 2 == 0) continue;
    const ThreadPool::Step guard(pool);
    pool.run([](int) {});
  }
}

TEST(SliceTest, PartsCoverTheWholeInOrderOnGrains) {
  for (const int count : {0, 1, 5, 16, 17, 100}) {
    for (const int grain : {1, 2, 16}) {
      for (const int n : {1, 2, 3, 8}) {
        int at = 0;
        for (int i = 0; i < n; ++i) {
          const Slice s = slice_of(count, grain, i, n);
          EXPECT_EQ(s.begin, at);
          EXPECT_TRUE(s.begin % grain == 0 || s.begin == count);
          at = s.end;
        }
        EXPECT_EQ(at, count);
      }
    }
  }
}

TEST(CpuTest, AtLeastOneCore) { EXPECT_GE(usable_cores(), 1); }

}  // namespace
}  // namespace pagoda
