#include "cmd/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>

namespace pagoda::cmd {
namespace {

constexpr int kWidth = 30;        // of the bar
constexpr size_t kMostText = 40;  // so that the line fits 80 columns

}  // namespace

ProgressBar::ProgressBar() : visible_(isatty(STDERR_FILENO) == 1) {}

void ProgressBar::show(double done, std::string_view what) {
  if (!visible_) return;
  const int full = static_cast<int>(std::clamp(done, 0.0, 1.0) * kWidth);
  const std::string bar =
      std::string(static_cast<size_t>(full), '#') + std::string(static_cast<size_t>(kWidth - full), '.');
  std::fprintf(stderr, "\r[%s] %3.0f %% %-*.*s", bar.c_str(), std::clamp(done, 0.0, 1.0) * 100,
               static_cast<int>(kMostText), static_cast<int>(std::min(what.size(), kMostText)), what.data());
  std::fflush(stderr);
  shown_ = true;
}

void ProgressBar::clear() {
  if (!shown_) return;
  std::fprintf(stderr, "\r%*s\r", kWidth + static_cast<int>(kMostText) + 9, "");
  std::fflush(stderr);
  shown_ = false;
}

}  // namespace pagoda::cmd
