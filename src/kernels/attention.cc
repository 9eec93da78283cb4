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
  return 2 * kAttentionMaxRows * partial_floats(head_dim) * sizeof(float) + SpanScratch::bytes(head_dim);
}

void attention_fold(const KernelTable& table, Arithmetic arithmetic, const AttentionArgs& args, Range spans,
                    float* partial, std::byte* scratch) {
  CHECK(args.n_rows <= kAttentionMaxRows && spans.size() > 0);
  const int head_dim = args.kv.head_dim;
  float* next = reinterpret_cast<float*>(scratch);
  std::byte* span_scratch = scratch + static_cast<size_t>(kAttentionMaxRows) * partial_floats(head_dim) * sizeof(float);
  const auto attend = table.attention_span[static_cast<int>(arithmetic)];
  table.attention_prepare[static_cast<int>(arithmetic)](args, span_scratch);
  attend(args, spans.begin, partial, span_scratch);
  for (int span = spans.begin + 1; span < spans.end; ++span) {
    attend(args, span, next, span_scratch);
    table.attention_merge(partial, next, args.n_rows, head_dim);
  }
}

void attention(const KernelTable& table, Arithmetic arithmetic, const AttentionArgs& args, std::byte* scratch) {
  const Range spans = visible_spans(args);
  if (spans.size() == 0) return;
  float* partial = reinterpret_cast<float*>(scratch);
  const size_t set_bytes = static_cast<size_t>(kAttentionMaxRows) * partial_floats(args.kv.head_dim) * sizeof(float);
  attention_fold(table, arithmetic, args, spans, partial, scratch + set_bytes);
  table.attention_finish(args, partial);
}

}  // namespace pagoda::kernels
