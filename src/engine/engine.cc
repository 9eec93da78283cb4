#include "engine/engine.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <thread>
#include <unordered_map>
#include <variant>

#include "base/log.h"
#include "base/malloc_bounds.h"
#include "base/named.h"
#include "base/overloaded.h"
#include "engine/generation.h"
#include "engine/intake.h"
#include "engine/kv_probe.h"
#include "engine/mailbox.h"
#include "engine/memory_room.h"
#include "engine/secret.h"
#include "engine/session_desk.h"
#include "engine/step_runner.h"
#include "models/kv_plan.h"

namespace pagoda::engine {
namespace {

constexpr int kIntakeWorkers = 2;
constexpr int64_t kAsleep = -1;          // turn_begun_us_ while the engine thread sleeps
constexpr int64_t kFlushUs = 5'000'000;  // at the end, for blocks on their way to a tier

struct SubmitMessage {
  std::shared_ptr<ActiveRequest> active;
};
struct CancelMessage {
  RequestId id;
};
struct AskMessage {
  std::function<void()> answer;
};
using Message = std::variant<SubmitMessage, CancelMessage, AskMessage>;

RequestRecord::Outcome outcome_of(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return RequestRecord::Outcome::kStop;
    case FinishReason::kLength:
      return RequestRecord::Outcome::kLength;
    case FinishReason::kCancelled:
      return RequestRecord::Outcome::kCancelled;
    case FinishReason::kTimeout:
      return RequestRecord::Outcome::kTimeout;
  }
  return RequestRecord::Outcome::kFailed;
}

// In the tier's folder unless told otherwise: servers that share the tier share the namespaces.
Result<Secret> secret_of(const EngineConfig& config) {
  if (!config.tiers.secret.empty()) return named("--kv-secret", load_secret(config.tiers.secret));
  const bool has_disk = !config.tiers.disk_dir.empty() && std::filesystem::is_directory(config.tiers.disk_dir);
  return has_disk ? named("--kv-disk", load_secret(config.tiers.disk_dir / "kv-secret")) : random_secret();
}

sched::FinishReason sched_reason(FinishReason reason) {
  return reason == FinishReason::kLength ? sched::FinishReason::kLength : sched::FinishReason::kStop;
}

class EngineImpl final : public Engine, private LogitsReader {
 public:
  EngineImpl(std::unique_ptr<StepRunner> runner, ServedModel served, std::shared_ptr<WakeEvent> wake,
             const Secret& secret, const EngineConfig& config)
      : traffic_(std::make_shared<TrafficMemory>(runner->fit().traffic_bytes)),
        explain_(config.explain),
        runner_(std::move(runner)),
        served_(std::move(served)),
        sampler_(runner_->kernels()),
        secret_(secret),
        desk_(*runner_, clock_, secret_, traffic_->most_part_bytes(runner_->context_tokens()),
              [wake] { wake->signal(); }),
        mailbox_(wake),
        max_queued_(config.max_queued),
        idle_(config.idle),
        busy_us_(clock_.now_us()),
        intake_(std::make_unique<Intake>(
            served_, *traffic_, kIntakeWorkers, static_cast<size_t>(config.max_queued),
            [this](auto active) { mailbox_.send(SubmitMessage{std::move(active)}); },
            [this](const auto& active, Error error) { refuse(*active, std::move(error)); })) {}

  ~EngineImpl() override {
    stopping_.store(true);
    mailbox_.wake();
    if (thread_.joinable()) thread_.join();
    intake_.reset();
    // Wherever they were on their way: nobody is left who would answer them.
    for (const auto& [id, active] : live_)
      active->stream->push(Failed{{ErrorCode::kUnavailable, "the server stopped", {}}});
  }

  void start() {
    thread_ = std::thread([this] {
      kernels::set_float_mode();
      loop();
    });
  }

