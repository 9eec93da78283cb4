// The GGUF parser: bytes of one file to a checked table of metadata and tensors. Internal to weights; others use gguf.h.
// All views in the result lie inside `bytes`. Nothing is allocated that the bytes read so far do not justify.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "weights/gguf.h"

namespace pagoda::weights {

struct ParsedGguf {
  uint32_t version = 0;
  std::vector<GgufEntry> metadata;  // keys unique
  std::vector<TensorInfo> tensors;  // names unique, bytes disjoint, part = 0
};

// `name` stands for the file in errors: "message (name:offset)".
Result<ParsedGguf> parse_gguf(std::span<const std::byte> bytes, std::string_view name);

// Text from a file made safe for a one-line message: at most 64 characters, anything but printable ASCII becomes '?'.
std::string printable(std::string_view text);

// Bytes of one element of a scalar type; 0 for strings and arrays.
size_t fixed_size(GgufType type);

}  // namespace pagoda::weights
