// Error, Result<T>, TRY: how the outside world's failures (files, sockets, JSON, GGUF, peers) travel. Bugs abort instead (check.h).
#pragma once

#include <spdlog/fmt/fmt.h>

#include <string>
#include <tl/expected.hpp>
#include <utility>

namespace pagoda {

// The kinds a caller may act on; api/error_map.cc turns each into an HTTP status, a dialect body and a metric label.
enum class ErrorCode {
  kInvalidArgument,    // the request or command line is wrong: the message names the field
  kNotFound,           // no such model, file, path
  kBadFile,            // a file's bytes are malformed: `where` holds file and offset
  kUnsupported,        // well-formed, but not something this build can do
  kContextExceeded,    // prompt longer than the context: the message holds both numbers
  kOverloaded,         // queue full: try again later
  kUnavailable,        // starting, draining or stopped
  kCancelled,          // the client went away or asked to stop
  kResourceExhausted,  // memory, disk or descriptors ran out
  kIo,                 // the operating system said no
  kInternal,           // a library failed in a way nobody foresaw
  kTimeout,            // the time that the request gave itself is over
  kConflict,           // what is there stands against it: the message names it, or the limit
  kUnauthenticated,    // no key, or one that is not known
  kForbidden,          // known, but not allowed to do this
  kRateLimited,        // who asks has used up a limit of their own: try again later
};

std::string_view to_string(ErrorCode code);

struct Error {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;    // one line, names the cause and, where there is one, the way out
  std::string where;      // field, file:offset or address; empty if the message says it all
  int retry_after_s = 0;  // when it may go better, where that is known; 0: it is not

  // "message (where)".
  std::string to_string() const;
};

template <typename T>
using Result = tl::expected<T, Error>;
using Status = Result<void>;

// `return fail(ErrorCode::kNotFound, "no model named {}", name);`
template <typename... Args>
[[nodiscard]] tl::unexpected<Error> fail(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  return tl::unexpected<Error>(Error{code, fmt::format(format, std::forward<Args>(args)...), {}});
}
[[nodiscard]] inline tl::unexpected<Error> fail(Error error) { return tl::unexpected<Error>(std::move(error)); }

#define PAGODA_CONCAT_(a, b) a##b
#define PAGODA_CONCAT(a, b) PAGODA_CONCAT_(a, b)

// TRY(expr): returns expr's error from the enclosing function.   TRY_ASSIGN(decl, expr): declares decl from its value.
#define TRY(expr)                                                               \
  do {                                                                          \
    if (auto try_result_ = (expr); !try_result_) [[unlikely]]                   \
      return ::tl::unexpected<::pagoda::Error>(std::move(try_result_).error()); \
  } while (0)
#define TRY_ASSIGN(decl, expr) TRY_ASSIGN_(PAGODA_CONCAT(try_result_, __LINE__), decl, expr)
#define TRY_ASSIGN_(tmp, decl, expr)                                  \
  auto tmp = (expr);                                                  \
  if (!tmp) [[unlikely]]                                              \
    return ::tl::unexpected<::pagoda::Error>(std::move(tmp).error()); \
  decl = std::move(*tmp)

}  // namespace pagoda
