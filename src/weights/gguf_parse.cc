#include "weights/gguf_parse.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <unordered_set>

#include "tensor/dtype.h"

namespace pagoda::weights {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF numbers are read as they lie");

constexpr size_t kMaxKeyBytes = 65535;
constexpr size_t kMaxTensorNameBytes = 255;  // the specification says 64
constexpr uint32_t kMaxDims = 4;
constexpr uint64_t kDefaultAlignment = 32;
constexpr uint64_t kMaxAlignment = 1 << 20;
// The fewest bytes an entry can take: they bound the counts in the header.
constexpr uint64_t kMinEntryBytes = 8 + 4 + 1;           // key length, type, value
constexpr uint64_t kMinTensorBytes = 8 + 4 + 8 + 4 + 8;  // name length, n_dims, one dimension, type, offset

class Parser {
 public:
  Parser(std::span<const std::byte> bytes, std::string_view name) : bytes_(bytes), name_(name) {}

  Result<ParsedGguf> run() {
    TRY(read_header());
    TRY(read_metadata());
    TRY(read_alignment());
    TRY(read_tensors());
    TRY(place_tensors());
    return std::move(out_);
  }

 private:
  size_t remaining() const { return bytes_.size() - position_; }

  template <typename... Args>
  tl::unexpected<Error> bad(size_t offset, fmt::format_string<Args...> format, Args&&... args) const {
    return fail(Error{ErrorCode::kBadFile, fmt::format(format, std::forward<Args>(args)...),
                      fmt::format("{}:{}", name_, offset)});
  }

  template <typename T>
  Result<T> read(std::string_view what) {
    if (remaining() < sizeof(T)) return bad(position_, "the file ends inside {}", what);
    T value;
    std::memcpy(&value, bytes_.data() + position_, sizeof(T));
    position_ += sizeof(T);
    return value;
  }

  Result<std::string_view> read_string(std::string_view what, size_t max_bytes) {
    const size_t start = position_;
    TRY_ASSIGN(const uint64_t length, read<uint64_t>(what));
    if (length > max_bytes) return bad(start, "{} is {} bytes long, more than {}", what, length, max_bytes);
    if (length > remaining()) {
      return bad(start, "{} is {} bytes long, but only {} are left in the file", what, length, remaining());
    }
    const std::string_view text(reinterpret_cast<const char*>(bytes_.data() + position_), length);
    position_ += length;
    return text;
  }

  Status read_header();
  Status read_metadata();
  Result<GgufValue> read_value(std::string_view key);
  Result<GgufType> read_type(std::string_view key);
  Status skip_strings(uint64_t count, std::string_view key);
  Status check_bools(const GgufValue& value, std::string_view key) const;
  Status read_alignment();
  Status read_tensors();
  Result<TensorInfo> read_tensor();
  Status read_dims(TensorInfo* tensor);
  Result<uint64_t> tensor_bytes(const TensorInfo& tensor, size_t at) const;
  Status place_tensors();
  Status check_disjoint() const;

