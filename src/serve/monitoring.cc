#include "serve/monitoring.h"

#include <utility>

#include "base/clock.h"
#include "base/cpu.h"

namespace pagoda::serve {
namespace {

Capacity capacity_of(const engine::Engine& engine, int n_threads) {
  Capacity capacity{.n_threads = n_threads, .usable_cores = static_cast<double>(usable_cores())};
  for (const engine::ModelInfo& model : engine.models()) {
    capacity.weight_bytes += model.file_bytes;
    capacity.kv_bytes_per_token += static_cast<double>(model.kv_token_bytes);
  }
  return capacity;
}

}  // namespace

Monitoring::Monitoring(engine::Engine& engine, const AccessLog& access, const ServeOptions& options)
    : engine_(engine),
      access_(access),
      metrics_(engine.models(), engine.stats(), options.version),
      diagnosing_(capacity_of(engine, options.n_threads)) {
  ask_account();
  pump_ = std::make_unique<RecordPump>(engine.records(), std::vector<RecordSink*>{&metrics_, &diagnosing_, this});
}

void Monitoring::add_to(http::Router& router) {
  router.add("GET", "/metrics", [this](http::HttpRequest, http::Responder responder) { scrape(std::move(responder)); });
  router.add("GET", "/v1/diagnosis",
             [this](http::HttpRequest, http::Responder responder) { answer_diagnosis(std::move(responder)); });
}

void Monitoring::scrape(http::Responder responder) {
  pump_->post([this, responder = std::move(responder)]() mutable {
    responder.send({200, Metrics::kContentType, {}, metrics_.render(read())});
  });
}

void Monitoring::answer_diagnosis(http::Responder responder) {
  pump_->post([this, responder = std::move(responder)]() mutable {
    scraped_at_ = std::chrono::steady_clock::now();
    const tools::Window window = diagnosing_.window(SteadyClock().now_us(), engine_.stats(), last_account());
    responder.send({200, "application/json", {}, diagnosis_json(window, tools::diagnose(window))});
  });
}

std::optional<kv::Account> Monitoring::last_account() {
  const std::lock_guard lock(accounts_->mutex);
  return accounts_->last;
}

MetricsReading Monitoring::read() {
  scraped_at_ = std::chrono::steady_clock::now();
  const http::HttpServer* server = server_;
  engine::Records& records = engine_.records();
  return {.engine = engine_.stats(),
          .account = last_account(),
          .http = server != nullptr ? server->stats() : http::HttpStats{},
          .outcomes = access_.outcomes(),
          .dropped_requests = records.requests.dropped(),
          .dropped_steps = records.steps.dropped()};
}

void Monitoring::on_tick() {
  const auto now = std::chrono::steady_clock::now();
  if (now - scraped_at_ < kWatched && now - asked_at_ >= kAccountEvery) ask_account();
}

void Monitoring::ask_account() {
  {
    const std::lock_guard lock(accounts_->mutex);
    if (std::exchange(accounts_->is_asked, true)) return;
  }
  asked_at_ = std::chrono::steady_clock::now();
  engine_.ask_kv([accounts = accounts_](kv::Account account) {
    const std::lock_guard lock(accounts->mutex);
    accounts->last = std::move(account);
    accounts->is_asked = false;
  });
}

}  // namespace pagoda::serve
