#include "tools/bench_run.h"

#include <algorithm>
#include <ctime>

#include "base/cpu.h"
#include "base/digest.h"
#include "engine/memory_room.h"
#include "tools/bench_accuracy.h"
#include "tools/bench_requests.h"
#include "tools/machine.h"
#include "tools/machine_probe.h"
#include "tools/model_costs.h"

namespace pagoda::tools {
namespace {

constexpr uint64_t kPromptSeed = 20261130;
constexpr int kHashedLogprobs = 20;
constexpr double kDotSeconds = 0.03;
constexpr double kReadSeconds = 0.06;
constexpr size_t kMostProbeBytes = size_t{1} << 30;  // far past any cache: a larger working set is read no slower
constexpr size_t kLeastProbeBytes = size_t{1} << 20;
constexpr double kGiga = 1e9;

// Over everything that the streams said, in their order.
std::string hash_of(const std::vector<StreamResult>& streams) {
  Xxh3Stream hash;
  const auto add = [&](auto value) { hash.update(std::as_bytes(std::span(&value, 1))); };
  for (const StreamResult& stream : streams) {
    for (const TokenId token : stream.tokens) add(token.value);
    for (const engine::TokenLogprob& logprob : stream.logprobs) {
      for (const auto& top : logprob.top) {
        add(top.token.value);
        add(top.logprob);
      }
    }
  }
  return to_hex(hash.digest());
}

double seconds_of(const BenchWork& work, const std::vector<StreamResult>& streams) {
  int64_t begin_us = streams.front().record.arrival_us;
  int64_t end_us = 0;
  for (const StreamResult& stream : streams) {
    begin_us = std::min(begin_us, stream.record.arrival_us);
    end_us = std::max(end_us, stream.record.finished_us);
  }
  if (work.kind == WorkKind::kPrefill) end_us = streams.front().record.first_token_us;
  if (work.kind == WorkKind::kDecode) begin_us = streams.front().record.first_token_us;
  return static_cast<double>(std::max<int64_t>(end_us - begin_us, 1)) * 1e-6;
}

// Wall and processor time of this process, in seconds.
struct Times {
  double wall = 0;
  double cpu = 0;
};
Times now() {
  const auto seconds = [](clockid_t clock) {
    timespec t{};
    clock_gettime(clock, &t);
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
  };
  return {seconds(CLOCK_MONOTONIC), seconds(CLOCK_PROCESS_CPUTIME_ID)};
}

class Bench {
 public:
  Bench(const engine::EngineConfig& config, const BenchPlan& plan, const BenchProgress& progress)
      : config_(config), plan_(plan), progress_(progress) {}

  Result<BenchResult> run() {
    TRY(load());
    TRY(probe());
    TRY(warm_up());
    for (const BenchWork& work : plan_.works) {
      if (work.kind != WorkKind::kAccuracy) TRY(measure(work));
    }
    if (spent_.wall > 0) result_.setup.core_share = std::min(1.0, spent_.cpu / (spent_.wall * n_threads_));
    engine_.reset();  // its weights and cache make room
    for (const BenchWork& work : plan_.works) {
      if (work.kind == WorkKind::kAccuracy) TRY(measure_losses());
    }
    return std::move(result_);
  }

 private:
  Status load() {
    say("loading");
    TRY_ASSIGN(const weights::Gguf gguf, weights::Gguf::open(config_.model_path));
    TRY_ASSIGN(costs_, model_costs(gguf, config_.arithmetic, config_.kv_format));
    TRY_ASSIGN(engine_, engine::Engine::create(config_));
    model_ = engine_->models().front();
    n_threads_ = config_.n_threads > 0 ? config_.n_threads : usable_cores();
    BenchSetup& setup = result_.setup;
    setup.cpu = read_machine().cpu;
    setup.model = model_.name;
    setup.model_bytes = model_.file_bytes;
    setup.isa = to_string(config_.isa);
    setup.arithmetic = to_string(config_.arithmetic);
    setup.kv_format = config_.kv_format;
    setup.threads = n_threads_;
    setup.context_tokens = model_.context_tokens;
    setup.weight_bytes = costs_.body_bytes + costs_.head_bytes;
    setup.kv_bytes_per_token = costs_.kv_bytes_per_token();
    return {};
  }

  bool fits(const BenchWork& work) const { return work.context_tokens() <= model_.context_tokens; }

  Status probe() {
    say("measuring the machine");
    double most = 0;
    for (const BenchWork& work : plan_.works) {
      if (work.kind != WorkKind::kAccuracy && fits(work)) most = std::max(most, working_set_bytes(costs_, work));
    }
    const size_t room = std::max<size_t>(engine::available_memory_bytes() / 4, kLeastProbeBytes);
    const size_t bytes = std::clamp(static_cast<size_t>(most), kLeastProbeBytes, std::min(room, kMostProbeBytes));
    TRY_ASSIGN(MachineProbe probe, MachineProbe::make(n_threads_, bytes));
    probe_.emplace(std::move(probe));
    rates_.dots = probe_->dot_rates(config_.isa, kDotSeconds);
    return {};
  }

  Status warm_up() {
    say("warming up");
    const BenchWork work{.name = "warm-up", .kind = WorkKind::kDecode, .prompt_tokens = 16, .output_tokens = 8};
    const auto streams = run_once(work);
    return streams ? Status{} : Status(tl::unexpect, streams.error());
  }

