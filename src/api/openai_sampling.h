// The request fields that chat and completions share: sampling, stopping, delivery, and what is refused by both. Part of the OpenAI dialect.
#pragma once

#include "api/json_fields.h"
#include "api/openai.h"

namespace pagoda::api {

// Fills all of `request` but the prompt, max_tokens, logprobs and echo; and call.model, n_choices, delivery, usage_chunks, token_ids.
Status parse_shared_fields(const Fields& fields, OpenAiCall& call, engine::Request& request);

// Token ids: a list of whole numbers from 0 to 2^31 - 1.
Result<std::vector<TokenId>> parse_token_ids(const Json& list, std::string_view field);

}  // namespace pagoda::api
