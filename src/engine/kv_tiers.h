// KvTiers: the tiers of an engine, as its options say: opens the stores, waits for the digest without which they are not used, and feeds
// the measurements that loading is decided by.
// Owns: the stores, kv::Tiering, the digest's thread.   Threads: engine thread, but for stats().
// Errors: open() says why a tier cannot be used; later a tier that fails is one that has nothing.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/config.h"
#include "engine/engine.h"
#include "engine/file_digest.h"
#include "engine/records.h"
#include "kv/tiering.h"
#include "models/blocks.h"

namespace pagoda::engine {

class KvTiers {
 public:
  // What the stores work on; all outlive it.
  struct Memory {
    kv::BlockPool& pool;
    kv::PrefixIndex& index;
    kv::BlockIo& arena;
    const Clock& clock;
  };
  // What the tiers may take (memory_fit.h), and of which blocks.
  struct Limits {
    std::span<const models::AttentionGroup> groups;
    uint64_t staging_bytes = 0;
    uint64_t most_disk_bytes = 0;  // where the options do not say; 0: what is free decides
  };
  // Null where the options name no tier. `wake`: by the tiers' threads, whenever poll() has something to do.
  static Result<std::unique_ptr<KvTiers>> open(const TierConfig& config, Limits limits, const Memory& memory,
                                               std::function<void()> wake);

  kv::Tiering& tiering() { return *tiering_; }

  // The model's blocks are stored and loaded as soon as the digest of `files` is known. After its cache was made.
  void use(kv::ModelId model, std::vector<FileStamp> files, std::span<const models::AttentionGroup> groups,
           kernels::Arithmetic arithmetic);
  // Between steps.
  void poll();
  // Its files have no digest, and will have none: nothing is stored or loaded.
  bool is_lost(kv::ModelId model) const;
  // After a step of the model.
  void measure(kv::ModelId model, const StepRecord& step);

  // Whether blocks are on their way to a tier.
  bool is_storing() const { return tiering_->is_storing(); }

  // Any thread.
  std::span<const std::string> names() const { return names_; }  // of the tiers, the fastest first
  std::vector<TierReport> report() const;
  kv::TieringStats stats() const { return tiering_->stats(); }

 private:
  KvTiers() = default;
  struct Waiting {
    kv::ModelId model;
    std::unique_ptr<FileDigest> digest;
    std::vector<std::byte> computation;  // model_root.h
  };

  std::filesystem::path memory_;  // of digests; empty: none
  std::function<void()> wake_;
  std::vector<std::string> names_;  // of the stores
  std::vector<Waiting> waiting_;
  double us_per_token_ = 0;
  std::unique_ptr<kv::Tiering> tiering_;
};

}  // namespace pagoda::engine
