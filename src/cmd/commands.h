// One function per command. Results go to stdout, everything else to stderr; an error is printed by main and ends with exit code 1, or 2 where
// its `where` is an option's name.
#pragma once

#include "base/error.h"
#include "cmd/options.h"

namespace pagoda::cmd {

Status serve(const Options& options);
Status run(const Options& options);
Status tokenize(const Options& options);
Status eval(const Options& options);
Status inspect(const Options& options);
Status bench(const Options& options);
Status plan(const Options& options);
Status doctor(const Options& options);
Status key(const Options& options);

}  // namespace pagoda::cmd
