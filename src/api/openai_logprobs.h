// Log-probabilities in OpenAI's two shapes. Part of the OpenAI dialect.
// A token's bytes are not always whole characters. The chat shape has room for both (`token` with U+FFFD, `bytes` exact); in the legacy
// shape such a token is written "bytes:\xe2\x80", as OpenAI did, so that two tokens never share one key.
#pragma once

#include <span>
#include <string>

#include "engine/request.h"

namespace pagoda::api {

// {"content":[{token,logprob,bytes,top_logprobs}],"refusal":null}
void append_chat_logprobs(std::string& out, std::span<const engine::TokenLogprob> logprobs);

// [null,{"<id>":{"logprob","rank","decoded_token"},...},...]: vLLM's shape; a rank is null where it is not among the alternatives.
void append_prompt_logprobs(std::string& out, std::span<const engine::TokenLogprob> logprobs);

// {"tokens","token_logprobs","top_logprobs","text_offset"}; offsets in characters, the first token's is first_offset. Returns the offset
// after the last one.
size_t append_legacy_logprobs(std::string& out, std::span<const engine::TokenLogprob> logprobs, size_t first_offset);

}  // namespace pagoda::api
