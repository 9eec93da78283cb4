// Expected texts were made by jinja2 3.1 with transformers' environment (sandbox, trim_blocks, lstrip_blocks, its tojson).
#include "text/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <thread>

namespace pagoda::text {
namespace {

using testing::HasSubstr;

// SmolLM2-135M-Instruct's own (Apache-2.0).
constexpr std::string_view kSmolLm2 =
    R"jinja({% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system
You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>
' }}{% endif %}{{'<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %})jinja";

// Qwen2.5-Instruct's own (Apache-2.0).
constexpr std::string_view kQwen25 = R"jinja({%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You are Qwen, created by Alibaba Cloud. You are a helpful assistant.' }}
    {%- endif %}
    {{- "\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with function signatures within <tools></tools> XML tags:\n<tools>" }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\n</tools>\n\nFor each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call><|im_end|>\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}
    {%- else %}
        {{- '<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\n<tool_call>\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<tool_response>\n' }}
        {{- message.content }}
        {{- '\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
)jinja";

// The shapes of Llama 3's and Mistral's templates, shortened.
constexpr std::string_view kLlama3 =
    "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + "
    "message['role'] + "
    "'<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = "
    "bos_token + "
    "content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ "
    "'<|start_header_id|>assistant<|end_header_id|>\n\n' "
    "}}{% endif %}";
constexpr std::string_view kMistral =
    "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ "
    "raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if "
    "message['role'] == "
    "'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ "
    "message['content'] + "
    "eos_token}}{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}";

ChatTemplate compiled(std::string_view source) {
  auto t = ChatTemplate::compile(source, "<s>", "</s>");
  EXPECT_TRUE(t) << t.error().to_string();
  return std::move(*t);
}

std::string rendered(std::string_view source, std::string_view messages, std::string_view tools = "",
                     const RenderOptions& options = {}) {
  auto text = compiled(source).render(messages, tools, options);
  return text ? *text : text.error().to_string();
}

constexpr std::string_view kHello = R"([{"role":"user","content":"Hello, how're you? <b> \"q\""}])";

TEST(ChatTemplate, SmolLm2) {
  EXPECT_EQ(rendered(kSmolLm2, kHello),
            "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
            "<|im_start|>user\nHello, how're you? <b> \"q\"<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(
      rendered(kSmolLm2,
               R"([{"role":"system","content":"S"},{"role":"user","content":"U"},{"role":"assistant","content":"A"}])",
               "", {.generation_prompt = GenerationPrompt::kOmit}),
      "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\nA<|im_end|>\n");
}

TEST(ChatTemplate, Llama3AndMistral) {
  EXPECT_EQ(
      rendered(kLlama3, R"([{"role":"user","content":"  hi "}])"),
      "<s><|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n");
  EXPECT_EQ(
      rendered(kMistral,
               R"([{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":"c"}])"),
      "<s>[INST] a [/INST]b</s>[INST] c [/INST]");
}

TEST(ChatTemplate, RaiseExceptionIsItsMessage) {
  const auto text = compiled(kMistral).render(R"([{"role":"assistant","content":"a"}])", "");
  ASSERT_FALSE(text);
  EXPECT_EQ(text.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(text.error().message, "Conversation roles must alternate user/assistant/user/assistant/...");
}

TEST(ChatTemplate, Qwen25ToolsPrintAsPython) {
  const std::string_view tools =
      R"([{"type":"function","function":{"name":"f","description":"d'é<b>","parameters":{"type":"object","n":1.5,"m":2,"b":true,"z":null,"e":[],"o":{}}}}])";
  const std::string text =
      rendered(kQwen25, R"([{"role":"system","content":"S"},{"role":"user","content":"U"}])", tools);
  EXPECT_THAT(text, HasSubstr("<|im_start|>system\nS\n\n# Tools\n\n"));
  EXPECT_THAT(
      text,
      HasSubstr("<tools>\n{\"type\": \"function\", \"function\": {\"name\": \"f\", \"description\": \"d'é<b>\", "
                "\"parameters\": {\"type\": \"object\", \"n\": 1.5, \"m\": 2, \"b\": true, \"z\": null, \"e\": [], "
                "\"o\": {}}}}\n</tools>"));
}

// OpenAI sends arguments as JSON text; templates that print them through tojson need the object.
TEST(ChatTemplate, ToolCallArgumentsBecomeAnObject) {
  const std::string text = rendered(
      kQwen25,
      R"([{"role":"user","content":"u"},{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"city\": \"Paris\"}"}}]},{"role":"tool","content":"20"}])");
  EXPECT_THAT(
      text,
      HasSubstr(
          "<|im_start|>assistant\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>"
          "<|im_end|>\n<|im_start|>user\n<tool_response>\n20\n</tool_response><|im_end|>\n"));
}

