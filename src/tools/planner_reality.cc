#include "tools/planner_reality.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "base/clock.h"
#include "base/cpu.h"
#include "engine/memory_plan.h"
#include "engine/memory_room.h"
#include "engine/step_runner.h"
#include "tools/bench_requests.h"

namespace pagoda::tools {
namespace {

constexpr uint64_t kPromptSeed = 20261130;
constexpr int kDecodedTokens =
    2 * kv::kBlockTokens;  // so that every place in a block is seen, and two at the same place

uint64_t resident_bytes() {
  uint64_t size = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> size >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

// Runs one sequence greedily and notes what the pool holds while its rows are computed.
class OneSequence final : public engine::LogitsReader {
 public:
  OneSequence(engine::StepRunner& runner, int n_tokens) : runner_(runner), n_tokens_(n_tokens) {}

  struct Held {
    int n_tokens = 0;  // with the rows of the step
    uint64_t bytes = 0;
  };

  Status run() {
    sched::SequenceSpec spec;
    spec.id = sched::SeqId(1);
    spec.model = runner_.model_id();
    spec.prompt =
        random_prompt(kPromptSeed, std::max(1, n_tokens_ - kDecodedTokens), runner_.model().config().vocab_size);
    TRY(runner_.scheduler().submit(std::move(spec)));
    while (runner_.step(*this)) {
    }
    return {};
  }

  void begin(const sched::StepPlan& plan, int64_t) override {
    for (const sched::SeqRows& rows : plan.rows) {
      const Held held{rows.first_position + rows.n_tokens, runner_.pool().stats().live_bytes};
      (rows.n_tokens == 1 ? decoded_ : prefilled_).push_back(held);
    }
    resident_ = std::max(resident_, resident_bytes());
  }
  models::SampleMode mode_of(sched::SeqId) override { return models::SampleMode::kGreedy; }
  sched::StepOutcome read(const sched::SeqRows& rows, std::span<const engine::SampleResult> results) override {
    resident_ = std::max(resident_, resident_bytes());
    if (rows.first_position + rows.n_tokens >= n_tokens_) {
      runner_.scheduler().finish(rows.seq, sched::FinishReason::kLength);
      return {};
    }
    return {sched::StepOutcome::Kind::kSampled, results.back().greedy};
  }

  const std::vector<Held>& prefilled() const { return prefilled_; }
  const std::vector<Held>& decoded() const { return decoded_; }
  uint64_t resident() const { return resident_; }

 private:
  engine::StepRunner& runner_;
  const int n_tokens_;
  std::vector<Held> prefilled_;
  std::vector<Held> decoded_;
  uint64_t resident_ = 0;
};

VerifiedFigure exact(std::string what, uint64_t planned, uint64_t measured) {
  return {std::move(what), planned, measured, planned, planned};
}

// Windows hold a block more or less by where the sequence ends in a block: over all places, the plan is the most.
void add_sequence(std::span<const models::AttentionGroup> groups, int chunk_tokens, const OneSequence& sequence,
                  std::vector<VerifiedFigure>& figures) {
  const auto decode_plan = [&](const OneSequence::Held& held) {
    return engine::context_bytes(groups, held.n_tokens, 0);
  };
  const auto& decoded = sequence.decoded();
  if (!decoded.empty()) {
    // The last of them where the most is held beside the plan.
    const auto excess = [&](const OneSequence::Held& held) {
      return static_cast<int64_t>(held.bytes) - static_cast<int64_t>(decode_plan(held));
    };
    const OneSequence::Held* worst = &decoded.front();
    for (const OneSequence::Held& held : decoded) {
      if (excess(held) >= excess(*worst)) worst = &held;
    }
    figures.push_back(
        exact(fmt::format("KV of a sequence of {} tokens", worst->n_tokens), decode_plan(*worst), worst->bytes));
  }
  uint64_t planned = 0, measured = 0;
  for (const OneSequence::Held& held : sequence.prefilled()) {
    planned = std::max(planned, engine::context_bytes(groups, held.n_tokens, chunk_tokens));
    measured = std::max(measured, held.bytes);
  }
  if (planned > 0) figures.push_back({"KV while it was prefilled, at most", planned, measured, 0, planned});
}

// From one block to the next at the same place in a block, past every window: only the layers that see everything grow.
void add_growth(const FormatPlan& format, int window, const OneSequence& sequence,
                std::vector<VerifiedFigure>& figures) {
  const auto& decoded = sequence.decoded();
  const size_t block = kv::kBlockTokens;
  if (decoded.size() <= block) return;
  const OneSequence::Held& last = decoded.back();
  const OneSequence::Held& before = decoded[decoded.size() - 1 - block];
  const bool past = window == 0 || before.n_tokens > window + kv::kBlockTokens;
  if (!past && last.n_tokens > window) return;
  const uint64_t planned = format.bytes_per_token + (past ? 0 : format.window_bytes_per_token);
  figures.push_back(exact("KV per token", planned, (last.bytes - before.bytes) / block));
}

engine::Request request_of(int n_tokens, int vocab_size) {
  engine::Request request;
  request.prompt = engine::TokenPrompt{random_prompt(kPromptSeed, 1, vocab_size)};
  request.max_tokens = n_tokens;
  request.sampling.temperature = 0;
  request.stop.end_of_text = engine::StopParams::EndOfText::kIgnore;
  request.seed = 0;
  return request;
}

struct TimedRun {
  double seconds = 0;
  std::vector<TokenId> tokens;
};

Result<TimedRun> shorter_of_two(engine::Engine& engine, int n_tokens) {
  TimedRun best;
  for (int i = 0; i < 2; ++i) {
    TRY_ASSIGN(std::vector<StreamResult> streams,
               run_requests(engine, {request_of(n_tokens, engine.models().front().vocab_size)}));
    const engine::RequestRecord& record = streams.front().record;
    const double seconds = static_cast<double>(record.finished_us - record.started_us) * 1e-6;
    if (i == 0 || seconds < best.seconds) best = {seconds, std::move(streams.front().tokens)};
  }
  return best;
}

}  // namespace

Result<std::vector<VerifiedFigure>> verify_plan(const engine::EngineConfig& config, const Plan& plan,
                                                const PlanProgress& progress) {
  const SteadyClock clock;
  engine::EngineConfig own = config;
  own.prefix_cache = engine::PrefixCache::kOff;
  progress(0, "loading");
  TRY_ASSIGN(const auto runner, engine::StepRunner::create(own, clock));
  std::vector<VerifiedFigure> figures;
  figures.push_back(exact("weights", plan.weight_bytes, runner->model().weight_bytes()));

  progress(0.3, "running a sequence");
  const std::vector<models::AttentionGroup>& groups = runner->model().groups();
  const int n_tokens = std::min(plan.request.context_tokens, runner->context_tokens());
  OneSequence sequence(*runner, n_tokens);
  TRY(sequence.run());
  TRY_ASSIGN(const std::vector<models::AttentionGroup> planned, groups_of(plan.model, plan.request.format));
  const int most_prefill_rows = runner->fit().schedule.max_prefill_rows();
  add_sequence(planned, most_prefill_rows + 1, sequence, figures);
  const auto format = std::ranges::find(plan.formats, plan.request.format, &FormatPlan::name);
  if (format != plan.formats.end()) add_growth(*format, plan.model.config.sliding_window, sequence, figures);

  const uint64_t held = plan.weight_bytes + engine::context_bytes(groups, n_tokens, most_prefill_rows);
  // The plan's overhead is of a cache as large as its memory; this is of the one that was loaded.
  const uint64_t with_overhead = held + runner->fit().overhead_bytes + runner->fit().burst_bytes;
  const auto most = static_cast<uint64_t>(static_cast<double>(with_overhead) * (1 + kResidentTolerance));
  figures.push_back({"resident memory", with_overhead, sequence.resident(), held, most});
  return figures;
}

Result<std::vector<MeasuredGeneration>> measure_generation(engine::EngineConfig config, const PlanProgress& progress) {
  constexpr int kFirst = 8, kLast = 1024;
  constexpr double kEnoughSeconds = 2;
  config.prefix_cache = engine::PrefixCache::kOff;
  std::vector<MeasuredGeneration> measured;
  std::vector<std::vector<TokenId>> tokens;
  config.kv_reuse = engine::KvReuse::kOff;
  {
    progress(0, "loading");
    TRY_ASSIGN(const auto engine, engine::Engine::create(config));
    const int most = std::min(kLast, engine->models().front().context_tokens - 1);
    for (int n = kFirst; n <= most; n *= 2) {
      progress(0.1, fmt::format("{} tokens without a cache", n));
      TRY_ASSIGN(TimedRun run, shorter_of_two(*engine, n));
      measured.push_back({.n_tokens = n, .cached_s = 0, .uncached_s = run.seconds});
      tokens.push_back(std::move(run.tokens));
      if (run.seconds > kEnoughSeconds / 4) break;  // the next takes four times as long
    }
  }
  config.kv_reuse = engine::KvReuse::kOn;
  progress(0.8, "loading");
  TRY_ASSIGN(const auto engine, engine::Engine::create(config));
  for (size_t i = 0; i < measured.size(); ++i) {
    progress(0.9, fmt::format("{} tokens with the cache", measured[i].n_tokens));
    TRY_ASSIGN(const TimedRun run, shorter_of_two(*engine, measured[i].n_tokens));
    measured[i].cached_s = run.seconds;
    measured[i].same_tokens = run.tokens == tokens[i];
  }
  return measured;
}

Result<MachineRates> measure_rates(kernels::Isa isa, int n_threads, uint64_t working_bytes) {
  constexpr double kReadSeconds = 0.06, kDotSeconds = 0.02;
  constexpr uint64_t kLeastBytes = uint64_t{1} << 20, kMostBytes = uint64_t{1} << 28;  // a larger set is read no slower
  const uint64_t room = std::max(engine::available_memory_bytes() / 4, kLeastBytes);
  const auto bytes = static_cast<size_t>(std::clamp(working_bytes, kLeastBytes, std::min(room, kMostBytes)));
  TRY_ASSIGN(MachineProbe probe, MachineProbe::make(n_threads > 0 ? n_threads : usable_cores(), bytes));
  MachineRates rates;
  rates.dots = probe.dot_rates(isa, kDotSeconds);
  rates.read_bytes_per_s = probe.read_rate(isa, bytes, MachineProbe::Threads::kAll, kReadSeconds);
  return rates;
}

}  // namespace pagoda::tools
