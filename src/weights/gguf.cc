#include "weights/gguf.h"

#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "weights/gguf_parse.h"

namespace pagoda::weights {
namespace {

// Files of a split model are called <stem>-00001-of-00003.gguf, counted from 1.
std::string split_suffix(uint64_t number, uint64_t n_parts) {
  return fmt::format("-{:05}-of-{:05}.gguf", number, n_parts);
}

template <typename T>
T load(std::span<const std::byte> bytes, uint64_t index) {
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}

// Calls f with element `index` of a fixed-size type, as its C++ type. A bool arrives as bool.
template <typename F>
auto visit_number(const GgufValue& value, uint64_t index, F f) {
  switch (value.type) {
    case GgufType::kU8:
      return f(load<uint8_t>(value.bytes, index));
    case GgufType::kI8:
      return f(load<int8_t>(value.bytes, index));
    case GgufType::kU16:
      return f(load<uint16_t>(value.bytes, index));
    case GgufType::kI16:
      return f(load<int16_t>(value.bytes, index));
    case GgufType::kU32:
      return f(load<uint32_t>(value.bytes, index));
    case GgufType::kI32:
      return f(load<int32_t>(value.bytes, index));
    case GgufType::kU64:
      return f(load<uint64_t>(value.bytes, index));
    case GgufType::kI64:
      return f(load<int64_t>(value.bytes, index));
    case GgufType::kF32:
      return f(load<float>(value.bytes, index));
    case GgufType::kF64:
      return f(load<double>(value.bytes, index));
    case GgufType::kBool:
    case GgufType::kString:
    case GgufType::kArray:
      break;
  }
  return f(load<uint8_t>(value.bytes, index) != 0);
}

template <typename T>
constexpr bool kIsInteger = std::is_integral_v<T> && !std::is_same_v<T, bool>;

bool is_string(const GgufValue& value) { return value.type == GgufType::kString; }

// Element `index` as an integer of type To, if it is one and fits. Not for strings.
template <typename To>
std::optional<To> as_integer(const GgufValue& value, uint64_t index) {
  return visit_number(value, index, []<typename From>(From number) -> std::optional<To> {
    if constexpr (kIsInteger<From>) {
      if (std::in_range<To>(number)) return static_cast<To>(number);
    }
    return std::nullopt;
  });
}

std::string type_name(const GgufValue& value) {
  const std::string_view type = to_string(value.type);
  return value.shape == GgufShape::kArray ? fmt::format("an array of {}", type) : std::string(type);
}

}  // namespace

std::string_view to_string(GgufType type) {
  constexpr std::string_view kNames[] = {"uint8", "int8",   "uint16", "int16",  "uint32", "int32",  "float32",
                                         "bool",  "string", "array",  "uint64", "int64",  "float64"};
  return kNames[static_cast<size_t>(type)];
}

int64_t TensorInfo::rows() const {
  int64_t product = 1;
  for (int i = 0; i + 1 < n_dims; ++i) product *= dims[static_cast<size_t>(i)];
  return product;
}

std::string shape_string(const TensorInfo& tensor) { return fmt::format("[{}]", fmt::join(tensor.shape(), ", ")); }

Result<Gguf> Gguf::open(const std::filesystem::path& path) {
  TRY_ASSIGN(Gguf gguf, map_part(path));
  TRY_ASSIGN(const std::optional<uint64_t> n_parts, gguf.get_u64("split.count"));
  if (n_parts.value_or(1) > 1) TRY(gguf.append_other_parts(path.string(), *n_parts));
  TRY(gguf.check_tensor_count());
  return gguf;
}

Result<Gguf> Gguf::from_bytes(std::span<const std::byte> bytes, std::string_view name) {
  TRY_ASSIGN(Gguf gguf, parse_part({std::string(name), std::nullopt, bytes}));
  TRY_ASSIGN(const std::optional<uint64_t> n_parts, gguf.get_u64("split.count"));
  if (n_parts.value_or(1) > 1) {
    return fail(gguf.error_at(ErrorCode::kUnsupported, "split.count", "one part of a split model cannot stand alone"));
  }
  TRY(gguf.check_tensor_count());
  return gguf;
}

Result<Gguf> Gguf::map_part(const std::filesystem::path& path) {
  TRY_ASSIGN(MappedFile file, MappedFile::open(path));
  const std::span<const std::byte> bytes = file.bytes();
  return parse_part({path.string(), std::move(file), bytes});
}

Result<Gguf> Gguf::parse_part(Part part) {
  TRY_ASSIGN(ParsedGguf parsed, parse_gguf(part.bytes, part.name));
  Gguf gguf;
  gguf.parts_.push_back(std::move(part));
  gguf.version_ = parsed.version;
  gguf.metadata_ = std::move(parsed.metadata);
  gguf.tensors_ = std::move(parsed.tensors);
  for (size_t i = 0; i < gguf.metadata_.size(); ++i) gguf.metadata_index_.emplace(gguf.metadata_[i].key, i);
  for (size_t i = 0; i < gguf.tensors_.size(); ++i) gguf.tensor_index_.emplace(gguf.tensors_[i].name, i);
  return gguf;
}

Status Gguf::append_other_parts(const std::string& first, uint64_t n_parts) {
  const std::string suffix = split_suffix(1, n_parts);
  TRY_ASSIGN(const std::optional<uint64_t> number, get_u64("split.no"));
  if (number.value_or(0) != 0) {
    return fail(error_at(ErrorCode::kInvalidArgument, "split.no",
                         fmt::format("this is not the first part of a split model: name the file *{}", suffix)));
  }
  if (!first.ends_with(suffix)) {
    return fail(error_at(ErrorCode::kBadFile, "split.count",
                         fmt::format("the first of {} parts must be called *{}", n_parts, suffix)));
  }
  const std::string stem = first.substr(0, first.size() - suffix.size());
  for (uint64_t i = 1; i < n_parts; ++i) {
    TRY_ASSIGN(Gguf part, map_part(stem + split_suffix(i + 1, n_parts)));
    TRY_ASSIGN(const std::optional<uint64_t> part_number, part.get_u64("split.no"));
    TRY_ASSIGN(const std::optional<uint64_t> part_count, part.get_u64("split.count"));
    if (part_number != i || part_count != n_parts) {
      return fail(part.error_at(ErrorCode::kBadFile, part_number != i ? "split.no" : "split.count",
                                fmt::format("the file is not part {} of {}, as its name says", i + 1, n_parts)));
    }
    TRY(append(std::move(part)));
  }
  return {};
}

// Takes the tensors of one more part; its metadata (the split keys) are no longer needed.
Status Gguf::append(Gguf part) {
  const int index = static_cast<int>(parts_.size());
  parts_.push_back(std::move(part.parts_.front()));
  for (TensorInfo& tensor : part.tensors_) {
    tensor.part = index;
    if (!tensor_index_.emplace(tensor.name, tensors_.size()).second) {
      return fail(error_at(ErrorCode::kBadFile, tensor,
                           fmt::format("tensor {} is in two parts of the model", printable(tensor.name))));
    }
    tensors_.push_back(tensor);
  }
  return {};
}

Status Gguf::check_tensor_count() const {
  TRY_ASSIGN(const std::optional<uint64_t> promised, get_u64("split.tensors.count"));
  if (promised.value_or(tensors_.size()) != tensors_.size()) {
    return fail(error_at(ErrorCode::kBadFile, "split.tensors.count",
                         fmt::format("{} tensors are promised, {} are there", *promised, tensors_.size())));
  }
  return {};
}

size_t Gguf::file_bytes() const {
  size_t total = 0;
  for (const Part& part : parts_) total += part.bytes.size();
  return total;
}

const GgufValue* Gguf::find_value(std::string_view key) const {
  const auto found = metadata_index_.find(key);
  return found == metadata_index_.end() ? nullptr : &metadata_[found->second].value;
}

const TensorInfo* Gguf::find(std::string_view name) const {
  const auto found = tensor_index_.find(name);
  return found == tensor_index_.end() ? nullptr : &tensors_[found->second];
}

void Gguf::drop(const TensorInfo& tensor, size_t n_bytes) const {
  const Part& part = parts_[static_cast<size_t>(tensor.part)];
  if (part.file) part.file->drop(tensor.offset, tensor.offset + n_bytes);
}

Error Gguf::error_at(ErrorCode code, std::string_view key, std::string message) const {
  const GgufValue* value = find_value(key);
  std::string where = value != nullptr ? fmt::format("{}:{}", name(), value->offset) : name();
  return {code, std::move(message), std::move(where)};
}

Error Gguf::error_at(ErrorCode code, const TensorInfo& tensor, std::string message) const {
  const Part& part = parts_[static_cast<size_t>(tensor.part)];
  return {code, std::move(message), fmt::format("{}:{}", part.name, tensor.offset)};
}

tl::unexpected<Error> Gguf::wrong_type(std::string_view key, const GgufValue& value, std::string_view wanted) const {
  return fail(error_at(ErrorCode::kBadFile, key, fmt::format("{} is {}, not {}", key, type_name(value), wanted)));
}

template <typename T>
Result<std::optional<T>> Gguf::get_integer(std::string_view key, std::string_view wanted) const {
  const GgufValue* value = find_value(key);
  if (value == nullptr) return std::nullopt;
  if (value->shape == GgufShape::kScalar && !is_string(*value)) {
    if (const std::optional<T> number = as_integer<T>(*value, 0)) return number;
  }
  return wrong_type(key, *value, wanted);
}

Result<std::optional<uint64_t>> Gguf::get_u64(std::string_view key) const {
  return get_integer<uint64_t>(key, "an integer from 0 up");
}

Result<std::optional<int64_t>> Gguf::get_i64(std::string_view key) const {
  return get_integer<int64_t>(key, "an integer of 64 bits");
}

Result<std::optional<double>> Gguf::get_f64(std::string_view key) const {
  const GgufValue* value = find_value(key);
  if (value == nullptr) return std::nullopt;
  if (value->shape != GgufShape::kScalar || is_string(*value) || value->type == GgufType::kBool) {
    return wrong_type(key, *value, "a number");
  }
  return visit_number(*value, 0, [](auto number) { return static_cast<double>(number); });
}

Result<std::optional<bool>> Gguf::get_bool(std::string_view key) const {
  const GgufValue* value = find_value(key);
  if (value == nullptr) return std::nullopt;
  if (value->shape != GgufShape::kScalar || value->type != GgufType::kBool) return wrong_type(key, *value, "a bool");
  return load<uint8_t>(value->bytes, 0) != 0;
}

Result<std::optional<std::string_view>> Gguf::get_string(std::string_view key) const {
  const GgufValue* value = find_value(key);
  if (value == nullptr) return std::nullopt;
  if (value->shape != GgufShape::kScalar || !is_string(*value)) return wrong_type(key, *value, "a string");
  return std::string_view(reinterpret_cast<const char*>(value->bytes.data()), value->bytes.size());
}

Result<std::optional<std::vector<int64_t>>> Gguf::get_array_i64(std::string_view key) const {
  const GgufValue* value = find_value(key);
  if (value == nullptr) return std::nullopt;
  const bool is_bool = value->type == GgufType::kBool;
  if (value->shape != GgufShape::kArray || is_string(*value)) return wrong_type(key, *value, "an array of integers");
  std::vector<int64_t> numbers;
  numbers.reserve(value->count);
  for (uint64_t i = 0; i < value->count; ++i) {
    const std::optional<int64_t> number =
        is_bool ? int64_t{load<uint8_t>(value->bytes, i)} : as_integer<int64_t>(*value, i);
    if (!number) return wrong_type(key, *value, "an array of integers of 64 bits");
    numbers.push_back(*number);
  }
  return numbers;
}

Result<std::optional<std::vector<float>>> Gguf::get_array_f32(std::string_view key) const {
  const GgufValue* value = find_value(key);
  if (value == nullptr) return std::nullopt;
  if (value->shape != GgufShape::kArray || value->type != GgufType::kF32) {
    return wrong_type(key, *value, "an array of float32");
  }
  std::vector<float> numbers(value->count);
  if (!numbers.empty()) std::memcpy(numbers.data(), value->bytes.data(), value->bytes.size());
  return numbers;
}

Result<std::optional<std::vector<std::string_view>>> Gguf::get_array_string(std::string_view key) const {
  const GgufValue* value = find_value(key);
  if (value == nullptr) return std::nullopt;
  if (value->shape != GgufShape::kArray || !is_string(*value)) return wrong_type(key, *value, "an array of strings");
  std::vector<std::string_view> strings;
  strings.reserve(value->count);
  const std::byte* at = value->bytes.data();
  for (uint64_t i = 0; i < value->count; ++i) {  // the parser has walked this run: every length fits
    uint64_t length = 0;
    std::memcpy(&length, at, sizeof(length));
    strings.emplace_back(reinterpret_cast<const char*>(at + sizeof(length)), length);
    at += sizeof(length) + length;
  }
  return strings;
}

}  // namespace pagoda::weights
