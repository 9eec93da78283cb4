#include "kv/tier_disk.h"

#include "base/log.h"
#include "kv/tier_disk_state.h"
#include "kv/tier_disk_worker.h"

namespace pagoda::kv {
namespace {

// Eight blocks of some 100 KB under way keep an NVMe disk busy; checksums and copies of 1 GB/s and more want two threads.
constexpr size_t kUringWorkers = 2, kUringDepth = 4;
constexpr size_t kSyncWorkers = 4;

std::vector<std::unique_ptr<DiskIo>> choose_workers() {
  std::vector<std::unique_ptr<DiskIo>> workers;
  for (size_t i = 0; i < kUringWorkers; ++i) {
    if (auto uring = make_uring_io(kUringDepth)) workers.push_back(std::move(uring));
  }
  for (size_t i = 0; workers.size() < kUringWorkers && i < kSyncWorkers; ++i) workers.push_back(make_sync_io());
  return workers;
}

Status delete_all(std::vector<TierGarbage> garbage, TierCatalogue& catalogue) {
  for (TierGarbage& file : garbage) {
    TRY(TierDir::remove(file.path));
    file.segment.reset();
    catalogue.freed(file.bytes);
  }
  return {};
}

// Fills the catalogue with what the folder holds, and makes it keep the budget.
Status recover(DiskState& state) {
  TRY_ASSIGN(TierDir::Found found, state.dir.recover());
  state.next_segment_id = found.next_id;
  state.stats.quarantined_segments = found.quarantined.size();
  state.stats.quarantined_objects = found.quarantined_slots;
  state.stats.faults[static_cast<size_t>(TierFault::kRefused)] = found.quarantined.size() + found.quarantined_slots;
  for (TierDir::Quarantined& file : found.quarantined) {
    LOG_WARN("kv disk tier: {} is not used: {}", file.path, file.why);
    state.catalogue.add_quarantined(std::move(file.path), file.bytes);
  }
  for (auto& segment : found.segments) state.catalogue.add(std::move(segment));
  return delete_all(state.catalogue.shrink(), state.catalogue);
}

}  // namespace

DiskTier::DiskTier(std::unique_ptr<DiskState> state) : state_(std::move(state)) {}

Result<std::unique_ptr<DiskTier>> DiskTier::open(DiskTierConfig config, BlockIo& io, std::function<void()> wake) {
  if (config.segment_bytes == 0) config.segment_bytes = config.budget_bytes / 64;
  std::vector<std::unique_ptr<DiskIo>> workers = std::move(config.workers);
  if (workers.empty()) workers = choose_workers();
  TRY_ASSIGN(TierDir dir, TierDir::open(config.dir));
  auto state = std::make_unique<DiskState>(std::move(config), std::move(dir), io, std::move(wake));
  TRY(recover(*state));
  std::unique_ptr<DiskTier> tier(new DiskTier(std::move(state)));
  tier->io_name_ = workers.front()->name();
  for (auto& worker_io : workers) {
    tier->workers_.emplace_back([state = tier->state_.get(), disk = std::move(worker_io)]() mutable {
      DiskWorker(*state, std::move(disk)).run();
    });
  }
  return tier;
}

DiskTier::~DiskTier() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->is_closing = true;
  }
  state_->work.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

Status DiskTier::check_dir(const std::string& dir) {
  TRY(TierDir::open(dir));
  return {};
}

Status DiskTier::clear_dir(const std::string& dir) {
  TRY_ASSIGN(const TierDir locked, TierDir::open(dir));
  return locked.clear();
}

Presence DiskTier::presence(const TierObject& object) const {
  const std::lock_guard lock(state_->mutex);
  return state_->catalogue.find(object) ? Presence::kYes : Presence::kNo;
}

