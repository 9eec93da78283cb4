// MachineProbe: what this machine reaches, measured with the loops of kernels/probe.h: read bandwidth by working-set size, operations per
// second by instruction set, clock under load. Limits for people and for `bench`; nothing that Pagoda computes depends on them.
// Measured in windows of a fraction of a millisecond that begin when every thread has a core, so that other programs disturb few of them:
// arithmetic and clock are the best window's, reading is the upper quartile (one window may be lucky with what a cache still holds).
// Owns: threads and one buffer. Units: bytes/s, operations/s (a product and its addition are two), Hz.
// Threads: one; it is worker 0.     Cost: each call takes about the seconds it is given, ten times that on a machine that is busy.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/probe.h"
#include "tensor/aligned_buffer.h"

namespace pagoda::tools {

// By DotKind, all threads together. Kinds that an instruction set lacks have the rate of what computes them instead.
using DotRates = std::array<double, kernels::kDotKinds>;

class MachineProbe {
 public:
  enum class Threads : uint8_t { kOne, kAll };

  // The buffer has max_bytes, on huge pages where the system gives them.  Errors: kResourceExhausted.
  static Result<MachineProbe> make(int n_threads, size_t max_bytes);

  int n_threads() const { return pool_->n_workers(); }
  size_t max_bytes() const { return buffer_.size(); }

  // Reading `bytes` (at most max_bytes) over and over; with kAll each thread has its own part of them.
  double read_rate(kernels::Isa isa, size_t bytes, Threads threads, double seconds);
  // 0 where isa has no such loop.
  double dot_rate(kernels::Isa isa, kernels::DotKind kind, Threads threads, double seconds);
  DotRates dot_rates(kernels::Isa isa, double seconds_each);

  // Of one thread, in Hz: alone; right after it ran vector code itself; while all other threads run vector code (none: there are no others).
  struct Clock {
    double alone = 0;
    double after_vectors = 0;
    std::optional<double> beside_vectors;
  };
  Clock clock(kernels::Isa isa, double seconds);

 private:
  MachineProbe(int n_threads, tensor::AlignedBuffer buffer);
  template <typename Work>
  std::optional<double> window(Threads threads, Work&& work);
  template <typename Work>
  std::vector<double> windows(Threads threads, double seconds, Work&& work);

  std::unique_ptr<ThreadPool> pool_;
  tensor::AlignedBuffer buffer_;
};

}  // namespace pagoda::tools
