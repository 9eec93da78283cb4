// HttpCounts: what a server has answered, by route and status class, and whom it has let in.
// Threads: any; the counters are relaxed atomics.     Cost: one addition per answer or connection.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "http/router.h"

namespace pagoda::http {

// By the first digit of the status; 0: the client left before the head of its answer.
struct StatusCounts {
  std::array<std::atomic<uint64_t>, 6> by_class{};

  void add(int status) { by_class[status >= 100 && status < 600 ? static_cast<size_t>(status / 100) : 5].fetch_add(1); }
  void add_gone() { by_class[0].fetch_add(1); }
};

struct HttpCounts {
  explicit HttpCounts(const std::vector<Router::Name>& names) : routes(names.size() + 1) {}
  std::vector<StatusCounts> routes;  // as in the router; the last: what reached none
  std::atomic<uint64_t> accepted{0};
  std::atomic<uint64_t> turned_away{0};
};

// A moment's figures.
struct HttpStats {
  struct Route {
    Router::Name name{};  // empty: what reached no route
    std::array<uint64_t, 6> by_class{};
  };
  std::vector<Route> routes{};
  uint64_t accepted = 0;       // connections, ever
  uint64_t turned_away = 0;    // connections there was no room for
  size_t connections = 0;      // now
  size_t active_requests = 0;  // now: being received, handled or answered
};

}  // namespace pagoda::http