TEST(ChatTemplate, PartsAreFlattenedForTextOnlyTemplates) {
  const std::string_view parts =
      R"([{"role":"user","content":[{"type":"text","text":"one"},{"type":"text","text":"two"}]}])";
  EXPECT_THAT(rendered(kSmolLm2, parts), HasSubstr("user\none\ntwo<|im_end|>"));
  EXPECT_THAT(rendered(kSmolLm2, R"([{"role":"user","content":[{"type":"image_url","image_url":{}}]}])"),
              HasSubstr("messages[0].content[0]"));
}

TEST(ChatTemplate, PartsReachTemplatesThatTakeThem) {
  constexpr std::string_view kEither =
      "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}[{{ p.text "
      "}}]{% endfor %}{% endif %}{% endfor %}";
  constexpr std::string_view kPartsOnly =
      "{% for m in messages %}{% for p in m.content %}{% if p.type == 'text' %}({{ p.text }}){% endif %}{% endfor %}{% "
      "endfor %}";
  const std::string_view parts =
      R"([{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}])";
  EXPECT_EQ(rendered(kEither, parts), "[a][b]");
  EXPECT_EQ(rendered(kEither, R"([{"role":"user","content":"t"}])"), "t");
  EXPECT_EQ(rendered(kPartsOnly, parts), "(a)(b)");
  EXPECT_EQ(rendered(kPartsOnly, R"([{"role":"user","content":"t"}])"), "(t)");
}

TEST(ChatTemplate, PythonMethodsAndFilters) {
  const auto value = [](std::string_view expression) {
    return rendered("{{ " + std::string(expression) + " }}", "[]");
  };
  EXPECT_EQ(value("' a b '.strip() ~ '|' ~ 'xxay'.lstrip('x') ~ '|' ~ 'ayy'.rstrip('y')"), "a b|ay|a");
  EXPECT_EQ(value("'a,b,c'.split(',')[-1] ~ 'a b'.split()[0] ~ 'a-b-c'.rsplit('-', 1)[0]"), "caa-b");
  EXPECT_EQ(value("'prefix-x'.removeprefix('prefix-') ~ 'x.py'.removesuffix('.py')"), "xx");
  EXPECT_EQ(value("'abc'.startswith('ab') and 'abc'.endswith(('x', 'bc'))"), "True");
  EXPECT_EQ(value("'Hello'.upper() ~ 'Hello'.lower() ~ 'a b'.title() ~ 'abca'.replace('a', 'x')"), "HELLOhelloA Bxbcx");
  EXPECT_EQ(value("{'k': 1}.get('k') ~ {'k': 1}.get('z', 'd') ~ {'k': 1}.items() | list"), "1d[('k', 1)]");
  EXPECT_EQ(value("none"), "None");
  EXPECT_EQ(value("[1, 'a', true, none, 1.0]"), "[1, 'a', True, None, 1.0]");
  EXPECT_EQ(value("{'a': [1, {}], 'b': 'x'} | tojson(indent=2)"),
            "{\n  \"a\": [\n    1,\n    {}\n  ],\n  \"b\": \"x\"\n}");
  EXPECT_EQ(value("{'b': 1, 'a': 'é'} | tojson(sort_keys=true, ensure_ascii=true, separators=(',', ':'))"),
            "{\"a\":\"\\u00e9\",\"b\":1}");
  EXPECT_EQ(value("none is iterable or 3 is iterable"), "False");
  EXPECT_EQ(value("messages[1:] | length"), "0");
}

TEST(ChatTemplate, BlocksNamespacesAndLoopControls) {
  EXPECT_EQ(
      rendered("{% set ns = namespace(n=0) %}\n  {% for i in range(9) %}\n{% if i == 1 %}{% continue %}{% endif %}"
               "{% if i == 4 %}{% break %}{% endif %}{% set ns.n = ns.n + i %}\n  {% endfor %}\n{{ ns.n }}\n",
               "[]"),
      "5");
  EXPECT_EQ(rendered("{% generation %}x{% endgeneration %}{%- generation -%} y {%- endgeneration -%}", "[]"), "xy");
}

TEST(ChatTemplate, TimeAndExtraVariablesComeFromTheRequest) {
  EXPECT_EQ(rendered("{{ strftime_now('%d %b %Y') }}", "[]", "", {.now_s = 1709164800}), "29 Feb 2024");
  EXPECT_EQ(rendered("{{ enable_thinking }}{{ messages | length }}", "[]", "",
                     {.extra_json = R"({"enable_thinking":false,"messages":[1]})"}),
            "False0");
}

