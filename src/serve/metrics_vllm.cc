#include "serve/metrics_vllm.h"

#include <algorithm>

namespace pagoda::serve {
namespace {

const Buckets kRequestSeconds{0.001, 0.005, 0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1,   1.5, 2,   2.5,  5,
                              10,    15,    20,   30,   40,  50,  60,  120, 240, 480, 960, 1920, 7680};
const Buckets kTokenSeconds{0.001, 0.0025, 0.005, 0.0075, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3,
                            0.4,   0.5,    0.75,  1,      2.5,  5,     7.5,  10,    20,  40,   80};
const Buckets kStepTokens{1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};
const Buckets kRequestTokens{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000};
const Buckets kFew{1, 2, 5, 10, 20};
const Buckets kPreemptions{0, 1, 2, 5, 10, 20};

// What the budget holds, in blocks of all attention groups.
uint64_t n_blocks(const engine::ModelInfo& model, const engine::EngineStats& stats) {
  return model.kv_block_bytes == 0 ? 0 : stats.kv_budget_bytes / model.kv_block_bytes;
}

}  // namespace

// Makes the metrics of one model; the family of a name is made once.
class VllmMetrics::Maker {
 public:
  Maker(prometheus::Registry& registry, const std::string& model)
      : families_(registry), labels_{{"model_name", model}, {"engine", "0"}} {}

  Counter* counter(const std::string& name, const std::string& help, const Labels& more = {}) {
    return &families_.counters("vllm:" + name, help).Add(with(more));
  }
  Gauge* gauge(const std::string& name, const std::string& help, const Labels& more = {}) {
    return &families_.gauges("vllm:" + name, help).Add(with(more));
  }
  Histogram* histogram(const std::string& name, const std::string& help, const Buckets& buckets) {
    return &families_.histograms("vllm:" + name, help).Add(labels_, buckets);
  }
  Model make();

 private:
  Labels with(const Labels& more) const {
    Labels labels = labels_;
    labels.insert(more.begin(), more.end());
    return labels;
  }
  void make_counters(Model& model);
  void make_times(Model& model);
  void make_shapes(Model& model);

