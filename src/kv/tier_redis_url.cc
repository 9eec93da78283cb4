#include "kv/tier_redis_url.h"

#include <algorithm>
#include <charconv>
#include <optional>

namespace pagoda::kv {
namespace {

constexpr std::string_view kScheme = "redis://";

std::optional<std::string> percent_decode(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out.push_back(text[i]);
      continue;
    }
    uint8_t byte = 0;
    if (text.size() - i < 3) return std::nullopt;
    const auto [end, error] = std::from_chars(text.data() + i + 1, text.data() + i + 3, byte, 16);
    if (error != std::errc() || end != text.data() + i + 3) return std::nullopt;
    out.push_back(static_cast<char>(byte));
    i += 2;
  }
  return out;
}

template <typename Number>
std::optional<Number> parse_whole(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

Status parse_login(std::string_view login, RedisAddress& address) {
  const size_t colon = login.find(':');
  const auto user = percent_decode(login.substr(0, colon));
  const auto password = percent_decode(colon == std::string_view::npos ? std::string_view() : login.substr(colon + 1));
  if (!user || !password)
    return fail(ErrorCode::kInvalidArgument, "Redis URL: a % in the login is not followed by two hex digits");
  if (!user->empty() && password->empty())
    return fail(ErrorCode::kInvalidArgument, "Redis URL: a user without a password");
  address.user = *user;
  address.password = *password;
  return {};
}

Status parse_place(std::string_view place, RedisAddress& address) {
  std::string_view port;
  if (place.starts_with('[')) {
    const size_t close = place.find(']');
    if (close == std::string_view::npos) return fail(ErrorCode::kInvalidArgument, "Redis URL: [ without ]");
    address.host = place.substr(1, close - 1);
    port = place.substr(close + 1);
  } else {
    const size_t colon = place.find(':');
    address.host = place.substr(0, colon);
    port = colon == std::string_view::npos ? std::string_view() : place.substr(colon);
  }
  if (address.host.empty()) return fail(ErrorCode::kInvalidArgument, "Redis URL: no host");
  const auto is_odd = [](unsigned char c) { return c <= ' ' || c == 0x7F; };
  if (std::ranges::any_of(address.host, is_odd)) {
    return fail(ErrorCode::kInvalidArgument, "Redis URL: a space or control character in the host");
  }
  if (port.empty()) return {};
  const auto number = port.starts_with(':') ? parse_whole<uint16_t>(port.substr(1)) : std::nullopt;
  if (!number || *number == 0)
    return fail(ErrorCode::kInvalidArgument, "Redis URL: the port is not a number of 1 to 65535");
  address.port = *number;
  return {};
}

}  // namespace

std::string RedisAddress::to_string() const {
  const bool is_ipv6 = host.find(':') != std::string::npos;
  return fmt::format("{}:{}/{}", is_ipv6 ? "[" + host + "]" : host, port, db);
}

Result<RedisAddress> parse_redis_url(std::string_view url) {
  if (url.starts_with("rediss://")) return fail(ErrorCode::kUnsupported, "Redis URL: TLS (rediss://) is not supported");
  if (!url.starts_with(kScheme)) return fail(ErrorCode::kInvalidArgument, "Redis URL: does not begin with redis://");
  std::string_view rest = url.substr(kScheme.size());
  if (rest.find_first_of("?#") != std::string_view::npos) {
    return fail(ErrorCode::kInvalidArgument, "Redis URL: takes no ? or #; percent-encode them in a password");
  }
  RedisAddress address;
  if (const size_t slash = rest.find('/'); slash != std::string_view::npos) {
    const std::string_view db = rest.substr(slash + 1);
    const auto number = db.empty() ? std::optional<uint32_t>(0) : parse_whole<uint32_t>(db);
    if (!number) return fail(ErrorCode::kInvalidArgument, "Redis URL: the database behind the / is not a number");
    address.db = *number;
    rest = rest.substr(0, slash);
  }
  if (const size_t at = rest.rfind('@'); at != std::string_view::npos) {
    TRY(parse_login(rest.substr(0, at), address));
    rest = rest.substr(at + 1);
  }
  TRY(parse_place(rest, address));
  return address;
}

}  // namespace pagoda::kv
