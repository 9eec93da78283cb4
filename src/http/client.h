// A client for asking a server of ours: one GET, one answer, blocking.
// Threads: any.     Errors: kInvalidArgument: not a URL of http://host:port; kIo: no connection, or no whole answer in time; the message names
// the address.     Bounds: answers of kMostAnswerBytes.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "base/error.h"
#include "http/message.h"

namespace pagoda::http {

inline constexpr size_t kMostAnswerBytes = 16 * 1024 * 1024;

struct ServerUrl {
  std::string host;
  std::string port;    // "80" if it names none
  std::string prefix;  // of paths, without a slash at its end; mostly empty
};
Result<ServerUrl> parse_server_url(const std::string& url);

struct Answer {
  int status = 0;
  std::string body;
};
Result<Answer> get(const ServerUrl& server, const std::string& path, const std::vector<Header>& headers = {},
                   std::chrono::seconds timeout = std::chrono::seconds(10));

}  // namespace pagoda::http