TEST(ChatTemplate, BadInputIsAnErrorOfTheRequest) {
  const ChatTemplate t = compiled(kSmolLm2);
  for (const std::string_view messages : {"", "{", "{}", "[1]", "null", "[{\"role\":\"user\",\"content\":\"\xFF\"}]"}) {
    const auto text = t.render(messages, "");
    ASSERT_FALSE(text) << messages;
    EXPECT_EQ(text.error().code, ErrorCode::kInvalidArgument);
  }
  EXPECT_EQ(t.render("[]", "{}").error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(t.render("[{\"role\":\"user\"}]", "").error().code, ErrorCode::kInvalidArgument);
  const std::string deep = "[" + std::string(5000, '[') + std::string(5000, ']') + "]";
  EXPECT_EQ(t.render(deep, "").error().code, ErrorCode::kInvalidArgument);
}

TEST(ChatTemplate, LeavesOutTheOldestTurns) {
  const ChatTemplate t = compiled("{% for m in messages %}{{ m.role[0] ~ m.content }} {% endfor %}");
  struct Talk {
    const char* roles;              // s, u, a, t; a message's content is its place
    std::vector<const char*> rest;  // by dropped turns
  };
  const std::map<char, const char*> names{
      {'s', "system"}, {'d', "developer"}, {'u', "user"}, {'a', "assistant"}, {'t', "tool"}};
  for (const auto& [roles, rest] : std::vector<Talk>{{"suaua", {"s0 u1 a2 u3 a4 ", "s0 u3 a4 "}},
                                                     {"u", {"u0 "}},
                                                     {"s", {"s0 "}},
                                                     {"", {""}},
                                                     {"uatau", {"u0 a1 t2 a3 u4 ", "u4 "}},
                                                     {"saudau", {"s0 a1 u2 d3 a4 u5 ", "s0 u2 d3 a4 u5 ", "s0 d3 u5 "}},
                                                     {"uu", {"u0 u1 ", "u1 "}}}) {
    std::string messages;
    for (size_t i = 0; roles[i] != '\0'; ++i) {
      messages += std::string(i == 0 ? "" : ",") + R"({"role":")" + names.at(roles[i]) + R"(","content":)" +
                  std::to_string(i) + "}";
    }
    messages = "[" + messages + "]";
    ASSERT_EQ(*droppable_turns(messages), static_cast<int>(rest.size()) - 1) << roles;
    for (size_t i = 0; i < rest.size(); ++i) {
      EXPECT_EQ(*t.render(messages, "", {.dropped_turns = static_cast<int>(i)}), rest[i]);
    }
  }
  EXPECT_EQ(droppable_turns("{}").error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(droppable_turns("[").error().code, ErrorCode::kInvalidArgument);
}

TEST(ChatTemplate, BadTemplatesDoNotCompile) {
  for (const std::string_view source : {"{% if %}", "{{ a", "{% for x in %}{% endfor %}", "{% nonsense %}", "\xFF"}) {
    EXPECT_FALSE(ChatTemplate::compile(source, "", "")) << source;
  }
  EXPECT_EQ(ChatTemplate::compile("{% if %}", "", "").error().code, ErrorCode::kUnsupported);
}

TEST(ChatTemplate, HostileTemplatesEnd) {
  const std::string_view sources[] = {
      "{% for a in range(99999) %}{% for b in range(99999) %}{{ a * b }}{% endfor %}{% endfor %}",
      "{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s "
      "}}",
      "{% set ns = namespace(l=[1]) %}{% for i in range(99) %}{% set ns.l = ns.l + ns.l %}{% endfor %}{{ ns.l | tojson "
      "}}",
      "{% set ns = namespace(l=[1]) %}{% for i in range(9999) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l }}",
      "{% set ns = namespace() %}{% set ns.self = ns %}{{ ns }}",
      "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}",
      "{{ '{:>999999999}'.format(1) }}",
  };
  for (const std::string_view source : sources) {
    const auto text = compiled(source).render("[]", "");
    ASSERT_FALSE(text) << source;
    EXPECT_NE(text.error().code, ErrorCode::kInternal) << text.error().message;
  }
}

TEST(ChatTemplate, DeeplyNestedSourcesDoNotCompile) {
  const auto repeated = [](std::string_view part, int n) {
    std::string text;
    for (int i = 0; i < n; ++i) text += part;
    return text;
  };
  for (const std::string& source :
       {"{{ " + repeated("-", 50'000) + "1 }}", "{{ 1" + repeated("+1", 50'000) + " }}", repeated("{% if 1 %}", 10'000),
        "{% if 1 %}" + repeated("{% elif 1 %}", 9'000) + "{% endif %}", repeated("x", 200'000)}) {
    const auto t = ChatTemplate::compile(source, "", "");
    ASSERT_FALSE(t);
    EXPECT_EQ(t.error().code, ErrorCode::kUnsupported);
  }
}

TEST(ChatTemplate, RendersFromManyThreads) {
  const ChatTemplate t = compiled(kQwen25);
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&t] {
      for (int k = 0; k < 50; ++k) EXPECT_THAT(*t.render(kHello, ""), HasSubstr("how're you?"));
    });
  }
}

}  // namespace
}  // namespace pagoda::text