  Submitted submit(Request request, std::function<void()> wake) override {
    auto active = std::make_shared<ActiveRequest>();
    request.id = RequestId(next_id_.fetch_add(1));
    request.arrival_us = clock_.now_us();
    active->explain = explain_;
    if (const KvTiers* tiers = runner_->tiers()) active->tier_names = tiers->names();
    active->record.id = request.id;
    active->record.arrival_us = request.arrival_us;
    active->record.tenant = request.tenant;
    active->record.model = request.model;
    active->record.n_choices = request.n_choices;
    active->record.max_tokens = request.max_tokens.value_or(0);
    active->request = std::move(request);
    active->stream =
        std::make_shared<OutputStream>(std::move(wake), std::shared_ptr<ByteBudget>(traffic_, &traffic_->held));
    Submitted submitted{active->request.id, active->stream};
    {
      const std::lock_guard lock(live_mutex_);
      live_.emplace(active->request.id, active);
    }
    if (draining_.load())
      refuse(*active, {ErrorCode::kUnavailable, "the server is stopping and takes no new requests", {}});
    else
      intake_->push(std::move(active));
    return submitted;
  }

  // A request still in intake is let go when it arrives at the engine thread.
  void cancel(RequestId id) override {
    {
      const std::lock_guard lock(live_mutex_);
      const auto at = live_.find(id);
      if (at == live_.end()) return;
      at->second->cancelled.store(true);
    }
    mailbox_.send(CancelMessage{id});
  }

  void drain() override { draining_.store(true); }
  bool is_drained() const override {
    const std::lock_guard lock(live_mutex_);
    return draining_.load() && live_.empty();
  }

  std::vector<ModelInfo> models() const override { return {served_.info}; }

  EngineStats stats() const override {
    const sched::SchedStats sched = runner_->scheduler().stats();
    const kv::PoolStats pool = runner_->pool().stats();
    const KvTiers* tiers = runner_->tiers();
    return {.running = static_cast<int>(sched.running),
            .waiting = static_cast<int>(sched.waiting),
            .most_waiting = max_queued_,
            .turn_us = turn_us(),
            .steps = sched.steps,
            .preemptions = sched.preemptions,
            .kv_budget_bytes = pool.budget_bytes,
            .kv_live_bytes = pool.live_bytes,
            .kv_live_blocks = pool.live_blocks,
            .kv_cached_bytes = pool.cached_bytes,
            .kv_free_bytes = pool.free_bytes,
            .kv_overhead_bytes = pool.overhead_bytes,
            .reused_tokens = sched.reused_tokens,
            .tiering = tiers ? tiers->stats() : kv::TieringStats{},
            .tiers = tiers ? tiers->report() : std::vector<TierReport>()};
  }

  void ask_kv(std::function<void(kv::Account)> reply) override {
    mailbox_.send(AskMessage{[this, reply = std::move(reply)] { reply(runner_->account()); }});
  }
  void ask_kv_blocks(uint64_t page, std::function<void(kv::BlockMapPage)> reply) override {
    mailbox_.send(AskMessage{[this, page, reply = std::move(reply)] { reply(runner_->block_map_page(page)); }});
  }

  void ask_session(SessionAsk ask, std::function<void(Result<SessionAnswer>)> reply) override {
    mailbox_.send(AskMessage{[this, ask = std::move(ask), reply = std::move(reply)]() mutable {
      desk_.ask(std::move(ask), std::move(reply));
    }});
  }

  TrafficMemory& traffic() override { return *traffic_; }
  Records& records() override { return records_; }

