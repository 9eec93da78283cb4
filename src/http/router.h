// Router: (method, path) -> handler. HEAD is answered by the GET route without its body; an unknown path is 404, a wrong method 405.
// Threads: filled before the server starts, then const.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "http/message.h"
#include "http/responder.h"

namespace pagoda::http {

// Runs on an io thread and must not block it: long work goes elsewhere and answers through the Responder.
using Handler = std::function<void(HttpRequest, Responder)>;

class Router {
 public:
  // pattern: "/v1/models" or with one value per segment, "/v1/models/{id}"; a last "{id...}" takes the rest, slashes and all.
  void add(std::string method, std::string_view pattern, Handler handler);

  struct Match {
    const Handler* handler = nullptr;  // null: see allow
    size_t route = 0;                  // where there is a handler: index of routes()
    std::vector<std::pair<std::string, std::string>> values;
    std::string allow;  // methods of the path, ", " between them; empty: no such path
  };
  Match find(std::string_view method, std::string_view path) const;

  struct Name {
    std::string method;
    std::string pattern;
  };
  std::vector<Name> routes() const;

 private:
  struct Route {
    Name name;
    std::vector<std::string> segments;
    Handler handler;
  };
  std::vector<Route> routes_;
};

}  // namespace pagoda::http
