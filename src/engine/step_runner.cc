#include "engine/step_runner.h"

#include <algorithm>
#include <array>
#include <random>

#include "base/cpu.h"
#include "base/log.h"
#include "base/named.h"
#include "engine/memory_plan.h"
#include "engine/memory_room.h"
#include "engine/model_root.h"
#include "models/kv_plan.h"

namespace pagoda::engine {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;

int32_t elapsed_us(int64_t from, int64_t to) { return static_cast<int32_t>(to - from); }

}  // namespace

Result<std::unique_ptr<StepRunner>> StepRunner::create(const EngineConfig& config, const Clock& clock,
                                                       std::function<void()> wake) {
  TRY_ASSIGN(const ModelFile file, open(config));
  return create(file, config, clock, std::move(wake));
}

Result<std::unique_ptr<StepRunner>> StepRunner::create(const ModelFile& file, const EngineConfig& config,
                                                       const Clock& clock, std::function<void()> wake) {
  std::unique_ptr<StepRunner> runner(new StepRunner(clock, std::move(wake)));
  TRY(runner->load(file, config));
  TRY(runner->make_cache(config));
  runner->say_sizes(config);
  return runner;
}

Result<StepRunner::ModelFile> StepRunner::open(const EngineConfig& config) {
  std::vector<FileStamp> stamps;
  if (has_prefixes(config)) {
    TRY_ASSIGN(stamps.emplace_back(), stamp_file(config.model_path));
  }
  TRY_ASSIGN(weights::Gguf gguf, weights::Gguf::open(config.model_path));
  for (size_t part = 1; !stamps.empty() && part < gguf.n_parts(); ++part) {
    TRY_ASSIGN(stamps.emplace_back(), stamp_file(gguf.part_name(part)));
  }
  return ModelFile{std::move(gguf), std::move(stamps)};
}

Result<std::unique_ptr<StepRunner>> StepRunner::create_beside(const StepRunner& loaded, const EngineConfig& config,
                                                              const Clock& clock, const kernels::KernelTable& kernels) {
  std::unique_ptr<StepRunner> runner(new StepRunner(clock, [] {}));
  runner->kernels_ = &kernels;
  runner->threads_ = loaded.threads_;
  runner->model_ = loaded.model_;
  TRY_ASSIGN(const weights::Gguf gguf, weights::Gguf::open(config.model_path));
  TRY_ASSIGN(runner->groups_, models::plan_groups(gguf, loaded.model_->config(), config.kv_format));
  runner->fit_ = fit_beside(loaded.fit_, runner->groups_, config);
  runner->root_ = model_root(gguf, runner->groups_, config.arithmetic);
  TRY(runner->make_cache(config));
  return runner;
}

size_t StepRunner::kv_bytes_per_token() const {
  size_t bytes = 0;
  for (const models::AttentionGroup& group : groups_) bytes += group.layout.bytes_per_token();
  return bytes;
}

Status StepRunner::fit_to_memory(const weights::Gguf& gguf, const EngineConfig& config) {
  TRY_ASSIGN(const FitModel model, fit_model(gguf, config.kv_format));
  TRY_ASSIGN(fit_, fit_memory(model, config, memory_limit(config), available_memory_bytes()));
  if (!fit_.is_enough) return fail(fit_.error());
  return {};
}

Status StepRunner::load(const ModelFile& file, const EngineConfig& config) {
  kernels::set_float_mode();
  kernels_ = &kernels::kernel_table(config.isa);
  const int n_threads = config.n_threads > 0 ? config.n_threads : usable_cores();
  threads_ = std::make_unique<ThreadPool>(n_threads, kernels::set_float_mode);

  const int64_t begin_us = clock_.now_us();
  const weights::Gguf& gguf = file.gguf;
  files_ = file.stamps;
  TRY(fit_to_memory(gguf, config));
  TRY_ASSIGN(model_, models::load_model(gguf, fit_.kv_format, *threads_));
  groups_ = model_->groups();
  arithmetic_ = config.arithmetic;
  root_ = model_root(gguf, groups_, config.arithmetic);
  LOG_INFO("loaded {}: {} weights of {:.1f} MiB, {} arithmetic on {}, {} threads, {} ms", gguf.name(),
           to_string(model_->config().architecture), static_cast<double>(model_->weight_bytes()) / kMiB,
           kernels::to_string(config.arithmetic), kernels::to_string(config.isa), n_threads,
           (clock_.now_us() - begin_us) / 1000);
  return {};
}

