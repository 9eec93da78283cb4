#include "http/server.h"

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <csignal>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "base/log.h"
#include "http/connection.h"
#include "http/file_limit.h"
#include "http/turned_away.h"

namespace pagoda::http {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

HttpResponse default_error(int status, std::string_view message) {
  std::string body = R"({"error":{"message":")";
  for (const char c : message) {
    if (c == '"' || c == '\\') body += '\\';
    body += static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7f ? '?' : c;
  }
  body += "\"}}";
  return {status, "application/json", {}, std::move(body)};
}

std::string cors_headers(const std::string& origin) {
  if (origin.empty()) return {};
  std::string lines =
      fmt::format("Access-Control-Allow-Origin: {}\r\nAccess-Control-Expose-Headers: x-request-id\r\n", origin);
  if (origin != "*") lines += "Vary: Origin\r\n";
  return lines;
}

Result<tcp::endpoint> resolve(asio::io_context& io, const std::string& host, uint16_t port) {
  error_code error;
  if (const auto address = asio::ip::make_address(host, error); !error) return tcp::endpoint(address, port);
  const auto found = tcp::resolver(io).resolve(host, std::to_string(port), error);
  if (error || found.empty()) {
    return fail(ErrorCode::kInvalidArgument,
                "cannot resolve the host {}: {}; --host takes an address or a name of this machine", host,
                error.message());
  }
  return found.begin()->endpoint();
}

tl::unexpected<Error> listen_error(const error_code& error, const tcp::endpoint& at) {
  const std::string where = fmt::format("{}:{}", at.address().to_string(), at.port());
  if (error == asio::error::address_in_use) {
    return fail(ErrorCode::kIo,
                "{} is in use by another program; stop it or choose another port with --port (0 takes a free one)",
                where);
  }
  if (error == asio::error::access_denied) {
    return fail(ErrorCode::kIo, "not allowed to listen on {}; choose a port above 1023 with --port", where);
  }
  if (error == boost::system::errc::address_not_available) {
    return fail(ErrorCode::kIo, "{} is not an address of this machine; choose another with --host",
                at.address().to_string());
  }
  return fail(ErrorCode::kIo, "cannot listen on {}: {}", where, error.message());
}

Result<tcp::acceptor> listen(asio::io_context& io, const HttpOptions& options) {
  TRY_ASSIGN(const tcp::endpoint endpoint, resolve(io, options.host, options.port));
  tcp::acceptor acceptor(io);
  error_code error, ignored;
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), ignored);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(tcp::acceptor::max_listen_connections, error);
  if (error) return listen_error(error, endpoint);
  return acceptor;
}

size_t rest_bytes(const HttpOptions& options) {
  return Connection::kRestBytes + (options.tls.is_used() ? Transport::kTlsBytes : 0);
}

// Half of the memory at most is for connections at rest.
size_t connections_in(const HttpOptions& options) {
  constexpr size_t kLeast = 16;
  if (options.memory == nullptr) return options.max_connections;
  const auto fitting = static_cast<size_t>(options.memory->bytes() / 2 / rest_bytes(options));
  return std::min(options.max_connections, std::max(kLeast, fitting));
}

// What a connection is told that there is no room for.
std::string no_room_answer(const ConnectionContext& context) {
  const HttpResponse response = context.options.render_error(503, "too many connections");
  return fmt::format(
      "HTTP/1.1 503 Service Unavailable\r\n{}Content-Type: {}\r\n{}Retry-After: 1\r\nConnection: "
      "close\r\nContent-Length: {}\r\n\r\n{}",
      date_header(), response.content_type, context.common_headers, response.body.size(), response.body);
}

// The same in TLS before there are keys: a fatal alert, internal_error.
constexpr std::string_view kNoRoomAlert{"\x15\x03\x03\x00\x02\x02\x50", 7};

class AsioServer final : public HttpServer {
 public:
  AsioServer(HttpOptions options, Router router) : context_(std::make_shared<ConnectionContext>()) {
    if (!options.render_error) options.render_error = default_error;
    options.max_connections = usable_connections(connections_in(options));
    context_->on_shortage = [this] { drop_stalled(); };
    context_->common_headers = cors_headers(options.cors_origin);
    context_->options = std::move(options);
    context_->router = std::move(router);
    context_->counts = std::make_shared<HttpCounts>(context_->router.routes());
  }
  ~AsioServer() override { stop(); }

  Status start() {
    if (const TlsFiles& files = context_->options.tls; files.is_used()) {
      TRY_ASSIGN(tls_keys_, TlsKeys::load(files));
      tls_keys_->log_validity();
      watch_tls_files();
    }
    TRY_ASSIGN(acceptor_, listen(io_, context_->options));
    error_code ignored;
    endpoint_ = acceptor_.local_endpoint(ignored);
    accept();
    for (int i = 0; i < context_->options.io_threads; ++i) threads_.emplace_back([this] { io_.run(); });
    return {};
  }

  uint16_t port() const override { return endpoint_.port(); }
  std::string url() const override {
    const std::string host = endpoint_.address().to_string();
    return fmt::format("{}://{}:{}", tls_keys_ ? "https" : "http",
                       endpoint_.address().is_v6() ? "[" + host + "]" : host, port());
  }

  void watch_signals(std::function<void(int)> callback) override {
    error_code error;
    signals_.add(SIGINT, error);
    if (!error) signals_.add(SIGTERM, error);
    if (error) LOG_WARN("cannot watch signals: {}", error.message());
    wait_signal(std::move(callback));
  }

  void drain() override {
    context_->draining = true;
    for (const auto& connection : connections()) connection->drain();
  }
  size_t active_requests() const override { return context_->active_requests; }
  HttpStats stats() const override;
  void stop() override;