 private:
  // ---- engine thread -----------------------------------------------------------------------------------------------------------
  void loop() {
    std::vector<Message> messages;
    while (!stopping_.load()) {
      turn_begun_us_.store(clock_.now_us(), std::memory_order_relaxed);
      mailbox_.take(messages);
      for (Message& message : messages) {
        std::visit(Overloaded{[this](SubmitMessage& m) { start_request(std::move(m.active)); },
                              [this](CancelMessage& m) { cancel_request(m.id); },
                              [this](AskMessage& m) { asked_.push_back(std::move(m.answer)); }},
                   message);
      }
      // One a turn: whoever asks often waits, the streams do not.
      const bool answers = !asked_.empty();
      if (answers) {
        asked_.front()();
        asked_.pop_front();
      }
      desk_.poll();
      const bool stepped = runner_->step(*this);
      end_planned();
      if (stepped) push_step();
      if (stepped) busy_us_ = clock_.now_us();
      if (stepped || answers || !messages.empty() || runner_->prepare() || work_idly()) continue;
      const std::optional<int64_t> wait_us = timeout_us();
      turn_begun_us_.store(kAsleep, std::memory_order_relaxed);
      mailbox_.wait(wait_us);
    }
    turn_begun_us_.store(kAsleep, std::memory_order_relaxed);
    for (const auto& [seq, generation] : generations_) runner_->scheduler().cancel(seq);
    generations_.clear();
    const int64_t end_us = clock_.now_us() + kFlushUs;
    while (runner_->is_storing() && clock_.now_us() < end_us) mailbox_.wait(end_us - clock_.now_us());
  }

  void push_step() {
    StepRecord record = runner_->record();
    record.tokens = std::exchange(step_tokens_, {});
    records_.steps.push(record);
  }

  // False: there is no work for idle times, or not now.
  bool work_idly() {
    if (!idle_.make || clock_.now_us() < busy_us_ + idle_.after_us || !runner_->scheduler().idle()) return false;
    if (idle_work_ == nullptr) idle_work_ = idle_.make(*runner_);
    if (idle_work_ != nullptr && idle_work_->do_piece()) return true;
    idle_work_.reset();
    idle_.make = nullptr;
    return false;
  }

  // How long there is nothing to do, unless something comes.
  std::optional<int64_t> timeout_us() const {
    std::optional<int64_t> next_us = runner_->scheduler().wake_us();
    if (const auto other = desk_.next_us()) next_us = std::min(next_us.value_or(*other), *other);
    if (const int64_t idle_us = busy_us_ + idle_.after_us; idle_.make && runner_->scheduler().idle())
      next_us = std::min(next_us.value_or(idle_us), idle_us);
    if (next_us) return std::max<int64_t>(0, *next_us - clock_.now_us());
    return std::nullopt;
  }

  void start_request(std::shared_ptr<ActiveRequest> active) {
    if (active->cancelled.load()) {
      close(*active, RequestRecord::Outcome::kCancelled);
      return;
    }
    active->record.queued_us = clock_.now_us();
    active->session = desk_.enter(active->request);
    active->held_tokens = desk_.held_after(active->session, {});
    std::vector<sched::SeqId> submitted;
    for (int choice = 0; choice < active->request.n_choices; ++choice) {
      sched::SequenceSpec spec;
      spec.id = sched::SeqId(next_seq_++);
      spec.model = runner_->model_id();
      spec.cache_namespace = cache_namespace(secret_, active->request);
      if (choice == 0) spec.session = active->session;  // of several, the first one's tokens are what it holds
      spec.open_namespace = spec.cache_namespace;
      if (!active->request.cache_salt.empty()) {
        const std::string owner = cache_owner(active->request.tenant, active->request.cache_space);
        spec.open_namespace = cache_namespace(secret_, owner, {});
      }
      spec.prompt = active->prompt;
      spec.prompt_logits = active->request.prompt_logprobs ? sched::PromptLogits::kAll : sched::PromptLogits::kNone;
      spec.arrival_us = active->request.arrival_us;
      spec.share = share_of(active->request);
      spec.priority = active->request.priority;
      if (active->request.timeout_us) spec.deadline_us = spec.arrival_us + *active->request.timeout_us;
      const sched::SeqId seq = spec.id;
      if (Status status = runner_->scheduler().submit(std::move(spec)); !status) {
        for (const sched::SeqId other : submitted) {
          runner_->scheduler().cancel(other);
          generations_.erase(other);
        }
        desk_.leave(active->session);
        refuse(*active, std::move(status).error());
        return;
      }
      submitted.push_back(seq);
      generations_.emplace(seq, std::make_unique<Generation>(active, choice, served_));
    }
    active->stream->push(Accepted{static_cast<int>(active->prompt.size()), active->usage.context});
  }

