// Long: option_table is one list of every option, and a list cut in two is harder to search.

#include "cmd/options.h"

#include <toml++/toml.h>
#include <CLI/CLI.hpp>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <limits>

#include "base/named.h"
#include "cmd/model_path.h"
#include "cmd/read_file.h"
#include "cmd/version.h"
#include "engine/kv_probe.h"
#include "models/kv_plan.h"
#include "tools/planner.h"

namespace pagoda::cmd {
namespace {

struct CommandSpec {
  Command command;
  const char* name;
  const char* help;
  const char* example;
};
constexpr std::array kCommands{
    CommandSpec{Command::kServe, "serve", "Serve MODEL over HTTP with an OpenAI-compatible API",
                "pagoda serve smollm2 --port 8000 --kv-memory 2G"},
    CommandSpec{Command::kRun, "run", "Answer PROMPT (or what is piped in) once, or chat in the terminal without one",
                "pagoda run smollm2 \"Why is the sky blue?\" --temperature 0.7"},
    CommandSpec{Command::kTokenize, "tokenize", "Print the token ids of TEXT as a JSON array",
                "pagoda tokenize smollm2 \"Hello world\""},
    CommandSpec{Command::kEval, "eval", "Print loss, perplexity and logits hash of a text or of token ids, as JSON",
                "pagoda eval smollm2 --text book.txt --kv-format bf16"},
    CommandSpec{Command::kInspect, "inspect", "Say what a GGUF file holds, and whether it can be served",
                "pagoda inspect model.gguf --json"},
    CommandSpec{
        Command::kBench, "bench",
        "Measure how fast MODEL runs here, beside what this machine allows; MODEL may be an earlier result (.json)",
        "pagoda bench smollm2 --json new.json --compare old.json"},
    CommandSpec{
        Command::kPlan, "plan",
        "Say what MODEL takes and what fits, before anything is loaded; MODEL may be a public shape, as llama-2-7b",
        "pagoda plan llama-3-8b --memory 16G --users 8"},
    CommandSpec{Command::kDoctor, "doctor", "Measure this machine and say what Pagoda makes of it",
                "pagoda doctor --machine"},
    CommandSpec{Command::kKey, "key", "Make an API key for tenant NAME, and its entry for serve's --api-keys file",
                "pagoda key alice"},
};

// Which commands take an option.
constexpr unsigned bit(Command command) { return 1u << static_cast<unsigned>(command); }
constexpr unsigned kServes = bit(Command::kServe);
constexpr unsigned kRuns = bit(Command::kRun);
constexpr unsigned kTokenizes = bit(Command::kTokenize);
constexpr unsigned kEvals = bit(Command::kEval);
constexpr unsigned kBenches = bit(Command::kBench);
constexpr unsigned kDoctors = bit(Command::kDoctor);
constexpr unsigned kPlans = bit(Command::kPlan);
constexpr unsigned kInspects = bit(Command::kInspect);
constexpr unsigned kKeys = bit(Command::kKey);
constexpr unsigned kServesOrTests = kServes | kRuns | kEvals | kBenches;
constexpr unsigned kComputes = kServesOrTests | kPlans;
constexpr unsigned kPrintsJson = kServes | kRuns | kTokenizes | kEvals | kInspects | kPlans | kDoctors | kKeys;
constexpr unsigned kAll = kComputes | kTokenizes | kInspects | kDoctors;

struct OptionSpec {
  const char* names;  // as CLI11 wants them; the long name is also the config file's key
  unsigned commands;
  const char* help;
  std::function<CLI::Option*(CLI::App&, Options&, const char* names, const char* help)> add;
};

template <typename T>
auto value(T Options::* field, const char* type) {
  return [field, type](CLI::App& app, Options& options, const char* names, const char* help) {
    CLI::Option* option = app.add_option(names, options.*field, help)->option_text(type);
    if (std::string_view(help).find("(default") == std::string_view::npos) option->capture_default_str();
    const std::string_view kind = type;
    const bool may_be_empty = kind == "TEXT" || kind == "NAME";
    if (std::is_same_v<T, std::string> && !may_be_empty)
      option->check([kind](const std::string& text) { return text.empty() ? fmt::format("an empty {}", kind) : ""; });
    return option;
  };
}
// Neither help texts nor errors show it.
auto secret(std::string Options::* field, const char* type) {
  return [=](CLI::App& app, Options& options, const char* names, const char* help) {
    return app.add_option(names, options.*field, help)->option_text(type)->check([](const std::string& text) {
      return text.empty() ? "it is empty" : "";
    });
  };
}
auto choice(std::string Options::* field, std::vector<std::string> choices) {
  return [field, choices](CLI::App& app, Options& options, const char* names, const char* help) {
    std::string text;
    for (const std::string& c : choices) text += (text.empty() ? "" : "|") + c;
    return app.add_option(names, options.*field, help)
        ->capture_default_str()
        ->check(CLI::IsMember(choices))
        ->option_text(text);
  };
}
auto number(int Options::* field, int low, int high) {
  return [=](CLI::App& app, Options& options, const char* names, const char* help) {
    return app.add_option(names, options.*field, help)->check(CLI::Range(low, high))->option_text("N");
  };
}
template <typename Whole, typename T>  // any Whole
auto whole(T Options::* field, const char* type) {
  return [=](CLI::App& app, Options& options, const char* names, const char* help) {
    return value(field, type)(app, options, names, help)
        ->check(CLI::Range(Whole{0}, std::numeric_limits<Whole>::max()));
  };
}
auto real(float Options::* field, float low, float high) {
  return [=](CLI::App& app, Options& options, const char* names, const char* help) {
    const auto is_number = [](const std::string& text) {  // a range lets NaN through
      return std::isnan(std::strtof(text.c_str(), nullptr)) ? "Value " + text + " is not a number" : std::string();
    };
    return app.add_option(names, options.*field, help)
        ->check(CLI::Range(low, high))
        ->check(is_number)
        ->option_text("X");
  };
}
auto flag(bool Options::* field) {
  return [field](CLI::App& app, Options& options, const char* names, const char* help) {
    return app.add_flag(names, options.*field, help);
  };
}

// Defaults are in the help texts where the value alone would not say them.
const std::vector<OptionSpec>& option_table() {
  static const std::vector<OptionSpec> kTable{
      {"--config", kAll, "TOML file of options, by their long names", value(&Options::config_file, "FILE")},
      {"-t,--threads", kComputes | kInspects, "Compute threads (default: the cores this process may use)",
       number(&Options::threads, 1, 1024)},
      {"-c,--ctx-size", kServesOrTests,
       "Context, prompt and answer together, in tokens (default: what the model was trained for)",
       number(&Options::context_tokens, 64, 1 << 24)},
      {"--isa", kComputes | kInspects,
       "Instruction set of the kernels: auto (the best this CPU has), ref, avx2, avx512, amx",
       value(&Options::isa, "NAME")},
      {"--arithmetic", kComputes | kInspects,
       "What products are computed in: auto (bf16 on amx, else int8), int8, bf16, f32",
       value(&Options::arithmetic, "NAME")},
      {"-c,--ctx-size,--context", kPlans,
       "Context to plan for, in tokens (default 2048, or what the model was trained for if that is less)",
       number(&Options::context_tokens, 1, 1 << 24)},
      {"--kv-format", kServesOrTests,
       "How K and V are stored; auto: as probed (here by pagoda inspect --probe, or shipped), else q8; auto, k8v4 and "
       "q4 keep K in bf16 in layers with a K bias",
       choice(&Options::kv_format, models::format_names())},
      {"--kv-format", kPlans, "Format that tables, bounds and costs are of; auto is what the engine takes",
       choice(&Options::kv_format, tools::plan_formats())},
      {"--memory", kPlans, "Memory for weights, overhead, K and V together, as 16G (default: what is free here)",
       value(&Options::memory, "BYTES")},
      {"--memory", kServesOrTests,
       "The most that the process takes, weights, overhead, K and V and what clients send together, as 512M: KV "
       "format, context, steps, tiers and the largest request body are chosen to fit (default: the cgroup's limit, if "
       "there is one)",
       value(&Options::memory, "BYTES")},
      {"--users", kPlans, "Sequences at once: how long may each be?", number(&Options::users, 1, 1 << 16)},
      {"--kv-disk-size", kPlans, "Disk below memory for K and V, as 100G: how many tokens does it hold?",
       value(&Options::kv_disk_size, "BYTES")},
      {"--weights", kPlans, "Type of a public shape's matrices, as f16, q8_0, q4_k (default q4_k); a file has its own",
       value(&Options::weights, "TYPE")},
      {"--bandwidth", kPlans, "Memory bandwidth for the bounds, in GB/s (default: measured here)",
       real(&Options::bandwidth, 0.001f, 1e6f)},
      {"--ops", kPlans, "Operations for the bounds, in 10^9 a second (default: measured here)",
       real(&Options::ops, 0.001f, 1e9f)},
      {"--measure", kPlans, "Also generate some tokens with a cache and without one, beside the cost model",
       flag(&Options::measure)},
      {"--verify", kPlans,
       "Load the file and compare weights, KV and resident memory with the plan; exit code 1 if they differ",
       flag(&Options::verify)},
      {"--kv-memory", kPlans, "Memory for K and V alone, instead of what --memory leaves",
       value(&Options::kv_memory, "BYTES|auto")},
      {"--kv-memory", kServesOrTests,
       "Memory for K and V: a size as 512M or 2G, or auto: what --memory leaves, or a quarter of what is free, at most "
       "16 "
       "contexts",
       value(&Options::kv_memory, "BYTES|auto")},
      {"--kv-cache", kRuns | kEvals, "off: compute the whole prefix again for every token",
       choice(&Options::kv_cache, {"on", "off"})},
      {"--prefix-cache", kServes | kRuns | kBenches,
       "off: requests share no cached prefixes, and none outlives its request",
       choice(&Options::prefix_cache, {"on", "off"})},
      {"--kv-probe", kServes,
       "idle: where --kv-format auto has not been probed, measure in idle times which formats the model bears, for the "
       "next start; off: on machines whose idle time is somebody else's",
       choice(&Options::kv_probe, {"idle", "off"})},
      {"--kv-disk", kServes | kRuns,
       "Folder where cached prefixes are kept as well, so that they outlive their memory and this process",
       value(&Options::kv_disk, "DIR")},
      {"--kv-disk-size", kServes | kRuns,
       "The most that the folder's files may take: a size as 20G, or auto: a quarter of what is free, at most 64G "
       "(default auto)",
       value(&Options::kv_disk_size, "BYTES|auto")},
      {"--kv-disk-write-rate", kServes | kRuns,
       "Bytes written to the folder per second, at most, as 100M: for disks that wear out or that others need "
       "(default: no limit)",
       value(&Options::kv_disk_write_rate, "BYTES")},
      {"--kv-redis", kServes | kRuns,
       "Redis or Valkey server that keeps cached prefixes for all servers that name it: "
       "redis://[user:password@]host[:port][/db]",
       value(&Options::kv_redis, "URL")},
      {"--kv-redis-ttl", kServes | kRuns,
       "Seconds that a prefix stays in Redis unused (default: until Redis evicts it)",
       number(&Options::kv_redis_ttl_seconds, 1, 1 << 30)},
      {"--kv-secret", kServes | kRuns,
       "File of 32 random bytes that keeps tenants' and salted prefixes apart, made if it is not there; servers that "
       "share "
       "prefixes share it (default: kv-secret in the --kv-disk folder, else new each time)",
       value(&Options::kv_secret, "FILE")},
      {"--session-ttl", kServes, "Seconds that a session not used is held, unless it is pinned (default 1800)",
       number(&Options::session_ttl_seconds, 1, 1 << 30)},
      {"--max-sessions", kServes, "Sessions, at most; beyond, the one not used for longest goes (default 4096)",
       number(&Options::max_sessions, 1, 1 << 20)},
      {"--explain", kServes, "off: no report of what each request found cached, and no hit rates at other budgets",
       choice(&Options::explain, {"on", "off"})},
      {"--step-tokens", kComputes,
       "Rows computed together in one step, at most (default 256); twice as many while no stream runs",
       number(&Options::step_tokens, 16, 8192)},
      {"--chunk", kComputes, "Tokens of one prefill chunk, at most (default: what the step has left)",
       number(&Options::chunk_tokens, 1, 8192)},
      {"--context-policy", kServes | kRuns,
       "What a request whose prompt and answer outgrow the context goes on with, unless it says so itself: nothing, "
       "its "
       "first and recent tokens, or a chat without its oldest turns",
       choice(&Options::context_policy, {engine::kContextPolicyNames.begin(), engine::kContextPolicyNames.end()})},
      {"--chat-template", kServes | kRuns, "Jinja file to use instead of the model's own chat template",
       value(&Options::chat_template, "FILE")},
      {"--host", kServes, "Address to listen on", value(&Options::host, "ADDRESS")},
      {"--port", kServes, "Port to listen on; 0: any free one, which is printed",
       whole<uint16_t>(&Options::port, "PORT")},
      {"--alias", kServes, "Name to serve the model under (default: the file's name)", value(&Options::alias, "NAME")},
      {"--strict-model", kServes, "Refuse requests that name another model", flag(&Options::strict_model)},
      {"--cors-origin", kServes, "Allow browsers from this origin, or *", value(&Options::cors_origin, "ORIGIN")},
      {"--tls-cert", kServes,
       "PEM file of the certificate and its chain: the server speaks HTTPS; read again when it changes",
       value(&Options::tls_cert, "FILE")},
      {"--tls-key", kServes, "PEM file of the certificate's private key (default: it is in the --tls-cert file)",
       value(&Options::tls_key, "FILE")},
      {"--max-connections", kServes,
       "Connections at once, idle ones too; more get 503 (default 16384; fewer where --memory or the file limit allow "
       "fewer)",
       number(&Options::max_connections, 1, 1 << 20)},
      {"--max-streams", kServes,
       "Requests that are answered at once, waiting ones too, streams or not; more get 429 (default 4096)",
       number(&Options::max_streams, 1, 1 << 20)},
      {"--api-key", kServes | kDoctors,
       "Key that requests must show, or that --server wants; other users of this machine can see it here, but not in "
       "the environment variable "
       "PAGODA_API_KEY, which is the same",
       secret(&Options::api_key, "KEY")},
      {"--api-keys", kServes,
       "JSON file of tenants, the digests of their keys, shares and limits (pagoda key makes entries); read again when "
       "it changes",
       value(&Options::api_keys, "FILE")},
      {"--no-auth", kServes, "Serve without keys on an address that other machines can reach", flag(&Options::no_auth)},
      {"--max-queued", kServes, "Requests that may wait; more get 429 (default 1024)",
       number(&Options::max_queued, 1, 1 << 20)},
      {"--max-running", kServes,
       "Sequences that compute at once, at most (default 256); fewer where --target-itl says so",
       number(&Options::max_running, 1, 4096)},
      {"--target-itl", kServes,
       "Milliseconds from one token of a stream to the next that prompts and further streams may stretch a step to; "
       "off: "
       "no bound (auto: 100, or four times what a single stream takes)",
       value(&Options::target_itl, "MS|auto|off")},
      {"--max-body", kServes, "The largest body of a request, at most 16M; less where --memory leaves less",
       value(&Options::max_body, "BYTES")},
      {"--max-header", kServes, "The largest head of a request, as 64K behind proxies that add much, at most 1M",
       value(&Options::max_header, "BYTES")},
      {"--stall-limit", kServes,
       "Seconds that one step may take before /livez says that the engine hangs (default 300)",
       number(&Options::stall_limit_seconds, 1, 1 << 20)},
      {"--drain-delay", kServes,
       "Seconds after SIGTERM that new requests are still taken while /readyz says 503: until balancers have seen it "
       "(default 0)",
       number(&Options::drain_delay_seconds, 0, 1 << 20)},
      {"--drain-limit", kServes, "Seconds after SIGTERM that running requests have to finish (default 600)",
       number(&Options::drain_limit_seconds, 0, 1 << 20)},
      {"--log-level", kAll, "What goes to stderr (default: info for serve, warn for the others)",
       choice(&Options::log_level, {"debug", "info", "warn", "error"})},
      {"--log-format", kServes, "Lines of the log: text for people, json (an object a line) for log collectors",
       choice(&Options::log_format, {"text", "json"})},
      {"--log-content", kServes,
       "Put prompts and answers on the log lines of requests, up to 4,096 bytes each: to debug a client",
       flag(&Options::log_content)},
      {"--system", kRuns, "System prompt of the chat", value(&Options::system, "TEXT")},
      {"-n,--max-tokens", kRuns, "Tokens to generate, at most (default: the rest of the context)",
       number(&Options::max_tokens, 1, 1 << 24)},
      {"--temperature", kRuns, "Sampling temperature; 0: always the likeliest token (default 1)",
       real(&Options::temperature, 0, 100)},
      {"--top-k", kRuns, "Sample among the K likeliest tokens; 0: all (default 0)",
       number(&Options::top_k, 0, 1 << 24)},
      {"--top-p", kRuns, "Sample among the likeliest tokens of this total probability (default 1)",
       real(&Options::top_p, 0, 1)},
      {"--min-p", kRuns, "Sample among tokens at least this likely, relative to the likeliest (default 0)",
       real(&Options::min_p, 0, 1)},
      {"--seed", kRuns, "Seed of the sampling (default: a new one each time)", whole<uint64_t>(&Options::seed, "N")},
      {"--raw", kRuns, "Continue PROMPT as it stands, without the chat template", flag(&Options::raw)},
      {"--file", kTokenizes, "Tokenize this file's bytes", value(&Options::file, "FILE")},
      {"--bos", kTokenizes, "Begin-of-text token (auto: as the model says)",
       choice(&Options::bos, {"auto", "on", "off"})},
      {"--parse-special", kTokenizes, "Turn texts of special tokens into those tokens", flag(&Options::parse_special)},
      {"--text", kEvals, "Evaluate this file's text", value(&Options::file, "FILE")},
      {"--ids", kEvals, "Evaluate these token ids: integers separated by blanks, commas or newlines",
       value(&Options::ids_file, "FILE")},
      {"--top-logits", kEvals, "Also print the N largest logits of the last position",
       number(&Options::top_logits, 0, 1 << 20)},
      {"--compare-kv", kEvals,
       "Run the text in these KV formats beside bf16 and print what each costs and saves, as q8,k8v4, or with a format "
       "by layer 'q8;k16v8*2,q8*28'; in windows of --ctx-size tokens (default 2048)",
       value(&Options::compare_kv, "LIST")},
      {"-n,--max-tokens", kEvals, "Evaluate the first N tokens of a longer text (default: all)",
       number(&Options::max_tokens, 1, 1 << 24)},
      {"--probe", kInspects,
       "Measure which KV formats this model bears, layer by layer, and keep the result for --kv-format auto: some "
       "minutes",
       flag(&Options::probe)},
      {"--work", kBenches,
       "What to measure, by name: prefillN, decode, decodeN, batchN, sharedN (N as 512 or 2k), accuracy (default: all "
       "of a standard list that the context holds)",
       value(&Options::works, "LIST")},
      {"--repeat", kBenches, "Runs of each work; their median counts (default 3, with --quick 2)",
       number(&Options::repeats, 1, 1000)},
      {"--quick", kBenches, "Fewer works, fewer tokens, fewer runs: seconds instead of minutes", flag(&Options::quick)},
      {"--compare", kBenches, "Also print this earlier result (of --json) beside the new one",
       value(&Options::compare_file, "FILE")},
      {"--json", kBenches, "Write the result as JSON into FILE, or instead of the table to standard output (-)",
       value(&Options::json_file, "FILE|-")},
      {"--machine", kDoctors, "Measure memory, arithmetic and clock of this machine: some seconds",
       flag(&Options::machine)},
      {"--server", kDoctors, "Ask this server what holds it back, as http://127.0.0.1:8000",
       value(&Options::server, "URL")},
      {"-v,--verbose", kComputes, "Say what is loaded and what memory it takes: as --log-level info",
       flag(&Options::verbose)},
      {"--json", kPrintsJson, "Print the result as JSON", flag(&Options::json)},
  };
  return kTable;
}

std::string long_name(const OptionSpec& spec) {
  const std::string names = spec.names;
  const size_t at = names.find("--") + 2;
  return names.substr(at, names.find(',', at) - at);
}

// The config file as arguments that stand before the command line's own, so that those win.
Result<std::vector<std::string>> config_arguments(const Options& options) {
  const std::string& path = options.config_file;
  toml::table table;
  try {
    table = toml::parse_file(path);
  } catch (const toml::parse_error& error) {
    return fail(ErrorCode::kInvalidArgument, "{}:{}: {}", path, error.source().begin.line, error.description());
  }
  std::vector<std::string> arguments;
  for (const auto& [key, node] : table) {
    const std::string name(key.str());
    if (name == "model" && !options.model.empty()) continue;
    unsigned commands = name == "model" ? kAll & ~kDoctors : 0;
    for (const OptionSpec& spec : option_table()) {
      if (long_name(spec) == name) commands |= spec.commands;
    }
    if (commands == 0 || name == "config")
      return fail(ErrorCode::kInvalidArgument, "{}: unknown option \"{}\"", path, name);
    if ((commands & bit(options.command)) == 0) continue;  // one file may serve several commands
    if (const auto on = node.value_exact<bool>()) {
      arguments.push_back(fmt::format("--{}={}", name, *on ? "true" : "false"));
    } else if (const auto text = node.value<std::string>()) {
      arguments.push_back(fmt::format("--{}={}", name, *text));
    } else if (const auto whole = node.value_exact<int64_t>()) {
      arguments.push_back(fmt::format("--{}={}", name, *whole));
    } else if (const auto fraction = node.value<double>()) {
      arguments.push_back(fmt::format("--{}={}", name, *fraction));
    } else {
      return fail(ErrorCode::kInvalidArgument, "{}: option \"{}\" must be a string, a number or true/false", path,
                  name);
    }
  }
  return arguments;
}

void add_options(CLI::App& app, const CommandSpec& command, Options& options) {
  if (command.command == Command::kKey) app.add_option("NAME", options.text, "The tenant");
  if (command.command != Command::kDoctor && command.command != Command::kKey)
    app.add_option("MODEL,-m,--model", options.model, "GGUF file, or the name of a model in the model folder");
  if (command.command == Command::kRun) app.add_option("PROMPT", options.text, "What to answer");
  if (command.command == Command::kTokenize) app.add_option("TEXT", options.text, "What to tokenize");
  for (const OptionSpec& spec : option_table()) {
    if ((spec.commands & bit(command.command)) != 0) spec.add(app, options, spec.names, spec.help);
  }
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  for (CLI::Option* option : app.get_options()) option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

// With the default where the help text does not name it.
std::string meaning_of(const CLI::Option& option) {
  const std::string fallback = option.get_default_str();
  return option.get_description() + (fallback.empty() ? "" : fmt::format(" (default {})", fallback));
}

// Defaults are shown behind the descriptions: an option's text stands where CLI11 would put them.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_option_desc(const CLI::Option* option) const override { return meaning_of(*option); }
};

// One line, as all errors are.
std::string usage_error(const CLI::App* app, const CLI::Error& error) {
  const std::vector<CLI::App*> commands = app->get_subcommands();
  return fmt::format("pagoda: {}; see pagoda{} --help\n", error.what(),
                     commands.empty() ? "" : " " + commands.front()->get_name());
}

struct Parser {
  CLI::App app{"Pagoda: LLM inference on CPUs, with a KV cache one can watch and trust.", "pagoda"};
  std::array<CLI::App*, kCommands.size()> commands{};

