#include "text/token_roles.h"

namespace pagoda::text {
namespace {

using Spellings = std::span<const std::string_view>;

// Spellings collected by llama.cpp from published models; each marks the end of a turn or of an answer.
constexpr std::string_view kEnds[] = {"<|eot_id|>",
                                      "<|im_end|>",
                                      "<|end|>",
                                      "<|return|>",
                                      "<|call|>",
                                      "<|flush|>",
                                      "<|calls|>",
                                      "<end_of_turn>",
                                      "<|endoftext|>",
                                      "</s>",
                                      "<|eom_id|>",
                                      "<EOT>",
                                      "_<EOT>",
                                      "[EOT]",
                                      "[EOS]",
                                      "<|end_of_text|>",
                                      "<end_of_utterance>",
                                      "<eos>",
                                      "<turn|>",
                                      "<|tool_response>",
                                      "<｜end▁of▁sentence｜>",
                                      "[e~["};
// Fill-in-the-middle markers; the first of each row that exists counts.
constexpr std::string_view kMiddleRows[][8] = {
    {"<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>", "<|code_prefix|>",
     "<|prefix|>"},
    {"<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>", "<|code_suffix|>",
     "<|suffix|>"},
    {"<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>", "<|code_middle|>",
     "<|middle|>"},
};
// Padding, repository and file markers, which also end an answer.
constexpr std::string_view kMiddleEndRows[][5] = {
    {"<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"},
    {"<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"},
    {"<|file_sep|>"},
};
// Harmony's channel markers must be writable by plain text.
constexpr std::string_view kHarmonyMarkers[] = {"<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"};

class RoleFinder {
 public:
  RoleFinder(const StringIndex& by_text, TokenRoles& roles) : by_text_(by_text), roles_(roles) {}

  bool has_end(std::string_view text) const {
    const int32_t id = by_text_.find(text);
    return id != StringIndex::kAbsent && roles_.ends_generation[static_cast<size_t>(id)];
  }
  bool make(std::string_view text, TokenType type) {
    const int32_t id = by_text_.find(text);
    if (id == StringIndex::kAbsent) return false;
    roles_.types[static_cast<size_t>(id)] = type;
    return true;
  }
  void make_end(std::string_view text) {
    if (make(text, TokenType::kControl)) roles_.ends_generation[static_cast<size_t>(by_text_.find(text))] = true;
  }
  void make_no_end(std::string_view text, TokenType type) {
    if (make(text, type)) roles_.ends_generation[static_cast<size_t>(by_text_.find(text))] = false;
  }
  std::string_view first_of(Spellings row) const {
    for (const std::string_view text : row) {
      if (by_text_.find(text) != StringIndex::kAbsent) return text;
    }
    return {};
  }

 private:
  const StringIndex& by_text_;
  TokenRoles& roles_;
};

}  // namespace

TokenRoles find_token_roles(std::span<const std::string_view> texts, std::span<const int32_t> types,
                            const StringIndex& by_text, std::span<const TokenId> named_ends) {
  TokenRoles roles;
  roles.types.assign(texts.size(), TokenType::kNormal);
  roles.ends_generation.assign(texts.size(), false);
  for (size_t i = 0; i < types.size(); ++i) {
    const bool known = types[i] >= 1 && types[i] <= 6;
    roles.types[i] = known ? static_cast<TokenType>(types[i]) : TokenType::kUndefined;
  }
  RoleFinder finder(by_text, roles);
  for (const auto& row : kMiddleRows) finder.make(finder.first_of(row), TokenType::kControl);
  for (const auto& row : kMiddleEndRows) finder.make_end(finder.first_of(row));
  for (const std::string_view text : kEnds) finder.make_end(text);
  for (const std::string_view text : kHarmonyMarkers) finder.make(text, TokenType::kUserDefined);
  for (const TokenId id : named_ends) roles.ends_generation[static_cast<size_t>(id.value)] = true;
  const bool calls = finder.has_end("<|call|>") || finder.has_end("<|calls|>");
  if (calls && (finder.has_end("<|return|>") || finder.has_end("<|flush|>")) && finder.has_end("<|end|>")) {
    finder.make_no_end("<|end|>", TokenType::kUserDefined);  // there it ends a message, not the answer
  }
  if (finder.has_end("<|tool_response>") && finder.has_end("</s>")) finder.make_no_end("</s>", TokenType::kNormal);
  return roles;
}

}  // namespace pagoda::text
