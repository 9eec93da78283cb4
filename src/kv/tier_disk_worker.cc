#include "kv/tier_disk_worker.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>

#include "base/check.h"
#include "base/digest.h"
#include "base/log.h"

namespace pagoda::kv {
namespace {

constexpr int64_t kStampEveryUs = 60'000'000;  // a segment's use is remembered across restarts to this precision
constexpr double kWaitMemory = 0.1;            // share of a new sample in read_wait_us

// A file-size limit (ulimit -f) is a full disk, not the end of the process.
void block_size_signal() {
  sigset_t signals;
  ::sigemptyset(&signals);
  ::sigaddset(&signals, SIGXFSZ);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

bool is_full(int error) { return error == ENOSPC || error == EDQUOT || error == EFBIG; }

}  // namespace

DiskWorker::DiskWorker(DiskState& state, std::unique_ptr<DiskIo> io) : state_(state), io_(std::move(io)) {}

void DiskWorker::run() {
  block_size_signal();
  for (;;) {
    while (active_.size() < io_->depth()) {
      std::optional<DiskRequest> request = next_request(active_.empty() ? Idle::kWait : Idle::kReturn);
      if (!request) break;
      begin(std::move(*request));
    }
    if (active_.empty()) return;
    advance(io_->wait());
  }
}

std::optional<DiskRequest> DiskWorker::pop(int64_t now_us) {
  while (!state_.urgent.empty()) {
    DiskRequest request = std::move(state_.urgent.front());
    state_.urgent.pop_front();
    if (!state_.is_closing || request.kind != DiskRequest::Kind::kGet) return request;
  }
  if (state_.is_closing || state_.puts.empty() || state_.pace.ready_at_us() > now_us) return std::nullopt;
  DiskRequest request = std::move(state_.puts.front());
  state_.puts.pop_front();
  state_.pace.spend(now_us, request.block.bytes);
  return request;
}

std::optional<DiskRequest> DiskWorker::next_request(Idle idle) {
  std::unique_lock lock(state_.mutex);
  for (;;) {
    const int64_t now_us = state_.clock.now_us();
    if (std::optional<DiskRequest> request = pop(now_us)) return request;
    if (state_.is_closing || idle == Idle::kReturn) return std::nullopt;
    if (state_.puts.empty()) {
      state_.work.wait(lock);
    } else {
      state_.work.wait_for(lock, std::chrono::microseconds(state_.pace.ready_at_us() - now_us));
    }
  }
}

void DiskWorker::begin(DiskRequest request) {
  if (request.kind == DiskRequest::Kind::kClear) return clear(std::move(request));
  if (idle_.empty()) idle_.push_back(std::make_unique<Transfer>());
  active_.push_back(std::move(idle_.back()));
  idle_.pop_back();
  Transfer& transfer = *active_.back();
  transfer.request = std::move(request);
  transfer.is_erased = false;
  transfer.buffer.resize(transfer.request.block.bytes);
  switch (transfer.request.kind) {
    case DiskRequest::Kind::kGet:
      return begin_get(transfer);
    case DiskRequest::Kind::kPut:
      return begin_put(transfer);
    default:
      return begin_erase(transfer, SlotState::kFree);
  }
}

void DiskWorker::clear(DiskRequest request) {
  const bool are_gone = delete_files(std::move(request.garbage));
  {
    const std::lock_guard lock(state_.mutex);
    state_.clears.push_back({request.ticket, are_gone});
  }
  end_clears();
}

// Those of which no doomed file is left.
void DiskWorker::end_clears() {
  std::vector<DiskState::Clear> ended;
  {
    const std::lock_guard lock(state_.mutex);
    if (state_.n_going > 0 || state_.catalogue.has_doomed()) return;
    ended.swap(state_.clears);
  }
  for (const DiskState::Clear& clear : ended) {
    state_.done.post({.ticket = clear.ticket,
                      .verb = TierVerb::kClear,
                      .outcome = clear.are_gone ? TierOutcome::kDone : TierOutcome::kFailed});
  }
}

void DiskWorker::begin_get(Transfer& transfer) {
  {
    const std::lock_guard lock(state_.mutex);
    state_.reads.begin(state_.clock.now_us());
  }
  const TierCatalogue::Place place = transfer.request.place;
  submit(transfer, Stage::kReadPayload, DiskOp::Kind::kRead, place.segment->shape.slot_at(place.slot), transfer.buffer);
}

void DiskWorker::begin_put(Transfer& transfer) {
  DiskRequest& request = transfer.request;
  {
    const std::lock_guard lock(state_.mutex);
    state_.writes.begin(state_.clock.now_us());
  }
  state_.io.copy_out(request.block.model, request.object.group, request.block.block, transfer.buffer);
  const uint32_t crc = crc32c(transfer.buffer);
  if (request.crc && *request.crc != crc) {
    count(TierFault::kStale);
    return end_put(transfer, TierOutcome::kCorrupt);
  }
  const auto slot = find_slot(request.block);
  if (const auto* why = std::get_if<TierDrop>(&slot)) {
    count(*why);
    return end_put(transfer, TierOutcome::kDropped);
  }
  request.place = std::get<TierCatalogue::Place>(slot);
  request.record = {.object = request.object, .bytes = request.block.bytes, .crc = crc};
  submit(transfer, Stage::kWritePayload, DiskOp::Kind::kWrite, request.place.segment->shape.slot_at(request.place.slot),
         transfer.buffer);
}

void DiskWorker::begin_erase(Transfer& transfer, SlotState state) {
  const TierCatalogue::Place place = transfer.request.place;
  const SegmentShape& shape = place.segment->shape;
  transfer.record = encode_slot_record(shape, place.slot, transfer.request.record, state);
  submit(transfer, Stage::kEraseRecord, DiskOp::Kind::kWrite, shape.record_at(place.slot), transfer.record);
}

void DiskWorker::submit(Transfer& transfer, Stage stage, DiskOp::Kind kind, uint64_t offset,
                        std::span<std::byte> bytes) {
  transfer.stage = stage;
  transfer.op = {
      .kind = kind, .fd = transfer.request.place.segment->fd, .offset = offset, .bytes = bytes, .owner = &transfer};
  io_->submit(transfer.op);
}

void DiskWorker::advance(DiskResult result) {
  Transfer& transfer = *static_cast<Transfer*>(result.owner);
  const auto n = static_cast<size_t>(result.n);
  if (result.n < 0 && result.n != -EINTR && result.n != -EAGAIN) {
    return fail_transfer(transfer, static_cast<int>(-result.n));
  }
  if (result.n == 0) return fail_transfer(transfer, transfer.op.kind == DiskOp::Kind::kRead ? EIO : ENOSPC);
  if (result.n > 0) {
    transfer.op.offset += n;
    transfer.op.bytes = transfer.op.bytes.subspan(n);
  }
  if (transfer.op.bytes.empty()) return next_stage(transfer);
  io_->submit(transfer.op);
}

void DiskWorker::next_stage(Transfer& transfer) {
  const TierCatalogue::Place place = transfer.request.place;
  const SegmentShape& shape = place.segment->shape;
  switch (transfer.stage) {
    case Stage::kReadPayload:
      return check_payload(transfer);
    case Stage::kWritePayload:
      transfer.record = encode_slot_record(shape, place.slot, transfer.request.record, SlotState::kWhole);
      return submit(transfer, Stage::kWriteRecord, DiskOp::Kind::kWrite, shape.record_at(place.slot), transfer.record);
    case Stage::kWriteRecord:
      return publish(transfer);
    case Stage::kEraseRecord:
      return let_go(transfer);
  }
}

void DiskWorker::fail_transfer(Transfer& transfer, int error) {
  const bool is_put = transfer.stage == Stage::kWritePayload || transfer.stage == Stage::kWriteRecord;
  const bool is_drop = is_put && is_full(error);
  if (is_put) pause_puts(is_drop ? TierDrop::kDiskFull : TierDrop::kUnavailable);
  if (is_drop) {
    count(TierDrop::kDiskFull);
  } else {
    count(TierFault::kIo);
  }
  LOG_WARN("kv disk tier: {}: {}", transfer.request.place.segment->path, std::strerror(error));
  if (is_put) return end_put(transfer, is_drop ? TierOutcome::kDropped : TierOutcome::kFailed);
  if (transfer.stage == Stage::kReadPayload) return end_get(transfer, TierOutcome::kFailed);
  {  // what cannot be erased must not come back with the next start
    const std::lock_guard lock(state_.mutex);
    state_.catalogue.doom(*transfer.request.place.segment);
  }
  let_go(transfer);
}

void DiskWorker::check_payload(Transfer& transfer) {
  const DiskRequest& request = transfer.request;
  if (crc32c(transfer.buffer) == request.record.crc) {
    state_.io.copy_in(request.block.model, request.object.group, request.block.block, transfer.buffer);
    return end_get(transfer, TierOutcome::kDone);
  }
  LOG_WARN("kv disk tier: slot {} of {} is corrupt", request.place.slot, request.place.segment->path);
  end_get(transfer, TierOutcome::kCorrupt);
}

void DiskWorker::end_get(Transfer& transfer, TierOutcome outcome) {
  const DiskRequest& request = transfer.request;
  const int64_t now_us = state_.clock.now_us();
  {
    const std::lock_guard lock(state_.mutex);
    const bool is_hit = outcome == TierOutcome::kDone;
    state_.reads.end(now_us, is_hit ? request.block.bytes : 0);
    if (is_hit) {
      TierStats& stats = state_.stats;
      const auto wait_us = static_cast<double>(now_us - request.queued_us);
      stats.read_wait_us += (stats.hits == 0 ? 1 : kWaitMemory) * (wait_us - stats.read_wait_us);
      ++stats.hits;
      stats.hit_bytes += request.block.bytes;
    }
    if (outcome == TierOutcome::kCorrupt) {
      state_.count(TierFault::kCorrupt);
      ++state_.stats.quarantined_objects;
      const auto place = state_.catalogue.find(request.object);
      if (place && place->segment == request.place.segment && place->slot == request.place.slot) {
        state_.catalogue.forget(request.object);
      }
    }
  }
  const TierDone done{.ticket = request.ticket, .verb = TierVerb::kGet, .outcome = outcome};
  if (outcome == TierOutcome::kCorrupt) {
    begin_erase(transfer, SlotState::kBad);
  } else {
    stamp(*request.place.segment);
    let_go(transfer);
  }
  state_.done.post(done);  // last: who is told finds nothing pinned but what is being erased
}

void DiskWorker::publish(Transfer& transfer) {
  {
    const std::lock_guard lock(state_.mutex);
    if (state_.writing.contains(transfer.request.object)) {
      state_.catalogue.publish(transfer.request.place, transfer.request.record);
    } else {
      transfer.is_erased = true;
    }
  }
  end_put(transfer, transfer.is_erased ? TierOutcome::kCancelled : TierOutcome::kDone);
}

void DiskWorker::end_put(Transfer& transfer, TierOutcome outcome) {
  const DiskRequest& request = transfer.request;
  const int64_t now_us = state_.clock.now_us();
  const bool is_done = outcome == TierOutcome::kDone;
  {
    const std::lock_guard lock(state_.mutex);
    state_.writes.end(now_us, is_done ? request.block.bytes : 0);
    state_.queued_put_bytes -= request.block.bytes;
    state_.writing.erase(request.object);
    if (is_done) {
      ++state_.stats.puts;
      state_.stats.put_bytes += request.block.bytes;
    }
  }
  const TierDone done{.ticket = request.ticket, .verb = TierVerb::kPut, .outcome = outcome};
  transfer.is_erased ? begin_erase(transfer, SlotState::kFree) : let_go(transfer);
  state_.done.post(done);  // last, as in end_get
}

void DiskWorker::let_go(Transfer& transfer) {
  Segment* segment = transfer.request.place.segment;
  std::vector<TierGarbage> garbage;
  if (segment != nullptr) {
    const std::lock_guard lock(state_.mutex);
    if (std::optional<TierGarbage> file = state_.catalogue.unpin(*segment)) garbage.push_back(std::move(*file));
    state_.n_going += garbage.size();
  }
  if (!garbage.empty()) {
    const bool is_gone = delete_files(std::move(garbage));
    {
      const std::lock_guard lock(state_.mutex);
      --state_.n_going;
      for (DiskState::Clear& clear : state_.clears) clear.are_gone &= is_gone;
    }
    end_clears();
  }
  const auto at = std::ranges::find_if(active_, [&](const auto& active) { return active.get() == &transfer; });
  CHECK(at != active_.end());
  idle_.push_back(std::move(*at));
  active_.erase(at);
}

void DiskWorker::stamp(Segment& segment) {
  {
    const std::lock_guard lock(state_.mutex);
    const int64_t now_us = state_.clock.now_us();
    if (now_us - segment.stamped_us < kStampEveryUs) return;
    segment.stamped_us = now_us;
  }
  (void)::futimens(segment.fd, nullptr);  // only the order of eviction after a restart depends on it
}

void DiskWorker::count(TierFault fault) {
  const std::lock_guard lock(state_.mutex);
  state_.count(fault);
}
void DiskWorker::count(TierDrop drop) {
  const std::lock_guard lock(state_.mutex);
  state_.count(drop);
}
void DiskWorker::pause_puts(TierDrop reason) {
  const std::lock_guard lock(state_.mutex);
  state_.pause_puts(reason);
}

std::variant<TierCatalogue::Place, TierDrop> DiskWorker::find_slot(const TierBlock& block) {
  const uint64_t slot_bytes = round_to_page(block.bytes);
  {
    const std::lock_guard lock(state_.mutex);
    if (const auto place = state_.catalogue.take_slot(slot_bytes, block.use)) return *place;
    if (state_.clock.now_us() < state_.paused_until_us) return state_.pause_reason;
  }
  return make_segment(slot_bytes, block.use);
}

std::variant<TierCatalogue::Place, TierDrop> DiskWorker::make_segment(uint64_t slot_bytes, TierUse use) {
  const std::lock_guard making(state_.make_mutex);
  SegmentShape shape{.id = 0,
                     .slot_bytes = slot_bytes,
                     .n_slots = std::clamp<uint64_t>(state_.config.segment_bytes / slot_bytes, 1, kMaxSegmentSlots),
                     .use = use};
  std::optional<std::vector<TierGarbage>> victims;
  {
    const std::lock_guard lock(state_.mutex);
    if (const auto place = state_.catalogue.take_slot(slot_bytes, use)) return *place;  // another worker was faster
    shape.id = state_.next_segment_id++;
    victims = state_.catalogue.make_room(shape.file_bytes(), use);
  }
  if (!victims || !delete_files(std::move(*victims))) return TierDrop::kNoRoom;
  {
    const std::lock_guard lock(state_.mutex);
    if (!state_.catalogue.reserve(shape.file_bytes())) return TierDrop::kNoRoom;
  }
  Result<std::unique_ptr<Segment>> segment = state_.dir.create(shape, *io_);
  const std::lock_guard lock(state_.mutex);
  if (!segment) {
    LOG_WARN("kv disk tier: {}", segment.error().to_string());
    state_.catalogue.freed(shape.file_bytes());
    const bool is_full = segment.error().code == ErrorCode::kResourceExhausted;
    if (!is_full) state_.count(TierFault::kIo);
    state_.pause_puts(is_full ? TierDrop::kDiskFull : TierDrop::kUnavailable);
    return state_.pause_reason;
  }
  state_.catalogue.add_reserved(std::move(*segment));
  return *state_.catalogue.take_slot(slot_bytes, use);
}

bool DiskWorker::delete_files(std::vector<TierGarbage> garbage) {
  bool are_gone = true;
  for (TierGarbage& file : garbage) {
    const Status removed = TierDir::remove(file.path);
    file.segment.reset();
    const std::lock_guard lock(state_.mutex);
    state_.catalogue.freed(file.bytes);
    if (removed) continue;
    LOG_WARN("kv disk tier: {}", removed.error().to_string());
    are_gone = false;
    state_.count(TierFault::kIo);
    state_.pause_puts(TierDrop::kUnavailable);
    state_.catalogue.add_quarantined(std::move(file.path), file.bytes);
  }
  return are_gone;
}

}  // namespace pagoda::kv
