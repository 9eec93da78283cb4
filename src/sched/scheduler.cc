#include "sched/scheduler.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace pagoda::sched {

int32_t SchedConfig::max_step_rows() const {
  return std::max(max_prefill_rows(), max_running + std::max(1, step_tokens / 10));
}

int32_t SchedConfig::max_step_logits() const { return std::min(max_step_rows(), max_logits); }

Scheduler::Scheduler(const SchedConfig& config, const Clock& clock, const OrderPolicy& policy)
    : config_(config), clock_(clock), policy_(policy), start_order_(config.overtake_us, config.age_us) {
  CHECK(config.step_tokens > 0 && config.quiet_factor > 0 && config.chunk_tokens >= 0);
  CHECK(config.age_us > 0 && (config.target_us >= 0 || config.target_us == kAutoTarget));
  CHECK(config.max_running > 0 && config.max_waiting > 0 && config.max_logits > config.max_running);
}

Scheduler::~Scheduler() {
  for (auto& [id, seq] : sequences_) find_line(seq->model())->cache->release(seq->lease);
}

void Scheduler::add_model(kv::Cache& cache) {
  CHECK(!find_line(cache.model()));
  CHECK(lines_.empty() || &lines_.front().cache->pool() == &cache.pool());
  lines_.push_back({.cache = &cache, .waiting = {}, .running = {}});
}

Scheduler::ModelLine* Scheduler::find_line(kv::ModelId model) {
  for (ModelLine& line : lines_) {
    if (line.cache->model() == model) return &line;
  }
  return nullptr;
}

Status Scheduler::submit(SequenceSpec spec) {
  ModelLine* line = find_line(spec.model);
  if (!line) return fail(ErrorCode::kNotFound, "model {} is not loaded", spec.model.value);
  if (spec.prompt.empty()) return fail(ErrorCode::kInvalidArgument, "the prompt is empty");
  const int32_t capacity = line->cache->capacity_tokens();
  if (spec.prompt.size() > static_cast<size_t>(capacity)) {
    return fail(ErrorCode::kResourceExhausted, "the prompt has {} tokens, the KV memory holds at most {}",
                spec.prompt.size(), capacity);
  }
  if (stats_.waiting >= static_cast<uint64_t>(config_.max_waiting)) {
    return fail(ErrorCode::kOverloaded, "{} requests are waiting already (limit {})", stats_.waiting,
                config_.max_waiting);
  }
  const SeqId id = spec.id;
  auto [it, is_new] =
      sequences_.try_emplace(id, std::make_unique<Sequence>(std::move(spec), next_order_++, clock_.now_us()));
  CHECK(is_new);
  const Sequence& seq = *it->second;
  insert_in_order(line->waiting, *it->second);
  shares_.enter(seq.share().tenant);
  if (seq.deadline_us() != 0) deadlines_.emplace(seq.deadline_us(), id);
  ++stats_.submitted;
  publish();
  return {};
}

const Sequence* Scheduler::find(SeqId seq) const {
  const auto it = sequences_.find(seq);
  return it == sequences_.end() ? nullptr : it->second.get();
}

void Scheduler::list_leases(std::vector<const kv::KvLease*>& leases) const {
  for (const ModelLine& line : lines_) {
    for (const Sequence* seq : line.running) leases.push_back(&seq->lease);
  }
  for (const Sequence* seq : pinned_) leases.push_back(&seq->lease);
}

void Scheduler::block(const Sequence& seq) {
  if (!blocked_ || policy_.before(seq, *blocked_)) blocked_ = &seq;
}

void Scheduler::set_aside(Sequence& seq, const kv::WaitOn& wait) {
  if (blocked_ == &seq) blocked_ = nullptr;
  seq.set_aside(wait, clock_.now_us());
  set_aside_.push_back(&seq);
  if (!seq.is_running() && !is_pinned(seq)) pinned_.push_back(&seq);
}

void Scheduler::resume(Sequence& seq) {
  seq.resume(clock_.now_us());
  std::erase(set_aside_, &seq);
}

