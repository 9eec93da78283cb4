#include "http/router.h"

#include <algorithm>

#include "http/url.h"

namespace pagoda::http {
namespace {

std::vector<std::string> split_path(std::string_view path) {
  std::vector<std::string> segments;
  while (!path.empty()) {
    path.remove_prefix(1);  // the slash
    const size_t end = std::min(path.find('/'), path.size());
    segments.emplace_back(path.substr(0, end));
    path.remove_prefix(end);
  }
  return segments;
}

bool is_value(std::string_view segment) {
  return segment.size() > 2 && segment.front() == '{' && segment.back() == '}';
}
bool takes_rest(std::string_view segment) { return is_value(segment) && segment.ends_with("...}"); }

using Values = std::vector<std::pair<std::string, std::string>>;

// Decoded text, or as it is where it is no valid encoding.
std::string decoded(std::string_view text) { return percent_decode(text).value_or(std::string(text)); }

bool match(const std::vector<std::string>& pattern, const std::vector<std::string>& path, Values& values) {
  values.clear();
  for (size_t i = 0; i < pattern.size(); ++i) {
    const std::string& part = pattern[i];
    if (i >= path.size()) return false;
    if (takes_rest(part)) {
      std::string rest = path[i];
      for (size_t j = i + 1; j < path.size(); ++j) rest += "/" + path[j];
      if (rest.empty()) return false;
      values.emplace_back(part.substr(1, part.size() - 5), decoded(rest));
      return true;
    }
    if (is_value(part) && !path[i].empty()) {
      values.emplace_back(part.substr(1, part.size() - 2), decoded(path[i]));
    } else if (part != path[i]) {
      return false;
    }
  }
  return pattern.size() == path.size();
}

}  // namespace

void Router::add(std::string method, std::string_view pattern, Handler handler) {
  routes_.push_back(Route{{std::move(method), std::string(pattern)}, split_path(pattern), std::move(handler)});
}

Router::Match Router::find(std::string_view method, std::string_view path) const {
  Match found;
  if (!path.starts_with('/')) return found;
  std::vector<std::string> segments = split_path(path);
  if (segments.size() > 1 && segments.back().empty()) segments.pop_back();  // "/v1/models/" is "/v1/models"
  const std::string_view wanted = method == "HEAD" ? "GET" : method;
  Values values;
  for (const Route& route : routes_) {
    if (!match(route.segments, segments, values)) continue;
    if (route.name.method == wanted) {
      found.handler = &route.handler;
      found.route = static_cast<size_t>(&route - routes_.data());
      found.values = std::move(values);
      return found;
    }
    const std::string& other = route.name.method;
    found.allow += (found.allow.empty() ? "" : ", ") + other + (other == "GET" ? ", HEAD" : "");
  }
  if (!found.allow.empty()) found.allow += ", OPTIONS";
  return found;
}

std::vector<Router::Name> Router::routes() const {
  std::vector<Name> names;
  for (const Route& route : routes_) names.push_back(route.name);
  return names;
}

}  // namespace pagoda::http
