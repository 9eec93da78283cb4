// Fuzzes what a socket feeds: RequestParser, router and target splitting, with the input cut at places the input chooses.
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "http/request_parser.h"
#include "http/router.h"
#include "http/url.h"

using pagoda::http::HttpRequest;
using pagoda::http::RequestParser;

namespace {

pagoda::http::Router make_router() {
  pagoda::http::Router router;
  router.add("GET", "/v1/models/{id...}", [](HttpRequest, pagoda::http::Responder) {});
  router.add("POST", "/v1/{kind}/completions", [](HttpRequest, pagoda::http::Responder) {});
  return router;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  static const pagoda::http::Router kRouter = make_router();
  const size_t piece = 1 + data[0];
  std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  RequestParser parser({4096, 1 << 16});
  std::string held;
  while (!rest.empty()) {
    const size_t n = std::min(piece, rest.size());
    held += rest.substr(0, n);
    rest.remove_prefix(n);
    for (size_t consumed = 1; consumed > 0 && !held.empty();) {
      consumed = parser.feed(held);
      CHECK(consumed <= held.size());
      held.erase(0, consumed);
      if (parser.state() == RequestParser::State::kFailed) return 0;
      if (parser.state() != RequestParser::State::kDone) continue;
      const HttpRequest request = parser.take();
      CHECK(request.body.size() <= 1 << 16);
      const auto match = kRouter.find(request.method, request.path);
      CHECK(!match.handler || match.values.size() == 1);
      pagoda::http::percent_decode(request.query);
    }
  }
  return 0;
}
