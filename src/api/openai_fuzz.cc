// Fuzzes the OpenAI dialect: any bytes as a request body; and the text it carries back through the renderers, which must write JSON.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "api/error_map.h"
#include "api/openai.h"
#include "base/check.h"

using pagoda::Result;
using pagoda::api::OpenAiCall;

namespace {

void render(const OpenAiCall& call, std::string_view text) {
  pagoda::engine::Delta delta;
  delta.text = text.substr(0, 64);
  delta.tokens = {pagoda::TokenId(1)};
  if (call.requests[0].logprobs)
    delta.logprobs = {{pagoda::TokenId(1), delta.text, -1.0f, {{pagoda::TokenId(2), delta.text, -2.0f}}}};
  pagoda::engine::Finished finished;
  finished.stop_string = delta.text;
  if (const auto& policy = call.requests[0].context_policy) {
    CHECK(policy->keep_tokens >= 0);
    finished.usage.context.policy = policy->kind;
  }
  pagoda::api::OpenAiAnswer answer(call, {"id", 0, call.model, ""});
  pagoda::api::OpenAiStream stream(call, {"id", 0, call.model, ""});
  for (const pagoda::engine::Event& event : {pagoda::engine::Event{delta}, pagoda::engine::Event{finished}}) {
    answer.add(0, event);
    const std::string frames = stream.frames(0, event);
    const std::string_view frame = frames;
    if (!frame.empty()) CHECK(nlohmann::json::accept(frame.substr(6, frame.size() - 8)));
  }
  CHECK(nlohmann::json::accept(answer.json()));
}

void check(const Result<OpenAiCall>& call, std::string_view body) {
  if (!call) {
    CHECK(nlohmann::json::accept(pagoda::api::openai_error(call.error())));
    return;
  }
  CHECK(!call->requests.empty());
  if (const auto* chat = std::get_if<pagoda::engine::ChatPrompt>(&call->requests[0].prompt)) {
    const auto sent = nlohmann::json::parse(body)["messages"];
    const auto passed_on = nlohmann::json::parse(chat->messages_json);
    CHECK(passed_on.is_array() && passed_on.size() == sent.size());
    CHECK(chat->template_kwargs_json.empty() || nlohmann::json::parse(chat->template_kwargs_json).is_object());
  }
  render(*call, body);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  check(pagoda::api::parse_chat(body), body);
  check(pagoda::api::parse_completion(body), body);
  return 0;
}