// Whoever waited past the deadline recomputes.
void Scheduler::resume_late() {
  const int64_t now_us = set_aside_.empty() ? 0 : clock_.now_us();
  for (size_t i = set_aside_.size(); i-- > 0;) {
    Sequence& seq = *set_aside_[i];
    if (seq.waiting_on()->deadline_us > now_us) continue;
    seq.lease.patience = kv::Patience::kNever;
    resume(seq);
  }
}

void Scheduler::complete(kv::TicketId ticket) {
  std::erase_if(set_aside_, [&](Sequence* seq) {
    if (seq->waiting_on()->ticket != ticket) return false;
    seq->resume(clock_.now_us());
    return true;
  });
}

// Those that the caches completed themselves: another sequence's rows are there, or will not come.
void Scheduler::complete_tickets() {
  tickets_.clear();
  for (const ModelLine& line : lines_) line.cache->take_completed(tickets_);
  for (const kv::TicketId ticket : tickets_) complete(ticket);
}

// Nothing can run, so nobody's rows will come either: the first of those that wait for some computes them itself.
bool Scheduler::resume_stuck() {
  Sequence* first = nullptr;
  for (Sequence* seq : set_aside_) {
    const bool waits_for_rows = seq->waiting_on()->waits_for == kv::WaitOn::For::kRows;
    if (waits_for_rows && (!first || policy_.before(*seq, *first))) first = seq;
  }
  if (!first) return false;
  first->lease.patience = kv::Patience::kNever;
  resume(*first);
  return true;
}

std::optional<int64_t> Scheduler::wake_us() const {
  std::optional<int64_t> earliest;
  if (!deadlines_.empty()) earliest = deadlines_.begin()->first;
  for (const Sequence* seq : set_aside_) {
    const int64_t deadline_us = seq->waiting_on()->deadline_us;
    if (!earliest || deadline_us < *earliest) earliest = deadline_us;
  }
  return earliest;
}

void Scheduler::commit_step(const StepPlan& plan, std::span<const StepOutcome> outcomes) {
  CHECK(in_flight_ && plan.rows.size() == planned_.size() && outcomes.size() == planned_.size());
  ModelLine& line = *find_line(plan.model);
  for (size_t i = 0; i < planned_.size(); ++i) {
    Sequence& seq = *planned_[i].seq;
    CHECK(seq.id() == plan.rows[i].seq);
    if (planned_[i].end != FinishReason::kNone) {
      // What it computed last may serve others.
      if (outcomes[i].kind != StepOutcome::Kind::kFailed) line.cache->commit(seq.lease, plan.rows[i].n_tokens);
      erase(seq, planned_[i].end);
    } else if (outcomes[i].kind == StepOutcome::Kind::kFailed) {
      erase(seq, FinishReason::kFailed);
    } else {
      commit_rows(line, seq, plan.rows[i], outcomes[i]);
      if (!planned_[i].tokens.empty()) replace(seq, std::move(planned_[i].tokens));
    }
  }
  planned_.clear();
  in_flight_ = false;
  learn(line);
  ++stats_.steps;
  publish();
}

void Scheduler::learn(ModelLine& line) {
  const int64_t took_us = clock_.now_us() - begin_us_;
  stats_.target_us = target_us(line);
  stats_.predicted_us = line.step_time.predict_us(load_);
  if (stats_.target_us > 0 && load_.decode_rows > 0 && took_us > stats_.target_us) ++stats_.late_steps;
  line.step_time.learn(load_, took_us);
}

// Those whose time is over end, wherever they are.
void Scheduler::expire(StepPlan& plan) {
  const int64_t now_us = deadlines_.empty() ? 0 : clock_.now_us();
  while (!deadlines_.empty() && deadlines_.begin()->first <= now_us) {
    const SeqId id = deadlines_.begin()->second;
    plan.ended.push_back({id, FinishReason::kTimeout});
    ++stats_.timeouts;
    erase(*sequences_.at(id), FinishReason::kTimeout);
  }
}

void Scheduler::commit_rows(ModelLine& line, Sequence& seq, const SeqRows& rows, const StepOutcome& outcome) {
  line.cache->commit(seq.lease, rows.n_tokens);
  seq.rows_done();
  stats_.computed_tokens += static_cast<uint64_t>(rows.n_tokens);
  shares_.charge(seq.share(), rows.n_tokens);
  if (outcome.kind != StepOutcome::Kind::kSampled) return;
  CHECK(rows.sampling == Sampling::kLastRow);
  seq.append(outcome.token);
  ++stats_.sampled_tokens;
  if (config_.kv_reuse == KvReuse::kOff) {
    line.cache->release(seq.lease, kv::LeaseEnd::kPause);
    seq.recompute();
  }
}

