#include "http/turned_away.h"

#include <array>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <utility>

namespace pagoda::http {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr std::chrono::milliseconds kStay{1'000};

}  // namespace

void TurnedAway::add(tcp::socket socket, std::string answer) {
  error_code ignored;
  socket.non_blocking(true, ignored);
  socket.write_some(asio::buffer(answer), ignored);  // short, into an empty socket buffer
  socket.shutdown(tcp::socket::shutdown_send, ignored);
  auto leaving = std::make_shared<Leaving>(std::move(socket), std::chrono::steady_clock::now() + kStay);
  asio::post(strand_, [this, leaving = std::move(leaving)]() mutable { take_in(std::move(leaving)); });
}

void TurnedAway::stop() {
  asio::post(strand_, [this] {
    is_stopped_ = true;
    timer_.cancel();
    while (!leaving_.empty()) end_oldest();
  });
}

void TurnedAway::take_in(std::shared_ptr<Leaving> leaving) {
  if (is_stopped_) return;
  if (leaving_.size() == kMost) end_oldest();
  leaving_.push_back(leaving);
  if (leaving_.size() == 1) arm();
  throw_away_input(std::move(leaving));
}

void TurnedAway::throw_away_input(std::shared_ptr<Leaving> leaving) {
  tcp::socket& socket = leaving->socket;
  socket.async_wait(tcp::socket::wait_read, asio::bind_executor(strand_, [this, leaving](error_code error) mutable {
                      thread_local std::array<char, 16 * 1024> buffer;
                      if (!error) leaving->socket.read_some(asio::buffer(buffer), error);
                      if (!error || error == asio::error::would_block) return throw_away_input(std::move(leaving));
                      leaving->socket.close(error);  // its client has gone too
                    }));
}

void TurnedAway::end_oldest() {
  error_code ignored;
  leaving_.front()->socket.close(ignored);
  leaving_.pop_front();
}

void TurnedAway::arm() {
  timer_.expires_at(leaving_.front()->until);
  timer_.async_wait([this](error_code cancelled) {
    if (cancelled) return;
    while (!leaving_.empty() && leaving_.front()->until <= std::chrono::steady_clock::now()) end_oldest();
    if (!leaving_.empty()) arm();
  });
}

}  // namespace pagoda::http
