#include "engine/cache_report.h"

#include "engine/template_text.h"
#include "sched/sequence.h"
#include "text/tokenizer.h"

namespace pagoda::engine {
namespace {

CacheReport::Token named(TokenId id, const text::Tokenizer& tokenizer) {
  const std::string_view bytes = tokenizer.token_bytes(id);
  return {id, std::string(bytes.empty() ? tokenizer.token_text(id) : bytes)};
}

}  // namespace

CacheReport make_cache_report(const sched::CacheUse& use, std::span<const TokenId> prompt,
                              std::span<const std::string> message_texts, const text::Tokenizer& tokenizer) {
  CacheReport report;
  report.prompt_tokens = static_cast<int32_t>(prompt.size());
  report.reused_tokens = use.reused_tokens;
  report.copied_tokens = use.copied_tokens;
  report.recomputed_tokens = use.recomputed_tokens;
  report.waited_us = use.waited_us;
  report.load_waited_us = use.load_waited_us;
  report.misses.reserve(use.n_misses);
  for (uint32_t i = 0; i < use.n_misses; ++i) {
    const sched::CacheUse::Miss& miss = use.misses[i];
    report.misses.push_back({.position = miss.position, .reason = miss.reason, .n_edits = miss.n_edits});
  }
  if (use.n_misses == 0) return report;
  const kv::Divergence& first = use.misses[0].divergence;
  if (first.position < 0 || first.position >= report.prompt_tokens) return report;
  report.divergence = {first.position, named(prompt[static_cast<size_t>(first.position)], tokenizer), std::nullopt};
  if (!first.token) return report;
  report.divergence->cached = named(*first.token, tokenizer);
  report.misses[0].is_template = report.first_miss() == kv::MissReason::kCold &&
                                 text_of(prompt, first.position, message_texts, tokenizer) == TextOf::kTemplate;
  return report;
}

}  // namespace pagoda::engine
