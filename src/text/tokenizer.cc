#include "text/tokenizer.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cctype>
#include <string>
#include <utility>
#include <variant>

#include "base/check.h"
#include "text/byte_pair_merger.h"
#include "text/pretokenizer.h"
#include "text/score_merger.h"
#include "text/special_tokens.h"
#include "text/token_roles.h"
#include "text/unicode.h"

namespace pagoda::text {
namespace {

constexpr std::string_view kBlank = "\xE2\x96\x81";  // U+2581, SentencePiece's spelling of a blank

// Longer texts would overflow the 32-bit positions of merging; far above any context length.
constexpr size_t kMaxSpanBytes = size_t{1} << 30;

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  size_t n = 0;
  for (size_t i = 0; (i = text.find(from, i)) != std::string_view::npos; i += from.size()) ++n;
  std::string out;
  out.reserve(text.size() - n * from.size() + n * to.size() + to.size());
  size_t begin = 0;
  for (size_t i; (i = text.find(from, begin)) != std::string_view::npos; begin = i + from.size()) {
    out.append(text, begin, i - begin).append(to);
  }
  return out.append(text, begin);
}

// The byte that a token like <0x0A> stands for.
std::optional<uint8_t> byte_of_token(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return std::nullopt;
  unsigned value = 0;
  for (const char c : text.substr(3, 2)) {
    if (!std::isxdigit(static_cast<unsigned char>(c))) return std::nullopt;
    value = value * 16 + static_cast<unsigned>(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
  }
  return static_cast<uint8_t>(value);
}

}  // namespace

struct Tokenizer::Impl {
  std::string storage;                  // all texts and bytes below view into it
  std::vector<std::string_view> texts;  // [size] as stored in the file
  std::vector<std::string_view> bytes;  // [size] as added to the output
  StringIndex by_text;
  TokenRoles roles;
  std::optional<TokenId> bos, eos;
  bool add_bos = false, add_eos = false, add_space_prefix = false;
  std::optional<SpecialTokens> special;
  LongestTokens longest;
  std::variant<std::monostate, BytePairMerger, ScoreMerger> merger;

  std::optional<TokenId> in_range(std::optional<TokenId> id, std::optional<TokenId> otherwise = {}) const {
    const auto valid = [&](std::optional<TokenId> t) {
      return t && t->value >= 0 && static_cast<size_t>(t->value) < texts.size();
    };
    if (valid(id)) return id;
    return valid(otherwise) ? otherwise : std::nullopt;
  }
  std::string_view store(std::string_view text) {
    CHECK(storage.size() + text.size() <= storage.capacity());  // views must stay
    const size_t begin = storage.size();
    storage.append(text);
    return std::string_view(storage).substr(begin);
  }