  sched::Share share_of(const Request& request) {
    sched::Share share{.weight = request.share.weight, .priority = request.share.priority};
    if (request.tenant.empty()) return share;
    const auto next = sched::TenantId(static_cast<uint32_t>(tenant_ids_.size() + 1));
    share.tenant = tenant_ids_.try_emplace(request.tenant, next).first->second;
    return share;
  }

  void cancel_request(RequestId id) {
    for (auto at = generations_.begin(); at != generations_.end();) {
      ActiveRequest& active = at->second->active();
      if (active.request.id != id) {
        ++at;
        continue;
      }
      runner_->scheduler().cancel(at->first);
      note_choice(*at->second);
      if (--active.unfinished == 0) {
        desk_.leave(active.session);
        close(active, RequestRecord::Outcome::kCancelled);
      }
      at = generations_.erase(at);
    }
  }

  void begin(const sched::StepPlan& plan, int64_t now_us) override {
    for (const sched::SeqRows& rows : plan.rows) {
      Generation& generation = *generations_.at(rows.seq);
      ActiveRequest& active = generation.active();
      if (active.record.started_us == 0) active.record.started_us = now_us;
      // The other choices find what the first computes; what the request saved is what the first one found.
      if (generation.choice() != 0) continue;
      const sched::Sequence& seq = *runner_->scheduler().find(rows.seq);
      if (rows.n_tokens == 1 && seq.state() == sched::SeqState::kDecoding) continue;  // nothing is looked up any more
      active.cache_use = seq.cache_use();
      active.usage.cached_tokens = active.cache_use.reused_tokens;
      // What it loaded after it was preempted it had computed before.
      if (active.record.preemptions == 0)
        std::ranges::copy(seq.lease.restored_tokens(), active.record.restored_tokens.begin());
    }
  }

  models::SampleMode mode_of(sched::SeqId seq) override { return generations_.at(seq)->mode(); }

  sched::StepOutcome read(const sched::SeqRows& rows, std::span<const SampleResult> results) override {
    Generation& generation = *generations_.at(rows.seq);
    if (rows.sampling == sched::Sampling::kLastRow) count_token(generation);
    const sched::StepOutcome outcome = generation.read(rows, results, sampler_);
    if (outcome.kind == sched::StepOutcome::Kind::kSampled) ++step_tokens_.generated;
    if (const auto reason = generation.finished()) {
      say_finished(rows.seq, generation);
      runner_->scheduler().finish(rows.seq, sched_reason(*reason));
      end_generation(rows.seq, *reason);
    } else if (outcome.kind == sched::StepOutcome::Kind::kSampled && generation.fills_context()) {
      edit_context(rows.seq, generation, outcome.token);
    }
    return outcome;
  }

  // One is about to be drawn, for the step's record.
  void count_token(Generation& generation) {
    ActiveRequest& active = generation.active();
    const int64_t now_us = clock_.now_us();
    if (const auto gap_us = generation.token_gap_us(now_us)) step_tokens_.gaps.add(*gap_us);
    if (active.record.first_token_us != 0) return;
    active.record.first_token_us = now_us;
    step_tokens_.first_token.add(now_us - active.record.arrival_us);
    step_tokens_.prompt += active.usage.prompt_tokens;
    step_tokens_.cached += active.usage.cached_tokens;
    for (const int tokens : active.record.restored_tokens) step_tokens_.restored += tokens;
  }

  // The sequence goes on with another list instead of its own with the token that this step appends.
  void edit_context(sched::SeqId seq, Generation& generation, TokenId token) {
    const std::span<const TokenId> known = runner_->scheduler().find(seq)->tokens();
    std::vector<TokenId> list(known.begin(), known.end());
    list.push_back(token);
    runner_->scheduler().replace_tokens(seq, generation.edit_context(list));
  }

