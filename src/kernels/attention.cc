// attention(): the spans of one call, folded in order, on one thread.
#include <algorithm>

#include "base/check.h"
#include "kernels/attention_args.h"

namespace pagoda::kernels {

Range visible_spans(const AttentionArgs& args) {
  if (args.n_rows == 0) return {};
  int64_t lowest = INT64_MAX;
  int64_t highest = 0;
  for (int r = 0; r < args.n_rows; ++r) {
    const int64_t position = args.position[r];
    lowest = std::min(lowest, args.window == 0 ? 0 : std::max<int64_t>(position - args.window + 1, 0));
    highest = std::max(highest, position);
  }
  return {static_cast<int>(lowest / kSpanTokens), static_cast<int>(highest / kSpanTokens) + 1};
}

// Two sets of partials, then the span kernel's own scratch.
size_t attention_scratch_bytes(int head_dim) {
  return 2 * kAttentionMaxRows * partial_size(head_dim) * sizeof(float) + SpanScratch::bytes(head_dim);
}

void attention(const KernelTable& table, Arithmetic arithmetic, const AttentionArgs& args, std::byte* scratch) {
  CHECK(args.n_rows <= kAttentionMaxRows);
  const int head_dim = args.kv.head_dim;
  const size_t set_bytes = static_cast<size_t>(kAttentionMaxRows) * partial_size(head_dim) * sizeof(float);
  float* folded = reinterpret_cast<float*>(scratch);
  float* next = reinterpret_cast<float*>(scratch + set_bytes);
  std::byte* span_scratch = scratch + 2 * set_bytes;
  const auto attend = table.attention_span[static_cast<int>(arithmetic)];
  const Range spans = visible_spans(args);
  for (int span = spans.begin; span < spans.end; ++span) {
    attend(args, span, span == spans.begin ? folded : next, span_scratch);
    if (span != spans.begin) table.attention_merge(folded, next, args.n_rows, head_dim);
  }
  if (spans.size() > 0) table.attention_finish(args, folded);
}

}  // namespace pagoda::kernels
