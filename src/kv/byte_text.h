// ByteWriter, ByteReader: little-endian numbers and runs of bytes, for formats that leave the process.
// A reader that runs out says so once, with is_good(), and gives zeros from then on: no read passes the end.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace pagoda::kv {

class ByteWriter {
 public:
  explicit ByteWriter(std::vector<std::byte>& out) : out_(out) {}
  template <std::integral T>
  void number(T value) {
    const auto bits = static_cast<std::make_unsigned_t<T>>(value);
    for (size_t i = 0; i < sizeof(T); ++i) out_.push_back(static_cast<std::byte>(bits >> (8 * i)));
  }
  void bytes(std::span<const std::byte> run) { out_.insert(out_.end(), run.begin(), run.end()); }
  void text(std::string_view run) { bytes(std::as_bytes(std::span(run))); }
  void pad_to(size_t multiple) {
    while (out_.size() % multiple != 0) out_.push_back(std::byte{0});
  }

 private:
  std::vector<std::byte>& out_;
};

class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  bool is_good() const { return is_good_; }
  size_t left() const { return bytes_.size() - at_; }
  size_t at() const { return at_; }

  template <std::integral T>
  T number() {
    std::make_unsigned_t<T> bits = 0;
    const std::span<const std::byte> run = bytes(sizeof(T));
    for (size_t i = 0; i < run.size(); ++i)
      bits = static_cast<decltype(bits)>(bits | std::to_integer<decltype(bits)>(run[i]) << (8 * i));
    return static_cast<T>(bits);
  }
  // Empty if there are not so many.
  std::span<const std::byte> bytes(size_t n) {
    if (n > left()) is_good_ = false;
    if (!is_good_) return {};
    at_ += n;
    return bytes_.subspan(at_ - n, n);
  }
  std::string_view text(size_t n) {
    const std::span<const std::byte> run = bytes(n);
    return {reinterpret_cast<const char*>(run.data()), run.size()};
  }
  void skip_to(size_t multiple) { bytes((multiple - at_ % multiple) % multiple); }

 private:
  std::span<const std::byte> bytes_;
  size_t at_ = 0;
  bool is_good_ = true;
};

}  // namespace pagoda::kv
