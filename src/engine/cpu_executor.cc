#include <algorithm>
#include <cstring>

#include "engine/executor.h"
#include "models/forward.h"

namespace pagoda::engine {
namespace {

// One model as this executor runs it.
struct Instance {
  const models::Model* model;
  models::ForwardPlan plan;
  models::Workspace workspace;
};

class CpuExecutor final : public Executor {
 public:
  CpuExecutor(std::vector<Instance> instances, BlockStore& store, ThreadPool& pool, const kernels::KernelTable& kernels,
              kernels::Arithmetic arithmetic)
      : instances_(std::move(instances)), store_(store), pool_(pool), kernels_(kernels), arithmetic_(arithmetic) {}

  std::span<const SampleResult> run(std::span<const kv::BlockOp> ops, const models::Batch& batch) override {
    find_blocks(batch);
    Instance& instance = instances_[batch.model.value];
    {
      const ThreadPool::Step step(pool_);
      apply(ops, batch.model);
      const models::ExecContext context{kernels_, arithmetic_, pool_, instance.workspace};
      models::Forward forward(batch, addresses_, instance.plan, context);
      instance.model->forward(forward);
      attention_us_ = forward.attention_us();
    }
    return collect(batch, instance);
  }

  int64_t attention_us() const override { return attention_us_; }
  BlockStore& store() override { return store_; }

 private:
  // In list order, but neighbours that only zero their blocks together: memory that was never touched costs a millisecond or more
  // per 2 MiB, and neighbours lie on a page.
  void apply(std::span<const kv::BlockOp> ops, kv::ModelId model) {
    const auto zeroes = [](const kv::BlockOp& op) { return op.kind == kv::BlockOpKind::kZero; };
    while (!ops.empty()) {
      const auto n_zeroed = static_cast<size_t>(std::ranges::find_if_not(ops, zeroes) - ops.begin());
      if (n_zeroed < 2) {
        apply(ops.front(), model);
        ops = ops.subspan(1);
        continue;
      }
      pool_.run([&](int part) {
        const Slice share = slice_of(static_cast<int>(n_zeroed), 1, part, pool_.n_workers());
        for (int i = share.begin; i < share.end; ++i) apply(ops[static_cast<size_t>(i)], model);
      });
      ops = ops.subspan(n_zeroed);
    }
  }

  void apply(const kv::BlockOp& op, kv::ModelId model) {
    std::byte* to = store_.address(model, op.group, op.block);
    const size_t bytes = store_.block_bytes(model, op.group);
    switch (op.kind) {
      case kv::BlockOpKind::kZero:
        std::memset(to, 0, bytes);
        break;
      case kv::BlockOpKind::kCopy:
        kv::copy_tokens(instances_[model.value].plan.groups[op.group.value].layout, op.n_tokens,
                        store_.address(model, op.group, op.source), to);
        break;
    }
  }

  void find_blocks(const models::Batch& batch) {
    addresses_.resize(batch.groups.size());
    for (size_t g = 0; g < batch.groups.size(); ++g) {
      addresses_[g].clear();
      for (const kv::BlockId block : batch.groups[g].blocks) {
        addresses_[g].push_back(
            block.is_none() ? nullptr : store_.address(batch.model, kv::GroupId(static_cast<uint32_t>(g)), block));
      }
    }
  }

  std::span<const SampleResult> collect(const models::Batch& batch, const Instance& instance) {
    const auto vocab = static_cast<size_t>(instance.model->config().vocab_size);
    const auto n_tiles = static_cast<size_t>(instance.workspace.n_logit_tiles());
    results_.clear();
    for (size_t i = 0; i < batch.samples.size(); ++i) {
      const std::span<const kernels::LogitTile> tiles(instance.workspace.tiles + i * n_tiles, n_tiles);
      const std::span<const float> logits(instance.workspace.logits + i * vocab, vocab);
      const bool whole = batch.samples[i].mode == models::SampleMode::kLogits;
      results_.push_back({batch.samples[i].row, TokenId(kernels::largest_tile(tiles).index),
                          whole ? logits : std::span<const float>(), tiles});
    }
    return results_;
  }

  std::vector<Instance> instances_;  // by ModelId
  BlockStore& store_;
  ThreadPool& pool_;
  const kernels::KernelTable& kernels_;
  const kernels::Arithmetic arithmetic_;
  models::BlockAddresses addresses_;
  std::vector<SampleResult> results_;
  int64_t attention_us_ = 0;
};

}  // namespace

Result<std::unique_ptr<Executor>> make_cpu_executor(std::span<const ExecutedModel> models, BlockStore& store,
                                                    ThreadPool& pool, const kernels::KernelTable& kernels,
                                                    kernels::Arithmetic arithmetic, ExecutorLimits limits) {
  const models::StepLimits step{limits.max_rows, limits.max_samples, limits.max_context, pool.n_workers()};
  std::vector<Instance> instances;
  for (const auto& [model, groups] : models) {
    TRY_ASSIGN(models::Workspace workspace, models::Workspace::make(model->config(), step));
    instances.push_back({model, models::ForwardPlan(model->config(), groups, step), std::move(workspace)});
  }
  return std::make_unique<CpuExecutor>(std::move(instances), store, pool, kernels, arithmetic);
}

}  // namespace pagoda::engine