  engine::Request request_of(std::vector<TokenId> prompt, int output_tokens) const {
    engine::Request request;
    request.prompt = engine::TokenPrompt{std::move(prompt)};
    request.max_tokens = output_tokens;
    request.sampling.temperature = 0;
    request.stop.end_of_text = engine::StopParams::EndOfText::kIgnore;
    request.cache_salt = fmt::format("bench {}", n_salts_);
    request.seed = 0;
    return request;
  }

  // The streams of one run, and before them, unmeasured, the prefix that they share.
  Result<std::vector<StreamResult>> run_once(const BenchWork& work) {
    ++n_salts_;
    const std::vector<TokenId> prefix = random_prompt(kPromptSeed, work.prefix_tokens, model_.vocab_size);
    if (!prefix.empty()) TRY(run_requests(*engine_, {request_of(prefix, 1)}));
    std::vector<engine::Request> requests;
    for (int i = 0; i < work.n_streams; ++i) {
      std::vector<TokenId> prompt = prefix;
      const auto own = random_prompt(kPromptSeed + 1 + static_cast<uint64_t>(i), work.prompt_tokens, model_.vocab_size);
      prompt.insert(prompt.end(), own.begin(), own.end());
      requests.push_back(request_of(std::move(prompt), work.output_tokens));
      if (work.kind == WorkKind::kPrefill) requests.back().logprobs = kHashedLogprobs;
    }
    return run_requests(*engine_, std::move(requests));
  }

  void add_run(const BenchWork& work, const std::vector<StreamResult>& streams, BenchLine& line) const {
    line.runs.push_back(work.counted_tokens() / seconds_of(work, streams));
    const std::string hash = hash_of(streams);
    line.runs_agree = line.runs_agree && (line.hash.empty() || line.hash == hash);
    line.hash = hash;
    line.cached_tokens = 0;
    for (const StreamResult& stream : streams) {
      line.preemptions += stream.record.preemptions;
      line.cached_tokens += stream.record.cached_tokens;
    }
  }

  // Bandwidth is measured before and after the runs, and the better counts, so that a busy moment makes no low limit.
  void read_bandwidth(const BenchWork& work) {
    const auto bytes = std::max(static_cast<size_t>(working_set_bytes(costs_, work)), kLeastProbeBytes);
    rates_.read_bytes_per_s = std::max(
        rates_.read_bytes_per_s, probe_->read_rate(config_.isa, bytes, MachineProbe::Threads::kAll, kReadSeconds));
  }

  void add_limit(const BenchWork& work, BenchLine& line) const {
    const Limit limit = limit_of(ideal_steps(costs_, work), rates_);
    line.limit = work.counted_tokens() / limit.seconds;
    line.bound = limit.bound;
    line.limit_gb_per_s = rates_.read_bytes_per_s / kGiga;
    const double runs_per_s = line.median() / work.counted_tokens();
    for (const StepCost& step : actual_steps(costs_, work, config_.step_tokens)) {
      line.gb_per_s += step.bytes * runs_per_s / kGiga;
      line.gops += step.operations() * runs_per_s / kGiga;
    }
  }

  Status measure(const BenchWork& work) {
    if (!fits(work)) {
      result_.left_out.push_back({work.name, fmt::format("takes {} tokens of context, and this model is served with {}",
                                                         work.context_tokens(), model_.context_tokens)});
      n_done_ += plan_.repeats;
      return {};
    }
    BenchLine line;
    line.work = work.name;
    line.hash_of = work.kind == WorkKind::kPrefill ? "logprobs" : "tokens";
    rates_.read_bytes_per_s = 0;
    read_bandwidth(work);
    for (int run = 0; run < plan_.repeats; ++run) {
      say(fmt::format("{}, run {} of {}", work.name, run + 1, plan_.repeats));
      const Times begin = now();
      TRY_ASSIGN(const std::vector<StreamResult> streams, run_once(work));
      const Times end = now();
      spent_.wall += end.wall - begin.wall;
      spent_.cpu += end.cpu - begin.cpu;
      add_run(work, streams, line);
      ++n_done_;
    }
    read_bandwidth(work);
    add_limit(work, line);
    result_.lines.push_back(std::move(line));
    return {};
  }

  Status measure_losses() {
    TRY_ASSIGN(AccuracyResult accuracy,
               measure_accuracy(config_, plan_.accuracy_tokens, [this](std::string_view what) { say(what); }));
    result_.accuracy_tokens = accuracy.n_tokens;
    result_.accuracy = std::move(accuracy.lines);
    n_done_ += plan_.repeats;
    return {};
  }

  void say(std::string_view what) const {
    const auto all = static_cast<double>(plan_.works.size()) * plan_.repeats;
    progress_(n_done_ / std::max(all, 1.0), what);
  }

  const engine::EngineConfig& config_;
  const BenchPlan& plan_;
  const BenchProgress& progress_;
  BenchResult result_;
  ModelCosts costs_;
  std::unique_ptr<engine::Engine> engine_;
  engine::ModelInfo model_;
  int n_threads_ = 1;
  std::optional<MachineProbe> probe_;
  MachineRates rates_;
  Times spent_;  // in all runs
  int n_salts_ = 0;
  int n_done_ = 0;  // runs
};

}  // namespace

Result<BenchResult> run_bench(const engine::EngineConfig& config, const BenchPlan& plan,
                              const BenchProgress& progress) {
  return Bench(config, plan, progress).run();
}

}  // namespace pagoda::tools
