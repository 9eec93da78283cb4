// CircuitBreaker: leaves a peer alone that keeps failing.
//
//   closed --max_failures in a row--> open --open_us--> half open: one probe --success--> closed
//                                       ^------------------- failure; open_us doubles, up to 16 times as long
//
// Units: microseconds, given by the caller.   Threads: guarded by the owner.   Cost: O(1).
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

namespace pagoda::kv {

class CircuitBreaker {
 public:
  CircuitBreaker(int max_failures, int64_t open_us)
      : max_failures_(max_failures), first_open_us_(open_us), open_us_(open_us) {}

  // Nothing but the probe is let through.
  bool is_open() const { return is_open_; }
  int64_t probe_at_us() const { return probe_at_us_; }
  // Whether the caller shall probe now, and report; nobody else is told so until then.
  bool take_probe(int64_t now_us) {
    if (!is_open_ || is_probing_ || now_us < probe_at_us_) return false;
    is_probing_ = true;
    ++n_probes_;
    return true;
  }

  // True: it closed.
  bool succeeded() {
    n_failures_ = 0;
    open_us_ = first_open_us_;
    is_probing_ = false;
    return std::exchange(is_open_, false);
  }
  // True: it opened.
  bool failed(int64_t now_us) {
    if (is_open_) {
      if (!is_probing_) return false;  // begun before it opened
      open_us_ = std::min(open_us_ * 2, first_open_us_ * kMaxGrowth);
    } else if (++n_failures_ < max_failures_) {
      return false;
    }
    probe_at_us_ = now_us + open_us_;
    is_probing_ = false;
    n_openings_ += !is_open_;
    return !std::exchange(is_open_, true);
  }

  uint64_t n_openings() const { return n_openings_; }
  uint64_t n_probes() const { return n_probes_; }

 private:
  static constexpr int64_t kMaxGrowth = 16;
  int max_failures_;
  int64_t first_open_us_;
  int64_t open_us_;
  int64_t probe_at_us_ = 0;
  int n_failures_ = 0;
  bool is_open_ = false;
  bool is_probing_ = false;
  uint64_t n_openings_ = 0, n_probes_ = 0;
};

}  // namespace pagoda::kv
