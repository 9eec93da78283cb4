// peak_bytes(): what some work adds to this process at its peak, as resident bytes; seen in a child process, whose heap is bounded as a
// server's under a memory limit. Tests only; they skip where a sanitizer's heap says nothing.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <fstream>
#include <functional>
#include <string>

#include "base/malloc_bounds.h"

namespace pagoda {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kHasOwnHeap = true;
#else
inline constexpr bool kHasOwnHeap = false;
#endif

inline size_t status_bytes(const std::string& key) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(key)) return std::stoul(line.substr(key.size() + 1)) * 1024;
  }
  return 0;
}

// What work() adds at its peak, in a process of its own; 0 if that could not be seen.
inline size_t peak_bytes(const std::function<bool()>& work) {
  int pipe_ends[2];
  if (pipe(pipe_ends) != 0) return 0;
  const pid_t child = fork();
  if (child == 0) {
    bound_malloc();
    std::ofstream("/proc/self/clear_refs") << 5;  // the peak starts here
    const size_t before = status_bytes("VmRSS:");
    const size_t added = work() ? status_bytes("VmHWM:") - before : 0;
    _exit(write(pipe_ends[1], &added, sizeof added) == sizeof added ? 0 : 1);
  }
  size_t added = 0;
  const bool is_read = read(pipe_ends[0], &added, sizeof added) == sizeof added;
  waitpid(child, nullptr, 0);
  close(pipe_ends[0]);
  close(pipe_ends[1]);
  return is_read ? added : 0;
}

}  // namespace pagoda
