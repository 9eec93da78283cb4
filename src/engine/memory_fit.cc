#include "engine/memory_fit.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/cpu.h"
#include "engine/memory_plan.h"
#include "engine/memory_room.h"
#include "engine/traffic_memory.h"
#include "models/exec_context.h"
#include "models/kv_plan.h"
#include "text/tokenizer.h"
#include "weights/repack.h"

namespace pagoda::engine {
namespace {

using models::AttentionGroup;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kNoLimit = std::numeric_limits<uint64_t>::max() / 4;
constexpr uint64_t kProgramBytes = 16 * kMiB;  // code, libraries, stacks, records
constexpr uint64_t kHugePageBytes = 4 * kMiB;  // of a step's activations: pages that logits share with the rest
constexpr uint64_t kIndexBytes = 384;          // of the prefix index and of descriptors, by block (kv/prefix_index.h)
constexpr uint64_t kRedisBytes = 24 * kMiB;    // batches on their way, as hiredis copies them
constexpr uint64_t kDiskTransfers = 32;        // under way, each in a buffer of its own
constexpr uint64_t kCatalogueBytes = 256;      // of a disk tier's object
constexpr uint64_t kStagingBytes = 32 * kMiB;
constexpr uint64_t kTrafficShare = 16;  // of a limit
constexpr uint64_t kLogitsShare = 32;   // of a limit, at most; staging and catalogue: as much each
constexpr uint64_t kPartShare = 32;
constexpr uint64_t kMostFixedBytes = 64 * kMiB, kMostEntryBytes = 400;
constexpr int kLeastLogits = 4;                          // rows of one step
constexpr int kUsualLogits = 33;                         // however much of the most overhead activations take
constexpr int kMinContextTokens = 2 * kv::kBlockTokens;  // a budget that leaves less serves nobody
constexpr int kSmallerSteps[] = {128, 64, 32};

double mib(uint64_t bytes) { return static_cast<double>(bytes) / 0x1p20; }

sched::SchedConfig sched_config(const EngineConfig& config) {
  sched::SchedConfig out;
  out.step_tokens = config.step_tokens;
  out.chunk_tokens = config.chunk_tokens;
  out.max_waiting = config.max_queued;
  out.max_running = config.max_running;
  out.max_logits = std::max(out.max_logits, out.max_running + 1);
  out.target_us = config.target_itl_us;
  out.kv_reuse = config.kv_reuse == KvReuse::kOn ? sched::KvReuse::kOn : sched::KvReuse::kOff;
  return out;
}

// The smallest n in (low, high] for which holds(n), which is false at low, true at high and changes once.
template <typename Holds>
uint64_t smallest(uint64_t low, uint64_t high, const Holds& holds) {
  while (high - low > 1) {
    const uint64_t middle = low + (high - low) / 2;
    (holds(middle) ? high : low) = middle;
  }
  return high;
}

// One way to serve.
struct Way {
  std::string format{};
  std::vector<AttentionGroup> groups{};
  size_t extent_bytes = 0;
  size_t least_block_bytes = 0;
  size_t most_block_bytes = 0;
  size_t whole_block_bytes = 0;  // a block of each group
  int step_tokens = 0;
  int quiet_factor = 1;
  int prefill_rows() const { return step_tokens * quiet_factor; }
};

class Fitter {
 public:
  Fitter(const FitModel& model, const EngineConfig& config, std::optional<MemoryLimit> limit, uint64_t available_bytes)
      : model_(model), config_(config), limit_(limit), available_bytes_(available_bytes) {
    const int trained = model.config.context_length;
    wanted_ = std::min(config.context_tokens.value_or(trained), trained);
    least_ = std::min(wanted_, kMinContextTokens);
  }

