#include "text/special_tokens.h"

#include <algorithm>
#include <utility>

namespace pagoda::text {
namespace {

bool is_ascii_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

bool spans_guard(std::span<const size_t> guards, size_t begin, size_t end) {
  const auto guard = std::upper_bound(guards.begin(), guards.end(), begin);
  return guard != guards.end() && *guard < end;
}

// Cuts `found` (non-overlapping, ascending) out of the text spans.
std::vector<SpecialTokens::Span> cut_out(const std::vector<SpecialTokens::Span>& spans,
                                         const std::vector<SpecialTokens::Span>& found) {
  std::vector<SpecialTokens::Span> cut;
  auto next = found.begin();
  for (const SpecialTokens::Span& span : spans) {
    size_t begin = span.begin;
    for (; next != found.end() && span.is_text() && next->begin < span.end; ++next) {
      if (next->begin > begin) cut.push_back({begin, next->begin});
      cut.push_back(*next);
      begin = next->end;
    }
    if (begin < span.end) cut.push_back({begin, span.end, span.token});
  }
  return cut;
}

}  // namespace

SpecialTokens::SpecialTokens(std::vector<Token> tokens)
    : tokens_(std::move(tokens)), index_(tokens_.size()), lengths_of_first_byte_(256) {
  std::erase_if(tokens_, [](const Token& t) { return t.text.empty(); });
  std::sort(tokens_.begin(), tokens_.end(),
            [](const Token& a, const Token& b) { return a.text.size() > b.text.size(); });
  for (size_t i = tokens_.size(); i-- > 0;) index_.insert(tokens_[i].text, static_cast<int32_t>(i));
  for (const Token& token : tokens_) {
    if (token.after == After::kStripSpace) strip_after_.push_back(token.id);
    auto& lengths = lengths_of_first_byte_[static_cast<uint8_t>(token.text[0])];
    const uint32_t length = static_cast<uint32_t>(token.text.size());
    if (lengths.empty() || lengths.back() != length) lengths.push_back(length);
  }
  std::sort(strip_after_.begin(), strip_after_.end());
}

std::vector<SpecialTokens::Span> SpecialTokens::partition(std::string_view text, SpecialMode mode,
                                                          std::span<const size_t> guards) const {
  std::vector<Span> spans;
  if (text.empty()) return spans;
  spans.push_back({0, text.size()});
  if (tokens_.empty()) return spans;
  std::vector<bool> present(tokens_[0].text.size() + 1, false);
  mark_present_lengths(text, present);
  for (size_t length = present.size() - 1; length > 0; --length) {
    if (!present[length]) continue;
    std::vector<Found> all = find_all(text, spans, length, mode, guards);
    if (all.empty()) continue;
    std::sort(all.begin(), all.end(), [](const Found& a, const Found& b) {
      return a.order != b.order ? a.order < b.order : a.begin < b.begin;
    });
    // Earlier tokens take their places first; two matches of one length overlap iff their starts are closer than it.
    std::vector<bool> taken(text.size(), false);
    std::vector<Span> found;
    for (const Found& f : all) {
      if (taken[f.begin] || taken[f.begin + length - 1]) continue;
      std::fill_n(taken.begin() + static_cast<ptrdiff_t>(f.begin), length, true);
      found.push_back({f.begin, f.begin + length, tokens_[static_cast<size_t>(f.order)].id});
    }
    std::sort(found.begin(), found.end(), [](const Span& a, const Span& b) { return a.begin < b.begin; });
    spans = cut_out(spans, found);
  }
  if (!strip_after_.empty()) strip_spaces(text, spans);
  return spans;
}

void SpecialTokens::strip_spaces(std::string_view text, std::vector<Span>& spans) const {
  for (size_t i = 1; i < spans.size(); ++i) {
    const Span& before = spans[i - 1];
    if (before.is_text() || !std::binary_search(strip_after_.begin(), strip_after_.end(), before.token)) continue;
    while (spans[i].is_text() && spans[i].begin < spans[i].end && is_ascii_space(text[spans[i].begin]))
      ++spans[i].begin;
  }
  std::erase_if(spans, [](const Span& span) { return span.begin == span.end; });
}

void SpecialTokens::mark_present_lengths(std::string_view text, std::vector<bool>& present) const {
  for (size_t i = 0; i < text.size(); ++i) {
    for (const uint32_t length : lengths_of_first_byte_[static_cast<uint8_t>(text[i])]) {
      if (present[length] || i + length > text.size()) continue;
      if (index_.find(text.substr(i, length)) != StringIndex::kAbsent) present[length] = true;
    }
  }
}

size_t SpecialTokens::count_matches(std::string_view text) const {
  size_t n = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto& lengths = lengths_of_first_byte_[static_cast<uint8_t>(text[i])];
    n += std::ranges::any_of(lengths, [&](uint32_t length) {
      return i + length <= text.size() && index_.find(text.substr(i, length)) != StringIndex::kAbsent;
    });
  }
  return n;
}

std::vector<SpecialTokens::Found> SpecialTokens::find_all(std::string_view text, const std::vector<Span>& spans,
                                                          size_t length, SpecialMode mode,
                                                          std::span<const size_t> guards) const {
  std::vector<Found> all;
  for (const Span& span : spans) {
    if (!span.is_text()) continue;
    for (size_t i = span.begin; i + length <= span.end; ++i) {
      const auto& lengths = lengths_of_first_byte_[static_cast<uint8_t>(text[i])];
      if (std::find(lengths.begin(), lengths.end(), length) == lengths.end()) continue;
      const int32_t order = index_.find(text.substr(i, length));
      if (order == StringIndex::kAbsent) continue;
      if (tokens_[static_cast<size_t>(order)].matched == Matched::kWhenParsed &&
          (mode == SpecialMode::kPlain || spans_guard(guards, i, i + length)))
        continue;
      all.push_back({i, order});
    }
  }
  return all;
}

}  // namespace pagoda::text
