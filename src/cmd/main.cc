#include <csignal>
#include <cstdio>

#include "base/log.h"
#include "base/log_line.h"
#include "cmd/commands.h"
#include "cmd/terminal.h"

int main(int argc, char** argv) {
  using namespace pagoda::cmd;
  std::signal(SIGPIPE, SIG_IGN);  // a vanished reader is an error of the write
  std::signal(SIGXFSZ, SIG_IGN);  // and so is a limit of file sizes
  const Parsed parsed = parse_options(argc, argv);
  if (parsed.exit_code) return *parsed.exit_code;
  const Options& options = parsed.options;
  const char* quiet = options.command == Command::kServe || options.verbose ? "info" : "warn";
  pagoda::start_log(options.log_level.empty() ? quiet : options.log_level.c_str());
  if (options.log_format == "json") pagoda::use_json_log();

  pagoda::Status status = [&] {
    switch (options.command) {
      case Command::kServe:
        return serve(options);
      case Command::kRun:
        return run(options);
      case Command::kTokenize:
        return tokenize(options);
      case Command::kEval:
        return eval(options);
      case Command::kInspect:
        return inspect(options);
      case Command::kBench:
        return bench(options);
      case Command::kPlan:
        return plan(options);
      case Command::kDoctor:
        return doctor(options);
      case Command::kKey:
        return key(options);
    }
    return pagoda::Status{};
  }();
  if (status) status = flush_output();  // a full disk shows only when the last bytes leave the buffer
  if (status) return 0;
  std::fprintf(stderr, "pagoda: %s\n", status.error().to_string().c_str());
  return status.error().where.starts_with("--") ? 2 : 1;  // an option's value is wrong; see engine_config
}