  Result<MemoryFit> fit() {
    TRY(list_ways());
    const uint64_t limit = limit_ ? limit_->bytes : kNoLimit;
    target_ = longest(wanted_, [&](int n) {
      return !config_.kv_memory_bytes || needed(ways_.front(), n) <= *config_.kv_memory_bytes;
    });
    const auto whole = std::ranges::find_if(ways_, [&](const Way& way) { return holds(way, target_, limit); });
    if (whole != ways_.end()) return describe(*whole, target_, limit);
    const Way& last = ways_.back();
    if (!holds(last, least_, limit)) {
      MemoryFit fit = describe(last, least_, limit);
      fit.is_enough = false;
      return fit;
    }
    return describe(last, longest(target_, [&](int n) { return holds(last, n, limit); }), limit);
  }

 private:
  // What is not KV, under a limit.
  struct Rest {
    sched::SchedConfig schedule{};
    uint64_t overhead_bytes = 0;
    uint64_t burst_bytes = 0;
    uint64_t traffic_bytes = 0;
    uint64_t staging_bytes = 0;
    uint64_t most_disk_bytes = 0;
  };

  // Best first. Steps shrink only where there is a limit.
  Status list_ways() {
    for (const std::string& format : model_.formats) {
      TRY_ASSIGN(std::vector<AttentionGroup> groups, model_.groups_of(format));
      Way way{.format = format,
              .groups = std::move(groups),
              .least_block_bytes = ~size_t{0},
              .step_tokens = config_.step_tokens,
              .quiet_factor = kQuietFactor};
      for (const AttentionGroup& group : way.groups) {
        way.least_block_bytes = std::min(way.least_block_bytes, group.layout.block_bytes);
        way.most_block_bytes = std::max(way.most_block_bytes, group.layout.block_bytes);
        way.whole_block_bytes += group.layout.block_bytes;
      }
      way.extent_bytes = extent_bytes_of(way.groups);
      ways_.push_back(way);
      way.quiet_factor = 1;
      if (limit_) ways_.push_back(way);
      for (const int step_tokens : kSmallerSteps) {
        if (!limit_ || step_tokens >= config_.step_tokens) continue;
        way.step_tokens = step_tokens;
        ways_.push_back(way);
      }
    }
    return {};
  }

  // The longest context up to `most` that fits; least_ where none does.
  int longest(int most, const std::function<bool(int n_tokens)>& fits) const {
    if (fits(most)) return most;
    return static_cast<int>(smallest(static_cast<uint64_t>(least_), static_cast<uint64_t>(most),
                                     [&](uint64_t n) { return !fits(static_cast<int>(n)); })) -
           1;
  }

  uint64_t part_of(uint64_t limit, uint64_t least, uint64_t most) const {
    return limit_ ? std::clamp(limit / kPartShare, least, std::max(least, most)) : most;
  }

  // A session's part, of at least one block of each group, must fit into a body.
  uint64_t traffic_of(const Way& way, int context_tokens, uint64_t limit) const {
    if (!limit_) return kMostTrafficBytes;
    const uint64_t least = TrafficMemory::least_bytes(way.whole_block_bytes, context_tokens);
    return std::clamp(limit / kTrafficShare, std::min(least, kMostTrafficBytes), kMostTrafficBytes);
  }

  void add_tiers(const Way& way, uint64_t limit, Rest& rest) const {
    if (!has_tiers(config_)) return;
    rest.staging_bytes = part_of(limit, 4 * way.most_block_bytes, kStagingBytes);
    rest.overhead_bytes += rest.staging_bytes;
    if (!config_.tiers.redis_url.empty()) rest.overhead_bytes += kRedisBytes;
    if (config_.tiers.disk_dir.empty()) return;
    const uint64_t objects = part_of(limit, kMiB, kNoLimit) / kCatalogueBytes;
    if (limit_) rest.most_disk_bytes = objects * way.least_block_bytes;
    const uint64_t disk_bytes = config_.tiers.disk_bytes > 0 ? config_.tiers.disk_bytes : rest.most_disk_bytes;
    rest.overhead_bytes += kDiskTransfers * way.most_block_bytes + disk_bytes / way.least_block_bytes * kCatalogueBytes;
  }

