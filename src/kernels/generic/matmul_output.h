// Where a matmul's sums go, and how many rows share a pass. Include inside a region, after simd.h.

// Rows that share one pass over the weights.
inline constexpr int kMatmulTileRows = 64;

struct MatmulOutput {
  float* y;
  int ld;
  int n_rows;  // of the weight: outputs beyond are not written

  // Whether y has all outputs of a panel.
  PAGODA_SIMD bool whole(int panel) const { return n_rows - panel * tensor::kPanelRows >= tensor::kPanelRows; }
  PAGODA_SIMD float* at(int row, int panel) const {
    return y + static_cast<size_t>(row) * static_cast<size_t>(ld) + panel * tensor::kPanelRows;
  }
  // The 16 outputs of a panel for one row.
  PAGODA_SIMD F32 load_panel(int row, int panel) const {
    const int n = n_rows - panel * tensor::kPanelRows;
    return n >= tensor::kPanelRows ? load(at(row, panel)) : load_first(at(row, panel), n);
  }
  PAGODA_SIMD void store_panel(int row, int panel, F32 value) const {
    const int n = n_rows - panel * tensor::kPanelRows;
    if (n >= tensor::kPanelRows) {
      store(at(row, panel), value);
    } else {
      store_first(at(row, panel), value, n);
    }
  }
};
