// ThreadPool: N threads that run the N parts of a short function together, hundreds of times per step, with a barrier after each.
// Problem: waking a parked thread costs tens of microseconds, more than most phases of a step. So threads spin while a Step is alive
// and park as soon as it ends. Who waits long, or has more colleagues than there are cores, sleeps instead.
// The calling thread is one of them. Work is split by the functions themselves, by part number, so what is computed never depends on
// who computes it. Thread i takes part i first, for its caches' sake, then, after some 3 us, any that nobody has begun: on a busy
// machine a thread that the system keeps waiting holds up nobody, unless it waits in the middle of a part. Who looked at once would
// take the line that the other's next part needs from its cache, every time: cores that share no cache pay 0.3 us for a line.
// Threads: step() and run() from one thread at a time.     Cost: run() about 1 us when cores are free; no allocation, no lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace pagoda {

class ThreadPool {
 public:
  // on_start runs once on every thread but the caller's (float mode, thread names).
  explicit ThreadPool(int n_workers, const std::function<void()>& on_start = [] {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int n_workers() const { return n_workers_; }

  // While alive, workers wait for runs instead of being parked.
  class Step {
   public:
    explicit Step(ThreadPool& pool) : pool_(pool) { pool_.wake(); }
    ~Step() { pool_.park(); }
    Step(const Step&) = delete;
    Step& operator=(const Step&) = delete;

   private:
    ThreadPool& pool_;
  };

  // Calls fn(worker) once for every worker in [0, n_workers) and returns when all are done. Requires a living Step. fn must not
  // throw, and takes scratch memory by the number it is given, not by thread: one thread may run several.
  template <typename Fn>
  void run(Fn&& fn) {
    run_erased([](void* context, int worker) { (*static_cast<std::remove_reference_t<Fn>*>(context))(worker); }, &fn);
  }

 private:
  using Task = void (*)(void* context, int worker);
  void run_erased(Task task, void* context);
  void wake();
  void park();
  void work(int worker);

  // The number of the last run in which this part was taken. Taking it is one exchange from the run before to this one, so who
  // comes late, even several runs late, takes nothing.
  struct alignas(64) Part {
    std::atomic<uint32_t> taken{0};
  };
  bool take_part(uint32_t run, int part);
  uint32_t take_other_parts(uint32_t run, int own);  // how many

  const int n_workers_;
  const int spins_;     // before a wait becomes a sleep
  const int patience_;  // before a look at others' parts
  std::vector<Part> parts_;
  // A line for each direction. What starts a run: task_ and context_ are written before run_ goes up, and read by who took a part of
  // that run, which cannot end before.
  alignas(64) std::atomic<uint32_t> run_{0};  // goes up once per run(); threads wait on it
  Task task_ = nullptr;
  void* context_ = nullptr;
  alignas(64) std::atomic<uint32_t> finished_{
      0};                                    // parts, of all runs, by others than the calling thread, which waits on it
  alignas(64) std::atomic<uint32_t> state_;  // kParked, kSpinning, kStopped; parked workers wait on it
  alignas(64) uint32_t expected_ = 0;        // finished_ after the last run; the calling thread's
  std::vector<std::thread> threads_;
};

// The i-th of n nearly equal parts of [0, count), in units of `grain`.
struct Slice {
  int begin = 0;
  int end = 0;
};
constexpr Slice slice_of(int count, int grain, int i, int n) {
  const int64_t units = (count + grain - 1) / grain;
  const auto at = [&](int64_t k) {
    const int64_t edge = units * k / n * grain;
    return static_cast<int>(edge < count ? edge : count);
  };
  return {at(i), at(i + 1)};
}

}  // namespace pagoda