  Rest rest_of(const Way& way, int context_tokens, uint64_t limit) const {
    Rest rest{.schedule = sched_config(config_), .overhead_bytes = kProgramBytes + model_.tokenizer_bytes};
    sched::SchedConfig& schedule = rest.schedule;
    schedule.step_tokens = way.step_tokens;
    schedule.quiet_factor = way.quiet_factor;
    if (way.step_tokens < config_.step_tokens) schedule.max_running = std::min(schedule.max_running, way.step_tokens);
    const int n_threads = config_.n_threads > 0 ? config_.n_threads : usable_cores();
    const int n_rows = schedule.max_step_rows();
    const auto workspace = [&](int n_logits) {
      return uint64_t{models::Workspace::bytes_for(model_.config, {n_rows, n_logits, context_tokens, n_threads})};
    };
    rest.overhead_bytes += workspace(0) + kHugePageBytes;
    const uint64_t sessions = limit_ && has_prefixes(config_) ? session_table_bytes(limit) : 0;
    rest.traffic_bytes = traffic_of(way, context_tokens, limit);
    const uint64_t most = most_overhead_bytes(model_.config);
    const uint64_t row_bytes = workspace(1) - workspace(0);
    const uint64_t left = most - std::min(most, rest.overhead_bytes + sessions);
    const uint64_t logits_room = std::min(limit / kLogitsShare, std::max(left, kUsualLogits * row_bytes));
    const auto n_logits = static_cast<int>(
        std::clamp<uint64_t>(logits_room / row_bytes, kLeastLogits, static_cast<uint64_t>(n_rows) + 1));
    schedule.max_logits = n_logits;
    schedule.max_running = std::min(schedule.max_running, n_logits - 1);
    rest.burst_bytes = sessions + workspace(n_logits) - workspace(0);
    add_tiers(way, limit, rest);  // last: their buffers are no reason to run fewer sequences
    return rest;
  }

  // For K and V: the prefix index takes its part of what is left.
  uint64_t kv_room(const Way& way, const Rest& rest, uint64_t limit) const {
    const uint64_t others = model_.weight_bytes + rest.overhead_bytes + rest.burst_bytes + rest.traffic_bytes;
    const double left = static_cast<double>(limit - std::min(limit, others));
    return static_cast<uint64_t>(std::max(0.0, left / (1 + index_share(way)) - 1));
  }
  double index_share(const Way& way) const {
    return has_prefixes(config_) ? static_cast<double>(kIndexBytes) / static_cast<double>(way.least_block_bytes) : 0;
  }

  // KV of one sequence, whose chunks are whole steps.
  uint64_t needed(const Way& way, int context_tokens) const {
    return least_budget_bytes(way.groups, context_tokens, way.prefill_rows(), way.extent_bytes);
  }

  bool holds(const Way& way, int context_tokens, uint64_t limit) const {
    const uint64_t room = kv_room(way, rest_of(way, context_tokens, limit), limit);
    return std::max(needed(way, context_tokens), config_.kv_memory_bytes.value_or(0)) <= room;
  }

  uint64_t least_limit(const Way& way, int context_tokens) const {
    uint64_t high = model_.weight_bytes + kMiB;
    while (high < kNoLimit && !holds(way, context_tokens, high)) high *= 2;
    return smallest(0, high, [&](uint64_t limit) { return holds(way, context_tokens, limit); });
  }

