// Auth: who asks, and whether their key lets them. Keys come as Authorization: Bearer KEY or as x-api-key; routes of each level are in
// access_of, the one table. Without keys everybody is the server's owner, as is whoever has its own key (--api-key).
// The key file is read again every second, whatever its times say: they are coarse, and it is in the page cache. What is new there counts for
// the next request; requests that run go on. A file that is gone or wrong changes nothing, and is warned of once.
// Keys are compared as SHA-256 digests, with all that there are, in constant time. None is kept, logged or answered.
// Threads: any; one of its own reads the file.     Cost: a digest and a comparison per key, some microseconds.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "http/message.h"
#include "serve/tenant.h"
#include "serve/tenant_use.h"

namespace pagoda::serve {

enum class Access : uint8_t {
  kOpen,   // anybody
  kKey,    // any key
  kAdmin,  // a key of an admin
};

// What a path takes, with all that is below it where it takes an admin. Whatever is not listed takes a key.
Access access_of(std::string_view path);

struct AuthOptions {
  std::string api_key{};             // the owner's; empty: none
  std::filesystem::path key_file{};  // empty: none
  std::chrono::milliseconds poll_every{1000};
  bool has_keys() const { return !api_key.empty() || !key_file.empty(); }
};

// Neither is null.
struct Caller {
  std::shared_ptr<const Tenant> tenant;
  std::shared_ptr<TenantUse> use;

  // Writes into a request whose it is.
  void sign(engine::Request& request) const;
};

class Auth {
 public:
  // Errors: of the key file, as parse_key_file's; kIo.
  static Result<std::unique_ptr<Auth>> create(const AuthOptions& options, const Clock& clock);
  ~Auth();
  Auth(const Auth&) = delete;
  Auth& operator=(const Auth&) = delete;

  // kUnauthenticated: no key, or an unknown one. kForbidden: it takes an admin's. Of an open route the owner, whoever it is.
  Result<Caller> admit(const http::HttpRequest& request) const;
  // Reads the key file now, as is done every second.
  void reload();

 private:
  // Immutable: a reload makes another.
  struct Keys {
    struct Entry {
      Sha256 digest;
      size_t caller = 0;
    };
    std::vector<Entry> entries;
    std::vector<Caller> callers;  // the owner first
  };

  Auth(const AuthOptions& options, const Clock& clock);
  void watch();
  std::shared_ptr<const Keys> make_keys(std::vector<Tenant> tenants) const;
  static const Caller* find(const Keys& keys, std::string_view key);
  std::shared_ptr<const Keys> keys() const;

  const AuthOptions options_;
  const Clock& clock_;
  const Caller owner_;
  mutable std::mutex mutex_;
  std::shared_ptr<const Keys> keys_;  // guarded by mutex_
  std::mutex reload_mutex_;
  std::string read_text_;  // guarded by reload_mutex_: of the key file, as it was last, right or wrong
  bool is_gone_ = false;   // guarded by reload_mutex_: nor could it be read
  mutable std::atomic<uint64_t> n_refused_{0};
  std::condition_variable changed_;
  bool is_stopping_ = false;  // guarded by mutex_
  std::thread thread_;
};

// The key that a request shows; empty: none.
std::string_view key_of(const http::HttpRequest& request);

// Errors: kIo, or as parse_key_file's with the path; `where` is --api-keys.
Result<std::vector<Tenant>> load_key_file(const std::filesystem::path& path);

}  // namespace pagoda::serve
