#include "engine/kv_tiers.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/named.h"
#include "engine/model_root.h"
#include "kv/tier_disk.h"
#include "kv/tier_redis.h"

namespace pagoda::engine {
namespace {

constexpr int32_t kLeastRows = 32;     // of a step that is measured: fewer are bound by the weights
constexpr double kNewestShare = 0.25;  // of a moving average
constexpr uint64_t kFreeShare = 4;     // of the disk's free room, by default
constexpr uint64_t kMostBytes = uint64_t{64} << 30;

// Requires that the folder is there.
Result<uint64_t> disk_budget(const TierConfig& config, uint64_t most_bytes) {
  if (config.disk_bytes > 0) return config.disk_bytes;
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(config.disk_dir, error);
  if (error)
    return fail(Error{ErrorCode::kIo,
                      fmt::format("cannot look at the disk of {}: {}", config.disk_dir.string(), error.message()),
                      "--kv-disk"});
  return std::min(static_cast<uint64_t>(space.available) / kFreeShare, most_bytes > 0 ? most_bytes : kMostBytes);
}

// A block of each group, with a segment's head and records beside (kv/tier_format.h).
Status check_disk_bytes(const TierConfig& config, uint64_t disk_bytes, std::span<const models::AttentionGroup> groups) {
  constexpr uint64_t kSegmentBytes = 16 << 10;
  uint64_t least = 0;
  for (const models::AttentionGroup& group : groups) least += group.layout.block_bytes + kSegmentBytes;
  if (disk_bytes >= least) return {};
  if (config.disk_bytes == 0) {
    return fail(Error{ErrorCode::kResourceExhausted,
                      fmt::format("the disk of {} has too little room: {} bytes may be taken of what is free, and this "
                                  "model's blocks need {} at least; name a folder on another disk",
                                  config.disk_dir.string(), disk_bytes, least),
                      "--kv-disk"});
  }
  return fail(Error{ErrorCode::kInvalidArgument,
                    fmt::format("{} bytes hold no block of this model: at least {} are needed", disk_bytes, least),
                    "--kv-disk-size"});
}

// For blocks of sliding windows: a quarter, as in RAM, beside layers that see everything. What other models left in the folder goes first.
uint64_t replay_budget(uint64_t disk_bytes, std::span<const models::AttentionGroup> groups) {
  const auto n_windows = std::ranges::count_if(groups, [](const auto& group) { return group.window > 0; });
  if (n_windows == 0) return 0;
  return static_cast<size_t>(n_windows) == groups.size() ? disk_bytes : disk_bytes / 4;
}

}  // namespace

Result<std::unique_ptr<KvTiers>> KvTiers::open(const TierConfig& config, Limits limits, const Memory& memory,
                                               std::function<void()> wake) {
  if (!config.is_used()) return nullptr;
  std::unique_ptr<KvTiers> tiers(new KvTiers());
  tiers->wake_ = std::move(wake);
  tiers->tiering_ = std::make_unique<kv::Tiering>(memory.pool, memory.index, memory.arena, memory.clock,
                                                  kv::TieringConfig{.staging_bytes = limits.staging_bytes});
  kv::Tiering& tiering = *tiers->tiering_;
  const std::filesystem::path folder = config.disk_dir.empty() ? config.secret.parent_path() : config.disk_dir;
  if (!config.disk_dir.empty() || !config.secret.empty()) tiers->memory_ = folder / "model-digests";
  if (!config.disk_dir.empty()) {
    kv::DiskTierConfig disk{.dir = config.disk_dir.string(), .write_bytes_per_s = config.disk_write_bytes_per_s};
    TRY(named("--kv-disk", kv::DiskTier::check_dir(disk.dir)));
    TRY_ASSIGN(disk.budget_bytes, disk_budget(config, limits.most_disk_bytes));
    TRY(check_disk_bytes(config, disk.budget_bytes, limits.groups));
    disk.replay_budget_bytes = replay_budget(disk.budget_bytes, limits.groups);
    TRY_ASSIGN(auto store, named("--kv-disk", kv::DiskTier::open(std::move(disk), tiering.io(), tiers->wake_)));
    const kv::TierStats stats = store->stats();
    LOG_INFO("KV disk tier: {} holds {} blocks, {:.1f} of {:.1f} MiB, by {}", config.disk_dir.string(), stats.objects,
             static_cast<double>(stats.used_bytes) / 0x1p20, static_cast<double>(stats.budget_bytes) / 0x1p20,
             store->io_name());
    tiering.add_store(std::move(store));
    tiers->names_.emplace_back("disk");
  }
  if (!config.redis_url.empty()) {
    kv::RedisTierConfig redis;
    TRY_ASSIGN(redis.address, named("--kv-redis", kv::parse_redis_url(config.redis_url)));
    redis.ttl_seconds = config.redis_ttl_seconds;
    LOG_INFO("KV Redis tier: {}", redis.address.to_string());
    tiering.add_store(std::make_unique<kv::RedisTier>(std::move(redis), tiering.io(), tiers->wake_));
    tiers->names_.emplace_back("redis");
  }
  return tiers;
}

void KvTiers::use(kv::ModelId model, std::vector<FileStamp> files, std::span<const models::AttentionGroup> groups,
                  kernels::Arithmetic arithmetic) {
  waiting_.push_back({model, std::make_unique<FileDigest>(std::move(files), memory_, wake_),
                      describe_computation(groups, arithmetic)});
  poll();
}

void KvTiers::poll() {
  std::erase_if(waiting_, [this](Waiting& waiting) {
    const std::optional<Sha256> digest = waiting.digest->take();
    if (!digest) return false;
    tiering_->set_identity(waiting.model, model_identity(std::move(waiting.computation), *digest));
    LOG_DEBUG("the KV tiers know the model's files: {}", to_hex(*digest));
    return true;
  });
}

bool KvTiers::is_lost(kv::ModelId model) const {
  const auto is_it = [&](const Waiting& waiting) { return waiting.model == model && waiting.digest->has_failed(); };
  return std::ranges::any_of(waiting_, is_it);
}

void KvTiers::measure(kv::ModelId model, const StepRecord& step) {
  const int32_t rows = step.prefill_rows + step.decode_rows;
  if (step.prefill_rows < kLeastRows) return;
  const double us = static_cast<double>(step.plan_us + step.forward_us + step.sample_us) / rows;
  us_per_token_ = us_per_token_ == 0 ? us : us_per_token_ + kNewestShare * (us - us_per_token_);
  tiering_->set_compute_cost(model, us_per_token_);
}

std::vector<TierReport> KvTiers::report() const {
  std::vector<TierReport> reports;
  const kv::TieringStats stats = tiering_->stats();
  for (size_t i = 0; i < names_.size(); ++i) {
    reports.push_back({names_[i], tiering_->store_stats(i), stats.loaded_bytes[i], stats.restored_tokens[i]});
  }
  return reports;
}

}  // namespace pagoda::engine
