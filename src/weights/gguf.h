// Gguf: a GGUF file (version 2 or 3, one file or all parts of a split model) mapped read-only, with typed metadata and
// a tensor table. Every count, offset, size, string, array and alignment has been checked: the spans and views handed
// out lie inside the mapping and live as long as the Gguf (moving it keeps them valid).
// Units: bytes, elements. Shapes are row-major as papers write them: GGUF's dimensions reversed, the last contiguous.
// Threads: const methods from any thread; drop() from one at a time.
// Errors: kBadFile with file:offset for malformed bytes, kUnsupported for version 1, kNotFound and kIo from the system.
// Cost: opening is O(metadata + tensors), no tensor byte is read; memory is a small multiple of the metadata's size.
// Source: the GGUF specification (ggml project).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "base/mapped_file.h"
#include "tensor/dtype.h"

namespace pagoda::weights {

// The numbers are the file's.
enum class GgufType : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64,
};
std::string_view to_string(GgufType type);

enum class GgufShape : uint8_t { kScalar, kArray };

// A metadata value where it lies. Numbers are little-endian and unaligned; an array of strings is a run of (u64 length,
// bytes).
struct GgufValue {
  GgufType type = GgufType::kU8;  // of the scalar, or of the array's elements; never kArray
  GgufShape shape = GgufShape::kScalar;
  uint64_t count = 1;                // elements
  std::span<const std::byte> bytes;  // without the length of a scalar string, without the array's head
  size_t offset = 0;                 // in the file, of bytes
};

struct GgufEntry {
  std::string_view key;
  GgufValue value;
};

struct TensorInfo {
  std::string_view name;
  uint32_t gguf_type = 0;
  std::optional<tensor::DType> dtype;       // empty: a type Pagoda does not compute with (name: tensor::gguf_type_name)
  std::array<int64_t, 4> dims{1, 1, 1, 1};  // the first n_dims are the shape
  int n_dims = 1;
  std::span<const std::byte> bytes;  // [rows(), cols()] blocks; empty if even the size of the type is unknown
  size_t offset = 0;                 // in its file
  int part = 0;                      // which file of a split model

  std::span<const int64_t> shape() const { return {dims.data(), static_cast<size_t>(n_dims)}; }
  int64_t cols() const { return dims[static_cast<size_t>(n_dims - 1)]; }  // elements of one contiguous row
  int64_t rows() const;                                                   // product of the other dimensions
  int64_t n_elements() const { return rows() * cols(); }                  // checked to fit
};

// "[262144, 640]".
std::string shape_string(const TensorInfo& tensor);

class Gguf {
 public:
  // Opening the first file of a split model opens all of them.
  static Result<Gguf> open(const std::filesystem::path& path);
  // Parses memory that the caller keeps alive and unchanged; `name` stands for the path in errors. One part only.
  static Result<Gguf> from_bytes(std::span<const std::byte> bytes, std::string_view name);

  uint32_t version() const { return version_; }
  size_t n_parts() const { return parts_.size(); }
  size_t file_bytes() const;  // of all parts
  const std::string& name() const { return parts_.front().name; }
  const std::string& part_name(size_t part) const { return parts_[part].name; }

  // Metadata in file order, from the first part.
  std::span<const GgufEntry> metadata() const { return metadata_; }
  const GgufValue* find_value(std::string_view key) const;  // nullptr if absent

  // Absent: nullopt. Another type, or a number that does not fit: kBadFile. Any integer type serves both integer
  // getters; f64 takes both float types and any integer.
  Result<std::optional<uint64_t>> get_u64(std::string_view key) const;
  Result<std::optional<int64_t>> get_i64(std::string_view key) const;
  Result<std::optional<double>> get_f64(std::string_view key) const;
  Result<std::optional<bool>> get_bool(std::string_view key) const;
  Result<std::optional<std::string_view>> get_string(std::string_view key) const;
  Result<std::optional<std::vector<int64_t>>> get_array_i64(std::string_view key) const;  // integers or bools
  Result<std::optional<std::vector<float>>> get_array_f32(std::string_view key) const;    // F32 only
  Result<std::optional<std::vector<std::string_view>>> get_array_string(std::string_view key) const;

  // Tensors of all parts, in file order.
  std::span<const TensorInfo> tensors() const { return tensors_; }
  const TensorInfo* find(std::string_view name) const;  // O(1); nullptr if absent

  // Lets go of the resident pages of the tensor's first n_bytes (it may still be read; pages come back). No effect on from_bytes.
  void drop(const TensorInfo& tensor, size_t n_bytes) const;

  // An error about a metadata key: its place is the value's, or the file's if the key is absent.
  Error error_at(ErrorCode code, std::string_view key, std::string message) const;
  // An error about a tensor.
  Error error_at(ErrorCode code, const TensorInfo& tensor, std::string message) const;

 private:
  struct Part {
    std::string name;
    std::optional<MappedFile> file;
    std::span<const std::byte> bytes;
  };

  Gguf() = default;
  static Result<Gguf> map_part(const std::filesystem::path& path);
  static Result<Gguf> parse_part(Part part);
  Status append_other_parts(const std::string& first, uint64_t n_parts);
  Status append(Gguf part);
  Status check_tensor_count() const;
  template <typename T>
  Result<std::optional<T>> get_integer(std::string_view key, std::string_view wanted) const;
  tl::unexpected<Error> wrong_type(std::string_view key, const GgufValue& value, std::string_view wanted) const;

  uint32_t version_ = 0;
  std::vector<Part> parts_;
  std::vector<GgufEntry> metadata_;
  std::vector<TensorInfo> tensors_;
  std::unordered_map<std::string_view, size_t> metadata_index_;
  std::unordered_map<std::string_view, size_t> tensor_index_;
};

}  // namespace pagoda::weights
