#include "text/pretokenizer.h"

#include <algorithm>
#include <iterator>
#include <span>

namespace pagoda::text {
namespace {

using enum CharClass;

// The code points of one range as the patterns see them; past its end nothing matches.
class Window {
 public:
  Window(const Runes& runes, uint32_t begin, uint32_t end) : runes_(runes), begin_(begin), end_(end) {}
  uint32_t begin() const { return begin_; }
  uint32_t end() const { return end_; }
  bool inside(uint32_t i) const { return i < end_; }
  // 0 past the end: no pattern asks for U+0000.
  uint32_t at(uint32_t i) const { return i < end_ ? runes_.code_points[i] : 0; }
  bool is(uint32_t i, CharClass c) const { return i < end_ && runes_.classes[i] == c; }
  // [^\s\p{L}\p{N}]
  bool is_mark_like(uint32_t i) const {
    return i < end_ && runes_.classes[i] != kSpace && runes_.classes[i] != kLetter && runes_.classes[i] != kNumber;
  }
  bool is_newline(uint32_t i) const { return at(i) == '\r' || at(i) == '\n'; }
  uint32_t run_end(uint32_t i, CharClass c) const {
    while (is(i, c)) ++i;
    return i;
  }

 private:
  const Runes& runes_;
  uint32_t begin_, end_;
};

enum class Case { kExact, kIgnore };

// 's 't 'm 'd 're 've 'll at i: the end of the match, or i.
uint32_t contraction_end(const Window& w, uint32_t i, Case letter_case) {
  if (w.at(i) != '\'') return i;
  const auto letter = [&](uint32_t k) {
    const uint32_t c = w.at(k);
    return letter_case == Case::kIgnore && c >= 'A' && c <= 'Z' ? c + 32 : c;
  };
  const uint32_t a = letter(i + 1), b = letter(i + 2);
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return i + 2;
  if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return i + 3;
  return i;
}

// \s+(?!\S)|\s+ at a run of spaces [i, end of run): all of it at the window's end, else all but the last.
uint32_t spaces_end(const Window& w, uint32_t i) {
  const uint32_t end = w.run_end(i, kSpace);
  return end - i > 1 && w.inside(end) ? end - 1 : end;
}

// 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
uint32_t gpt2_word_end(const Window& w, uint32_t i) {
  if (const uint32_t end = contraction_end(w, i, Case::kExact); end > i) return end;
  const uint32_t start = w.at(i) == ' ' ? i + 1 : i;
  if (w.is(start, kLetter)) return w.run_end(start, kLetter);
  if (w.is(start, kNumber)) return w.run_end(start, kNumber);
  if (w.is_mark_like(start)) {
    uint32_t end = start;
    while (w.is_mark_like(end)) ++end;
    return end;
  }
  return spaces_end(w, i);
}

// (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,D}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
template <uint32_t kDigits>
uint32_t llama3_word_end(const Window& w, uint32_t i) {
  if (const uint32_t end = contraction_end(w, i, Case::kIgnore); end > i) return end;
  if (w.is(i, kLetter)) return w.run_end(i, kLetter);
  if (w.is(i, kNumber)) return std::min(w.run_end(i, kNumber), i + kDigits);
  if (!w.is_newline(i) && w.is(i + 1, kLetter)) return w.run_end(i + 1, kLetter);
  const uint32_t start = w.at(i) == ' ' ? i + 1 : i;
  if (w.is_mark_like(start)) {
    uint32_t end = start;
    while (w.is_mark_like(end)) ++end;
    while (w.is_newline(end)) ++end;
    return end;
  }
  uint32_t last_newline = i;
  for (uint32_t k = i; w.is(k, kSpace); ++k) {
    if (w.is_newline(k)) last_newline = k + 1;
  }
  return last_newline > i ? last_newline : spaces_end(w, i);
}

// A pass that tiles its window: word_end gives each next word's end.
template <uint32_t (*word_end)(const Window&, uint32_t)>
void tile(const Runes& runes, uint32_t begin, uint32_t end, WordEnds& ends) {
  const Window w(runes, begin, end);
  for (uint32_t i = begin; i < end; ends.push_back(i)) i = word_end(w, i);
}

// A pass that cuts matches out and keeps what lies between: match_end gives a match's end at i, or i for none.
template <uint32_t (*match_end)(const Window&, uint32_t)>
void isolate(const Runes& runes, uint32_t begin, uint32_t end, WordEnds& ends) {
  const Window w(runes, begin, end);
  uint32_t word = begin;
  for (uint32_t i = begin; i < end;) {
    const uint32_t match = match_end(w, i);
    if (match == i) {
      ++i;
      continue;
    }
    if (i > word) ends.push_back(i);
    ends.push_back(match);
    i = word = match;
  }
  if (word < end) ends.push_back(end);
}

// Patterns for isolate, by the regular expression each stands for.

uint32_t number(const Window& w, uint32_t i) { return w.is(i, kNumber) ? i + 1 : i; }  // \p{N}
uint32_t numbers(const Window& w, uint32_t i) { return w.run_end(i, kNumber); }        // \p{N}+
uint32_t newline(const Window& w, uint32_t i) { return w.is_newline(i) ? i + 1 : i; }  // [\r\n]

uint32_t three_digits(const Window& w, uint32_t i) {  // [0-9][0-9][0-9]
  const auto digit = [&](uint32_t k) { return w.at(k) >= '0' && w.at(k) <= '9'; };
  return digit(i) && digit(i + 1) && digit(i + 2) ? i + 3 : i;
}

// [\p{P}$+<=>^~|]+, falcon's with ` too
template <bool (*extra)(uint32_t)>
uint32_t punctuation(const Window& w, uint32_t i) {
  while (w.inside(i) && (w.is(i, kPunctuation) || extra(w.at(i)))) ++i;
  return i;
}
bool default_extra(uint32_t c) {
  return std::string_view("$+<=>^~|").find(static_cast<char>(c)) != std::string_view::npos && c < 128;
}
bool falcon_extra(uint32_t c) { return default_extra(c) || c == '`'; }

// \s?X+
template <bool (*in_class)(const Window&, uint32_t)>
uint32_t spaced_run(const Window& w, uint32_t i) {
  const uint32_t start = w.is(i, kSpace) ? i + 1 : i;
  uint32_t end = start;
  while (w.inside(end) && in_class(w, end)) ++end;
  return end > start ? end : i;
}
bool letter(const Window& w, uint32_t i) { return w.is(i, kLetter); }
bool any_punctuation(const Window& w, uint32_t i) { return w.is(i, kPunctuation); }

struct CodeRange {
  uint32_t first, last;
};
bool within(std::span<const CodeRange> ranges, uint32_t c) {
  const auto after =
      std::upper_bound(ranges.begin(), ranges.end(), c, [](uint32_t v, const CodeRange& r) { return v < r.first; });
  return after != ranges.begin() && c <= (after - 1)->last;
}
bool deepseek_letter(const Window& w, uint32_t i) {
  static constexpr CodeRange kLetters[] = {
#include "text/deepseek_letters.inc"
  };
  static_assert(
      std::is_sorted(std::begin(kLetters), std::end(kLetters), [](auto a, auto b) { return a.first < b.first; }));
  return within(kLetters, w.at(i));
}
bool deepseek_punctuation(const Window& w, uint32_t i) {
  static constexpr CodeRange kMarks[] = {{0x21, 0x2F},     {0x3A, 0x7E},     {0x2018, 0x201F},
                                         {0x3000, 0x3002}, {0xFF01, 0xFF0F}, {0xFF1A, 0xFF5E}};
  return !w.is(i, kSpace) && within(kMarks, w.at(i));
}
// [一-龥ࠀ-一가-퟿]+ where white space is read as U+000B
uint32_t deepseek_east_asian(const Window& w, uint32_t i) {
  const auto matches = [&](uint32_t k) {
    const uint32_t c = w.at(k);
    return !w.is(k, kSpace) && ((c >= 0x800 && c <= 0x9FA5) || (c >= 0xAC00 && c <= 0xD7FF));
  };
  while (matches(i)) ++i;
  return i;
}
// Isolates \s+$. From the end: at each blank of a long run that is not the last one, a search from the left would look through it again.
void isolate_trailing_spaces(const Runes& runes, uint32_t begin, uint32_t end, WordEnds& ends) {
  uint32_t first = end;
  while (first > begin && runes.classes[first - 1] == kSpace) --first;
  if (first > begin) ends.push_back(first);
  if (first < end) ends.push_back(end);
}

using Pass = PreTokenizer::Pass;
constexpr Pass kGpt2 = tile<gpt2_word_end>;

struct Named {
  std::string_view names;  // separated by blanks; the first of each row is the family's own
  std::vector<Pass> passes;
  bool whole_words = false;
  bool adds_bos = false;
};

const std::vector<Named>& named_pretokenizers() {
  static const std::vector<Named> kNamed = {
      {"default", {isolate<punctuation<default_extra>>, kGpt2, isolate<numbers>, isolate<three_digits>}},
      {"gpt-2 phi-2 jina-es jina-de gigachat mellum exaone4 mpt olmo jais trillion", {kGpt2}},
      {"llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2", {tile<llama3_word_end<3>>}, true, true},
      {"dbrx smaug-bpe", {tile<llama3_word_end<3>>}},
      {"qwen2 deepseek-r1-qwen kormo megrez stablelm2", {tile<llama3_word_end<1>>}},
      {"smollm starcoder refact command-r codeshell exaone minerva-7b", {isolate<number>, kGpt2}},
      {"deepseek-llm",
       {isolate<newline>, isolate<spaced_run<deepseek_letter>>, isolate<spaced_run<deepseek_punctuation>>,
        isolate_trailing_spaces, isolate<deepseek_east_asian>, isolate<numbers>}},
      {"deepseek-coder",
       {isolate<newline>, isolate<spaced_run<letter>>, isolate<spaced_run<any_punctuation>>,
        isolate<deepseek_east_asian>, isolate<number>}},
      {"falcon", {isolate<punctuation<falcon_extra>>, kGpt2, isolate<three_digits>}},
  };
  return kNamed;
}

bool has_word(std::string_view words, std::string_view word) {
  for (size_t begin = 0; begin < words.size();) {
    const size_t end = std::min(words.find(' ', begin), words.size());
    if (words.substr(begin, end - begin) == word) return true;
    begin = end + 1;
  }
  return false;
}

}  // namespace

Result<PreTokenizer> PreTokenizer::find(std::string_view name) {
  if (name.empty()) name = "default";
  std::string supported;
  for (const Named& row : named_pretokenizers()) {
    if (has_word(row.names, name)) return PreTokenizer{row.passes, row.whole_words, row.adds_bos};
    supported += supported.empty() ? "" : " ";
    supported += row.names;
  }
  return fail(ErrorCode::kUnsupported, "pre-tokenizer '{}' (tokenizer.ggml.pre) is unknown; supported: {}", name,
              supported);
}

WordEnds PreTokenizer::split(const Runes& runes) const {
  const uint32_t n = static_cast<uint32_t>(runes.code_points.size());
  WordEnds ends, finer;
  if (n == 0) return ends;
  ends.push_back(n);
  for (const Pass pass : passes) {
    finer.clear();
    uint32_t begin = 0;
    for (const uint32_t end : ends) {
      pass(runes, begin, end, finer);
      begin = end;
    }
    ends.swap(finer);
  }
  return ends;
}

}  // namespace pagoda::text