  explicit Parser(Options& options) {
    app.set_version_flag("--version", std::string("pagoda ") + kVersion);
    app.require_subcommand(1);
    app.footer(
        "pagoda COMMAND --help lists a command's options. MODEL is a GGUF file or a name, as smollm2; see "
        "models/recipes.toml.");
    app.formatter(std::make_shared<HelpFormatter>());
    app.get_formatter()->column_width(34);
    app.failure_message(usage_error);
    for (size_t i = 0; i < kCommands.size(); ++i) {
      commands[i] = app.add_subcommand(kCommands[i].name, kCommands[i].help);
      commands[i]->footer(std::string("Example: ") + kCommands[i].example);
      add_options(*commands[i], kCommands[i], options);
    }
  }

  std::optional<int> parse(std::vector<std::string> arguments, Options& options) {
    std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them from the back
    try {
      app.parse(arguments);
    } catch (const CLI::ParseError& error) {
      return app.exit(error) == 0 ? 0 : 2;
    }
    for (size_t i = 0; i < kCommands.size(); ++i) {
      if (!commands[i]->parsed()) continue;
      options.command = kCommands[i].command;
      for (const char* name : {"PROMPT", "TEXT", "NAME"}) {
        const CLI::Option* positional = commands[i]->get_option_no_throw(name);
        if (positional != nullptr && positional->count() > 0) options.has_text = true;
      }
    }
    return std::nullopt;
  }
};

// A cell of a Markdown table.
std::string cell(std::string text) {
  for (size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2) text.insert(at, 1, '\\');
  return text;
}

}  // namespace

std::string options_markdown() {
  Options options;
  Parser parser(options);
  std::string out =
      "# Commands and options\n\n"
      "Written by `pagoda help-markdown`. A config file (`--config FILE`, TOML) takes the long names as keys, without "
      "dashes; one file may hold\n"
      "options of several commands, each takes its own. The command line wins over the file, the file over the "
      "default.\n";
  for (size_t i = 0; i < kCommands.size(); ++i) {
    out += fmt::format("\n## pagoda {}\n\n{}.\n\n```sh\n{}\n```\n\n| option | value | meaning |\n|---|---|---|\n",
                       kCommands[i].name, kCommands[i].help, kCommands[i].example);
    for (const CLI::Option* option : parser.commands[i]->get_options()) {
      if (option->get_name(false, true) == "-h,--help") continue;
      out += fmt::format("| `{}` | {} | {} |\n", option->get_name(true, true), cell(option->get_option_text()),
                         cell(meaning_of(*option)));
    }
  }
  return out;
}

Parsed parse_options(int argc, char** argv) {
  std::vector<std::string> arguments(argv + 1, argv + argc);
  Parsed parsed;
  if (arguments == std::vector<std::string>{"help-markdown"}) {
    std::cout << options_markdown();
    parsed.exit_code = 0;
    return parsed;
  }
  const auto is_command = [&](const CommandSpec& command) { return arguments[0] == command.name; };
  if (!arguments.empty() && !arguments[0].starts_with("-") && std::ranges::none_of(kCommands, is_command)) {
    std::cerr << "pagoda: there is no command \"" << arguments[0] << "\"; see pagoda --help\n";
    parsed.exit_code = 2;
    return parsed;
  }
  parsed.exit_code = Parser(parsed.options).parse(arguments, parsed.options);
  if (!parsed.exit_code && !parsed.options.config_file.empty()) {
    const auto config = config_arguments(parsed.options);
    if (!config) {
      std::cerr << "pagoda: " << config.error().to_string() << "\n";
      parsed.exit_code = 2;
      return parsed;
    }
    arguments.insert(arguments.begin() + 1, config->begin(), config->end());
    parsed.options = {};
    parsed.exit_code = Parser(parsed.options).parse(arguments, parsed.options);
  }
  if (!parsed.exit_code && parsed.options.model.empty() && parsed.options.command != Command::kDoctor &&
      parsed.options.command != Command::kKey) {
    std::cerr << "pagoda: which model? Name a GGUF file or a model of the model folder; see --help\n";
    parsed.exit_code = 2;
  }
  return parsed;
}

std::string api_key_of(const Options& options) {
  const char* key = options.api_key.empty() ? std::getenv("PAGODA_API_KEY") : nullptr;
  return key == nullptr ? options.api_key : key;
}

Result<uint64_t> parse_bytes(const std::string& text) {
  size_t end = 0;
  double number = 0;
  try {
    number = std::stod(text, &end);
  } catch (const std::exception&) {
    end = 0;
  }
  std::string unit = text.substr(end);
  for (const char* suffix : {"iB", "B"}) {
    const std::string s = suffix;
    if (unit.size() >= s.size() && unit.ends_with(s)) {
      unit.resize(unit.size() - s.size());
      break;
    }
  }
  const std::string units = "KMGT";
  const size_t power = unit.empty()       ? 0
                       : unit.size() == 1 ? units.find(static_cast<char>(std::toupper(unit[0]))) + 1
                                          : 0;
  const double bytes = number * std::pow(1024.0, static_cast<double>(power));
  if (end == 0 || (!unit.empty() && power == 0) || !(bytes >= 0) || bytes > 0x1p62) {
    return fail(ErrorCode::kInvalidArgument, "\"{}\" is not a size; write e.g. 512M, 2G or a number of bytes", text);
  }
  return static_cast<uint64_t>(bytes);
}

namespace {

Result<kernels::Isa> isa_of(const std::string& name) {
  Result<kernels::Isa> isa = named("--isa", kernels::parse_isa(name));
  if (isa || isa.error().code != ErrorCode::kUnsupported) return isa;
  std::string names;
  for (const kernels::Isa other : kernels::supported_isas())
    names.append(names.empty() ? "" : ", ").append(to_string(other));
  return fail(Error{ErrorCode::kUnsupported, fmt::format("this CPU lacks {}; it has {}", name, names), "--isa"});
}

Result<int64_t> parse_target(const std::string& text) {
  if (text == "auto") return sched::kAutoTarget;
  if (text == "off") return 0;
  double ms = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), ms);
  if (error != std::errc() || end != text.data() + text.size() || !(ms >= 1 && ms <= 3.6e6)) {
    return fail(ErrorCode::kInvalidArgument, "\"{}\" is no time from 1 to 3600000 milliseconds, auto or off", text);
  }
  return static_cast<int64_t>(ms * 1000);
}

