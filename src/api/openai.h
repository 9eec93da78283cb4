// The OpenAI dialect: /v1/chat/completions and /v1/completions, with vLLM's extra fields. Pure: bytes to Requests, Events to bytes.
// Rules: null is absent; unknown fields are ignored; a wrong type or range is kInvalidArgument with the field in `where`; what this
// server cannot do is kUnsupported with the field, never silently left out. Where a context policy held, usage.context and a stream's
// chunk with the finish_reason say what it dropped.
// Source: OpenAI API reference; vLLM protocol (top_k, min_p, ... stop_reason, token_ids).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "engine/request.h"

namespace pagoda::api {

inline constexpr int kMaxChoices = 128;  // n
inline constexpr int kMaxLogprobs = 20;
inline constexpr int kMaxStopStrings = 64;
inline constexpr int kMaxStopStringBytes = 1024;
inline constexpr int kMaxStopTokens = 256;
inline constexpr int kMaxLogitBiases = 1024;
inline constexpr int kMaxPrompts = 256;  // of one request; with n, kMaxAnswers
inline constexpr int kMaxAnswers = 1024;
inline constexpr int kDefaultCompletionTokens = 16;

struct OpenAiCall {
  enum class Kind : uint8_t { kChat, kCompletion } kind = Kind::kChat;
  enum class Delivery : uint8_t { kWhole, kStream } delivery = Delivery::kWhole;
  enum class UsageChunks : uint8_t { kNone, kLast, kEach } usage_chunks = UsageChunks::kNone;
  enum class TokenIds : uint8_t { kHidden, kShown } token_ids = TokenIds::kHidden;
  enum class PromptLogprobs : uint8_t { kHidden, kShown } prompt_logprobs = PromptLogprobs::kHidden;  // vLLM's field
  std::string model;                      // as asked for; empty if it was not
  int n_choices = 1;                      // of each prompt
  std::vector<engine::Request> requests;  // one per prompt; choice j of prompt i is choices[i * n_choices + j]
};

Result<OpenAiCall> parse_chat(std::string_view body);
Result<OpenAiCall> parse_completion(std::string_view body);

// What every answer and every chunk repeats.
struct AnswerHead {
  std::string id;       // "chatcmpl-..." or "cmpl-..."
  int64_t created = 0;  // unix seconds
  std::string model;    // as served
  std::string fingerprint;
};

// Sums what the prompts of one call used.
class UsageSum {
 public:
  explicit UsageSum(const OpenAiCall& call);
  void add(int prompt, const engine::Event& event);
  engine::Usage total() const;
  int prompt_tokens(int prompt) const { return prompts_[static_cast<size_t>(prompt)].usage.prompt_tokens; }

 private:
  struct PerPrompt {
    engine::Usage usage;
    int heard_tokens = 0;  // the repeated prompt's too
    int repeats = 0;       // choices that begin with the prompt's tokens: echo, prompt_logprobs
  };
  std::vector<PerPrompt> prompts_;
};

// Collects a call's events into one answer.
class OpenAiAnswer {
 public:
  OpenAiAnswer(const OpenAiCall& call, AnswerHead head);
  // Requires: an event of request `prompt`, in order; not Failed.
  void add(int prompt, const engine::Event& event);
  bool is_complete() const { return n_open_ == 0; }
  engine::Usage usage() const { return usage_.total(); }
  std::string json() const;

 private:
  struct Choice {
    std::string text;
    std::vector<TokenId> tokens;  // the prompt's first where it is repeated, as in logprobs
    std::vector<engine::TokenLogprob> logprobs;
    engine::Finished finished;
  };
  std::string choice_json(size_t index) const;
  // ,"prompt_logprobs":[...] or nothing
  std::string prompt_logprobs_json(size_t choice) const;
  // How many entries of a choice's logprobs are the prompt's.
  size_t n_prompt_entries(size_t choice) const;

  OpenAiCall::Kind kind_;
  OpenAiCall::TokenIds token_ids_;
  OpenAiCall::PromptLogprobs prompt_logprobs_;
  bool has_echo_;
  bool has_logprobs_;
  int n_choices_;
  std::vector<TokenId> stop_tokens_;  // that the client named
  AnswerHead head_;
  std::vector<Choice> choices_;
  int n_open_;
  UsageSum usage_;
};

// Turns a call's events into server-sent events, as they come.
class OpenAiStream {
 public:
  OpenAiStream(const OpenAiCall& call, AnswerHead head);
  // The frames of this event, maybe none. Requires: as OpenAiAnswer::add.
  std::string frames(int prompt, const engine::Event& event);
  bool is_complete() const { return n_open_ == 0; }
  engine::Usage usage() const { return usage_.total(); }
  // After the last event: the usage chunk if asked for, and [DONE].
  std::string end() const;

 private:
  // `more`: further members, each behind a comma.
  std::string chunk(std::string_view choice, std::string_view more = {}) const;
  std::string delta_frame(int index, const engine::Delta& delta);
  std::string finished_frame(int index, const engine::Finished& finished) const;

  OpenAiCall::Kind kind_;
  OpenAiCall::UsageChunks usage_chunks_;
  OpenAiCall::TokenIds token_ids_;
  bool has_logprobs_;
  int n_choices_;
  std::vector<TokenId> stop_tokens_;     // that the client named
  std::string prefix_;                   // {"id":... up to the choices
  std::vector<size_t> text_characters_;  // per choice, so far: where the next token's text begins
  int n_open_;
  UsageSum usage_;
};

// A stream's last frame if it fails.
std::string openai_error_frame(const Error& error);

// ---- models ------------------------------------------------------------------------------------------------------------------

struct ModelCard {
  std::string id;
  std::string root;  // file name, without its folder
  int64_t created = 0;
  int context_tokens = 0;
  int trained_context_tokens = 0;
  int vocab_size = 0;
  uint64_t n_params = 0;
  uint64_t file_bytes = 0;
};
std::string openai_model(const ModelCard& card);
std::string openai_models(const std::vector<ModelCard>& cards);

}  // namespace pagoda::api
