// GgufWriter: small GGUF files in memory for tests. No checks: it also writes what a hostile file would hold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "tensor/dtype.h"
#include "weights/gguf.h"

namespace pagoda::weights {

class GgufWriter {
 public:
  // Integers and floats by their exact C++ type, bools, strings.
  template <typename T>
  GgufWriter& set(std::string_view key, const T& value) {
    begin_entry(key);
    if constexpr (std::is_convertible_v<T, std::string_view>) {
      put(metadata_, GgufType::kString);
      put_string(metadata_, value);
    } else {
      put(metadata_, type_of<T>());
      put(metadata_, value);
    }
    return *this;
  }

  template <typename T>
  GgufWriter& set_array(std::string_view key, const std::vector<T>& values) {
    begin_entry(key);
    put(metadata_, GgufType::kArray);
    if constexpr (std::is_convertible_v<T, std::string_view>) {
      put(metadata_, GgufType::kString);
      put(metadata_, uint64_t{values.size()});
      for (const auto& value : values) put_string(metadata_, value);
    } else {
      put(metadata_, type_of<T>());
      put(metadata_, uint64_t{values.size()});
      for (const T value : values) put(metadata_, value);
    }
    return *this;
  }

  // An entry whose type and bytes are given as they are.
  GgufWriter& set_raw(std::string_view key, uint32_t type, std::string_view bytes) {
    begin_entry(key);
    put(metadata_, type);
    metadata_ += bytes;
    return *this;
  }

  // Shape in papers' order; the bytes go to the next aligned offset.
  GgufWriter& tensor(std::string_view name, uint32_t gguf_type, const std::vector<uint64_t>& shape,
                     std::string_view bytes) {
    data_.resize((data_.size() + alignment_ - 1) / alignment_ * alignment_);
    tensor_at(name, gguf_type, shape, data_.size());
    data_ += bytes;
    return *this;
  }
  // Zero-filled, of a type Pagoda knows.
  GgufWriter& zeros(std::string_view name, tensor::DType dtype, const std::vector<uint64_t>& shape) {
    uint64_t n = 1;
    for (const uint64_t dim : shape) n *= dim;
    const auto size = static_cast<size_t>(tensor::row_bytes(dtype, static_cast<int64_t>(n)));
    return tensor(name, tensor::info(dtype).gguf_type, shape, std::string(size, '\0'));
  }
  // A table entry without data of its own.
  GgufWriter& tensor_at(std::string_view name, uint32_t gguf_type, const std::vector<uint64_t>& shape,
                        uint64_t offset) {
    ++n_tensors_;
    put_string(tensors_, name);
    put(tensors_, static_cast<uint32_t>(shape.size()));
    for (size_t i = shape.size(); i-- > 0;) put(tensors_, shape[i]);
    put(tensors_, gguf_type);
    put(tensors_, offset);
    return *this;
  }

  GgufWriter& alignment(uint32_t bytes) {
    alignment_ = bytes;
    return set("general.alignment", bytes);
  }

  std::string finish(uint32_t version = 3) const {
    std::string out = "GGUF";
    put(out, version);
    put(out, n_tensors_);
    put(out, n_entries_);
    out += metadata_;
    out += tensors_;
    if (n_tensors_ > 0) out.resize((out.size() + alignment_ - 1) / alignment_ * alignment_);
    return out + data_;
  }

 private:
  template <typename T>
  static constexpr GgufType type_of() {
    if constexpr (std::is_same_v<T, bool>) return GgufType::kBool;
    if constexpr (std::is_same_v<T, float>) return GgufType::kF32;
    if constexpr (std::is_same_v<T, double>) return GgufType::kF64;
    if constexpr (std::is_same_v<T, uint8_t>) return GgufType::kU8;
    if constexpr (std::is_same_v<T, int8_t>) return GgufType::kI8;
    if constexpr (std::is_same_v<T, uint16_t>) return GgufType::kU16;
    if constexpr (std::is_same_v<T, int16_t>) return GgufType::kI16;
    if constexpr (std::is_same_v<T, uint32_t>) return GgufType::kU32;
    if constexpr (std::is_same_v<T, int32_t>) return GgufType::kI32;
    if constexpr (std::is_same_v<T, uint64_t>) return GgufType::kU64;
    if constexpr (std::is_same_v<T, int64_t>) return GgufType::kI64;
  }

  template <typename T>
  static void put(std::string& out, T value) {
    out.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  static void put_string(std::string& out, std::string_view text) {
    put(out, uint64_t{text.size()});
    out += text;
  }
  void begin_entry(std::string_view key) {
    ++n_entries_;
    put_string(metadata_, key);
  }

  std::string metadata_, tensors_, data_;
  uint64_t n_entries_ = 0, n_tensors_ = 0;
  size_t alignment_ = 32;
};

inline std::span<const std::byte> as_bytes(const std::string& file) { return std::as_bytes(std::span(file)); }

inline void write_file(const std::string& path, const std::string& file) {
  std::ofstream(path, std::ios::binary) << file;
}

}  // namespace pagoda::weights