  // Sequences that the scheduler ended by itself, and the marks that its plan leaves on requests.
  void end_planned() {
    const sched::StepPlan& plan = runner_->plan();
    for (const sched::SeqId seq : plan.preempted) {
      if (const auto at = generations_.find(seq); at != generations_.end()) ++at->second->active().record.preemptions;
    }
    for (const sched::EndedSeq& ended : plan.ended) {
      const auto at = generations_.find(ended.seq);
      if (at == generations_.end()) continue;
      const bool is_late = ended.reason == sched::FinishReason::kTimeout;
      if (is_late && at->second->active().record.first_token_us == 0) {
        time_out(at->second->active_ptr());
        continue;
      }
      const FinishReason reason = is_late ? FinishReason::kTimeout : FinishReason::kLength;
      at->second->end(reason);
      say_finished(ended.seq, *at->second);
      end_generation(ended.seq, reason);
    }
  }

  // Its time is over, and not one choice has a token: an error, where others end with what they have.
  void time_out(std::shared_ptr<ActiveRequest> active) {
    std::erase_if(generations_, [&](const auto& entry) {
      if (&entry.second->active() != active.get()) return false;
      runner_->scheduler().cancel(entry.first);
      return true;
    });
    desk_.leave(active->session);
    active->stream->push(Failed{{ErrorCode::kTimeout,
                                 fmt::format("the request's timeout of {} s passed before its first token",
                                             static_cast<double>(*active->request.timeout_us) / 1e6),
                                 "timeout"}});
    close(*active, RequestRecord::Outcome::kTimeout);
  }

  // Of several choices the session takes the first one's list: all of it that is computed, without the token that was sampled last.
  void say_finished(sched::SeqId seq, Generation& generation) {
    ActiveRequest& active = generation.active();
    if (generation.choice() == 0) {
      const sched::Sequence* known = runner_->scheduler().find(seq);
      active.held_tokens =
          desk_.held_after(active.session, known != nullptr ? known->tokens() : std::span<const TokenId>());
    }
    generation.say_finished(clock_.now_us());
  }

  static void note_choice(Generation& generation) {
    RequestRecord& record = generation.active().record;
    record.max_choice_tokens = std::max(record.max_choice_tokens, generation.n_generated());
  }

  void end_generation(sched::SeqId seq, FinishReason reason) {
    const auto at = generations_.find(seq);
    const std::unique_ptr<Generation> generation = std::move(at->second);
    generations_.erase(at);
    ActiveRequest& active = generation->active();
    note_choice(*generation);
    if (--active.unfinished > 0) return;
    desk_.leave(active.session);
    close(active, outcome_of(reason));
  }

  // ---- any thread --------------------------------------------------------------------------------------------------------------
  int64_t turn_us() const {
    const int64_t begun_us = turn_begun_us_.load(std::memory_order_relaxed);
    return begun_us == kAsleep ? 0 : std::max<int64_t>(1, clock_.now_us() - begun_us);
  }

  // Leaves the request's record and forgets it.
  void close(ActiveRequest& active, RequestRecord::Outcome outcome) {
    active.record.finished_us = clock_.now_us();
    active.record.completion_tokens = active.usage.completion_tokens;
    active.record.context_edits = active.usage.context.edits;
    active.record.dropped_tokens = active.usage.context.dropped_tokens;
    const sched::CacheUse& use = active.cache_use;
    active.record.cached_tokens = use.reused_tokens;
    active.record.copied_tokens = use.copied_tokens;
    active.record.recomputed_tokens = use.recomputed_tokens;
    active.record.waited_us = use.waited_us;
    active.record.load_waited_us = use.load_waited_us;
    if (use.n_misses > 0) active.record.miss = use.misses[0].reason;
    active.record.outcome = outcome;
    const std::lock_guard lock(live_mutex_);
    records_.requests.push(active.record);
    live_.erase(active.request.id);
  }

  void refuse(ActiveRequest& active, Error error) {
    if (!active.cancelled.load()) active.stream->push(Failed{std::move(error)});
    close(active, RequestRecord::Outcome::kFailed);
  }