  MemoryFit describe(const Way& way, int context_tokens, uint64_t limit) const {
    const Rest rest = rest_of(way, context_tokens, limit);
    MemoryFit fit{.kv_format = way.format,
                  .context_tokens = context_tokens,
                  .wanted_tokens = wanted_,
                  .schedule = rest.schedule,
                  .extent_bytes = way.extent_bytes,
                  .weight_bytes = model_.weight_bytes,
                  .overhead_bytes = rest.overhead_bytes,
                  .burst_bytes = rest.burst_bytes,
                  .traffic_bytes = rest.traffic_bytes,
                  .staging_bytes = rest.staging_bytes,
                  .most_disk_bytes = rest.most_disk_bytes,
                  .limit = limit_,
                  .context_bytes = context_bytes(way.groups, wanted_, way.prefill_rows()),
                  .least_context_tokens = least_};
    const uint64_t room = kv_room(way, rest, limit);
    const uint64_t least = needed(way, least_);
    if (config_.kv_memory_bytes) {
      fit.kv_bytes = *config_.kv_memory_bytes;
    } else if (config_.memory_bytes) {
      fit.kv_bytes = std::max(room, least);
    } else {  // small contexts in large extents
      fit.kv_bytes = std::max(least, std::min(room, auto_budget_bytes(fit.context_bytes, available_bytes_)));
    }
    fit.overhead_bytes += static_cast<uint64_t>(std::ceil(static_cast<double>(fit.kv_bytes) * index_share(way)));
    if (!limit_) return fit;
    const uint64_t sum = fit.resident_bytes() + fit.burst_bytes + fit.traffic_bytes;
    if (config_.memory_bytes && !config_.kv_memory_bytes && sum < limit)
      fit.kv_bytes += limit - sum;  // what rounding left
    fit.least_limit_bytes = least_limit(ways_.back(), least_);
    fit.whole_limit_bytes = least_limit(ways_.front(), target_);
    return fit;
  }

