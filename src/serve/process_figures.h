// What the kernel counts of this process.     Threads: any.     Cost: a few reads of /proc.     Errors: what cannot be read is 0.
#pragma once

#include <cstdint>

namespace pagoda::serve {

struct ProcessFigures {
  uint64_t resident_bytes = 0;
  uint64_t open_files = 0;
  double cpu_seconds = 0;  // user and system
};

ProcessFigures process_figures();
// When the process began, in Unix time; differs by microseconds from call to call.
double process_start_seconds();

}  // namespace pagoda::serve