 private:
  void accept();
  void on_accept(tcp::socket socket);
  void wait_signal(std::function<void(int)> callback);
  void watch_tls_files();
  void drop_stalled();
  std::vector<std::shared_ptr<Connection>> connections();

  asio::io_context io_;
  asio::executor_work_guard<asio::io_context::executor_type> work_{io_.get_executor()};
  std::shared_ptr<ConnectionContext> context_;
  std::unique_ptr<TlsKeys> tls_keys_;  // null: plain HTTP
  tcp::acceptor acceptor_{io_};
  TurnedAway turned_away_{io_};
  asio::steady_timer retry_{io_};
  asio::steady_timer tls_check_{io_};
  asio::signal_set signals_{io_};
  tcp::endpoint endpoint_;
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::unordered_map<Connection*, std::weak_ptr<Connection>> open_;  // guarded by mutex_
  bool is_stopping_ = false;                                         // guarded by mutex_
  std::chrono::steady_clock::time_point last_drop_{};                // guarded by mutex_
};

HttpStats AsioServer::stats() const {
  const HttpCounts& counts = *context_->counts;
  HttpStats stats{.routes = {},
                  .accepted = counts.accepted,
                  .turned_away = counts.turned_away,
                  .connections = context_->live_connections,
                  .active_requests = context_->active_requests};
  std::vector<Router::Name> names = context_->router.routes();
  names.emplace_back();
  for (size_t i = 0; i < names.size(); ++i) {
    HttpStats::Route& route = stats.routes.emplace_back(std::move(names[i]));
    std::ranges::copy(counts.routes[i].by_class, route.by_class.begin());
  }
  return stats;
}

void AsioServer::accept() {
  acceptor_.async_accept(asio::make_strand(io_), [this](error_code error, tcp::socket socket) {
    if (error == asio::error::operation_aborted || !acceptor_.is_open()) return;
    if (!error) {
      on_accept(std::move(socket));
      return accept();
    }
    LOG_WARN("cannot accept a connection: {}", error.message());  // out of descriptors, mostly: it passes
    retry_.expires_after(std::chrono::milliseconds(100));
    retry_.async_wait([this](error_code cancelled) {
      if (!cancelled) accept();
    });
  });
}

void AsioServer::on_accept(tcp::socket socket) {
  std::shared_ptr<Connection> connection;
  SslPtr ssl = tls_keys_ ? tls_keys_->new_session() : nullptr;
  const bool is_usable = ssl || !tls_keys_;
  {
    const std::lock_guard lock(mutex_);
    if (is_stopping_) return;
    ByteBudget* const budget = context_->options.memory;
    std::optional<ByteReservation> memory;
    if (budget != nullptr) memory = budget->try_reserve(rest_bytes(context_->options));
    if (is_usable && open_.size() < context_->options.max_connections && (budget == nullptr || memory)) {
      const auto on_closed = [this](Connection* closed) {
        const std::lock_guard inner(mutex_);
        open_.erase(closed);
      };
      connection = std::make_shared<Connection>(Transport(std::move(socket), std::move(ssl)), context_,
                                                std::move(memory).value_or(ByteReservation()), on_closed);
      open_.emplace(connection.get(), connection);
    }
  }
  (connection ? context_->counts->accepted : context_->counts->turned_away).fetch_add(1);
  if (!connection) {
    turned_away_.add(std::move(socket), tls_keys_ ? std::string(kNoRoomAlert) : no_room_answer(*context_));
    return drop_stalled();
  }
  connection->start();
}

void AsioServer::wait_signal(std::function<void(int)> callback) {
  signals_.async_wait([this, callback = std::move(callback)](error_code error, int signal) {
    if (error) return;
    callback(signal);
    wait_signal(callback);
  });
}

void AsioServer::watch_tls_files() {
  tls_check_.expires_after(context_->options.tls_check_every);
  tls_check_.async_wait([this](error_code cancelled) {
    if (cancelled) return;
    tls_keys_->reload_if_changed();
    watch_tls_files();
  });
}

// Looks at all connections, so not at every request that finds no room.
void AsioServer::drop_stalled() {
  constexpr std::chrono::milliseconds kEvery{100};
  {
    const std::lock_guard lock(mutex_);
    const auto now = std::chrono::steady_clock::now();
    if (is_stopping_ || now - last_drop_ < kEvery) return;
    last_drop_ = now;
  }
  for (const auto& connection : connections()) connection->drop_stalled();
}

std::vector<std::shared_ptr<Connection>> AsioServer::connections() {
  std::vector<std::shared_ptr<Connection>> alive;
  const std::lock_guard lock(mutex_);
  for (const auto& [key, weak] : open_) {
    if (auto connection = weak.lock()) alive.push_back(std::move(connection));
  }
  return alive;
}

void AsioServer::stop() {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(is_stopping_, true)) return;
  }
  asio::post(io_, [this] {
    error_code ignored;
    acceptor_.close(ignored);
    retry_.cancel();
    tls_check_.cancel();
    signals_.cancel(ignored);
  });
  turned_away_.stop();
  for (const auto& connection : connections()) connection->cut();
  work_.reset();
  for (std::thread& thread : threads_) thread.join();
  // A Responder on another thread may have posted after the last io thread left: run that too, so that nothing outlives io_.
  while (context_->live_connections > 0) {
    io_.restart();
    io_.poll();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::create(HttpOptions options, Router router) {
  auto server = std::make_unique<AsioServer>(std::move(options), std::move(router));
  TRY(server->start());
  return server;
}

}  // namespace pagoda::http
