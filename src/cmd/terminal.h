// The terminal: colours where a person looks, output that may fail, and Ctrl-C as something to wait for, not a handler.
#pragma once

#include <optional>
#include <string>

#include "base/error.h"

namespace pagoda::cmd {

// Whether `fd` is a terminal that shows colours; NO_COLOR and TERM=dumb say no.
bool shows_colours(int fd);

// What was printed has left: an error names a full disk or a closed pipe.
Status flush_output();

// Ctrl-C of the whole process, from construction on: created before any thread, so that none is killed by it.
// Threads: one.
class Interrupts {
 public:
  static Result<Interrupts> watch();
  Interrupts(Interrupts&& other) noexcept;
  Interrupts& operator=(Interrupts&&) = delete;
  ~Interrupts();

  // Blocks until `fd` is readable (true) or Ctrl-C came (false, and it is used up).
  bool wait_readable(int fd);

 private:
  explicit Interrupts(int fd) : fd_(fd) {}
  int fd_;
};

// Lines of standard input, without their newline. Threads: one.
class LineReader {
 public:
  // None at the end of input, or after Ctrl-C.
  std::optional<std::string> next(Interrupts& interrupts);

 private:
  std::string buffer_;
  bool ended_ = false;
};

}  // namespace pagoda::cmd