Status StepRunner::make_cache(const EngineConfig& config) {
  std::vector<size_t> block_bytes;
  std::vector<kv::GroupSpec> groups;
  for (const models::AttentionGroup& group : groups_) {
    block_bytes.push_back(group.layout.block_bytes);
    groups.push_back({group.layout.block_bytes, group.window});
  }
  pool_ = std::make_unique<kv::BlockPool>(kv::PoolConfig{fit_.kv_bytes, fit_.extent_bytes});
  TRY_ASSIGN(BlockStore store, BlockStore::make(pool_->n_extents(), fit_.extent_bytes, {block_bytes}));
  store_ = std::make_unique<BlockStore>(std::move(store));
  std::optional<kv::PrefixConfig> prefix = make_prefixes(config);
  TRY(make_tiers(config, prefix));
  TRY(make_sessions(config, prefix));
  cache_ = std::make_unique<kv::Cache>(*pool_, model_id(), groups, prefix);
  if (session_files_) sessions_->restore(session_files_->load());
  if (tiers_) tiers_->use(model_id(), files_, groups_, config.arithmetic);
  if (cache_->capacity_tokens() < fit_.least_context_tokens) return fail(too_little_kv());
  context_tokens_ = std::min(fit_.context_tokens, static_cast<int>(cache_->capacity_tokens()));
  const ExecutorLimits limits{fit_.schedule.max_step_rows(), fit_.schedule.max_step_logits(), context_tokens_};
  TRY_ASSIGN(executor_, make_cpu_executor(std::array{ExecutedModel{model_.get(), groups_}}, *store_, *threads_,
                                          *kernels_, config.arithmetic, limits));
  scheduler_ = std::make_unique<sched::Scheduler>(fit_.schedule, clock_, policy_);
  scheduler_->add_model(*cache_);
  return {};
}

void StepRunner::say_sizes(const EngineConfig& config) const {
  if (const std::string cut = fit_.cut(config, model_->config().context_length, context_tokens_); !cut.empty())
    LOG_WARN("{}", cut);
  LOG_INFO("KV cache: {:.1f} MiB, context {} of {} trained tokens{}, {} bytes per token ({})",
           static_cast<double>(fit_.kv_bytes) / kMiB, context_tokens_, model_->config().context_length,
           context_tokens_ < fit_.wanted_tokens ? " (what the memory holds)" : "", kv_bytes_per_token(),
           models::format_table(groups_));
  LOG_INFO("{}", fit_.statement());
  if (fit_.limit) LOG_INFO("{}", fit_.choice());
}

Error StepRunner::too_little_kv() const {
  const auto bytes = [&](int n_tokens) {
    return least_budget_bytes(groups_, n_tokens, fit_.schedule.max_prefill_rows(), fit_.extent_bytes);
  };
  return {ErrorCode::kResourceExhausted,
          fmt::format("--kv-memory of {} bytes is too little: a context of {} tokens of this model takes {} bytes, one "
                      "of {} tokens {}; memory is taken in extents of {} bytes",
                      fit_.kv_bytes, fit_.least_context_tokens, bytes(fit_.least_context_tokens), fit_.wanted_tokens,
                      bytes(fit_.wanted_tokens), fit_.extent_bytes),
          {}};
}

std::optional<kv::PrefixConfig> StepRunner::make_prefixes(const EngineConfig& config) {
  if (!has_prefixes(config)) return std::nullopt;
  std::random_device entropy;
  prefixes_ = std::make_unique<kv::PrefixIndex>(*pool_, uint64_t{entropy()} << 32 | entropy());
  size_t least_bytes = ~size_t{0};
  for (const models::AttentionGroup& group : groups_) least_bytes = std::min(least_bytes, group.layout.block_bytes);
  if (config.explain == Explain::kOn)
    reuse_ = std::make_unique<kv::ReuseDistance>(pool_->stats().budget_bytes, least_bytes);
  const double cost = static_cast<double>(model_->weight_bytes()) / static_cast<double>(kv_bytes_per_token());
  return kv::PrefixConfig{
      .index = prefixes_.get(), .clock = &clock_, .fingerprint = root_, .cost_per_byte = cost, .reuse = reuse_.get()};
}

