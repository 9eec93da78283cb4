// HttpRequest and HttpResponse: plain data between sockets and routes. No dialect, no JSON.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/byte_budget.h"

namespace pagoda::http {

struct Header {
  std::string name;
  std::string value;
};

struct HttpRequest {
  std::string method;  // as sent: methods are case-sensitive
  std::string target;  // as sent: path, maybe ? and query
  std::string path;    // as sent, without the query
  std::string query;   // as sent, without the ?
  std::vector<Header> headers;
  std::string body;                                              // whole, chunks joined
  std::string peer;                                              // address:port
  std::vector<std::pair<std::string, std::string>> path_values;  // {name} parts of the matched route, decoded
  int version = 11;                                              // 10 or 11
  bool keep_alive = true;
  std::shared_ptr<ByteReservation> memory;  // what body and all that is made of it are counted in; null: nobody counts

  // The first header of that name (any case); empty if there is none.
  std::string_view header(std::string_view name) const;
  // The {name} part of the route; empty if there is none.
  std::string_view path_value(std::string_view name) const;
};

// Bodies beyond the common limit: how large, and which routes take them.
struct LargeBodies {
  size_t bytes = 0;
  std::function<bool(std::string_view method, std::string_view path)> are_taken{};  // null: none does
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::vector<Header> headers;
  std::string body;
  std::shared_ptr<ByteReservation>
      memory{};  // that covers the body, held until it is written; null: the server counts it
};

// "Not Found" for 404; "Status" for a number nobody registered.
std::string_view reason_phrase(int status);

bool equal_ignoring_case(std::string_view a, std::string_view b);

}  // namespace pagoda::http
