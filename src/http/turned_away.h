// TurnedAway: connections there is no room for. Each is told so, and its socket stays open a moment longer for what its client still sends:
// closed at once, a reset would overtake the answer.
// Owns: their sockets, kMost at most; one more ends the oldest.     Threads: all calls from any thread, none blocks.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <deque>
#include <memory>
#include <string>

namespace pagoda::http {

class TurnedAway {
 public:
  static constexpr size_t kMost = 32;

  explicit TurnedAway(boost::asio::io_context& io) : strand_(make_strand(io.get_executor())), timer_(strand_) {}
  // `answer`: a whole response.
  void add(boost::asio::ip::tcp::socket socket, std::string answer);
  // Closes all; later ones are closed at once.
  void stop();

 private:
  struct Leaving {
    boost::asio::ip::tcp::socket socket;
    std::chrono::steady_clock::time_point until;
  };

  void take_in(std::shared_ptr<Leaving> leaving);
  void throw_away_input(std::shared_ptr<Leaving> leaving);
  void end_oldest();
  void arm();

  boost::asio::strand<boost::asio::io_context::executor_type> strand_;
  boost::asio::steady_timer timer_;
  std::deque<std::shared_ptr<Leaving>> leaving_;  // the oldest first
  bool is_stopped_ = false;
};

}  // namespace pagoda::http
