#include "serve/monitoring.h"

#include <utility>

namespace pagoda::serve {

Monitoring::Monitoring(engine::Engine& engine, const AccessLog& access, const std::string& version)
    : engine_(engine), access_(access), metrics_(engine.models(), engine.stats(), version) {
  ask_account();
  pump_ = std::make_unique<RecordPump>(engine.records(), std::vector<RecordSink*>{&metrics_, this});
}

void Monitoring::add_to(http::Router& router) {
  router.add("GET", "/metrics", [this](http::HttpRequest, http::Responder responder) { scrape(std::move(responder)); });
}

void Monitoring::scrape(http::Responder responder) {
  pump_->post([this, responder = std::move(responder)]() mutable {
    responder.send({200, Metrics::kContentType, {}, metrics_.render(read())});
  });
}

MetricsReading Monitoring::read() {
  scraped_at_ = std::chrono::steady_clock::now();
  std::optional<kv::Account> account;
  {
    const std::lock_guard lock(accounts_->mutex);
    account = accounts_->last;
  }
  const http::HttpServer* server = server_;
  engine::Records& records = engine_.records();
  return {.engine = engine_.stats(),
          .account = std::move(account),
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