  const std::shared_ptr<TrafficMemory> traffic_;  // streams share it: they may be read when the engine is gone
  const Explain explain_;
  SteadyClock clock_;
  std::unique_ptr<StepRunner> runner_;
  const ServedModel served_;
  Sampler sampler_;
  const Secret secret_;
  SessionDesk desk_;
  Records records_;
  mutable std::mutex live_mutex_;
  std::unordered_map<RequestId, std::shared_ptr<ActiveRequest>>
      live_;  // guarded by live_mutex_, as is pushing to records_.requests
  Mailbox<Message> mailbox_;
  const int max_queued_;
  std::atomic<int64_t> turn_begun_us_{kAsleep};
  std::atomic<uint64_t> next_id_{1};
  std::atomic<bool> draining_{false};
  std::atomic<bool> stopping_{false};

  // Engine thread only.
  std::unordered_map<sched::SeqId, std::unique_ptr<Generation>> generations_;
  std::deque<std::function<void()>> asked_;
  uint64_t next_seq_ = 1;
  StepTokens step_tokens_;  // of the step that runs
  std::unordered_map<std::string, sched::TenantId> tenant_ids_;
  IdleConfig idle_;
  int64_t busy_us_ = 0;                  // when it last computed something
  std::unique_ptr<IdleWork> idle_work_;  // null: not begun, or done

  std::unique_ptr<Intake> intake_;  // after all that its callbacks use
  std::thread thread_;
};

// Whoever exported it may have held more of the context than is served here.
size_t most_part_bytes(const StepRunner& runner) {
  if (runner.sessions() == nullptr) return 0;
  std::vector<size_t> block_bytes;
  for (const models::AttentionGroup& group : runner.model().groups()) block_bytes.push_back(group.layout.block_bytes);
  const int n_tokens = std::max(runner.context_tokens(), runner.model().config().context_length);
  return kv::SessionTransfer::most_part_bytes(block_bytes, static_cast<size_t>(n_tokens));
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::create(const EngineConfig& asked) {
  static const SteadyClock kClock;
  if (memory_limit(asked)) bound_malloc();
  TRY_ASSIGN(const StepRunner::ModelFile file, StepRunner::open(asked));
  EngineConfig config = asked;
  apply_probe(config.probes, file.gguf, config);
  const auto wake = std::make_shared<WakeEvent>();
  TRY_ASSIGN(std::unique_ptr<StepRunner> runner, StepRunner::create(file, config, kClock, [wake] { wake->signal(); }));
  TRY_ASSIGN(const Secret secret, secret_of(config));
  TRY_ASSIGN(ServedModel served, ServedModel::make(file.gguf, config));
  served.info.architecture = to_string(runner->model().config().architecture);
  served.info.context_tokens = runner->context_tokens();
  served.info.kv_format = models::format_table(runner->groups());
  for (const models::AttentionGroup& group : runner->groups()) served.info.kv_block_bytes += group.layout.block_bytes;
  served.info.session_part_bytes = most_part_bytes(*runner);
  served.info.kv_token_bytes = runner->kv_bytes_per_token();
  // The file's vocabulary and embedding may differ in length; only ids that both know are safe.
  served.info.vocab_size = std::min(served.info.vocab_size, runner->model().config().vocab_size);
  std::erase_if(served.end_tokens, [&](TokenId token) { return token.value >= served.info.vocab_size; });
  served.info.trained_context_tokens = runner->model().config().context_length;
  const uint64_t kv_bytes = runner->pool().stats().budget_bytes;
  if (const uint64_t available = available_memory_bytes(); kv_bytes > available)
    LOG_WARN("KV may grow to {} bytes, but only {} are available now: lower --kv-memory", kv_bytes, available);
  if (!served.chat_template) LOG_INFO("chat is not available: {}", served.chat_template.error().to_string());
  auto engine = std::make_unique<EngineImpl>(std::move(runner), std::move(served), wake, secret, config);
  engine->start();
  return engine;
}

}  // namespace pagoda::engine
