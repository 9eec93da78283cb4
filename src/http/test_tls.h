// For tests of TLS: certificates made on the spot, and a blocking client. Loopback only.
#pragma once

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "http/raw_client.h"

namespace pagoda::http {

struct MadeCertificate {
  std::filesystem::path certificate, key;
};

// FOLDER/NAME.crt and FOLDER/NAME.key, self-signed for localhost, valid from yesterday until days_left from now.
inline MadeCertificate make_certificate(const std::filesystem::path& folder, const std::string& name, int days_left) {
  const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(EVP_EC_gen("P-256"), EVP_PKEY_free);
  const std::unique_ptr<X509, decltype(&X509_free)> x509(X509_new(), X509_free);
  CHECK(key && x509);
  X509_set_version(x509.get(), 2);
  ASN1_INTEGER_set(X509_get_serialNumber(x509.get()), 1);
  X509_time_adj_ex(X509_getm_notBefore(x509.get()), -30, 0, nullptr);
  X509_time_adj_ex(X509_getm_notAfter(x509.get()), days_left, 0, nullptr);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(x509.get()), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  X509_set_issuer_name(x509.get(), X509_get_subject_name(x509.get()));
  X509_set_pubkey(x509.get(), key.get());
  CHECK(X509_sign(x509.get(), key.get(), EVP_sha256()) > 0);
  MadeCertificate made{folder / (name + ".crt"), folder / (name + ".key")};
  FILE* file = std::fopen(made.certificate.c_str(), "w");
  CHECK(file != nullptr && PEM_write_X509(file, x509.get()) == 1);
  std::fclose(file);
  file = std::fopen(made.key.c_str(), "w");
  CHECK(file != nullptr && PEM_write_PrivateKey(file, key.get(), nullptr, nullptr, 0, nullptr, nullptr) == 1);
  std::fclose(file);
  return made;
}

class TlsClient {
 public:
  // Handshakes, with `version` at most (0: what there is).
  explicit TlsClient(uint16_t port, int version = 0, int receive_buffer_bytes = 0)
      : raw_(port, receive_buffer_bytes), context_(SSL_CTX_new(TLS_client_method()), SSL_CTX_free) {
    SSL_CTX_set_options(context_.get(), SSL_OP_IGNORE_UNEXPECTED_EOF);
    SSL_CTX_set_security_level(context_.get(), 0);
    if (version != 0) SSL_CTX_set_min_proto_version(context_.get(), version);
    if (version != 0) SSL_CTX_set_max_proto_version(context_.get(), version);
    const timeval patience{20, 0};
    setsockopt(raw_.fd(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(raw_.fd(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    ssl_.reset(SSL_new(context_.get()));
    SSL_set_fd(ssl_.get(), raw_.fd());
    is_connected_ = SSL_connect(ssl_.get()) == 1;
    if (!is_connected_) error_ = reason();
  }

  bool is_connected() const { return is_connected_; }
  const std::string& error() const { return error_; }
  RawClient& raw() { return raw_; }
  std::string version() const { return SSL_get_version(ssl_.get()); }
  std::string server_name() const {
    const std::unique_ptr<X509, decltype(&X509_free)> x509(SSL_get1_peer_certificate(ssl_.get()), X509_free);
    char name[100] = "";
    X509_NAME_get_text_by_NID(X509_get_subject_name(x509.get()), NID_commonName, name, sizeof name);
    return name;
  }
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const int n = SSL_write(ssl_.get(), bytes.data(), static_cast<int>(bytes.size()));
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }
  void update_keys() { SSL_key_update(ssl_.get(), SSL_KEY_UPDATE_REQUESTED); }
  std::string read_until(std::string_view end) {
    size_t at;
    while ((at = unread_.find(end)) == std::string::npos) {
      if (!receive()) return std::exchange(unread_, {});
    }
    return cut(at + end.size());
  }
  // One answer with Content-Length, head and body.
  std::string read_answer() {
    const std::string head = read_until("\r\n\r\n");
    const size_t at = head.find("Content-Length: ");
    const size_t length = at == std::string::npos ? 0 : std::strtoul(head.c_str() + at + 16, nullptr, 10);
    while (unread_.size() < length && receive()) {
    }
    return head + cut(std::min(length, unread_.size()));
  }
  // Whether the server says, in TLS, that nothing more comes.
  bool sees_goodbye() {
    while (receive()) {
    }
    return (SSL_get_shutdown(ssl_.get()) & SSL_RECEIVED_SHUTDOWN) != 0;
  }

 private:
  static std::string reason() {
    const char* text = ERR_reason_error_string(ERR_peek_last_error());
    ERR_clear_error();
    return text != nullptr ? text : "the connection ended";
  }
  bool receive() {
    char buffer[16384];
    const int n = SSL_read(ssl_.get(), buffer, sizeof buffer);
    if (n > 0) unread_.append(buffer, static_cast<size_t>(n));
    return n > 0;
  }
  std::string cut(size_t n) {
    std::string bytes = unread_.substr(0, n);
    unread_.erase(0, n);
    return bytes;
  }

  RawClient raw_;
  std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context_;
  std::unique_ptr<SSL, decltype(&SSL_free)> ssl_{nullptr, SSL_free};
  bool is_connected_ = false;
  std::string error_;
  std::string unread_;
};

}  // namespace pagoda::http
