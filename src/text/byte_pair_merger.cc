#include "text/byte_pair_merger.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace pagoda::text {
namespace {

// Texts are read in pieces of about that size, where they can be cut.
constexpr size_t kWindowBytes = 32 * 1024;

// By the byte-level alphabet, in ASCII.
bool is_spelled_as_itself(char c) { return c > ' ' && c <= '~'; }

bool is_ascii_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// Where a piece of at least `least` bytes may end: between an ASCII letter and a blank or line feed. No split pattern has a word with the two
// side by side, none looks behind it, and what looks ahead (\s+(?!\S), \s+$) matches no letter: so the words on either side are the same
// whether the other side is there or not.
size_t cut_behind(std::string_view text, size_t least) {
  for (size_t i = std::max<size_t>(least, 1); i < text.size(); ++i) {
    if ((text[i] == ' ' || text[i] == '\n') && is_ascii_letter(text[i - 1])) return i;
  }
  return text.size();
}

}  // namespace

BytePairMerger::BytePairMerger(PreTokenizer pre_tokenizer, std::span<const Token> mergeable,
                               std::span<const std::string_view> merges)
    : pre_tokenizer_(std::move(pre_tokenizer)), pieces_(mergeable.size() + 256) {
  token_of_piece_.reserve(mergeable.size() + 256);
  for (const Token& token : mergeable) {
    pieces_.insert(token.bytes, static_cast<int32_t>(token_of_piece_.size()));
    token_of_piece_.push_back(token.id.value);
  }
  for (const Token& token : mergeable) longest_.add(token.bytes);
  for (size_t byte = 0; byte < 256; ++byte) byte_pieces_[byte] = piece_of(std::string(1, static_cast<char>(byte)));
  add_merges(merges);
  drop_lost_bytes();
}

// What emit() may leave out counts as nothing.
void BytePairMerger::drop_lost_bytes() {
  for (const std::string& part : part_bytes_) {
    for (const char byte : part) {
      const int32_t of_byte = token_of_piece_[static_cast<size_t>(byte_pieces_[static_cast<uint8_t>(byte)])];
      if (!is_spelled_as_itself(byte) || of_byte == kNoToken) longest_.drop(byte);
    }
  }
}

// The piece with these bytes, new if need be.
int32_t BytePairMerger::piece_of(std::string_view bytes) {
  if (const int32_t known = pieces_.find(bytes); known != StringIndex::kAbsent) return known;
  const int32_t piece = static_cast<int32_t>(token_of_piece_.size());
  pieces_.insert(part_bytes_.emplace_back(bytes), piece);
  token_of_piece_.push_back(kNoToken);
  return piece;
}

void BytePairMerger::add_merges(std::span<const std::string_view> merges) {
  pairs_.resize(std::bit_ceil(merges.size() * 2 + 2));
  uint32_t rank = 0;
  for (const std::string_view merge : merges) {
    const uint32_t this_rank = rank++;
    const size_t blank = merge.find(' ', 1);
    if (blank == std::string_view::npos) continue;
    const auto left = bytes_of_byte_level(merge.substr(0, blank));
    const auto right = bytes_of_byte_level(merge.substr(blank + 1));
    if (!left || !right || left->empty() || right->empty()) continue;  // no text can contain it
    const int32_t left_piece = piece_of(*left), right_piece = piece_of(*right);
    PairSlot& slot = pairs_[pair_slot(left_piece, right_piece)];
    if (slot.left >= 0) continue;  // the first of equal merges counts
    slot = {left_piece, right_piece, this_rank, piece_of(*left + *right)};
  }
}

// The slot of this pair, or the empty one where it would go.
size_t BytePairMerger::pair_slot(int32_t left, int32_t right) const {
  const size_t mask = pairs_.size() - 1;
  const uint64_t key = static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  size_t i = (key * 0x9E3779B97F4A7C15ull) >> 32 & mask;
  while (pairs_[i].left >= 0 && (pairs_[i].left != left || pairs_[i].right != right)) i = (i + 1) & mask;
  return i;
}

void BytePairMerger::encode(std::string_view text, std::vector<TokenId>& ids) const {
  std::vector<Symbol> symbols;
  while (!text.empty()) {
    const size_t cut = cut_behind(text, kWindowBytes);
    encode_piece(text.substr(0, cut), symbols, ids);
    text.remove_prefix(cut);
  }
}

size_t BytePairMerger::work_bytes(std::string_view text) {
  size_t longest = 0;
  while (!text.empty()) {
    const size_t cut = cut_behind(text, kWindowBytes);
    longest = std::max(longest, decoded_bytes(text.substr(0, cut)));
    text.remove_prefix(cut);
  }
  return longest * kPieceFactor;
}

void BytePairMerger::encode_piece(std::string_view text, std::vector<Symbol>& symbols,
                                  std::vector<TokenId>& ids) const {
  Runes runes = decode_runes(text);
  WordEnds ends = pre_tokenizer_.split(runes);
  for (uint32_t& end : ends) end = runes.offsets[end];
  runes.code_points = {};
  runes.classes = {};
  runes.offsets = {};
  uint32_t begin = 0;
  for (const uint32_t end : ends) {
    encode_word(std::string_view(runes.bytes).substr(begin, end - begin), symbols, ids);
    begin = end;
  }
}

void BytePairMerger::encode_word(std::string_view word, std::vector<Symbol>& symbols, std::vector<TokenId>& ids) const {
  if (pre_tokenizer_.whole_words) {
    const int32_t piece = pieces_.find(word);
    if (piece != StringIndex::kAbsent && token_of_piece_[static_cast<size_t>(piece)] != kNoToken) {
      return emit(piece, word, ids);
    }
  }
  symbols.clear();
  symbols.reserve(word.size());
  for (uint32_t i = 0; i < word.size(); ++i) {
    symbols.push_back({i, i + 1, byte_pieces_[static_cast<uint8_t>(word[i])]});
  }
  merge_symbols(symbols, [this](const Symbol& left, const Symbol& right) {
    const PairSlot& slot = pairs_[pair_slot(left.piece, right.piece)];
    return MergeRule{slot.rank, slot.joined};
  });
  for (const Symbol& s : symbols) emit(s.piece, word.substr(s.begin, s.end - s.begin), ids);
}

// A piece that is no token falls back to the tokens of its bytes. As in llama.cpp only bytes that the byte-level alphabet spells
// as themselves in ASCII can be found so; a vocabulary without its 256 byte tokens loses the rest.
void BytePairMerger::emit(int32_t piece, std::string_view bytes, std::vector<TokenId>& ids) const {
  const int32_t id = token_of_piece_[static_cast<size_t>(piece)];
  if (id != kNoToken) {
    ids.push_back(TokenId{id});
    return;
  }
  for (const char byte : bytes) {
    const int32_t of_byte = token_of_piece_[static_cast<size_t>(byte_pieces_[static_cast<uint8_t>(byte)])];
    if (is_spelled_as_itself(byte) && of_byte != kNoToken) ids.push_back(TokenId{of_byte});
  }
}

}  // namespace pagoda::text
