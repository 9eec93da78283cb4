// The one option table: parser, --help, the config file's keys and docs/options.md all come from it (options.cc).
// Precedence: command line, then the config file, then the default.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/config.h"

namespace pagoda::cmd {

enum class Command : uint8_t { kServe, kRun, kTokenize, kEval, kInspect, kBench, kPlan, kDoctor, kKey };

struct Options {
  Command command = Command::kServe;
  std::string model;  // path, or a name in the model folder
  std::string text;   // positional: run's prompt, tokenize's text, key's tenant
  bool has_text = false;
  std::string config_file;

  // engine
  int threads = 0;
  int context_tokens = 0;
  std::string isa = "auto";
  std::string arithmetic = "auto";
  std::string kv_format = "auto";
  std::string memory;  // empty: the cgroup's limit; plan: what is free
  std::string kv_memory = "auto";
  std::string kv_cache = "on";
  std::string prefix_cache = "on";
  std::string kv_probe = "idle";
  std::string kv_disk;             // folder
  std::string kv_disk_size;        // empty: auto; plan: no disk
  std::string kv_disk_write_rate;  // bytes per second; empty: no limit
  std::string kv_redis;            // URL
  int kv_redis_ttl_seconds = 0;
  std::string kv_secret;  // file
  int session_ttl_seconds = 1800;
  int max_sessions = 4096;
  std::string explain = "on";
  int step_tokens = 256;
  int chunk_tokens = 0;
  int max_queued = 1024;
  int max_running = 256;
  std::string target_itl = "auto";
  std::string context_policy = "refuse";

  // serve
  std::string host = "127.0.0.1";
  uint16_t port = 8000;
  std::string alias;
  bool strict_model = false;
  std::string cors_origin;
  std::string tls_cert;  // files; both or none
  std::string tls_key;
  int max_connections = 16'384;
  int max_streams = 4096;
  std::string max_body = "16M";
  std::string max_header = "32K";
  int stall_limit_seconds = 300;
  int drain_delay_seconds = 0;
  int drain_limit_seconds = 600;
  std::string api_key;   // empty: PAGODA_API_KEY
  std::string api_keys;  // file
  bool no_auth = false;
  std::string chat_template;  // path of a file
  std::string log_level;      // empty: info for serve, warn else
  std::string log_format = "text";
  bool log_content = false;

  // run
  std::string system;
  int max_tokens = 0;
  float temperature = 1.0f;
  float top_p = 1.0f;
  float min_p = 0.0f;
  int top_k = 0;
  std::optional<uint64_t> seed;
  bool raw = false;

  // tokenize, eval
  std::string file;  // --file, --text
  std::string ids_file;
  std::string bos = "auto";
  bool parse_special = false;
  int top_logits = 0;
  std::string compare_kv;  // formats; empty: no comparison

  // bench
  std::string json_file;     // "-": standard output
  std::string compare_file;  // an earlier json_file
  std::string works;         // empty: all
  int repeats = 0;           // 0: 3, or 2 when quick
  bool quick = false;

  // plan
  std::string weights;
  int users = 0;
  float bandwidth = 0;  // GB/s; 0: measured
  float ops = 0;        // 10^9/s; 0: measured
  bool measure = false;
  bool verify = false;

  // inspect
  bool probe = false;

  // doctor
  std::string server;
  bool machine = false;

  bool verbose = false;
  bool json = false;
};

// Parses the command line. A usage error or --help is printed, and the exit code returned.
struct Parsed {
  Options options;
  std::optional<int> exit_code;  // set: nothing left to do
};
Parsed parse_options(int argc, char** argv);

// docs/options.md, from the table; `pagoda help-markdown` prints it.
std::string options_markdown();

// The options as the engine wants them: the model found, names parsed, files read, sizes in bytes.
// Errors: what is wrong with an option has its name, with dashes, as Error::where.
Result<engine::EngineConfig> engine_config(const Options& options);
// The same with KV format "auto" as it was probed: for what makes no Engine, which looks itself.
Result<engine::EngineConfig> probed_config(const Options& options);
// The same without a model to find.
Result<engine::EngineConfig> compute_config(const Options& options);

// --api-key, or PAGODA_API_KEY; empty: neither.
std::string api_key_of(const Options& options);

// "512M", "2G", "1.5GiB", "1000000": K, M, G are powers of 1,024.
Result<uint64_t> parse_bytes(const std::string& text);

}  // namespace pagoda::cmd