  const FitModel& model_;
  const EngineConfig& config_;
  const std::optional<MemoryLimit> limit_;
  const uint64_t available_bytes_;
  int wanted_ = 0;
  int target_ = 0;  // what --kv-memory leaves of it
  int least_ = 0;
  std::vector<Way> ways_;
};

uint64_t count_of(const weights::Gguf& gguf, std::string_view key) {
  const weights::GgufValue* value = gguf.find_value(key);
  return value == nullptr ? 0 : value->count;
}

}  // namespace

Result<FitModel> fit_model(const weights::Gguf& gguf, std::string_view format) {
  FitModel model;
  TRY_ASSIGN(model.config, weights::read_model_config(gguf));
  for (const weights::TensorInfo& tensor : gguf.tensors()) {
    if (tensor.dtype && tensor.name != "rope_freqs.weight")
      model.weight_bytes += weights::held_bytes(*tensor.dtype, tensor.n_dims, tensor.rows(), tensor.cols());
  }
  const weights::GgufValue* tokens = gguf.find_value("tokenizer.ggml.tokens");
  if (tokens != nullptr) {
    model.tokenizer_bytes = text::Tokenizer::memory_bytes(tokens->count, tokens->bytes.size() - 8 * tokens->count,
                                                          count_of(gguf, "tokenizer.ggml.merges"));
  }
  const weights::ModelConfig config = model.config;
  model.groups_of = [&gguf, config](std::string_view name) { return models::plan_groups(gguf, config, name); };
  model.formats = models::fitting_formats(format);
  return model;
}

std::optional<MemoryLimit> memory_limit(const EngineConfig& config) {
  if (config.memory_bytes) return MemoryLimit{*config.memory_bytes, MemoryLimit::Source::kOption};
  if (const auto group = cgroup_memory()) return MemoryLimit{group->room_bytes(), MemoryLimit::Source::kCgroup};
  return std::nullopt;
}

Result<MemoryFit> fit_memory(const FitModel& model, const EngineConfig& config, std::optional<MemoryLimit> limit,
                             uint64_t available_bytes) {
  return Fitter(model, config, limit, available_bytes).fit();
}

MemoryFit fit_beside(const MemoryFit& loaded, std::span<const AttentionGroup> groups, const EngineConfig& config) {
  MemoryFit fit = loaded;
  fit.kv_format = config.kv_format;
  fit.context_tokens = std::min(config.context_tokens.value_or(loaded.context_tokens), loaded.context_tokens);
  fit.schedule.step_tokens = std::min(loaded.schedule.step_tokens, config.step_tokens);
  fit.schedule.chunk_tokens = config.chunk_tokens;
  fit.extent_bytes = extent_bytes_of(groups);
  fit.kv_bytes = least_budget_bytes(groups, fit.context_tokens, fit.schedule.max_prefill_rows(), fit.extent_bytes);
  fit.limit.reset();
  return fit;
}

uint64_t most_overhead_bytes(const weights::ModelConfig& config) {
  return kMostFixedBytes + kMostEntryBytes * static_cast<uint64_t>(config.vocab_size);
}

std::string MemoryFit::statement() const {
  return fmt::format(
      "memory: {:.1f} MiB of weights + {:.1f} MiB of overhead + {:.1f} MiB of KV = {:.1f} MiB resident at most, and up "
      "to {:.1f} MiB more while {} sequences sample at once; clients' requests and unread answers take up to {:.1f} "
      "MiB beside, a body up to {} KiB",
      mib(weight_bytes), mib(overhead_bytes), mib(kv_bytes), mib(resident_bytes()), mib(burst_bytes),
      schedule.max_running, mib(traffic_bytes), TrafficMemory::most_body_bytes(traffic_bytes) >> 10);
}

std::string MemoryFit::choice() const {
  std::string more;
  if (whole_limit_bytes > limit->bytes) {
    more = fmt::format("from {:.1f} MiB on nothing is cut", mib(whole_limit_bytes + kMiB / 20));
  } else {
    more = fmt::format("each {:.1f} MiB more hold another {} tokens", mib(context_bytes), wanted_tokens);
  }
  return fmt::format(
      "memory limit of {:.1f} MiB ({}): context {} of {} tokens, KV as {}, steps of {} rows ({} while no stream "
      "waits); {}",
      mib(limit->bytes), limit->source == MemoryLimit::Source::kOption ? "--memory" : "cgroup", context_tokens,
      wanted_tokens, kv_format, schedule.step_tokens, schedule.max_prefill_rows(), more);
}

std::string MemoryFit::cut(const EngineConfig& config, int trained_tokens, int served_tokens) const {
  const int asked = config.context_tokens.value_or(0);
  if (asked <= served_tokens) return {};
  std::string why;
  if (asked > trained_tokens) why = fmt::format("the model was trained for {}", trained_tokens);
  if (served_tokens < std::min(asked, trained_tokens)) {
    const bool by_limit = limit && !config.kv_memory_bytes && served_tokens == context_tokens;
    const char* source = !by_limit                                       ? "--kv-memory"
                         : limit->source == MemoryLimit::Source::kOption ? "--memory"
                                                                         : "the cgroup's limit";
    why += fmt::format("{}{} of {:.1f} MiB holds {}", why.empty() ? "" : ", and ", source,
                       mib(by_limit ? limit->bytes : kv_bytes), served_tokens);
  }
  return fmt::format("context of {} tokens asked for, serving {}: {}", asked, served_tokens, why);
}

Error MemoryFit::error() const {
  const bool is_option = limit->source == MemoryLimit::Source::kOption;
  return {ErrorCode::kResourceExhausted,
          fmt::format(
              "{} of {} bytes ({:.1f} MiB) is too little: weights take {:.1f} MiB, overhead {:.1f}, many requests at "
              "once {:.1f}, their texts and answers {:.1f}, and {} tokens of KV as {} {:.1f}; at least {} bytes "
              "({:.1f} MiB) are needed, and {} "
              "({:.1f} MiB) for a context of {} tokens with nothing cut",
              is_option ? "a limit" : "the cgroup's limit", limit->bytes, mib(limit->bytes), mib(weight_bytes),
              mib(overhead_bytes), mib(burst_bytes), mib(traffic_bytes), least_context_tokens, kv_format, mib(kv_bytes),
              least_limit_bytes, mib(least_limit_bytes), whole_limit_bytes, mib(whole_limit_bytes), wanted_tokens),
          is_option ? "--memory" : ""};
}

}  // namespace pagoda::engine
