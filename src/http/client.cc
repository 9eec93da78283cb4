#include "http/client.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <optional>

namespace pagoda::http {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace beast_http = boost::beast::http;
using boost::system::error_code;

// Connect, write, read, each within what is left of the time.
class Asking final {
 public:
  Asking(const ServerUrl& server, std::chrono::seconds timeout) : server_(server), stream_(io_) {
    stream_.expires_after(timeout);
    parser_.body_limit(kMostAnswerBytes);
  }

  Result<Answer> run(const std::string& path, const std::vector<Header>& headers) {
    request_ = {beast_http::verb::get, server_.prefix + path, 11};
    request_.set(beast_http::field::host, server_.host);
    request_.set(beast_http::field::connection, "close");
    for (const Header& header : headers) request_.set(header.name, header.value);
    error_code error;
    const auto found = asio::ip::tcp::resolver(io_).resolve(server_.host, server_.port, error);
    if (error) return failure("cannot resolve", error);
    stream_.async_connect(found, [&](error_code code, const auto&) { error = code; });
    if (!finish(error)) return failure("cannot connect to", error);
    beast_http::async_write(stream_, request_, [&](error_code code, size_t) { error = code; });
    if (!finish(error)) return failure("cannot write to", error);
    beast_http::async_read(stream_, buffer_, parser_, [&](error_code code, size_t) { error = code; });
    if (!finish(error)) return failure("no answer from", error);
    return Answer{static_cast<int>(parser_.get().result_int()), std::move(parser_.get().body())};
  }

 private:
  bool finish(const error_code& error) {
    io_.restart();
    io_.run();
    return !error;
  }
  tl::unexpected<Error> failure(std::string_view what, const error_code& error) const {
    const bool is_late = error == beast::error::timeout;
    return fail(ErrorCode::kIo, "{} {}:{}: {}", what, server_.host, server_.port,
                is_late ? "it took too long" : error.message());
  }

  const ServerUrl& server_;
  asio::io_context io_;
  beast::tcp_stream stream_;
  beast::flat_buffer buffer_;
  beast_http::request<beast_http::empty_body> request_;
  beast_http::response_parser<beast_http::string_body> parser_;
};

}  // namespace

Result<ServerUrl> parse_server_url(const std::string& url) {
  const auto wrong = [&](std::string_view why) {
    return fail(ErrorCode::kInvalidArgument, "\"{}\" is no address of a server{}: write e.g. http://127.0.0.1:8000",
                url, why);
  };
  std::string_view rest = url;
  if (rest.starts_with("https://")) return wrong(" that can be asked: https is not supported here");
  if (rest.starts_with("http://")) rest.remove_prefix(7);
  ServerUrl out;
  const size_t slash = rest.find('/');
  if (slash != std::string_view::npos) {
    out.prefix = rest.substr(slash);
    while (out.prefix.ends_with('/')) out.prefix.pop_back();
    if (out.prefix == "/v1") out.prefix.clear();  // what clients are given
    rest = rest.substr(0, slash);
  }
  const size_t colon = rest.rfind(':');
  const bool has_port = colon != std::string_view::npos && rest.find(']', colon) == std::string_view::npos;
  out.port = has_port ? rest.substr(colon + 1) : "80";
  out.host = has_port ? rest.substr(0, colon) : rest;
  if (out.host.starts_with('[') && out.host.ends_with(']')) out.host = out.host.substr(1, out.host.size() - 2);
  const bool is_number =
      !out.port.empty() && out.port.size() <= 5 && out.port.find_first_not_of("0123456789") == std::string::npos;
  if (out.host.empty() || out.host.find_first_of(" \t\r\n") != std::string::npos || !is_number) return wrong("");
  return out;
}

Result<Answer> get(const ServerUrl& server, const std::string& path, const std::vector<Header>& headers,
                   std::chrono::seconds timeout) {
  return Asking(server, timeout).run(path, headers);
}

}  // namespace pagoda::http
