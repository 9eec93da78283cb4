#include "http/loopback.h"

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>

namespace pagoda::http {

bool is_loopback(const std::string& host) {
  namespace ip = boost::asio::ip;
  boost::system::error_code error;
  const auto address = ip::make_address(host, error);
  if (!error) return address.is_loopback();
  boost::asio::io_context io;
  const auto found = ip::tcp::resolver(io).resolve(host, "0", error);
  return error || std::ranges::all_of(found, [](const auto& one) { return one.endpoint().address().is_loopback(); });
}

}  // namespace pagoda::http