// An option of a tier that is not there would be silently without effect.
Status check_tiers(const Options& options) {
  const char* option = nullptr;
  const char* needed = "--kv-disk DIR";
  if (options.kv_disk.empty()) {
    if (!options.kv_disk_size.empty()) option = "--kv-disk-size";
    if (!options.kv_disk_write_rate.empty()) option = "--kv-disk-write-rate";
  }
  if (options.kv_redis.empty() && options.kv_redis_ttl_seconds > 0) {
    option = "--kv-redis-ttl";
    needed = "--kv-redis URL";
  }
  if (option == nullptr) return {};
  return fail(Error{ErrorCode::kInvalidArgument, fmt::format("this needs {}", needed), option});
}

Result<engine::TierConfig> tiers_of(const Options& options) {
  const bool is_plan = options.command == Command::kPlan;  // of a disk that need not be here
  if (!is_plan) TRY(check_tiers(options));
  engine::TierConfig tiers;
  tiers.disk_dir = options.kv_disk;
  if (!options.kv_disk_size.empty() && (is_plan || options.kv_disk_size != "auto")) {
    TRY_ASSIGN(tiers.disk_bytes, named("--kv-disk-size", parse_bytes(options.kv_disk_size)));
    if (tiers.disk_bytes == 0) {
      return fail(Error{ErrorCode::kInvalidArgument, "a disk tier of 0 bytes holds nothing", "--kv-disk-size"});
    }
  }
  if (!options.kv_disk_write_rate.empty()) {
    TRY_ASSIGN(tiers.disk_write_bytes_per_s, named("--kv-disk-write-rate", parse_bytes(options.kv_disk_write_rate)));
  }
  tiers.redis_url = options.kv_redis;
  tiers.redis_ttl_seconds = options.kv_redis_ttl_seconds;
  tiers.secret = options.kv_secret;
  return tiers;
}

}  // namespace

