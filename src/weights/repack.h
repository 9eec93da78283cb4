// Repack: a weight matrix of a file into the kernels' panels (tensor/panel.h), losslessly.
// Units: rows and columns in elements, bytes otherwise.   Owns: nothing; the panels lie in the caller's arena (huge pages).
// Threads: repack_panels() touches only its own panels; the caller splits the range over threads, and pages land near the thread
// that first writes them.   Errors: shapes that no panel can hold and byte counts that do not fit are kUnsupported / kBadFile.
// Cost: reads every byte once, writes every byte once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/error.h"
#include "tensor/arena.h"
#include "tensor/dtype.h"
#include "tensor/panel.h"

namespace pagoda::weights {

struct RepackedMatrix {
  std::span<std::byte> bytes;
  tensor::PanelMatrix view;  // of bytes
};

// A row-major matrix as it lies in a file: n_rows rows of row_bytes(dtype, n_cols), unaligned.
struct FileMatrix {
  tensor::DType dtype = tensor::DType::kF32;
  int64_t n_rows = 0;
  int64_t n_cols = 0;
  std::span<const std::byte> bytes;
};

// What a tensor takes in memory: matrices in panels, vectors in f32.
uint64_t held_bytes(tensor::DType dtype, int n_dims, int64_t rows, int64_t cols);

// Zeroed panels for the matrix, checked to be something that repack_panels can fill.
Result<RepackedMatrix> allocate_panels(const FileMatrix& source, tensor::Arena& arena);

// Fills panels [begin, end) of `target`, which allocate_panels made for `source`.
void repack_panels(const FileMatrix& source, int begin, int end, const RepackedMatrix& target);

// Both, on the calling thread.
Result<RepackedMatrix> repack(const FileMatrix& source, tensor::Arena& arena);

}  // namespace pagoda::weights
