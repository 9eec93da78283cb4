// The loss of one text in every arithmetic that an instruction set offers, beside f32's: what the speed of int8 and bf16 costs.
// The text is the beginning of a novel (accuracy_text.h): prose as models are used on, so that a loss moves as a reader would notice.
// The KV format is the same for all, so that only the arithmetic differs.
// Cost: loads the model once per arithmetic, one after another, and computes the text's tokens.
#pragma once

#include <functional>
#include <string_view>

#include "engine/config.h"
#include "tools/bench_result.h"

namespace pagoda::tools {

// Largest relative difference of the mean loss to f32's that is in order.
double allowed_difference(kernels::Arithmetic arithmetic);

struct AccuracyResult {
  int n_tokens = 0;
  std::vector<AccuracyLine> lines;  // f32 first
};

// At most max_tokens of the text, and no more than the model was trained for.  config.arithmetic is not looked at.
Result<AccuracyResult> measure_accuracy(engine::EngineConfig config, int max_tokens,
                                        const std::function<void(std::string_view what)>& say);

}  // namespace pagoda::tools
