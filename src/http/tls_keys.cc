#include "http/tls_keys.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "base/log.h"

namespace pagoda::http {
namespace {

// OpenSSL's reason for what failed on this thread.
std::string first_reason() {
  const char* reason = ERR_reason_error_string(ERR_peek_error());
  return reason != nullptr ? reason : "unknown reason";
}

bool has_no_pem() { return ERR_GET_REASON(ERR_peek_error()) == PEM_R_NO_START_LINE; }

Status check_readable(const std::string& path) {
  errno = 0;
  std::ifstream file(path);
  if (file && file.peek() != std::ifstream::traits_type::eof()) return {};
  return fail(ErrorCode::kIo, "{}: {}", path, errno != 0 ? std::strerror(errno) : "the file is empty");
}

// Nobody is asked for a passphrase on the terminal.
int note_passphrase(char*, int, int, void* was_asked) {
  *static_cast<bool*>(was_asked) = true;
  return -1;
}

Status use_certificate(SSL_CTX* context, const std::string& path) {
  TRY(check_readable(path));
  ERR_clear_error();
  if (SSL_CTX_use_certificate_chain_file(context, path.c_str()) == 1) return {};
  if (has_no_pem()) return fail(ErrorCode::kBadFile, "{}: there is no certificate in PEM in it", path);
  return fail(ErrorCode::kBadFile, "{}: the certificate cannot be used: {}", path, first_reason());
}

Status use_key(SSL_CTX* context, const TlsFiles& files) {
  TRY(check_readable(files.key));
  bool has_passphrase = false;
  SSL_CTX_set_default_passwd_cb(context, note_passphrase);
  SSL_CTX_set_default_passwd_cb_userdata(context, &has_passphrase);
  ERR_clear_error();
  const bool is_used = SSL_CTX_use_PrivateKey_file(context, files.key.c_str(), SSL_FILETYPE_PEM) == 1 &&
                       SSL_CTX_check_private_key(context) == 1;
  SSL_CTX_set_default_passwd_cb_userdata(context, nullptr);
  if (is_used) return {};
  if (has_passphrase)
    return fail(ErrorCode::kBadFile, "{}: the key has a passphrase, and nobody is asked: decrypt the file", files.key);
  const unsigned long error = ERR_peek_error();
  if (ERR_GET_LIB(error) == ERR_LIB_X509 &&
      (ERR_GET_REASON(error) == X509_R_KEY_VALUES_MISMATCH || ERR_GET_REASON(error) == X509_R_KEY_TYPE_MISMATCH)) {
    return fail(ErrorCode::kBadFile, "{}: the key does not belong to the certificate in {}", files.key,
                files.certificate);
  }
  if (has_no_pem() || ERR_GET_REASON(error) == ERR_R_UNSUPPORTED)
    return fail(ErrorCode::kBadFile, "{}: there is no private key in PEM in it", files.key);
  return fail(ErrorCode::kBadFile, "{}: the key cannot be used: {}", files.key, first_reason());
}

Result<SslContextPtr> make_context(const TlsFiles& files) {
  SslContextPtr context(SSL_CTX_new(TLS_server_method()));
  if (!context) return fail(ErrorCode::kInternal, "OpenSSL: {}", first_reason());
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  // Where a body ends HTTP says itself, so a peer that ends without a word is no attack.
  SSL_CTX_set_options(context.get(), SSL_OP_NO_RENEGOTIATION | SSL_OP_IGNORE_UNEXPECTED_EOF);
  // At rest a connection has no buffers.
  SSL_CTX_set_mode(context.get(),
                   SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);  // clients hold tickets
  SSL_CTX_set_num_tickets(context.get(), 1);
  TRY(use_certificate(context.get(), files.certificate));
  TRY(use_key(context.get(), files));
  return context;
}

std::string text_of(const ASN1_TIME* time) {
  const std::unique_ptr<BIO, decltype(&BIO_free)> bio(BIO_new(BIO_s_mem()), BIO_free);
  char* text = nullptr;
  if (!bio || ASN1_TIME_print(bio.get(), time) != 1) return "?";
  const long n = BIO_get_mem_data(bio.get(), &text);
  return std::string(text, static_cast<size_t>(n));
}

}  // namespace

void SslFree::operator()(ssl_st* ssl) const { SSL_free(ssl); }
void SslFree::operator()(ssl_ctx_st* context) const { SSL_CTX_free(context); }

bool TlsKeys::Stamp::operator==(const Stamp& other) const {
  return changed.tv_sec == other.changed.tv_sec && changed.tv_nsec == other.changed.tv_nsec && inode == other.inode &&
         bytes == other.bytes;
}

TlsKeys::Stamp TlsKeys::stamp_of(const std::string& path) {
  struct stat file{};
  if (stat(path.c_str(), &file) != 0) return {};
  return {file.st_mtim, file.st_ino, file.st_size};
}

Result<std::unique_ptr<TlsKeys>> TlsKeys::load(const TlsFiles& files) {
  const Stamps stamps{stamp_of(files.certificate), stamp_of(files.key)};
  TRY_ASSIGN(SslContextPtr context, make_context(files));
  return std::unique_ptr<TlsKeys>(new TlsKeys(files, std::move(context), stamps));
}

SslPtr TlsKeys::new_session() {
  const std::lock_guard lock(mutex_);
  SslPtr ssl(SSL_new(context_.get()));
  if (ssl) SSL_set_accept_state(ssl.get());
  return ssl;
}

void TlsKeys::reload_if_changed() {
  const Stamps stamps{stamp_of(files_.certificate), stamp_of(files_.key)};
  if (stamps == tried_) return;
  tried_ = stamps;
  Result<SslContextPtr> context = make_context(files_);
  if (!context) return LOG_WARN("the certificate stays as it was: {}", context.error().to_string());
  {
    const std::lock_guard lock(mutex_);
    std::swap(context_, *context);
  }
  log_validity();
}

void TlsKeys::log_validity() {
  const std::lock_guard lock(mutex_);
  const X509* certificate = SSL_CTX_get0_certificate(context_.get());
  const ASN1_TIME *begin = X509_get0_notBefore(certificate), *end = X509_get0_notAfter(certificate);
  if (X509_cmp_current_time(end) < 0) {
    LOG_WARN("the certificate in {} has expired on {}: clients will refuse it", files_.certificate, text_of(end));
  } else if (X509_cmp_current_time(begin) > 0) {
    LOG_WARN("the certificate in {} is not valid before {}: clients will refuse it", files_.certificate,
             text_of(begin));
  } else {
    LOG_INFO("TLS with the certificate in {}, valid until {}", files_.certificate, text_of(end));
  }
}

}  // namespace pagoda::http
