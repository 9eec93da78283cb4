#include "engine/step_runner.h"

#include <algorithm>
#include <random>

#include "base/cpu.h"
#include "base/log.h"
#include "engine/memory_plan.h"
#include "engine/model_root.h"

namespace pagoda::engine {
namespace {

constexpr int kMinContextTokens = 2 * kv::kBlockTokens;  // a budget that leaves less serves nobody
constexpr double kMiB = 1024.0 * 1024.0;
constexpr size_t kLogitsBytes =
    64 << 20;  // of one step's prompt logits, at most; a vocabulary of 262k takes 1 MiB a row

int32_t elapsed_us(int64_t from, int64_t to) { return static_cast<int32_t>(to - from); }

bool has_prefixes(const EngineConfig& config) {
  return config.prefix_cache == PrefixCache::kOn && config.kv_reuse == KvReuse::kOn;
}
bool has_tiers(const EngineConfig& config) {
  return has_prefixes(config) && !(config.tiers.disk_dir.empty() && config.tiers.redis_url.empty());
}

sched::SchedConfig sched_config(const EngineConfig& config) {
  sched::SchedConfig out;
  out.step_tokens = config.step_tokens;
  out.quiet_factor = kQuietFactor;
  out.chunk_tokens = config.chunk_tokens;
  out.max_waiting = config.max_queued;
  out.kv_reuse = config.kv_reuse == KvReuse::kOn ? sched::KvReuse::kOn : sched::KvReuse::kOff;
  return out;
}

}  // namespace

Result<std::unique_ptr<StepRunner>> StepRunner::create(const EngineConfig& config, const Clock& clock,
                                                       std::function<void()> wake) {
  std::unique_ptr<StepRunner> runner(new StepRunner(clock, std::move(wake)));
  TRY(runner->load(config));
  TRY(runner->make_cache(config));
  return runner;
}

Status StepRunner::load(const EngineConfig& config) {
  kernels::set_float_mode();
  kernels_ = &kernels::kernel_table(config.isa);
  const int n_threads = config.n_threads > 0 ? config.n_threads : usable_cores();
  threads_ = std::make_unique<ThreadPool>(n_threads, kernels::set_float_mode);

  const int64_t begin_us = clock_.now_us();
  std::optional<FileStamp> stamp;
  if (has_tiers(config)) {
    TRY_ASSIGN(stamp, stamp_file(config.model_path));  // before it is read
  }
  TRY_ASSIGN(const weights::Gguf gguf, weights::Gguf::open(config.model_path));
  if (stamp) files_.push_back(*stamp);
  for (size_t part = 1; stamp && part < gguf.n_parts(); ++part) {
    TRY_ASSIGN(files_.emplace_back(), stamp_file(gguf.part_name(part)));
  }
  TRY_ASSIGN(model_, models::load_model(gguf, config.kv_format, *threads_));
  root_ = model_root(gguf, model_->groups(), config.arithmetic);
  LOG_INFO("loaded {}: {} weights of {:.1f} MiB, {} arithmetic on {}, {} threads, {} ms", gguf.name(),
           to_string(model_->config().architecture), static_cast<double>(model_->weight_bytes()) / kMiB,
           kernels::to_string(config.arithmetic), kernels::to_string(config.isa), n_threads,
           (clock_.now_us() - begin_us) / 1000);
  return {};
}

Status StepRunner::make_cache(const EngineConfig& config) {
  const int trained = model_->config().context_length;
  int context = std::min(config.context_tokens.value_or(trained), trained);
  if (config.context_tokens.value_or(0) > trained) {
    LOG_WARN("context of {} tokens asked for, the model was trained for {}: serving {}", *config.context_tokens,
             trained, trained);
  }
  sched::SchedConfig schedule = sched_config(config);
  const size_t row_bytes = static_cast<size_t>(model_->config().vocab_size) * sizeof(float);
  schedule.logits_tokens =
      static_cast<int32_t>(std::clamp<size_t>(kLogitsBytes / row_bytes, 1, static_cast<size_t>(schedule.step_tokens)));
  const uint64_t one_context = context_bytes(model_->groups(), context, schedule.max_step_rows());
  std::vector<size_t> block_bytes;
  std::vector<kv::GroupSpec> groups;
  for (const models::AttentionGroup& group : model_->groups()) {
    block_bytes.push_back(group.layout.block_bytes);
    groups.push_back({group.layout.block_bytes, group.window});
  }
  const size_t extent_bytes = kv::choose_extent_bytes(block_bytes);
  const int least_context = std::min(context, kMinContextTokens);
  const uint64_t least = least_budget_bytes(model_->groups(), least_context, schedule.max_step_rows(), extent_bytes);
  uint64_t budget = kv_budget_bytes(config.kv_memory_bytes, one_context, available_memory_bytes());
  if (!config.kv_memory_bytes) budget = std::max(budget, least);  // small contexts in large extents
  pool_ = std::make_unique<kv::BlockPool>(kv::PoolConfig{budget, extent_bytes});
  TRY_ASSIGN(BlockStore store, BlockStore::make(pool_->n_extents(), extent_bytes, {block_bytes}));
  store_ = std::make_unique<BlockStore>(std::move(store));
  std::optional<kv::PrefixConfig> prefix = make_prefixes(config);
  TRY(make_tiers(config, prefix));
  cache_ = std::make_unique<kv::Cache>(*pool_, model_id(), groups, prefix);
  if (tiers_) tiers_->use(model_id(), files_, model_->groups(), config.arithmetic);
  if (cache_->capacity_tokens() < least_context) {
    return fail(ErrorCode::kResourceExhausted,
                "--kv-memory of {} bytes is too little: a context of {} tokens of this model takes {} bytes, one of {} "
                "tokens {}",
                budget, least_context, least, context,
                least_budget_bytes(model_->groups(), context, schedule.max_step_rows(), extent_bytes));
  }
  context_tokens_ = std::min(context, static_cast<int>(cache_->capacity_tokens()));
  const ExecutorLimits limits{schedule.max_step_rows(), schedule.max_step_logits(), context_tokens_};
  TRY_ASSIGN(executor_, make_cpu_executor({model_.get()}, *store_, *threads_, *kernels_, config.arithmetic, limits));
  scheduler_ = std::make_unique<sched::Scheduler>(schedule, clock_, policy_);
  scheduler_->add_model(*cache_);
  LOG_INFO(
      "KV cache: {:.1f} MiB, context {} of {} trained tokens{}, {} bytes per token ({})",
      static_cast<double>(budget) / kMiB, context_tokens_, trained,
      context_tokens_ < context ? " (what the memory holds)" : "",
      [&] {
        size_t bytes = 0;
        for (const models::AttentionGroup& group : model_->groups()) bytes += group.layout.bytes_per_token();
        return bytes;
      }(),
      config.kv_format);
  return {};
}

std::optional<kv::PrefixConfig> StepRunner::make_prefixes(const EngineConfig& config) {
  if (!has_prefixes(config)) return std::nullopt;
  std::random_device entropy;
  prefixes_ = std::make_unique<kv::PrefixIndex>(*pool_, uint64_t{entropy()} << 32 | entropy());
  size_t bytes_per_token = 0, least_bytes = ~size_t{0};
  for (const models::AttentionGroup& group : model_->groups()) {
    bytes_per_token += group.layout.bytes_per_token();
    least_bytes = std::min(least_bytes, group.layout.block_bytes);
  }
  if (config.explain == Explain::kOn)
    reuse_ = std::make_unique<kv::ReuseDistance>(pool_->stats().budget_bytes, least_bytes);
  const double cost = static_cast<double>(model_->weight_bytes()) / static_cast<double>(bytes_per_token);
  return kv::PrefixConfig{
      .index = prefixes_.get(), .clock = &clock_, .fingerprint = root_, .cost_per_byte = cost, .reuse = reuse_.get()};
}

kv::Account StepRunner::account() const {
  std::vector<const kv::KvLease*> leases;
  scheduler_->list_leases(leases);
  const kv::Cache* const caches[] = {cache_.get()};
  return kv::account_of(*pool_, caches, leases);
}

kv::BlockMapPage StepRunner::block_map_page(uint64_t page) const {
  const kv::Cache* const caches[] = {cache_.get()};
  return kv::block_map_page(*pool_, caches, page);
}

Status StepRunner::make_tiers(const EngineConfig& config, std::optional<kv::PrefixConfig>& prefix) {
  if (!has_prefixes(config) && !(config.tiers.disk_dir.empty() && config.tiers.redis_url.empty())) {
    LOG_WARN("the KV tiers keep cached prefixes, and prefixes are not cached: they are not used");
  }
  if (!has_tiers(config)) return {};
  const KvTiers::Memory memory{*pool_, *prefixes_, *store_, clock_};
  TRY_ASSIGN(tiers_, KvTiers::open(config.tiers, memory, wake_));
  prefix->tiering = &tiers_->tiering();
  return {};
}

bool StepRunner::is_storing() {
  if (!tiers_) return false;
  std::vector<kv::TicketId> tickets;
  tiers_->tiering().take_completed(tickets);
  for (const kv::TicketId ticket : tickets) scheduler_->complete(ticket);
  return tiers_->is_storing();
}

bool StepRunner::step(LogitsReader& reader) {
  const int64_t begin_us = clock_.now_us();
  if (tiers_) tiers_->poll();
  scheduler_->next_step(plan_);
  if (plan_.empty()) return false;
  const weights::ModelConfig& config = model_->config();
  const models::Batch& batch = builder_.build(plan_, *scheduler_, model_->groups(), config.n_heads / config.n_kv_heads,
                                              [&](sched::SeqId seq) { return reader.mode_of(seq); });
  reader.begin(plan_, begin_us);
  const int64_t planned_us = clock_.now_us();
  const std::span<const SampleResult> results = executor_->run(plan_.block_ops, batch);
  const int64_t computed_us = clock_.now_us();

  outcomes_.clear();
  size_t next = 0;
  for (const sched::SeqRows& rows : plan_.rows) {
    const auto n = static_cast<size_t>(rows.n_logits);
    outcomes_.push_back(n == 0 ? sched::StepOutcome{} : reader.read(rows, results.subspan(next, n)));
    next += n;
  }
  scheduler_->commit_step(plan_, outcomes_);
  const int64_t end_us = clock_.now_us();

  const sched::SchedStats stats = scheduler_->stats();
  record_ = {.step = record_.step + 1,
             .begin_us = begin_us,
             .plan_us = elapsed_us(begin_us, planned_us),
             .forward_us = elapsed_us(planned_us, computed_us),
             .sample_us = elapsed_us(computed_us, end_us),
             .prefill_rows = 0,
             .decode_rows = 0,
             .sampled_rows = static_cast<int32_t>(results.size()),
             .preempted = static_cast<int32_t>(plan_.preempted.size()),
             .running = static_cast<int32_t>(stats.running),
             .waiting = static_cast<int32_t>(stats.waiting),
             .live_blocks = pool_->stats().live_blocks};
  for (const sched::SeqRows& rows : plan_.rows) {
    const bool decode = rows.n_tokens == 1 && rows.sampling == sched::Sampling::kLastRow;
    (decode ? record_.decode_rows : record_.prefill_rows) += rows.n_tokens;
  }
  if (tiers_) tiers_->measure(plan_.model, record_);
  return true;
}

}  // namespace pagoda::engine