  std::span<const std::byte> bytes_;
  std::string_view name_;
  size_t position_ = 0;
  uint64_t n_entries_ = 0;
  uint64_t n_tensors_ = 0;
  uint64_t alignment_ = kDefaultAlignment;
  std::vector<size_t> records_;  // where each tensor's record starts
  ParsedGguf out_;
};

Status Parser::read_header() {
  constexpr std::string_view kBigEndian =
      "this GGUF file is big-endian; convert it to little-endian (gguf-py's gguf_convert_endian.py)";
  TRY_ASSIGN(const uint32_t magic, read<uint32_t>("the magic number"));
  if (std::memcmp(&magic, "FUGG", 4) == 0) return bad(0, "{}", kBigEndian);
  if (std::memcmp(&magic, "GGUF", 4) != 0) {
    return fail(
        Error{ErrorCode::kBadFile,
              fmt::format("not a GGUF file: it starts with 0x{:08x}, not \"GGUF\"; a model converted to GGUF is "
                          "wanted",
                          magic),
              std::string(name_)});
  }
  TRY_ASSIGN(out_.version, read<uint32_t>("the version"));
  if (out_.version != 0 && (out_.version & 0xFFFFU) == 0) return bad(4, "{}", kBigEndian);
  if (out_.version == 1) {
    return fail(Error{ErrorCode::kUnsupported, "GGUF version 1 is not supported, only 2 and 3: convert the model again",
                      fmt::format("{}:4", name_)});
  }
  if (out_.version != 2 && out_.version != 3) return bad(4, "GGUF version {} is not 2 or 3", out_.version);
  TRY_ASSIGN(n_tensors_, read<uint64_t>("the tensor count"));
  TRY_ASSIGN(n_entries_, read<uint64_t>("the metadata count"));
  if (n_tensors_ > remaining() / kMinTensorBytes) {
    return bad(8, "the header promises {} tensors, which do not fit a file of {} bytes", n_tensors_, bytes_.size());
  }
  if (n_entries_ > remaining() / kMinEntryBytes) {
    return bad(16, "the header promises {} metadata entries, which do not fit a file of {} bytes", n_entries_,
               bytes_.size());
  }
  return {};
}

Status Parser::read_metadata() {
  std::unordered_set<std::string_view> seen;
  for (uint64_t i = 0; i < n_entries_; ++i) {
    const size_t start = position_;
    TRY_ASSIGN(const std::string_view key, read_string("a metadata key", kMaxKeyBytes));
    if (key.empty()) return bad(start, "metadata key {} is empty", i);
    if (!seen.insert(key).second) return bad(start, "metadata key {} appears twice", printable(key));
    TRY_ASSIGN(const GgufValue value, read_value(key));
    out_.metadata.push_back({key, value});
  }
  return {};
}

Result<GgufType> Parser::read_type(std::string_view key) {
  TRY_ASSIGN(const uint32_t type, read<uint32_t>("a metadata type"));
  if (type > static_cast<uint32_t>(GgufType::kF64)) {
    return bad(position_ - 4, "the type of {} is {}, which GGUF does not define", printable(key), type);
  }
  return static_cast<GgufType>(type);
}

Result<GgufValue> Parser::read_value(std::string_view key) {
  GgufValue value;
  TRY_ASSIGN(value.type, read_type(key));
  if (value.type == GgufType::kArray) {
    value.shape = GgufShape::kArray;
    TRY_ASSIGN(value.type, read_type(key));
    if (value.type == GgufType::kArray) return bad(position_ - 4, "{} is an array of arrays", printable(key));
    TRY_ASSIGN(value.count, read<uint64_t>("an array length"));
  }
  if (value.type == GgufType::kString && value.shape == GgufShape::kScalar) {
    TRY_ASSIGN(const std::string_view text, read_string(printable(key), std::numeric_limits<size_t>::max()));
    value.bytes = std::as_bytes(std::span(text));
    value.offset = position_ - text.size();
    return value;
  }
  const uint64_t unit = value.type == GgufType::kString ? 8 : fixed_size(value.type);
  if (value.count > remaining() / unit) {
    return bad(position_, "{} has {} elements of {}, but only {} bytes are left in the file", printable(key),
               value.count, to_string(value.type), remaining());
  }
  value.offset = position_;
  if (value.type == GgufType::kString) {
    TRY(skip_strings(value.count, key));
  } else {
    position_ += value.count * unit;
  }
  value.bytes = bytes_.subspan(value.offset, position_ - value.offset);
  if (value.type == GgufType::kBool) TRY(check_bools(value, key));
  return value;
}

Status Parser::skip_strings(uint64_t count, std::string_view key) {
  for (uint64_t i = 0; i < count; ++i) {
    uint64_t length = 0;
    if (remaining() < sizeof(length)) return bad(position_, "the file ends inside {}[{}]", printable(key), i);
    std::memcpy(&length, bytes_.data() + position_, sizeof(length));
    if (length > remaining() - sizeof(length)) {
      return bad(position_, "{}[{}] is {} bytes long, but only {} are left in the file", printable(key), i, length,
                 remaining() - sizeof(length));
    }
    position_ += sizeof(length) + length;
  }
  return {};
}

Status Parser::check_bools(const GgufValue& value, std::string_view key) const {
  const auto wrong = std::ranges::find_if(value.bytes, [](std::byte b) { return b > std::byte{1}; });
  if (wrong == value.bytes.end()) return {};
  const auto index = static_cast<size_t>(wrong - value.bytes.begin());
  return bad(value.offset + index, "{} holds a bool that is neither 0 nor 1", printable(key));
}

Status Parser::read_alignment() {
  const auto entry =
      std::ranges::find_if(out_.metadata, [](const GgufEntry& e) { return e.key == "general.alignment"; });
  if (entry == out_.metadata.end()) return {};
  const GgufValue& value = entry->value;
  if (value.type != GgufType::kU32 || value.shape != GgufShape::kScalar) {
    return bad(value.offset, "general.alignment is {}, not uint32", to_string(value.type));
  }
  uint32_t alignment = 0;
  std::memcpy(&alignment, value.bytes.data(), sizeof(alignment));
  if (!std::has_single_bit(alignment) || alignment < 8 || alignment > kMaxAlignment) {
    return bad(value.offset, "general.alignment is {}, not a power of two from 8 to {}", alignment, kMaxAlignment);
  }
  alignment_ = alignment;
  return {};
}

Status Parser::read_tensors() {
  std::unordered_set<std::string_view> seen;
  for (uint64_t i = 0; i < n_tensors_; ++i) {
    const size_t start = position_;
    TRY_ASSIGN(const TensorInfo tensor, read_tensor());
    if (!seen.insert(tensor.name).second) return bad(start, "tensor {} appears twice", printable(tensor.name));
    out_.tensors.push_back(tensor);
    records_.push_back(start);
  }
  return {};
}

Result<TensorInfo> Parser::read_tensor() {
  const size_t start = position_;
  TensorInfo tensor;
  TRY_ASSIGN(tensor.name, read_string("a tensor name", kMaxTensorNameBytes));
  if (tensor.name.empty()) return bad(start, "a tensor has no name");
  TRY(read_dims(&tensor));
  TRY_ASSIGN(tensor.gguf_type, read<uint32_t>("a tensor type"));
  if (const tensor::GgufTypeInfo* known = tensor::gguf_type_info(tensor.gguf_type)) tensor.dtype = known->dtype;
  const size_t offset_at = position_;
  TRY_ASSIGN(const uint64_t offset, read<uint64_t>("a tensor offset"));
  if (offset % alignment_ != 0) {
    return bad(offset_at, "tensor {} starts at {}, not a multiple of the alignment {}", printable(tensor.name), offset,
               alignment_);
  }
  tensor.offset = offset;  // place_tensors adds where the data begin
  return tensor;
}

// The file lists the contiguous dimension first.
Status Parser::read_dims(TensorInfo* tensor) {
  TRY_ASSIGN(const uint32_t n_dims, read<uint32_t>("a tensor's dimensions"));
  if (n_dims == 0 || n_dims > kMaxDims) {
    return bad(position_ - 4, "tensor {} has {} dimensions, not 1 to {}", printable(tensor->name), n_dims, kMaxDims);
  }
  tensor->n_dims = static_cast<int>(n_dims);
  int64_t n_elements = 1;
  for (uint32_t i = 0; i < n_dims; ++i) {
    TRY_ASSIGN(const uint64_t dim, read<uint64_t>("a tensor's dimensions"));
    if (dim == 0 || dim > static_cast<uint64_t>(std::numeric_limits<int64_t>::max() / n_elements)) {
      return bad(position_ - 8, "dimension {} of tensor {} is {}", i, printable(tensor->name), dim);
    }
    n_elements *= static_cast<int64_t>(dim);
    tensor->dims[n_dims - 1 - i] = static_cast<int64_t>(dim);
  }
  return {};
}

// Bytes the tensor occupies; 0 if its type is unknown.
Result<uint64_t> Parser::tensor_bytes(const TensorInfo& tensor, size_t at) const {
  const tensor::GgufTypeInfo* known = tensor::gguf_type_info(tensor.gguf_type);
  if (known == nullptr) return uint64_t{0};
  if (tensor.cols() % known->block_elements != 0) {
    return bad(at, "rows of tensor {} have {} elements, not a multiple of the {} of a {} block", printable(tensor.name),
               tensor.cols(), known->block_elements, known->name);
  }
  const auto n_blocks = static_cast<uint64_t>(tensor.n_elements() / known->block_elements);
  const auto block_bytes = static_cast<uint64_t>(known->block_bytes);
  if (n_blocks > std::numeric_limits<uint64_t>::max() / block_bytes) {
    return bad(at, "tensor {} of shape {} is too large", printable(tensor.name), shape_string(tensor));
  }
  return n_blocks * block_bytes;
}

Status Parser::place_tensors() {
  if (out_.tensors.empty()) return {};
  const size_t table_end = position_;
  const uint64_t begin = (position_ + alignment_ - 1) / alignment_ * alignment_;
  if (begin > bytes_.size()) return bad(table_end, "the file ends before its tensor data");
  const uint64_t available = bytes_.size() - begin;
  for (size_t i = 0; i < out_.tensors.size(); ++i) {
    TensorInfo& tensor = out_.tensors[i];
    TRY_ASSIGN(const uint64_t size, tensor_bytes(tensor, records_[i]));
    if (tensor.offset > available || size > available - tensor.offset) {
      return bad(records_[i], "tensor {} takes {} bytes at {} of the data, but the file has only {}: it is cut short",
                 printable(tensor.name), size, tensor.offset, available);
    }
    tensor.offset += begin;
    tensor.bytes = bytes_.subspan(tensor.offset, size);
  }
  return check_disjoint();
}

Status Parser::check_disjoint() const {
  std::vector<const TensorInfo*> order;
  order.reserve(out_.tensors.size());
  for (const TensorInfo& tensor : out_.tensors) {
    if (!tensor.bytes.empty()) order.push_back(&tensor);
  }
  std::ranges::sort(order, {}, [](const TensorInfo* t) { return t->offset; });
  for (size_t i = 1; i < order.size(); ++i) {
    const TensorInfo& before = *order[i - 1];
    if (before.offset + before.bytes.size() > order[i]->offset) {
      return bad(order[i]->offset, "tensors {} and {} overlap", printable(before.name), printable(order[i]->name));
    }
  }
  return {};
}

}  // namespace

Result<ParsedGguf> parse_gguf(std::span<const std::byte> bytes, std::string_view name) {
  return Parser(bytes, name).run();
}

std::string printable(std::string_view text) {
  constexpr size_t kMaxShown = 64;
  std::string shown(text.substr(0, kMaxShown));
  std::ranges::replace_if(shown, [](char c) { return c < ' ' || c > '~'; }, '?');
  if (text.size() > kMaxShown) shown += "...";
  return shown;
}

size_t fixed_size(GgufType type) {
  switch (type) {
    case GgufType::kU8:
    case GgufType::kI8:
    case GgufType::kBool:
      return 1;
    case GgufType::kU16:
    case GgufType::kI16:
      return 2;
    case GgufType::kU32:
    case GgufType::kI32:
    case GgufType::kF32:
      return 4;
    case GgufType::kU64:
    case GgufType::kI64:
    case GgufType::kF64:
      return 8;
    case GgufType::kString:
    case GgufType::kArray:
      break;
  }
  return 0;
}

}  // namespace pagoda::weights
