#include "text/score_merger.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "text/unicode.h"

namespace pagoda::text {
namespace {

constexpr size_t kNeighbourBits = size_t{1} << 22;
constexpr std::string_view kBlank = "\xE2\x96\x81";  // U+2581, how a blank is spelled

// Maps scores to integers in the opposite order: the highest score becomes the lowest value. NaN counts as the lowest score.
uint32_t priority_of(float score) {
  if (std::isnan(score)) return MergeRule::kNone - 1;
  const uint32_t bits = std::bit_cast<uint32_t>(score + 0.0f);  // -0 and 0 are one score
  const uint32_t ascending = bits >> 31 ? ~bits : bits | 0x80000000u;
  return std::min(~ascending, MergeRule::kNone - 1);
}

// The character at text[i] as merging sees it: as long as its first byte says, or what is left.
std::string_view character_at(std::string_view text, size_t i) {
  return text.substr(i, announced_length(static_cast<uint8_t>(text[i])));
}

}  // namespace

ScoreMerger::ScoreMerger(const StringIndex& by_text, std::span<const std::string_view> texts,
                         std::span<const float> scores, const std::vector<bool>& mergeable,
                         const std::array<std::optional<TokenId>, 256>& byte_tokens, std::optional<TokenId> unknown)
    : by_text_(&by_text),
      priorities_(texts.size(), MergeRule::kNone),
      neighbours_(kNeighbourBits / 64, 0),
      byte_tokens_(byte_tokens) {
  for (size_t id = 0; id < texts.size(); ++id) {
    if (!mergeable[id]) continue;
    priorities_[id] = priority_of(scores.empty() ? 0.0f : scores[id]);
    longest_.add(texts[id]);
    // Part of a blank's spelling is enough: behind a broken lead byte it is torn apart.
    if (texts[id].find_first_of(kBlank) != std::string_view::npos) longest_.raise(' ', texts[id].size());
    add_neighbours(texts[id]);
  }
  for (auto& token : byte_tokens_) {
    if (!token) token = unknown;
  }
  // What is no token falls back to its bytes' tokens, or is lost.
  bool has_blank = find_mergeable(kBlank) != StringIndex::kAbsent;
  for (const char byte : kBlank) has_blank = has_blank || byte_tokens_[static_cast<uint8_t>(byte)];
  for (size_t byte = 0; byte < 256; ++byte) {
    const char as_char = static_cast<char>(byte);
    const bool is_kept = as_char == ' ' ? has_blank : byte_tokens_[byte].has_value();
    if (is_kept) {
      longest_.raise(as_char, 1);
    } else {
      longest_.drop(as_char);
    }
  }
}

void ScoreMerger::add_neighbours(std::string_view token_text) {
  for (size_t i = 0; i < token_text.size();) {
    const std::string_view character = character_at(token_text, i);
    i += character.size();
    if (i >= token_text.size()) break;
    const size_t bit = neighbour_bit(character, character_at(token_text, i));
    neighbours_[bit / 64] |= uint64_t{1} << (bit % 64);
  }
}

int32_t ScoreMerger::find_mergeable(std::string_view text) const {
  const int32_t id = by_text_->find(text);
  return id == StringIndex::kAbsent || priorities_[static_cast<size_t>(id)] == MergeRule::kNone ? StringIndex::kAbsent
                                                                                                : id;
}

size_t ScoreMerger::neighbour_bit(std::string_view left_character, std::string_view right_character) {
  const auto code = [](std::string_view character) {
    uint64_t bytes = 0;
    for (const char c : character) bytes = bytes << 8 | static_cast<uint8_t>(c);
    return bytes;
  };
  const uint64_t key = code(left_character) << 32 | code(right_character);
  return ((key ^ key >> 29) * 0x9E3779B97F4A7C15ull) >> (64 - std::countr_zero(kNeighbourBits));
}

bool ScoreMerger::may_join(std::string_view left_character, std::string_view right_character) const {
  const size_t bit = neighbour_bit(left_character, right_character);
  return neighbours_[bit / 64] >> (bit % 64) & 1;
}

void ScoreMerger::encode(std::string_view text, std::vector<TokenId>& ids) const {
  std::vector<Symbol> symbols;
  size_t run = 0;
  for (size_t i = 0; i < text.size();) {
    const std::string_view character = character_at(text, i);
    i += character.size();
    if (i < text.size() && may_join(character, character_at(text, i))) continue;
    encode_run(text.substr(run, i - run), symbols, ids);
    run = i;
  }
}

size_t ScoreMerger::work_bytes(std::string_view text_with_blanks) const {
  const auto character = [&](size_t i) {
    return text_with_blanks[i] == ' ' ? kBlank : character_at(text_with_blanks, i);
  };
  size_t n_symbols = 0, longest = 0;
  for (size_t i = 0; i < text_with_blanks.size();) {
    const std::string_view one = character(i);
    i += text_with_blanks[i] == ' ' ? 1 : one.size();
    longest = std::max(longest, ++n_symbols);
    if (i < text_with_blanks.size() && !may_join(one, character(i))) n_symbols = 0;
  }
  return longest * kMergeBytes;
}

void ScoreMerger::encode_run(std::string_view text, std::vector<Symbol>& symbols, std::vector<TokenId>& ids) const {
  symbols.clear();
  size_t n_symbols = 0;
  for (size_t i = 0; i < text.size(); ++n_symbols) i += character_at(text, i).size();
  symbols.reserve(n_symbols);
  for (size_t i = 0; i < text.size();) {
    const std::string_view character = character_at(text, i);
    const size_t end = i + character.size();
    symbols.push_back({static_cast<uint32_t>(i), static_cast<uint32_t>(end), find_mergeable(character)});
    i = end;
  }
  merge_symbols(symbols, [&](const Symbol& left, const Symbol& right) {
    const size_t length = right.end - left.begin;
    if (length > longest_.most_bytes()) return MergeRule{};
    const int32_t id = find_mergeable(text.substr(left.begin, length));
    return id == StringIndex::kAbsent ? MergeRule{} : MergeRule{priorities_[static_cast<size_t>(id)], id};
  });
  for (const Symbol& s : symbols) {
    if (s.piece != StringIndex::kAbsent) {
      ids.push_back(TokenId{s.piece});
      continue;
    }
    for (uint32_t i = s.begin; i < s.end; ++i) {
      if (const auto id = byte_tokens_[static_cast<uint8_t>(text[i])]) ids.push_back(*id);
    }
  }
}

}  // namespace pagoda::text
