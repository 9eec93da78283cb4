// VllmMetrics: the metrics that vLLM has too, under its names and labels (model_name, engine), so that its dashboards, and routers that
// read queue depth and KV usage, work here as well.
// Tokens, first tokens and gaps between tokens are counted when they happen, the rest when a request ends.
// Threads: one.     Source: vLLM 0.30's metric names.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "serve/metrics_families.h"

namespace pagoda::serve {

class VllmMetrics {
 public:
  VllmMetrics(prometheus::Registry& registry, const std::vector<engine::ModelInfo>& models,
              const engine::EngineStats& stats);

  void on_request(const engine::RequestRecord& record);
  void on_step(const engine::StepRecord& record);
  void read(const engine::EngineStats& stats);

 private:
  // By finished_reason.
  enum Ending { kStop, kLength, kAbort, kError, kTimeout };
  // The metrics of one model.
  struct Model {
    Gauge *running, *waiting, *kv_usage;
    Counter *preemptions, *queried, *hits, *external_queried, *external_hits;
    Counter *prompt, *cached, *computed_locally, *hit_locally, *loaded, *generated;
    Histogram *iteration_tokens, *first_token, *token_gap, *time_per_token, *end_to_end, *queue, *prefill, *decode,
        *inference;
    Histogram *prompt_tokens, *generation_tokens, *most_generation_tokens, *n, *max_tokens, *computed_tokens,
        *n_preemptions;
    std::map<Ending, Counter*> endings;
  };
  class Maker;

  Model& model_of(const std::string& name);

  prometheus::Registry& registry_;
  std::vector<std::string> names_;  // by index of Engine::models()
  std::map<std::string, Model> models_;
  bool has_tiers_;
  std::vector<double> scratch_;
};

}  // namespace pagoda::serve
