#include <unistd.h>

#include <cstdio>

#include "api/json_text.h"
#include "cmd/answer.h"
#include "cmd/commands.h"
#include "cmd/read_file.h"

namespace pagoda::cmd {
namespace {

// The conversation so far, in the words of the chat template.
class History {
 public:
  explicit History(std::string system) : system_(std::move(system)) { clear(); }

  void clear() {
    messages_.clear();
    if (!system_.empty()) add("system", system_);
  }
  void add(std::string_view role, std::string_view content) {
    messages_.push_back(fmt::format("{{\"role\":\"{}\",\"content\":{}}}", role, api::json_string(content)));
  }
  void forget_last() { messages_.pop_back(); }
  engine::ChatPrompt prompt() const {
    return {fmt::format("[{}]", fmt::join(messages_, ",")), {}, {}, engine::ChatPrompt::GenerationPrompt::kAdd};
  }

 private:
  std::string system_;
  std::vector<std::string> messages_;  // JSON objects
};

engine::Request request_of(const Options& options) {
  engine::Request request;
  request.sampling.temperature = options.temperature;
  request.sampling.top_p = options.top_p;
  request.sampling.min_p = options.min_p;
  request.sampling.top_k = options.top_k;
  if (options.max_tokens > 0) request.max_tokens = options.max_tokens;
  request.seed = options.seed;
  return request;
}

class Runner {
 public:
  Runner(const Options& options, engine::Engine& engine, Interrupts& interrupts)
      : options_(options),
        engine_(engine),
        interrupts_(interrupts),
        model_(engine.models().front()),
        chats_(!options.raw && model_.has_chat_template),
        history_(options.system) {}

  Status answer_once(const std::string& prompt) {
    TRY_ASSIGN(const Answer answer, answer_to(prompt));
    if (options_.json) std::printf("%s\n", to_json(answer, model_.name).c_str());
    if (answer.reason == engine::FinishReason::kCancelled)
      return fail(ErrorCode::kCancelled, "stopped before the answer was complete");
    return {};
  }

  // Until the end of input, or Ctrl-C while nothing is being answered.
  Status chat() {
    const bool colours = shows_colours(STDERR_FILENO);
    std::fprintf(stderr, "%s, %d tokens of context. %s. Ctrl-C stops an answer, Ctrl-D ends.\n", model_.name.c_str(),
                 model_.context_tokens,
                 chats_ ? "/clear starts anew" : "Without a chat template each line is continued as it stands");
    LineReader lines;
    while (true) {
      std::fputs(colours ? "\033[1;32m> \033[0m" : "> ", stderr);
      const std::optional<std::string> line = lines.next(interrupts_);
      if (!line) break;
      if (*line == "/clear") history_.clear();
      if (line->empty() || *line == "/clear") continue;
      if (const auto answer = answer_to(*line); !answer) {
        std::fprintf(stderr, "%s\n", answer.error().to_string().c_str());
        if (chats_) history_.forget_last();
      }
    }
    std::fputs("\n", stderr);
    return {};
  }

 private:
  Result<Answer> answer_to(const std::string& prompt) {
    engine::Request request = request_of(options_);
    request.prompt = engine::TextPrompt{prompt};
    if (chats_) {
      history_.add("user", prompt);
      request.prompt = history_.prompt();
    }
    const auto show = [this](std::string_view text) {
      if (options_.json) return Status{};
      std::fwrite(text.data(), 1, text.size(), stdout);
      return flush_output();
    };
    TRY_ASSIGN(Answer answer, ask(engine_, std::move(request), interrupts_, show));
    if (!answer.text.ends_with('\n')) TRY(show("\n"));
    if (chats_) history_.add("assistant", answer.text);
    show_figures(answer);
    return answer;
  }

  void show_figures(const Answer& answer) const {
    const bool colours = shows_colours(STDERR_FILENO);
    const std::string dropped =
        answer.dropped_tokens > 0 ? fmt::format("; {} tokens dropped from the context", answer.dropped_tokens) : "";
    std::fprintf(stderr, "%sprompt %d tokens, %.1f tok/s; answer %d tokens, %.1f tok/s%s%s\n", colours ? "\033[2m" : "",
                 answer.prompt_tokens, answer.prefill_rate(), answer.completion_tokens, answer.decode_rate(),
                 dropped.c_str(), colours ? "\033[0m" : "");
  }

  const Options& options_;
  engine::Engine& engine_;
  Interrupts& interrupts_;
  const engine::ModelInfo model_;
  const bool chats_;
  History history_;
};

}  // namespace

Status run(const Options& options) {
  const bool interactive = !options.has_text && isatty(STDIN_FILENO) == 1;
  if (interactive && options.json)
    return fail(Error{ErrorCode::kInvalidArgument, "a chat has no JSON form: give a PROMPT", "--json"});
  std::string prompt = options.text;
  if (!options.has_text && !interactive) {
    TRY_ASSIGN(prompt, read_text("-"));
    if (prompt.ends_with('\n')) prompt.pop_back();
    if (prompt.empty())
      return fail(ErrorCode::kInvalidArgument, "there is nothing to answer: give a PROMPT, or pipe one in");
  }
  TRY_ASSIGN(engine::EngineConfig config, engine_config(options));
  TRY_ASSIGN(Interrupts interrupts, Interrupts::watch());
  TRY_ASSIGN(const auto engine, engine::Engine::create(config));
  const engine::ModelInfo model = engine->models().front();
  if (!options.system.empty() && (options.raw || !model.has_chat_template)) {
    return fail(Error{ErrorCode::kInvalidArgument,
                      fmt::format("{} is used without a chat template, so nothing would read it", model.name),
                      "--system"});
  }
  Runner runner(options, *engine, interrupts);
  return interactive ? runner.chat() : runner.answer_once(prompt);
}

}  // namespace pagoda::cmd
