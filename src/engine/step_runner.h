// StepRunner: loaded models, one block arena, one scheduler and one executor, run a step at a time by whoever calls step(): the engine's
// thread, `pagoda eval`, or a test that wants to see every logit.
// Owns: everything a step needs.     Threads: one, which becomes compute worker 0; stats from any.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/thread_pool.h"
#include "engine/batch_builder.h"
#include "engine/config.h"
#include "engine/executor.h"
#include "engine/kv_tiers.h"
#include "engine/memory_fit.h"
#include "engine/records.h"
#include "kv/accounting.h"
#include "kv/cache.h"
#include "kv/session_files.h"
#include "kv/session_transfer.h"
#include "kv/sessions.h"
#include "models/model.h"
#include "sched/scheduler.h"

namespace pagoda::engine {

// Who reads a step's logits.
class LogitsReader {
 public:
  virtual ~LogitsReader() = default;
  // Before the step: what it computes, and since when.
  virtual void begin(const sched::StepPlan&, int64_t /*now_us*/) {}
  // Before the step: whether the sampling row of this sequence needs its logits, or only the largest one's index.
  virtual models::SampleMode mode_of(sched::SeqId seq) = 0;
  // After it: the last rows.n_logits rows of the sequence, by position. May call Scheduler::finish.
  virtual sched::StepOutcome read(const sched::SeqRows& rows, std::span<const SampleResult> results) = 0;
};

class StepRunner {
 public:
  // Loads the model and sizes its cache (memory_fit.h). `wake`: by the tiers' threads, when step() may do something again.
  // The model's files, opened once for all that reads their head.
  struct ModelFile {
    weights::Gguf gguf;
    std::vector<FileStamp> stamps;  // from before they were read; none where prefixes are not cached
  };
  static Result<ModelFile> open(const EngineConfig& config);
  static Result<std::unique_ptr<StepRunner>> create(const ModelFile& file, const EngineConfig& config,
                                                    const Clock& clock, std::function<void()> wake);
  static Result<std::unique_ptr<StepRunner>> create(
      const EngineConfig& config, const Clock& clock, std::function<void()> wake = [] {});
  // The same model beside `loaded`, on its weights and threads, with a cache of its own: config differs in KV format, arithmetic, context or
  // budget only. `kernels` outlives it. Of the two, one steps at a time, from the same thread; either may go first.
  static Result<std::unique_ptr<StepRunner>> create_beside(const StepRunner& loaded, const EngineConfig& config,
                                                           const Clock& clock, const kernels::KernelTable& kernels);

  // Plans, computes and commits one step; false if there was nothing to compute. plan() then says what was planned, preempted and ended.
  bool step(LogitsReader& reader);
  const sched::StepPlan& plan() const { return plan_; }
  const StepRecord& record() const { return record_; }
  // Some milliseconds of work ahead of the next request. False: there was none.
  bool prepare() { return store_->touch_ahead(pool_->used_extents()); }
  // Fetches what the tiers have finished. True: blocks are still on their way to one.
  bool is_storing();

  sched::Scheduler& scheduler() { return *scheduler_; }
  const sched::Scheduler& scheduler() const { return *scheduler_; }
  const kv::BlockPool& pool() const { return *pool_; }
  const kv::Cache& cache() const { return *cache_; }
  kv::PrefixIndex* prefixes() { return prefixes_.get(); }     // null: off
  KvTiers* tiers() const { return tiers_.get(); }             // null: none
  kv::Sessions* sessions() const { return sessions_.get(); }  // null: prefixes are not cached
  kv::SessionTransfer::Memory session_memory() {
    return {*pool_, *prefixes_, *store_, *sessions_, tiers_ ? &tiers_->tiering() : nullptr};
  }
  const std::vector<FileStamp>& files() const { return files_; }
  kernels::Arithmetic arithmetic() const { return arithmetic_; }
  // Between steps.
  kv::Account account() const;
  kv::BlockMapPage block_map_page(uint64_t page) const;
  const models::Model& model() const { return *model_; }
  // How K and V are stored: this, and not the model's own, where it was made beside another.
  std::span<const models::AttentionGroup> groups() const { return groups_; }
  size_t kv_bytes_per_token() const;
  ThreadPool& threads() const { return *threads_; }
  const kernels::KernelTable& kernels() const { return *kernels_; }
  const MemoryFit& fit() const { return fit_; }
  int context_tokens() const { return context_tokens_; }  // prompt and answer together
  kv::ModelId model_id() const { return kv::ModelId(0); }

 private:
  StepRunner(const Clock& clock, std::function<void()> wake) : clock_(clock), wake_(std::move(wake)) {}
  Status load(const ModelFile& file, const EngineConfig& config);
  Status fit_to_memory(const weights::Gguf& gguf, const EngineConfig& config);
  Status make_cache(const EngineConfig& config);
  void say_sizes(const EngineConfig& config) const;  // on the log
  Error too_little_kv() const;
  std::optional<kv::PrefixConfig> make_prefixes(const EngineConfig& config);
  Status make_sessions(const EngineConfig& config, std::optional<kv::PrefixConfig>& prefix);
  Status make_tiers(const EngineConfig& config, std::optional<kv::PrefixConfig>& prefix);

  const Clock& clock_;
  std::function<void()> wake_;
  const kernels::KernelTable* kernels_ = nullptr;
  std::shared_ptr<ThreadPool> threads_;
  MemoryFit fit_;
  std::shared_ptr<const models::Model> model_;
  std::vector<models::AttentionGroup> groups_;
  Hash128 root_;                  // model_root.h
  std::vector<FileStamp> files_;  // the model's, where prefixes are cached
  kernels::Arithmetic arithmetic_ = kernels::Arithmetic::kInt8;
  std::unique_ptr<kv::BlockPool> pool_;
  std::unique_ptr<kv::PrefixIndex> prefixes_;  // null: off
  std::unique_ptr<kv::ReuseDistance> reuse_;   // null: off
  std::unique_ptr<BlockStore> store_;
  std::unique_ptr<KvTiers> tiers_;                   // null: none
  std::unique_ptr<kv::SessionFiles> session_files_;  // null: sessions end with the process
  std::unique_ptr<kv::Sessions> sessions_;           // null: off
  std::unique_ptr<kv::Cache> cache_;
  std::unique_ptr<Executor> executor_;
  sched::AgedPriority policy_{sched::kAgeUs};
  std::unique_ptr<sched::Scheduler> scheduler_;
  BatchBuilder builder_;
  sched::StepPlan plan_;
  std::vector<sched::StepOutcome> outcomes_;
  StepRecord record_;
  int context_tokens_ = 0;
};

}  // namespace pagoda::engine