void Scheduler::finish(SeqId id, FinishReason reason) {
  const auto it = sequences_.find(id);
  if (it == sequences_.end()) return;
  const auto planned = std::ranges::find(planned_, it->second.get(), &Planned::seq);
  if (planned != planned_.end()) {
    planned->end = reason;
    return;
  }
  erase(*it->second, reason);
  publish();
}

void Scheduler::replace_tokens(SeqId id, std::vector<TokenId> tokens) {
  const auto it = sequences_.find(id);
  if (it == sequences_.end()) return;
  Sequence& seq = *it->second;
  CHECK(!tokens.empty() && tokens.size() <= static_cast<size_t>(find_line(seq.model())->cache->capacity_tokens()));
  const auto planned = std::ranges::find(planned_, &seq, &Planned::seq);
  if (planned != planned_.end()) {
    planned->tokens = std::move(tokens);
  } else {
    replace(seq, std::move(tokens));
  }
}

void Scheduler::replace(Sequence& seq, std::vector<TokenId> tokens) {
  find_line(seq.model())->cache->release(seq.lease, kv::LeaseEnd::kPause);
  seq.lease.patience = kv::Patience::kMayWait;
  if (seq.waiting_on()) resume(seq);
  std::erase(pinned_, &seq);
  seq.replace_tokens(std::move(tokens));
}

void Scheduler::erase(Sequence& seq, FinishReason reason) {
  ModelLine& line = *find_line(seq.model());
  line.cache->release(seq.lease);
  if (seq.waiting_on()) resume(seq);
  if (blocked_ == &seq) blocked_ = nullptr;
  std::erase(pinned_, &seq);
  if (seq.is_running()) {
    std::erase(line.running, &seq);
    shares_.stop(seq.share().tenant);
  } else {
    std::erase(line.waiting, &seq);
  }
  shares_.leave(seq.share().tenant);
  deadlines_.erase({seq.deadline_us(), seq.id()});
  seq.finish(reason);
  ++stats_.finished;
  sequences_.erase(SeqId(seq.id()));
}

void Scheduler::publish() {
  stats_.running = stats_.waiting = 0;
  for (const ModelLine& line : lines_) {
    stats_.running += line.running.size();
    stats_.waiting += line.waiting.size();
  }
  snapshot_.store(stats_);
}

Status Scheduler::check_line(const ModelLine& line) const {
  const auto is_behind = [this](const Sequence* a, const Sequence* b) { return !policy_.before(*a, *b); };
  if (std::ranges::adjacent_find(line.running, is_behind) != line.running.end() ||
      std::ranges::adjacent_find(line.waiting, is_behind) != line.waiting.end()) {
    return fail(ErrorCode::kInternal, "a line is out of order");
  }
  std::vector<const kv::KvLease*> leases;
  for (const Sequence* seq : line.running) {
    if (!seq->is_running()) return fail(ErrorCode::kInternal, "sequence {} runs in its state", seq->id().value);
    leases.push_back(&seq->lease);
  }
  for (const Sequence* seq : line.waiting) {
    const bool is_pinned = std::ranges::find(pinned_, seq) != pinned_.end();
    if (seq->is_running() || (seq->lease.holds_blocks() && !is_pinned)) {
      return fail(ErrorCode::kInternal, "sequence {} waits in its state", seq->id().value);
    }
    leases.push_back(&seq->lease);
  }
  return line.cache->check_integrity(leases);
}

Status Scheduler::check_integrity() const {
  size_t n_sequences = 0;
  for (const ModelLine& line : lines_) {
    TRY(check_line(line));
    n_sequences += line.running.size() + line.waiting.size();
  }
  if (n_sequences != sequences_.size()) {
    return fail(ErrorCode::kInternal, "{} sequences in lines of {}", n_sequences, sequences_.size());
  }
  return {};
}

}  // namespace pagoda::sched
