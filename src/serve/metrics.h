// Metrics: what Prometheus scrapes at /metrics: counted from the engine's records as they come, and from a reading of the moment's figures
// at each scrape. docs/metrics.md lists every one; a test compares that list with a scrape.
// Threads: the record pump's only.     Cost: about a microsecond a record, a fraction of a millisecond a scrape; the engine thread pays nothing.
#pragma once

#include <prometheus/registry.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "http/counts.h"
#include "serve/metrics_pagoda.h"
#include "serve/metrics_vllm.h"
#include "serve/record_pump.h"

namespace pagoda::serve {

class Metrics final : public RecordSink {
 public:
  static constexpr const char* kContentType = "text/plain; version=0.0.4; charset=utf-8";

  // Of an engine as it is now: its models and tiers.
  Metrics(const std::vector<engine::ModelInfo>& models, const engine::EngineStats& stats, const std::string& version);

  void on_request(const engine::RequestRecord& record) override;
  void on_step(const engine::StepRecord& record) override;
  // The text of a scrape.
  std::string render(const MetricsReading& reading);

 private:
  prometheus::Registry registry_;
  VllmMetrics vllm_;
  PagodaMetrics pagoda_;
};

}  // namespace pagoda::serve