  void take_texts(const Vocabulary& vocabulary);
  void take_roles(const Vocabulary& vocabulary, TokenId default_bos, TokenId default_eos);
  void take_special_tokens(std::string_view model_name);
  void take_longest_tokens();
  Status init_byte_level(const Vocabulary& vocabulary);
  void init_scored(const Vocabulary& vocabulary);
  bool from_text(size_t id) const;  // whether merging user text may make this token
  void encode_span(std::string_view text, const SpecialTokens::Span& span, bool after_special,
                   std::vector<TokenId>& ids) const;
};

void Tokenizer::Impl::take_texts(const Vocabulary& vocabulary) {
  size_t total = 0;
  for (const std::string_view text : vocabulary.tokens) total += text.size();
  storage.reserve(3 * total);  // texts, bytes, and a user-defined token's bytes in both readings
  texts.reserve(vocabulary.tokens.size());
  by_text = StringIndex(vocabulary.tokens.size());
  for (const std::string_view text : vocabulary.tokens) {
    texts.push_back(store(text));
    if (!text.empty()) by_text.insert(texts.back(), static_cast<int32_t>(texts.size() - 1));
  }
}

void Tokenizer::Impl::take_roles(const Vocabulary& vocabulary, TokenId default_bos, TokenId default_eos) {
  bos = in_range(vocabulary.bos, default_bos);
  eos = in_range(vocabulary.eos, default_eos);
  std::vector<TokenId> ends;
  for (const auto id : {eos, in_range(vocabulary.eot), in_range(vocabulary.eom)}) {
    if (id) ends.push_back(*id);
  }
  roles = find_token_roles(texts, vocabulary.types, by_text, ends);
}

bool Tokenizer::Impl::from_text(size_t id) const {
  return !texts[id].empty() && roles.types[id] != TokenType::kControl && roles.types[id] != TokenType::kUnknown;
}

void Tokenizer::Impl::take_special_tokens(std::string_view model_name) {
  std::string name(model_name);
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  const bool strips = name.find("phi-3") != std::string::npos || name.find("phi3") != std::string::npos;
  std::vector<SpecialTokens::Token> tokens;
  for (size_t id = 0; id < texts.size(); ++id) {
    const TokenType type = roles.types[id];
    if (type != TokenType::kControl && type != TokenType::kUserDefined && type != TokenType::kUnknown) continue;
    const std::string_view text = texts[id];
    const bool keeps = !strips || text == "<unk>" || text == "<s>" || text == "<|endoftext|>";
    tokens.push_back({
        .text = text,
        .id = TokenId{static_cast<int32_t>(id)},
        .matched =
            type == TokenType::kUserDefined ? SpecialTokens::Matched::kAlways : SpecialTokens::Matched::kWhenParsed,
        .after = keeps ? SpecialTokens::After::kKeepSpace : SpecialTokens::After::kStripSpace,
    });
  }
  special.emplace(std::move(tokens));
}

void Tokenizer::Impl::take_longest_tokens() {
  if (const auto* byte_level = std::get_if<BytePairMerger>(&merger)) longest = byte_level->longest_tokens();
  if (const auto* scored = std::get_if<ScoreMerger>(&merger)) longest = scored->longest_tokens();
  for (const SpecialTokens::Token& token : special->tokens()) longest.add(token.text);
  if (!special->strips_spaces()) return;
  for (const char space : {' ', '\t', '\n', '\v', '\f', '\r'}) longest.drop(space);
}

Status Tokenizer::Impl::init_byte_level(const Vocabulary& vocabulary) {
  TRY_ASSIGN(PreTokenizer pre_tokenizer, PreTokenizer::find(vocabulary.pre));
  take_roles(vocabulary, TokenId{11}, TokenId{11});  // llama.cpp's defaults, once Falcon's
  add_bos = vocabulary.add_bos.value_or(pre_tokenizer.adds_bos);
  add_eos = vocabulary.add_eos.value_or(false);
  std::vector<BytePairMerger::Token> mergeable;
  mergeable.reserve(texts.size());
  bytes.resize(texts.size());
  for (size_t id = 0; id < texts.size(); ++id) {
    if (!from_text(id)) continue;
    const auto raw = bytes_of_byte_level(texts[id]);
    const std::string_view stored = !raw || *raw == texts[id] ? texts[id] : store(*raw);
    if (raw) mergeable.push_back({stored, TokenId{static_cast<int32_t>(id)}});
    switch (roles.types[id]) {
      case TokenType::kNormal:
        bytes[id] = stored;
        break;
      case TokenType::kUserDefined:
        bytes[id] = texts[id];
        break;
      case TokenType::kByte:
        if (const auto byte = byte_of_token(texts[id])) bytes[id] = store(std::string(1, static_cast<char>(*byte)));
        break;
      default:
        break;
    }
  }
  merger.emplace<BytePairMerger>(std::move(pre_tokenizer), mergeable, vocabulary.merges);
  return {};
}

void Tokenizer::Impl::init_scored(const Vocabulary& vocabulary) {
  take_roles(vocabulary, TokenId{1}, TokenId{2});
  add_bos = vocabulary.add_bos.value_or(true);
  add_eos = vocabulary.add_eos.value_or(false);
  add_space_prefix = vocabulary.add_space_prefix.value_or(true);
  std::vector<bool> mergeable(texts.size());
  std::array<std::optional<TokenId>, 256> byte_tokens;
  bytes.resize(texts.size());
  for (size_t id = 0; id < texts.size(); ++id) {
    mergeable[id] = from_text(id);
    const auto byte = byte_of_token(texts[id]);
    if (byte) byte_tokens[*byte] = TokenId{static_cast<int32_t>(id)};
    switch (roles.types[id]) {
      case TokenType::kNormal:
      case TokenType::kUserDefined:
        bytes[id] =
            texts[id].find(kBlank) == std::string_view::npos ? texts[id] : store(replaced(texts[id], kBlank, " "));
        break;
      case TokenType::kByte:
        if (byte) bytes[id] = store(std::string(1, static_cast<char>(*byte)));
        break;
      default:
        break;
    }
  }
  for (size_t byte = 0; byte < 256; ++byte) {
    const std::string text(1, static_cast<char>(byte));
    if (const int32_t id = by_text.find(text); !byte_tokens[byte] && id != StringIndex::kAbsent)
      byte_tokens[byte] = TokenId{id};
  }
  const std::optional<TokenId> unknown = in_range(vocabulary.unk, TokenId{0});
  merger.emplace<ScoreMerger>(by_text, texts, vocabulary.scores, mergeable, byte_tokens, unknown);
}

size_t Tokenizer::memory_bytes(size_t n_tokens, size_t text_bytes, size_t n_merges) {
  constexpr size_t kSlotBytes = 16;   // of a string index, and of the merges' table
  constexpr size_t kEntryBytes = 48;  // texts, bytes, types, scores
  const size_t index = kSlotBytes * std::bit_ceil(n_tokens * 3 / 2 + 8);
  const size_t merges = n_merges == 0 ? 0 : index + kSlotBytes * std::bit_ceil(2 * n_merges + 2);
  return n_tokens * kEntryBytes + 2 * text_bytes + index + merges;
}

Result<Tokenizer> Tokenizer::create(const Vocabulary& vocabulary) {
  const size_t n = vocabulary.tokens.size();
  if (n == 0) return fail(ErrorCode::kBadFile, "tokenizer.ggml.tokens is missing or empty: the file has no vocabulary");
  if (n > (size_t{1} << 24))
    return fail(ErrorCode::kBadFile, "tokenizer.ggml.tokens has {} entries, more than 2^24", n);
  if (!vocabulary.scores.empty() && vocabulary.scores.size() < n) {
    return fail(ErrorCode::kBadFile, "tokenizer.ggml.scores has {} entries for {} tokens", vocabulary.scores.size(), n);
  }
  if (!vocabulary.types.empty() && vocabulary.types.size() < n) {
    return fail(ErrorCode::kBadFile, "tokenizer.ggml.token_type has {} entries for {} tokens", vocabulary.types.size(),
                n);
  }
  const bool byte_level = vocabulary.model == "gpt2";
  if (!byte_level && vocabulary.model != "llama") {
    return fail(ErrorCode::kUnsupported, "tokenizer '{}' (tokenizer.ggml.model) is not supported; gpt2 and llama are",
                vocabulary.model);
  }
  if (byte_level && vocabulary.merges.empty())
    return fail(ErrorCode::kBadFile, "tokenizer.ggml.merges is missing or empty");
  auto impl = std::make_unique<Impl>();
  impl->take_texts(vocabulary);
  if (byte_level) {
    TRY(impl->init_byte_level(vocabulary));
  } else {
    impl->init_scored(vocabulary);
  }
  impl->take_special_tokens(vocabulary.name);
  impl->take_longest_tokens();
  return Tokenizer(std::move(impl));
}

Tokenizer::Tokenizer(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

void Tokenizer::Impl::encode_span(std::string_view text, const SpecialTokens::Span& span, bool after_special,
                                  std::vector<TokenId>& ids) const {
  for (size_t begin = span.begin; begin < span.end; begin += kMaxSpanBytes) {
    const std::string_view piece = text.substr(begin, std::min(span.end - begin, kMaxSpanBytes));
    if (const auto* byte_level = std::get_if<BytePairMerger>(&merger)) {
      byte_level->encode(piece, ids);
    } else if (const auto* scored = std::get_if<ScoreMerger>(&merger)) {
      std::string escaped = replaced(piece, " ", kBlank);
      if (add_space_prefix && after_special && begin == span.begin) escaped.insert(0, kBlank);
      scored->encode(escaped, ids);
    }
  }
}

std::vector<TokenId> Tokenizer::encode(std::string_view text, EncodeOptions options) const {
  const Impl& t = *impl_;
  std::vector<TokenId> ids;
  ids.reserve(text.size() / 4 + 2);
  const bool with_bos = options.bos == BosMode::kOn || (options.bos == BosMode::kAuto && t.add_bos);
  if (with_bos && t.bos) ids.push_back(*t.bos);
  bool after_special = true;
  for (const SpecialTokens::Span& span : t.special->partition(text, options.special, options.guards)) {
    if (span.is_text()) {
      t.encode_span(text, span, after_special, ids);
    } else {
      ids.push_back(span.token);
    }
    after_special = !span.is_text();
  }
  if (options.bos != BosMode::kOff && t.add_eos && t.eos) ids.push_back(*t.eos);
  return ids;
}

// In units of 2^-32 tokens, each byte's share rounded down, so that the sum is never too large.
int64_t Tokenizer::least_tokens(std::string_view text) const {
  constexpr uint64_t kOne = uint64_t{1} << 32;
  const Impl& t = *impl_;
  text = text.substr(0, kMaxSpanBytes);
  std::array<uint64_t, 256> shares{};
  // Four bytes of what is decoded otherwise are at least one afterwards, of any value.
  const bool is_changed = std::holds_alternative<BytePairMerger>(t.merger) && !decodes_to_itself(text);
  for (size_t byte = 0; byte < shares.size(); ++byte) {
    const char as_char = static_cast<char>(byte);
    if (t.longest.of(as_char) == 0 || t.longest.is_dropped(as_char)) continue;
    shares[byte] = kOne / (is_changed && byte >= 0x80 ? 4 * t.longest.most_bytes() : t.longest.of(as_char));
  }
  uint64_t sum = 0;
  for (const char c : text) sum += shares[static_cast<uint8_t>(c)];
  return static_cast<int64_t>((sum + kOne - 1) / kOne);
}

size_t Tokenizer::work_bytes(std::string_view text) const {
  constexpr size_t kIdBytes = 3 * sizeof(TokenId);  // in a vector that grows by doubling, while it is copied
  const Impl& t = *impl_;
  size_t merging = 0, most_ids = text.size();
  if (std::holds_alternative<BytePairMerger>(t.merger)) {
    merging = BytePairMerger::work_bytes(text);
    most_ids = decoded_bytes(text);
  } else if (const auto* scored = std::get_if<ScoreMerger>(&t.merger)) {
    const auto n_blanks = static_cast<size_t>(std::ranges::count(text, ' '));
    merging = scored->work_bytes(text) + text.size() + 2 * n_blanks + 2 * kBlank.size();
    most_ids += 2 * n_blanks;
  }
  return most_ids * kIdBytes + search_bytes(text) + merging;
}

size_t Tokenizer::search_bytes(std::string_view text) const {
  return text.size() / 8 + impl_->special->count_matches(text) * SpecialTokens::kMatchBytes;
}

std::vector<size_t> Tokenizer::control_token_begins(std::string_view text) const {
  std::vector<size_t> begins;
  for (const SpecialTokens::Span& span : impl_->special->partition(text, SpecialMode::kParse)) {
    if (!span.is_text() && span.end - span.begin > 1 && is_control(span.token)) begins.push_back(span.begin);
  }
  return begins;
}

std::string_view Tokenizer::token_bytes(TokenId id) const {
  return impl_->in_range(id) ? impl_->bytes[static_cast<size_t>(id.value)] : std::string_view{};
}
std::string_view Tokenizer::token_text(TokenId id) const {
  return impl_->in_range(id) ? impl_->texts[static_cast<size_t>(id.value)] : std::string_view{};
}
std::optional<TokenId> Tokenizer::find_token(std::string_view token_text) const {
  const int32_t id = impl_->by_text.find(token_text);
  return id == StringIndex::kAbsent ? std::nullopt : std::optional(TokenId{id});
}
bool Tokenizer::is_control(TokenId id) const { return impl_->in_range(id) && impl_->roles.is_control(id); }
bool Tokenizer::is_end_of_generation(TokenId id) const {
  return impl_->in_range(id) && impl_->roles.ends_generation[static_cast<size_t>(id.value)];
}
size_t Tokenizer::size() const { return impl_->texts.size(); }
std::optional<TokenId> Tokenizer::bos() const { return impl_->bos; }
std::optional<TokenId> Tokenizer::eos() const { return impl_->eos; }
bool Tokenizer::adds_bos() const { return impl_->add_bos && impl_->bos.has_value(); }

}  // namespace pagoda::text