Result<engine::EngineConfig> engine_config(const Options& options) {
  TRY_ASSIGN(std::filesystem::path path, find_model(options.model));
  TRY_ASSIGN(engine::EngineConfig config, compute_config(options));
  config.model_path = std::move(path);
  config.probes = probe_sources();
  return config;
}

Result<engine::EngineConfig> probed_config(const Options& options) {
  TRY_ASSIGN(engine::EngineConfig config, engine_config(options));
  TRY_ASSIGN(const weights::Gguf gguf, weights::Gguf::open(config.model_path));
  engine::apply_probe(config.probes, gguf, config);
  config.probes = {};
  return config;
}

Result<engine::EngineConfig> compute_config(const Options& options) {
  engine::EngineConfig config;
  TRY_ASSIGN(config.isa, isa_of(options.isa));
  TRY_ASSIGN(config.arithmetic, named("--arithmetic", kernels::parse_arithmetic(options.arithmetic, config.isa)));
  if (!options.chat_template.empty()) {
    TRY_ASSIGN(config.chat_template, named("--chat-template", read_text(options.chat_template)));
  }
  config.served_name = options.alias;
  config.kv_format = options.kv_format;
  config.kv_reuse = options.kv_cache == "on" ? engine::KvReuse::kOn : engine::KvReuse::kOff;
  config.prefix_cache = options.prefix_cache == "on" ? engine::PrefixCache::kOn : engine::PrefixCache::kOff;
  config.context_policy.kind = *engine::parse_context_policy(options.context_policy);
  config.explain = options.explain == "on" ? engine::Explain::kOn : engine::Explain::kOff;
  if (options.context_tokens > 0) config.context_tokens = options.context_tokens;
  if (!options.memory.empty()) {
    TRY_ASSIGN(config.memory_bytes, named("--memory", parse_bytes(options.memory)));
  }
  if (options.kv_memory != "auto") {
    TRY_ASSIGN(config.kv_memory_bytes, named("--kv-memory", parse_bytes(options.kv_memory)));
  }
  TRY_ASSIGN(config.tiers, tiers_of(options));
  config.sessions = {.ttl_us = int64_t{options.session_ttl_seconds} * 1'000'000,
                     .most_sessions = static_cast<size_t>(options.max_sessions)};
  config.n_threads = options.threads;
  config.step_tokens = options.step_tokens;
  config.chunk_tokens = options.chunk_tokens;
  config.max_queued = options.max_queued;
  config.max_running = options.max_running;
  if (options.command == Command::kServe) {
    TRY_ASSIGN(config.target_itl_us, named("--target-itl", parse_target(options.target_itl)));
  }
  return config;
}

}  // namespace pagoda::cmd