kv::Account StepRunner::account() const {
  std::vector<const kv::KvLease*> leases;
  scheduler_->list_leases(leases);
  const kv::Cache* const caches[] = {cache_.get()};
  kv::Account account = kv::account_of(*pool_, caches, leases);
  if (sessions_) account.sessions = sessions_->stats();
  return account;
}

kv::BlockMapPage StepRunner::block_map_page(uint64_t page) const {
  const kv::Cache* const caches[] = {cache_.get()};
  return kv::block_map_page(*pool_, caches, page);
}

Status StepRunner::make_tiers(const EngineConfig& config, std::optional<kv::PrefixConfig>& prefix) {
  if (!has_prefixes(config) && config.tiers.is_used()) {
    LOG_WARN("the KV tiers keep cached prefixes, and prefixes are not cached: they are not used");
  }
  if (!has_tiers(config)) return {};
  const KvTiers::Memory memory{*pool_, *prefixes_, *store_, clock_};
  TRY_ASSIGN(tiers_, KvTiers::open(config.tiers, {groups_, fit_.staging_bytes, fit_.most_disk_bytes}, memory, wake_));
  prefix->tiering = &tiers_->tiering();
  return {};
}

// Records of sessions lie where their blocks outlive the process.
Status StepRunner::make_sessions(const EngineConfig& config, std::optional<kv::PrefixConfig>& prefix) {
  if (!prefix) return {};
  if (prefix->tiering != nullptr && !config.tiers.disk_dir.empty()) {
    TRY_ASSIGN(session_files_, named("--kv-disk", kv::SessionFiles::open(config.tiers.disk_dir / "sessions")));
  }
  uint64_t table_bytes = config.sessions.most_table_bytes;
  if (fit_.limit) table_bytes = std::min(table_bytes, session_table_bytes(fit_.limit->bytes));
  sessions_ = std::make_unique<kv::Sessions>(kv::SessionConfig{.index = prefixes_.get(),
                                                               .pool = pool_.get(),
                                                               .clock = &clock_,
                                                               .tiering = prefix->tiering,
                                                               .keeper = session_files_.get(),
                                                               .ttl_us = config.sessions.ttl_us,
                                                               .most_sessions = config.sessions.most_sessions,
                                                               .most_table_bytes = table_bytes});
  prefix->sessions = sessions_.get();
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
  if (sessions_) sessions_->poll();
  scheduler_->next_step(plan_);
  if (plan_.empty()) return false;
  const weights::ModelConfig& config = model_->config();
  const models::Batch& batch = builder_.build(plan_, *scheduler_, groups_, config.n_heads / config.n_kv_heads,
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
  const sched::StepLoad load = plan_.load();
  record_ = {.step = record_.step + 1,
             .model = static_cast<uint32_t>(plan_.model.value),
             .begin_us = begin_us,
             .plan_us = elapsed_us(begin_us, planned_us),
             .forward_us = elapsed_us(planned_us, computed_us),
             .attention_us = static_cast<int32_t>(executor_->attention_us()),
             .sample_us = elapsed_us(computed_us, end_us),
             .prefill_rows = load.prefill_rows,
             .decode_rows = load.decode_rows,
             .sampled_rows = static_cast<int32_t>(results.size()),
             .preempted = static_cast<int32_t>(plan_.preempted.size()),
             .running = static_cast<int32_t>(stats.running),
             .waiting = static_cast<int32_t>(stats.waiting),
             .live_blocks = pool_->stats().live_blocks,
             .decode_context = load.decode_context,
             .predicted_us = static_cast<int32_t>(std::min(stats.predicted_us, 1e9)),
             .target_us = static_cast<int32_t>(std::min<int64_t>(stats.target_us, 1'000'000'000))};
  if (tiers_) tiers_->measure(plan_.model, record_);
  return true;
}

}  // namespace pagoda::engine
