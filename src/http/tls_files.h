// TlsFiles: where a server's certificate is.
#pragma once

#include <string>

namespace pagoda::http {

struct TlsFiles {
  std::string certificate{};  // PEM, with its chain; empty: no TLS
  std::string key{};          // PEM, unencrypted; may be the same file

  bool is_used() const { return !certificate.empty(); }
};

}  // namespace pagoda::http
