// KvQuality: how far the answers of a KV format lie from those of the reference, bf16, on the same tokens.
// Of each row: the loss of the token that comes next; KL(reference || format) over the whole vocabulary; whether both hold the same token for
// the likeliest. Sums are double over float logits and exponentials: a row's KL is exact to about 1e-7, and 0 where the logits are the same.
// Units: nats; shares in [0, 1].     Threads: row_distances from any; the rest one.     Keeps two floats per row, no logits.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/executor.h"
#include "engine/kv_probe.h"
#include "kernels/kernels.h"

namespace pagoda::tools {

// One row of one format against the reference's.
struct RowDistance {
  double kl = 0;
  double loss_change = 0;  // the format's loss minus the reference's
  double loss = 0;         // the format's
  bool same_top = true;
};

// `rows`: the same position's results, the reference's first; `next`: the token that follows. distances[i]: of rows[i], [0] the reference's.
void row_distances(const kernels::KernelTable& kernels, std::span<const engine::SampleResult> rows, TokenId next,
                   std::span<RowDistance> distances);

// What all rows say about one format.
struct KvQuality {
  std::string format;      // as asked for
  std::string arithmetic;  // "int8", ...
  size_t bytes_per_token = 0;
  int64_t n_rows = 0;
  double ppl = 0;
  engine::KvDistance distance;  // from the reference
  double delta_ppl_error = 0;   // standard error
  double mean_kl_error = 0;
  double same_top_error = 0;
  double kl_999 = 0;               // 999 of 1,000 rows have no larger KL
  double decode_tokens_per_s = 0;  // 0: not measured
};

// Takes rows in order.
class QualityStats {
 public:
  void add(const RowDistance& row);
  // The figures that rows decide; requires a row.
  KvQuality result() const;

  // Rows near each other share their context: errors are of the means of so many consecutive rows.
  static constexpr int kErrorRows = 128;

 private:
  double loss_ = 0;
  int64_t n_same_top_ = 0;
  std::vector<float> kl_;
  std::vector<float> loss_change_;
};

}  // namespace pagoda::tools
