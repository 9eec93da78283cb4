// TlsKeys: a server's certificate and key, and the TLS state of connections that use them. TLS 1.2 and 1.3.
// Files that change are read again: connections made from then on have the new certificate, the others keep theirs. A pair that is wrong, as
// between the two writes of a renewal, changes nothing.
// Threads: new_session from any; reload_if_changed from one at a time.     Errors: at load, kBadFile or kIo with the file's name.
#pragma once

#include <ctime>
#include <memory>
#include <mutex>
#include <string>

#include "base/error.h"
#include "http/tls_files.h"

struct ssl_ctx_st;
struct ssl_st;

namespace pagoda::http {

struct SslFree {
  void operator()(ssl_st* ssl) const;
  void operator()(ssl_ctx_st* context) const;
};
using SslPtr = std::unique_ptr<ssl_st, SslFree>;
using SslContextPtr = std::unique_ptr<ssl_ctx_st, SslFree>;

class TlsKeys {
 public:
  static Result<std::unique_ptr<TlsKeys>> load(const TlsFiles& files);

  // Of a connection that a client opened; it has no socket yet. Null: out of memory.
  SslPtr new_session();
  void reload_if_changed();
  // On the log: until when the certificate is valid, as a warning if it is not.
  void log_validity();

 private:
  // What tells a file from a changed one.
  struct Stamp {
    timespec changed{};
    uint64_t inode = 0;
    int64_t bytes = 0;
    bool operator==(const Stamp& other) const;
  };
  struct Stamps {
    Stamp certificate, key;
    bool operator==(const Stamps& other) const = default;
  };

  TlsKeys(TlsFiles files, SslContextPtr context, const Stamps& tried)
      : files_(std::move(files)), tried_(tried), context_(std::move(context)) {}
  static Stamp stamp_of(const std::string& path);

  const TlsFiles files_;
  Stamps tried_;  // when they were last read, well or not
  std::mutex mutex_;
  SslContextPtr context_;  // guarded by mutex_
};

}  // namespace pagoda::http
