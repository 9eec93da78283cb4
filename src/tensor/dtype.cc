#include "tensor/dtype.h"

#include <array>

#include "base/check.h"

namespace pagoda::tensor {
namespace {

constexpr std::array<DTypeInfo, kDTypeCount> kInfos{{
    {"F32", 1, 4, 0},
    {"F16", 1, 2, 1},
    {"BF16", 1, 2, 30},
    {"Q4_0", 32, sizeof(BlockQ4_0), 2},
    {"Q4_1", 32, sizeof(BlockQ4_1), 3},
    {"Q5_0", 32, sizeof(BlockQ5_0), 6},
    {"Q5_1", 32, sizeof(BlockQ5_1), 7},
    {"Q8_0", 32, sizeof(BlockQ8_0), 8},
    {"Q2_K", 256, sizeof(BlockQ2_K), 10},
    {"Q3_K", 256, sizeof(BlockQ3_K), 11},
    {"Q4_K", 256, sizeof(BlockQ4_K), 12},
    {"Q5_K", 256, sizeof(BlockQ5_K), 13},
    {"Q6_K", 256, sizeof(BlockQ6_K), 14},
    {"IQ4_NL", 32, sizeof(BlockIQ4_NL), 20},
    {"IQ4_XS", 256, sizeof(BlockIQ4_XS), 23},
}};

struct OtherType {
  uint32_t gguf_type;
  std::string_view name;
  int64_t block_elements, block_bytes;
};
constexpr OtherType kOthers[] = {
    {9, "Q8_1", 32, 36},      {15, "Q8_K", 256, 292}, {16, "IQ2_XXS", 256, 66}, {17, "IQ2_XS", 256, 74},
    {18, "IQ3_XXS", 256, 98}, {19, "IQ1_S", 256, 50}, {21, "IQ3_S", 256, 110},  {22, "IQ2_S", 256, 82},
    {24, "I8", 1, 1},         {25, "I16", 1, 2},      {26, "I32", 1, 4},        {27, "I64", 1, 8},
    {28, "F64", 1, 8},        {29, "IQ1_M", 256, 56}, {34, "TQ1_0", 256, 54},   {35, "TQ2_0", 256, 66},
    {39, "MXFP4", 32, 17},    {40, "NVFP4", 64, 36},  {41, "Q1_0", 128, 18},    {42, "Q2_0", 64, 18},
};

constexpr size_t kGgufTypes = 43;
// By GGUF number; an empty name is a number nobody uses.
constexpr std::array<GgufTypeInfo, kGgufTypes> kGgufInfos = [] {
  std::array<GgufTypeInfo, kGgufTypes> table{};
  for (size_t i = 0; i < kDTypeCount; ++i) {
    const DTypeInfo& known = kInfos[i];
    table[known.gguf_type] = {known.name, known.block_elements, known.block_bytes, static_cast<DType>(i)};
  }
  for (const OtherType& other : kOthers) {
    table[other.gguf_type] = {other.name, other.block_elements, other.block_bytes, std::nullopt};
  }
  return table;
}();

}  // namespace

const DTypeInfo& info(DType type) { return kInfos[static_cast<size_t>(type)]; }

int64_t row_bytes(DType type, int64_t n_elements) {
  const DTypeInfo& known = info(type);
  CHECK(n_elements >= 0 && n_elements % known.block_elements == 0);
  return n_elements / known.block_elements * known.block_bytes;
}

const GgufTypeInfo* gguf_type_info(uint32_t gguf_type) {
  if (gguf_type >= kGgufTypes || kGgufInfos[gguf_type].name.empty()) return nullptr;
  return &kGgufInfos[gguf_type];
}

std::string gguf_type_name(uint32_t gguf_type) {
  const GgufTypeInfo* known = gguf_type_info(gguf_type);
  return known != nullptr ? std::string(known->name) : "type " + std::to_string(gguf_type);
}

}  // namespace pagoda::tensor
