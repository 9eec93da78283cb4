// ProgressBar: one line on standard error that shows how far long work is, where a person looks; nothing elsewhere.
// Threads: one. The line is wiped when the bar goes out of scope, so that what is printed next starts clean.
#pragma once

#include <string_view>

namespace pagoda::cmd {

class ProgressBar {
 public:
  ProgressBar();
  ~ProgressBar() { clear(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // done in [0, 1]; `what` comes next.
  void show(double done, std::string_view what);
  void clear();

 private:
  const bool visible_;
  bool shown_ = false;
};

}  // namespace pagoda::cmd
