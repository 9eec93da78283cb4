// StepTimeModel: how long a step takes, learnt while serving: a constant (weights are read once), so much a decode row and a prefill row, and so
// much for each token of context that either kind reads. Non-negative least squares on relative errors over the last steps; what they do not
// tell apart stays as it was. A step that was held up by something else counts as three times what was expected, at most.
// Units: microseconds, rows, tokens.     Threads: one.     Cost: learn some hundred multiplications, the rest a few.
#pragma once

#include <array>
#include <cstdint>

namespace pagoda::sched {

// What one step computes.
struct StepLoad {
  int32_t decode_rows = 0;
  int32_t prefill_rows = 0;
  int64_t decode_context = 0;   // tokens read, over all decode rows
  int64_t prefill_context = 0;  // likewise

  void add_decode(int32_t position) {
    ++decode_rows;
    decode_context += position + 1;
  }
  // Rows at positions [first, first + n).
  void add_prefill(int32_t first, int32_t n) {
    prefill_rows += n;
    prefill_context += int64_t{n} * first + int64_t{n} * (n + 1) / 2;
  }
};

class StepTimeModel {
 public:
  void learn(const StepLoad& load, int64_t took_us);

  double predict_us(const StepLoad& load) const;
  // What n prefill rows behind `context` tokens add to a step.
  double prefill_us(int32_t n, int64_t context) const;
  // How many such rows fit into the time; 0 if not one.
  int32_t prefill_rows_within(double us, int64_t context) const;

  // Whether steps with prefill rows have been seen: before that, what they cost is a guess.
  bool knows_prefills() const { return n_prefill_steps_ >= kEnough; }

 private:
  static constexpr int kEnough = 2;
  enum Feature : uint8_t { kStep, kDecodeRow, kPrefillRow, kDecodeContext, kPrefillContext, kFeatures };
  using Vector = std::array<double, kFeatures>;
  // Sums over steps of one kind, the old ones fading.
  struct Evidence {
    std::array<Vector, kFeatures> xx{};
    Vector xy{};
    void add(const Vector& x, double y, double keep);
  };
  static Vector features_of(const StepLoad& load);
  void fit();

  Evidence decodes_, prefills_;  // steps without and with prefill rows: many of one kind do not wash out the other
  Vector cost_{};                // microseconds per unit of a feature
  int n_decode_steps_ = 0, n_prefill_steps_ = 0;
};

}  // namespace pagoda::sched
