// Families: makes the metrics of one registry, and adds what prometheus-cpp lacks: counters that follow a total counted elsewhere, and
// histograms that take an engine's TimeCounts.
// Threads: one.     Errors: an invalid name is a bug (prometheus-cpp throws).
#pragma once

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <string>
#include <string_view>
#include <vector>

#include "engine/time_counts.h"

namespace pagoda::serve {

using prometheus::Counter;
using prometheus::Gauge;
using prometheus::Histogram;
using prometheus::Labels;
using Buckets = Histogram::BucketBoundaries;

class Families {
 public:
  explicit Families(prometheus::Registry& registry) : registry_(registry) {}

  prometheus::Family<Counter>& counters(const std::string& name, const std::string& help) {
    return prometheus::BuildCounter().Name(name).Help(help).Register(registry_);
  }
  prometheus::Family<Gauge>& gauges(const std::string& name, const std::string& help) {
    return prometheus::BuildGauge().Name(name).Help(help).Register(registry_);
  }
  prometheus::Family<Histogram>& histograms(const std::string& name, const std::string& help) {
    return prometheus::BuildHistogram().Name(name).Help(help).Register(registry_);
  }
  Counter& counter(const std::string& name, const std::string& help) { return counters(name, help).Add({}); }
  Gauge& gauge(const std::string& name, const std::string& help) { return gauges(name, help).Add({}); }

 private:
  prometheus::Registry& registry_;
};

// A counter never goes back: a total that does is not followed.
inline void set_total(Counter& counter, double total) {
  if (total > counter.Value()) counter.Increment(total - counter.Value());
}
inline void set_total(Counter& counter, uint64_t total) { set_total(counter, static_cast<double>(total)); }
inline void set(Gauge& gauge, uint64_t value) { gauge.Set(static_cast<double>(value)); }

inline double seconds(int64_t us) { return static_cast<double>(us) / 1e6; }

template <const auto& kBounds>
Buckets buckets_of(const engine::TimeCounts<kBounds>&) {
  Buckets buckets;
  for (const int64_t us : kBounds) buckets.push_back(seconds(us));
  return buckets;
}
// `scratch` is any vector that may be kept for the next call.
template <const auto& kBounds>
void merge(Histogram& histogram, const engine::TimeCounts<kBounds>& counts, std::vector<double>& scratch) {
  scratch.assign(counts.counts.begin(), counts.counts.end());
  histogram.ObserveMultiple(scratch, seconds(counts.sum_us));
}

}  // namespace pagoda::serve
