#include "tools/idle_probe.h"

#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "base/log.h"
#include "engine/kv_probe.h"
#include "engine/memory_room.h"
#include "tools/kv_probing.h"

namespace pagoda::tools {
namespace {

constexpr double kMiB = 0x1p20;

// The probe runs on a thread of its own, but only while the engine thread waits for it: the two take turns.
class IdleProbe final : public engine::IdleWork {
 public:
  IdleProbe(const engine::StepRunner& loaded, engine::EngineConfig config, const Hash128& key)
      : loaded_(loaded), config_(std::move(config)), key_(key), thread_([this] { run(); }) {}
  ~IdleProbe() override {
    {
      const std::lock_guard lock(mutex_);
      is_stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  bool do_piece() override {
    std::unique_lock lock(mutex_);
    if (turn_ == Turn::kOver) return false;
    turn_ = Turn::kProbe;
    changed_.notify_all();
    changed_.wait(lock, [this] { return turn_ != Turn::kProbe; });
    return turn_ != Turn::kOver;
  }

 private:
  enum class Turn : uint8_t { kEngine, kProbe, kOver };

  // Between two pieces. False: it is to end.
  bool wait_for_turn() {
    std::unique_lock lock(mutex_);
    if (turn_ == Turn::kProbe) turn_ = Turn::kEngine;
    changed_.notify_all();
    changed_.wait(lock, [this] { return turn_ == Turn::kProbe || is_stopping_; });
    return !is_stopping_;
  }

  void run() {
    kernels::set_float_mode();
    const auto probe = probe_formats(config_, ProbeBeside{loaded_, [this] { return wait_for_turn(); }});
    if (probe) {
      keep(*probe);
    } else if (probe.error().code != ErrorCode::kCancelled) {
      LOG_WARN("KV formats were not measured in idle time: {}", probe.error().to_string());
    }
    const std::lock_guard lock(mutex_);
    turn_ = Turn::kOver;
    changed_.notify_all();
  }

  void keep(const engine::KvProbe& probe) const {
    if (const Status written = engine::write_probe(config_.probes.folder, key_, probe); !written) {
      LOG_WARN("KV formats were measured and cannot be kept: {}", written.error().to_string());
    } else {
      LOG_INFO("KV formats measured in idle time on {} tokens: auto will be {} from the next start on", probe.n_tokens,
               probe.table);
    }
  }

  const engine::StepRunner& loaded_;
  const engine::EngineConfig config_;
  const Hash128 key_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Turn turn_ = Turn::kEngine;  // guarded by mutex_, as what follows
  bool is_stopping_ = false;
  std::thread thread_;
};

// What may be taken beside what is served.
uint64_t room_beside(const engine::StepRunner& loaded) {
  const engine::MemoryFit& fit = loaded.fit();
  if (!fit.limit) return engine::available_memory_bytes() / 2;
  const uint64_t taken = fit.resident_bytes() + fit.burst_bytes + fit.traffic_bytes;
  return fit.limit->bytes - std::min(fit.limit->bytes, taken);
}

}  // namespace

std::function<std::unique_ptr<engine::IdleWork>(const engine::StepRunner&)> idle_probe(engine::EngineConfig config) {
  return [config = std::move(config)](const engine::StepRunner& loaded) -> std::unique_ptr<engine::IdleWork> {
    if (config.kv_format != "auto" || config.probes.folder.empty()) return nullptr;
    const auto gguf = weights::Gguf::open(config.model_path);
    if (!gguf) return nullptr;
    const auto key = engine::probe_key(*gguf, config.arithmetic);
    if (!key || engine::find_probe(config.probes, *key)) return nullptr;
    const uint64_t bytes = beside_bytes(loaded, *gguf, config), room = room_beside(loaded);
    if (bytes > room) {
      LOG_INFO(
          "KV formats are not measured in idle time: that takes {:.0f} MiB, and {:.0f} are free; pagoda inspect "
          "--probe does it",
          static_cast<double>(bytes) / kMiB, static_cast<double>(room) / kMiB);
      return nullptr;
    }
    LOG_INFO(
        "nothing to do: measuring in pieces which KV formats this model bears, for the next start; "
        "--kv-probe off leaves it out");
    return std::make_unique<IdleProbe>(loaded, config, *key);
  };
}

}  // namespace pagoda::tools