bool DiskTier::ask(TicketId ticket, std::span<const TierObject> objects) {
  TierDone done{.ticket = ticket, .verb = TierVerb::kAsk, .outcome = TierOutcome::kDone};
  {
    const std::lock_guard lock(state_->mutex);
    for (const TierObject& object : objects) done.is_present.push_back(state_->catalogue.find(object).has_value());
  }
  state_->done.post(std::move(done));
  return true;
}

bool DiskTier::put(TicketId ticket, const TierObject& object, const TierBlock& block, std::optional<uint32_t> crc) {
  const int64_t now_us = state_->clock.now_us();
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->catalogue.find(object) || state_->writing.contains(object)) return false;
    if (block.bytes == 0 || block.bytes > std::min<uint64_t>(kMaxTierObjectBytes, state_->config.budget_bytes)) {
      state_->count(TierDrop::kNoRoom);
      return false;
    }
    if (now_us < state_->paused_until_us) {
      state_->count(state_->pause_reason);
      return false;
    }
    if (state_->queued_put_bytes + block.bytes > state_->config.queue_bytes) {
      state_->count(TierDrop::kQueueFull);
      return false;
    }
    state_->queued_put_bytes += block.bytes;
    state_->writing.insert(object);
    state_->puts.push_back({.kind = DiskRequest::Kind::kPut,
                            .ticket = ticket,
                            .object = object,
                            .block = block,
                            .crc = crc,
                            .queued_us = now_us});
  }
  state_->work.notify_one();
  return true;
}

bool DiskTier::get(TicketId ticket, const TierObject& object, const TierBlock& block) {
  const int64_t now_us = state_->clock.now_us();
  {
    const std::lock_guard lock(state_->mutex);
    const auto place = state_->catalogue.find(object);
    if (!place || place->record().bytes != block.bytes) {
      ++state_->stats.misses;
      return false;
    }
    state_->catalogue.pin(*place->segment);
    state_->catalogue.use(*place->segment);
    state_->urgent.push_back({.kind = DiskRequest::Kind::kGet,
                              .ticket = ticket,
                              .object = object,
                              .block = block,
                              .place = *place,
                              .record = place->record(),
                              .queued_us = now_us});
  }
  state_->work.notify_one();
  return true;
}

void DiskTier::erase(const TierObject& object) {
  {
    const std::lock_guard lock(state_->mutex);
    state_->writing.erase(object);
    const auto place = state_->catalogue.find(object);
    if (!place) return;
    state_->catalogue.forget(object);
    state_->catalogue.pin(*place->segment);
    state_->urgent.push_back({.kind = DiskRequest::Kind::kErase, .place = *place});
  }
  state_->work.notify_one();
}

bool DiskTier::clear(TicketId ticket) {
  {
    const std::lock_guard lock(state_->mutex);
    state_->writing.clear();
    state_->urgent.push_back(
        {.kind = DiskRequest::Kind::kClear, .ticket = ticket, .garbage = state_->catalogue.clear()});
  }
  state_->work.notify_one();
  return true;
}

void DiskTier::take_done(std::vector<TierDone>& out) { state_->done.take(out); }

Status DiskTier::check_integrity() const {
  const std::lock_guard lock(state_->mutex);
  return state_->catalogue.check_integrity();
}

TierStats DiskTier::stats() const {
  const std::lock_guard lock(state_->mutex);
  TierStats stats = state_->stats;
  const TierCatalogue& catalogue = state_->catalogue;
  stats.budget_bytes = catalogue.budget_bytes();
  stats.used_bytes = catalogue.used_bytes();
  stats.replay_bytes = catalogue.replay_bytes();
  stats.objects = catalogue.n_objects();
  stats.reclaimed_segments = catalogue.reclaimed_segments();
  stats.reclaimed_objects = catalogue.reclaimed_objects();
  stats.queued_put_bytes = state_->queued_put_bytes;
  stats.read_bytes_per_s = state_->reads.bytes_per_s();
  stats.write_bytes_per_s = state_->writes.bytes_per_s();
  return stats;
}

}  // namespace pagoda::kv