  Families families_;
  const Labels labels_;
};

VllmMetrics::Model VllmMetrics::Maker::make() {
  Model model{};
  model.running = gauge("num_requests_running", "Sequences that hold KV blocks");
  model.waiting = gauge("num_requests_waiting", "Sequences in the queue, preempted ones included");
  model.kv_usage = gauge("kv_cache_usage_perc", "Share of the KV budget in blocks that sequences hold (0 to 1)");
  make_counters(model);
  make_times(model);
  make_shapes(model);
  return model;
}

void VllmMetrics::Maker::make_counters(Model& model) {
  model.preemptions = counter("num_preemptions_total", "Sequences that lost their blocks to others and came again");
  model.queried = counter("prefix_cache_queries_total", "Prompt tokens that were looked up in the prefix cache");
  model.hits = counter("prefix_cache_hits_total", "Prompt tokens found in the prefix cache, in RAM");
  model.external_queried =
      counter("external_prefix_cache_queries_total", "Prompt tokens not found in RAM, where there are tiers");
  model.external_hits = counter("external_prefix_cache_hits_total", "Prompt tokens loaded from a tier");
  model.prompt = counter("prompt_tokens_total", "Prompt tokens, at the request's first token");
  model.cached = counter("prompt_tokens_cached_total", "Prompt tokens that were not computed");
  const auto by_source = [&](const char* source) {
    return counter("prompt_tokens_by_source_total", "Prompt tokens by where their keys and values came from",
                   {{"source", source}});
  };
  model.computed_locally = by_source("local_compute");
  model.hit_locally = by_source("local_cache_hit");
  model.loaded = by_source("external_kv_transfer");
  model.generated = counter("generation_tokens_total", "Tokens generated, as they come");
  const std::pair<Ending, const char*> endings[] = {
      {kStop, "stop"}, {kLength, "length"}, {kAbort, "abort"}, {kError, "error"}, {kTimeout, "timeout"}};
  for (const auto& [ending, reason] : endings) {
    model.endings[ending] =
        counter("request_success_total", "Requests that ended, by why; refused ones are not among them",
                {{"finished_reason", reason}});
  }
}

void VllmMetrics::Maker::make_times(Model& model) {
  const engine::StepTokens tokens;
  model.first_token = histogram("time_to_first_token_seconds", "From a request's arrival to its first token",
                                buckets_of(tokens.first_token));
  model.token_gap = histogram("inter_token_latency_seconds", "Between two tokens of a sequence, each gap once",
                              buckets_of(tokens.gaps));
  model.time_per_token = histogram("request_time_per_output_token_seconds",
                                   "A request's decode time by its tokens after the first", kTokenSeconds);
  model.end_to_end = histogram("e2e_request_latency_seconds", "From a request's arrival to its end", kRequestSeconds);
  model.queue = histogram("request_queue_time_seconds", "From tokenized to the first row computed", kRequestSeconds);
  model.prefill =
      histogram("request_prefill_time_seconds", "From the first row computed to the first token", kRequestSeconds);
  model.decode = histogram("request_decode_time_seconds", "From the first token to the end", kRequestSeconds);
  model.inference =
      histogram("request_inference_time_seconds", "From the first row computed to the end", kRequestSeconds);
}

void VllmMetrics::Maker::make_shapes(Model& model) {
  model.iteration_tokens = histogram("iteration_tokens_total", "Rows of a step", kStepTokens);
  model.prompt_tokens = histogram("request_prompt_tokens", "Prompt tokens of a request", kRequestTokens);
  model.generation_tokens =
      histogram("request_generation_tokens", "Tokens generated for a request, over its choices", kRequestTokens);
  model.most_generation_tokens =
      histogram("request_max_num_generation_tokens", "Tokens generated for a request's longest choice", kRequestTokens);
  model.n = histogram("request_params_n", "Choices asked for (n)", kFew);
  model.max_tokens =
      histogram("request_params_max_tokens", "Tokens asked for (max_tokens), where a request says it", kRequestTokens);
  model.computed_tokens =
      histogram("request_prefill_kv_computed_tokens", "Prompt tokens of a request that were computed", kRequestTokens);
  model.n_preemptions = histogram("request_num_preemptions", "Preemptions of a request", kPreemptions);
}

VllmMetrics::VllmMetrics(prometheus::Registry& registry, const std::vector<engine::ModelInfo>& models,
                         const engine::EngineStats& stats)
    : registry_(registry), has_tiers_(!stats.tiers.empty()) {
  for (const engine::ModelInfo& model : models) {
    names_.push_back(model.name);
    model_of(model.name);
    Maker(registry, model.name)
        .gauge("cache_config_info",
               "1; the labels tell the KV cache: block_size in tokens, num_gpu_blocks in the budget",
               {{"block_size", std::to_string(kv::kBlockTokens)},
                {"num_gpu_blocks", std::to_string(n_blocks(model, stats))},
                {"cache_dtype", model.kv_format}})
        ->Set(1);
  }
}

VllmMetrics::Model& VllmMetrics::model_of(const std::string& name) {
  const auto at = models_.find(name);
  if (at != models_.end()) return at->second;
  return models_.emplace(name, Maker(registry_, name).make()).first->second;
}

void VllmMetrics::on_step(const engine::StepRecord& record) {
  Model& model = model_of(record.model < names_.size() ? names_[record.model] : "");
  model.iteration_tokens->Observe(record.prefill_rows + record.decode_rows);
  const engine::StepTokens& tokens = record.tokens;
  if (tokens.generated == 0 && tokens.prompt == 0) return;
  const int32_t restored = std::min(tokens.restored, tokens.cached);
  const int32_t hits = tokens.cached - restored;
  model.generated->Increment(tokens.generated);
  model.prompt->Increment(tokens.prompt);
  model.cached->Increment(tokens.cached);
  model.queried->Increment(tokens.prompt);
  model.hits->Increment(hits);
  if (has_tiers_) model.external_queried->Increment(tokens.prompt - hits);
  model.external_hits->Increment(restored);
  model.computed_locally->Increment(tokens.prompt - tokens.cached);
  model.hit_locally->Increment(hits);
  model.loaded->Increment(restored);
  merge(*model.first_token, tokens.first_token, scratch_);
  merge(*model.token_gap, tokens.gaps, scratch_);
}

void VllmMetrics::on_request(const engine::RequestRecord& record) {
  using Outcome = engine::RequestRecord::Outcome;
  const bool has_started = record.started_us != 0;
  if (record.outcome == Outcome::kFailed && !has_started) return;
  Model& model = model_of(record.model);
  const Ending ending = record.outcome == Outcome::kStop        ? kStop
                        : record.outcome == Outcome::kLength    ? kLength
                        : record.outcome == Outcome::kCancelled ? kAbort
                        : record.outcome == Outcome::kTimeout   ? kTimeout
                                                                : kError;
  model.endings.at(ending)->Increment();
  model.n->Observe(record.n_choices);
  if (record.max_tokens > 0) model.max_tokens->Observe(record.max_tokens);
  model.end_to_end->Observe(seconds(record.finished_us - record.arrival_us));
  if (!has_started) return;
  model.queue->Observe(seconds(record.started_us - record.queued_us));
  model.inference->Observe(seconds(record.finished_us - record.started_us));
  model.prompt_tokens->Observe(record.prompt_tokens);
  model.generation_tokens->Observe(record.completion_tokens);
  model.most_generation_tokens->Observe(record.max_choice_tokens);
  model.n_preemptions->Observe(record.preemptions);
  if (record.first_token_us == 0) return;
  const int64_t decode_us = record.finished_us - record.first_token_us;
  model.prefill->Observe(seconds(record.first_token_us - record.started_us));
  model.decode->Observe(seconds(decode_us));
  model.computed_tokens->Observe(record.prompt_tokens - record.cached_tokens);
  if (record.max_choice_tokens > 1) model.time_per_token->Observe(seconds(decode_us) / (record.max_choice_tokens - 1));
}

// The figures are those of all models together: with several they stand at the first one.
void VllmMetrics::read(const engine::EngineStats& stats) {
  if (names_.empty()) return;
  Model& model = model_of(names_.front());
  model.running->Set(stats.running);
  model.waiting->Set(stats.waiting);
  const auto budget = static_cast<double>(stats.kv_budget_bytes);
  model.kv_usage->Set(budget > 0 ? static_cast<double>(stats.kv_live_bytes) / budget : 0);
  set_total(*model.preemptions, stats.preemptions);
}

}  // namespace pagoda::serve
