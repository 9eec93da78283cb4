// Weights and activations for matmul_test.cc and matmul_bench.cc.
#pragma once

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "kernels/isa_detect.h"
#include "kernels/table.h"
#include "tensor/aligned_buffer.h"
#include "tensor/dequant.h"
#include "tensor/float16.h"
#include "tensor/panel.h"

namespace pagoda::kernels {

enum class Codes : uint8_t { kRandom, kLowest, kHighest };

struct WeightSpec {
  tensor::DType dtype = tensor::DType::kF32;
  int n_rows = 0;
  int n_cols = 0;
  Codes codes = Codes::kRandom;
  float magnitude = 0.01F;  // of d and c
};

struct Weights {
  tensor::AlignedBuffer buffer;
  tensor::PanelMatrix view;
};

inline void random_cell(const WeightSpec& spec, std::mt19937& random, tensor::QuantCell* cell) {
  std::byte block[512];
  for (std::byte& byte : block) byte = static_cast<std::byte>(random() & 255U);
  tensor::decode_cell(spec.dtype, block, 0, cell);
  const tensor::PanelFormat format = tensor::panel_format(spec.dtype);
  if (spec.codes != Codes::kRandom) {
    const int u = spec.codes == Codes::kLowest ? 0 : (1 << format.bits()) - 1;
    const int code = format.table ? tensor::kIq4Values[u] : u - format.offset;
    std::memset(cell->codes, code, sizeof(cell->codes));
  }
  const auto scale = [&] {
    const float unit = static_cast<float>(random() % 2001U) / 1000.0F - 1.0F;
    return tensor::f16_to_f32(tensor::f32_to_f16(unit * spec.magnitude));
  };
  cell->d = scale();
  cell->c = format.minimum ? scale() : 0.0F;
}

inline void fill_float_panels(const WeightSpec& spec, std::mt19937& random, Weights* weights) {
  std::normal_distribution<float> normal(0.0F, spec.magnitude);
  const size_t n =
      static_cast<size_t>(weights->view.n_panels()) * tensor::kPanelRows * static_cast<size_t>(spec.n_cols);
  for (size_t i = 0; i < n; ++i) {
    const float value = normal(random);
    if (spec.dtype == tensor::DType::kF32) weights->buffer.as<float>()[i] = value;
    if (spec.dtype == tensor::DType::kF16) weights->buffer.as<uint16_t>()[i] = tensor::f32_to_f16(value);
    if (spec.dtype == tensor::DType::kBF16) weights->buffer.as<uint16_t>()[i] = tensor::f32_to_bf16(value);
  }
}

// A block's d and c are those of its last cell: pack_panel_cell writes them for every cell.
inline Weights random_weights(const WeightSpec& spec, uint32_t seed) {
  std::mt19937 random(seed);
  Weights weights;
  weights.view = {spec.dtype, spec.n_rows, spec.n_cols, nullptr, tensor::panel_bytes(spec.dtype, spec.n_cols)};
  auto buffer = tensor::AlignedBuffer::allocate(weights.view.bytes());
  CHECK(buffer);
  weights.buffer = std::move(*buffer);
  weights.view.data = weights.buffer.data();
  if (tensor::is_float(spec.dtype)) {
    fill_float_panels(spec, random, &weights);
    return weights;
  }
  tensor::QuantCell cells[tensor::kPanelRows];
  for (int panel = 0; panel < weights.view.n_panels(); ++panel) {
    std::byte* at = weights.buffer.data() + static_cast<size_t>(panel) * weights.view.panel_bytes;
    for (int cell = 0; cell < spec.n_cols / tensor::kCellCols; ++cell) {
      for (tensor::QuantCell& lane : cells) random_cell(spec, random, &lane);
      tensor::pack_panel_cell(spec.dtype, spec.n_cols, cell, cells, at);
    }
  }
  return weights;
}

// Rows of f32, and what the arithmetics want.
struct Activations {
  int n_rows;
  int n_cols;
  std::vector<float> x;
  std::vector<int8_t> q;
  std::vector<float> d;
  std::vector<int16_t> sums16;
  std::vector<uint16_t> bf16;

  Activations(int rows, int cols) : n_rows(rows), n_cols(cols) {
    const auto n = static_cast<size_t>(rows) * static_cast<size_t>(cols);
    x.resize(n);
    q.resize(n);
    d.resize(n / 32);
    sums16.resize(n / 16);
    bf16.resize(n);
  }
  QuantRows quant() { return {q.data(), d.data(), sums16.data(), n_cols}; }
  void convert(const KernelTable& table) {
    table.quantize_rows(x.data(), n_cols, {0, n_rows}, {0, n_cols}, quant());
    table.bf16_rows(x.data(), n_cols, {0, n_rows}, {0, n_cols}, bf16.data(), n_cols);
  }
  MatmulInput input() { return {x.data(), n_cols, quant(), bf16.data()}; }
};

inline Activations random_activations(int n_rows, int n_cols, uint32_t seed) {
  Activations activations(n_rows, n_cols);
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0F, 1.0F);
  for (float& value : activations.x) value = normal(random);
  return activations;
}

}  // namespace pagoda::kernels
