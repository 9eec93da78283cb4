#include "api/openai_logprobs.h"

#include <algorithm>

#include "api/json_text.h"
#include "base/error.h"

namespace pagoda::api {
namespace {

using engine::TokenLogprob;

// Calls append(item) for each, with commas between.
template <typename Items, typename Append>
void append_list(std::string& out, const Items& items, Append append) {
  out += '[';
  bool is_first = true;
  for (const auto& item : items) {
    if (!is_first) out += ',';
    is_first = false;
    append(item);
  }
  out += ']';
}

void append_logprob(std::string& out, const std::optional<float>& logprob) {
  if (logprob) {
    append_json_float(out, *logprob);
  } else {
    out += "null";
  }
}

// {"token":...,"logprob":...,"bytes":[...]   the brace stays open
void append_token(std::string& out, std::string_view bytes, const std::optional<float>& logprob) {
  out += R"({"token":)";
  append_json_string(out, bytes);
  out += R"(,"logprob":)";
  append_logprob(out, logprob);
  out += R"(,"bytes":)";
  append_list(out, bytes, [&](char c) { out += std::to_string(static_cast<uint8_t>(c)); });
}

std::string legacy_token(std::string_view bytes) {
  if (is_utf8(bytes)) return std::string(bytes);
  std::string text = "bytes:";
  for (const char c : bytes) text += fmt::format("\\x{:02x}", static_cast<uint8_t>(c));
  return text;
}

// The alternatives, and the chosen token if it is not among them.
void append_legacy_top(std::string& out, const TokenLogprob& token) {
  if (!token.logprob) {
    out += "null";
    return;
  }
  out += '{';
  bool has_chosen = false;
  for (const TokenLogprob::Alternative& other : token.top) {
    if (out.back() != '{') out += ',';
    has_chosen |= other.token == token.token;
    append_json_string(out, legacy_token(other.bytes));
    out += ':';
    append_json_float(out, other.logprob);
  }
  if (!has_chosen) {
    if (out.back() != '{') out += ',';
    append_json_string(out, legacy_token(token.bytes));
    out += ':';
    append_json_float(out, *token.logprob);
  }
  out += '}';
}

}  // namespace

void append_chat_logprobs(std::string& out, std::span<const TokenLogprob> logprobs) {
  out += R"({"content":)";
  append_list(out, logprobs, [&](const TokenLogprob& token) {
    append_token(out, token.bytes, token.logprob);
    out += R"(,"top_logprobs":)";
    append_list(out, token.top, [&](const TokenLogprob::Alternative& other) {
      append_token(out, other.bytes, other.logprob);
      out += '}';
    });
    out += '}';
  });
  out += R"(,"refusal":null})";
}

void append_prompt_logprobs(std::string& out, std::span<const TokenLogprob> logprobs) {
  const auto append_entry = [&](TokenId token, std::string_view bytes, float logprob, size_t rank) {
    if (out.back() != '{') out += ',';
    out += fmt::format(R"("{}":{{"logprob":)", token.value);
    append_json_float(out, logprob);
    out += rank == 0 ? R"(,"rank":null)" : fmt::format(R"(,"rank":{})", rank);
    out += R"(,"decoded_token":)";
    append_json_string(out, bytes);
    out += '}';
  };
  append_list(out, logprobs, [&](const TokenLogprob& token) {
    if (!token.logprob) {
      out += "null";
      return;
    }
    out += '{';
    bool has_chosen = false;
    for (size_t i = 0; i < token.top.size(); ++i) {
      has_chosen |= token.top[i].token == token.token;
      append_entry(token.top[i].token, token.top[i].bytes, token.top[i].logprob, i + 1);
    }
    if (!has_chosen) append_entry(token.token, token.bytes, *token.logprob, 0);
    out += '}';
  });
}

size_t append_legacy_logprobs(std::string& out, std::span<const TokenLogprob> logprobs, size_t first_offset) {
  out += R"({"tokens":)";
  append_list(out, logprobs, [&](const TokenLogprob& token) { append_json_string(out, legacy_token(token.bytes)); });
  out += R"(,"token_logprobs":)";
  append_list(out, logprobs, [&](const TokenLogprob& token) { append_logprob(out, token.logprob); });
  out += R"(,"top_logprobs":)";
  append_list(out, logprobs, [&](const TokenLogprob& token) { append_legacy_top(out, token); });
  out += R"(,"text_offset":)";
  size_t offset = first_offset;
  append_list(out, logprobs, [&](const TokenLogprob& token) {
    out += std::to_string(offset);
    offset += utf8_characters(token.bytes);
  });
  out += '}';
  return offset;
}

}  // namespace pagoda::api
