// Tiles of AMX-BF16: eight registers of up to 16 rows x 64 bytes, and C += A x B over pairs of bf16.
// Two backends with one interface. AmxTiles are the instructions; EmulatedTiles are plain C++ with the same bits, so that a
// driver written over a backend (template <class Tiles>) is compiled and compared with ref on every machine.
//   A [rows][32] bf16, row-major;  B [16 pairs][n][2] bf16: pair k of output n;  C [rows][n] f32.
// Arithmetic of dot_bf16, per element of C: over the pairs k ascending two chains of fma from +0, even = fma(A[2k], B[2k], even)
// and odd = fma(A[2k + 1], B[2k + 1], odd); then C = C + (even + odd). Round to nearest even, denormals in and out are 0.
// Threads: a backend object is one thread's tiles, from its first configure() to its end; nothing else may use them meanwhile.
// Requires: set_float_mode() (the emulation uses the thread's mode, the instructions have that mode built in).
// Source: Intel SDM vol. 2, TDPBF16PS; LDTILECFG (palette 1).
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/check.h"
#include "tensor/float16.h"

namespace pagoda::kernels {

inline constexpr int kTiles = 8;
inline constexpr int kTileRows = 16;
inline constexpr int kTileBytes = 64;   // of a row
inline constexpr int kTilePairs = 16;   // of bf16 in a row of A: 32 columns
inline constexpr int kTileFloats = 16;  // in a row of C

// What LDTILECFG reads.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  constexpr void set(int tile, int n_rows, int n_bytes = kTileBytes) {
    rows[tile] = static_cast<uint8_t>(n_rows);
    row_bytes[tile] = static_cast<uint16_t>(n_bytes);
  }
};
static_assert(sizeof(TileConfig) == 64);

// All eight tiles whole.
constexpr TileConfig whole_tiles() {
  TileConfig config;
  for (int tile = 0; tile < kTiles; ++tile) config.set(tile, kTileRows);
  return config;
}

// The instructions, written out: GCC 12's intrinsics are macros that stringify the tile's number (a template parameter has no
// name to stringify), and its _tile_loadconfig tells the compiler of 8 bytes only.
class AmxTiles {
 public:
  AmxTiles() = default;
  AmxTiles(const AmxTiles&) = delete;
  AmxTiles& operator=(const AmxTiles&) = delete;
  ~AmxTiles() { asm volatile("tilerelease" ::: "memory"); }  // so that a context switch need not save the tiles

  // Zeroes all tiles.
  void configure(const TileConfig& config) { asm volatile("ldtilecfg %0" ::"m"(config) : "memory"); }
  template <int kTile>
  void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
  }
  // Rows of the tile are `stride` bytes apart.
  template <int kTile>
  void load(const void* from, size_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(kTile) : "memory");
  }
  template <int kTile>
  void store(void* to, size_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(kTile) : "memory");
  }
  // C += A x B; three tiles.  Rows of C and A are equal, and C's outputs are B's.
  template <int kC, int kA, int kB>
  void dot_bf16() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kC), "i"(kA), "i"(kB));
  }
};

class EmulatedTiles {
 public:
  EmulatedTiles() = default;
  EmulatedTiles(const EmulatedTiles&) = delete;
  EmulatedTiles& operator=(const EmulatedTiles&) = delete;

  void configure(const TileConfig& config) {
    CHECK(config.palette == 1 && config.start_row == 0);
    for (int tile = 0; tile < kTiles; ++tile) {
      CHECK(config.rows[tile] <= kTileRows && config.row_bytes[tile] <= kTileBytes);
      CHECK((config.rows[tile] == 0) == (config.row_bytes[tile] == 0));
    }
    config_ = config;
    std::memset(data_, 0, sizeof(data_));
  }
  template <int kTile>
  void zero() {
    CHECK(config_.rows[kTile] != 0);
    std::memset(data_[kTile], 0, sizeof(data_[kTile]));
  }
  template <int kTile>
  void load(const void* from, size_t stride) {
    zero<kTile>();
    for (size_t row = 0; row < config_.rows[kTile]; ++row) {
      std::memcpy(data_[kTile][row], static_cast<const std::byte*>(from) + row * stride, config_.row_bytes[kTile]);
    }
  }
  template <int kTile>
  void store(void* to, size_t stride) const {
    CHECK(config_.rows[kTile] != 0);
    for (size_t row = 0; row < config_.rows[kTile]; ++row) {
      std::memcpy(static_cast<std::byte*>(to) + row * stride, data_[kTile][row], config_.row_bytes[kTile]);
    }
  }
  template <int kC, int kA, int kB>
  void dot_bf16() {
    static_assert(kC != kA && kC != kB && kA != kB);
    CHECK(config_.rows[kC] != 0 && config_.rows[kC] == config_.rows[kA]);
    CHECK(config_.row_bytes[kC] == config_.row_bytes[kB] && config_.row_bytes[kA] == 4 * config_.rows[kB]);
    const int n_outputs = config_.row_bytes[kC] / 4;
    for (int row = 0; row < config_.rows[kC]; ++row) {
      auto* c = reinterpret_cast<float*>(data_[kC][row]);
      for (int n = 0; n < n_outputs; ++n) c[n] = c[n] + dot(kA, kB, row, n);
    }
  }

 private:
  float value(int tile, int row, int i) const {
    return tensor::bf16_to_f32(reinterpret_cast<const uint16_t*>(data_[tile][row])[i]);
  }
  float dot(int a, int b, int row, int n) const {
    float even = 0.0F;
    float odd = 0.0F;
    for (int k = 0; k < config_.rows[b]; ++k) {
      even = std::fma(value(a, row, 2 * k), value(b, k, 2 * n), even);
      odd = std::fma(value(a, row, 2 * k + 1), value(b, k, 2 * n + 1), odd);
    }
    return even + odd;
  }

  TileConfig config_ = {.palette = 0};
  alignas(64) std::byte data_[kTiles][kTileRows][kTileBytes] = {};
};

}  // namespace pagoda::kernels
