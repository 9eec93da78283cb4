#include "base/cpu.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <string>

namespace pagoda {
namespace {

// Whole cores of "quota period"; no limit if the file is absent, unreadable or says "max" or -1.
int quota_cores(double quota_us, double period_us) {
  if (!(quota_us > 0) || !(period_us > 0)) return std::numeric_limits<int>::max();
  return std::max(1, static_cast<int>(std::ceil(quota_us / period_us - 0.01)));
}

int cgroup_cores() {
  std::string quota;
  double period = 0;
  if (std::ifstream v2("/sys/fs/cgroup/cpu.max"); v2 >> quota >> period) {
    return quota == "max" ? std::numeric_limits<int>::max() : quota_cores(std::atof(quota.c_str()), period);
  }
  double quota_us = 0;
  std::ifstream("/sys/fs/cgroup/cpu/cpu.cfs_quota_us") >> quota_us;
  std::ifstream("/sys/fs/cgroup/cpu/cpu.cfs_period_us") >> period;
  return quota_cores(quota_us, period);
}

}  // namespace

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  const int affinity = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  return std::max(1, std::min(affinity, cgroup_cores()));
}

}  // namespace pagoda
