#include "serve/process_figures.h"

#include <sys/resource.h>
#include <unistd.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace pagoda::serve {
namespace {

double seconds_of(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
}

double now_of(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

// Ticks since boot, field 22 of /proc/self/stat; the second one, the program's name, may hold blanks.
double start_since_boot() {
  std::ifstream file("/proc/self/stat");
  std::string line;
  std::getline(file, line);
  const size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return 0;
  std::istringstream rest(line.substr(name_end + 1));
  std::string field;
  for (int i = 3; i <= 22; ++i) rest >> field;
  return std::strtod(field.c_str(), nullptr) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

}  // namespace

ProcessFigures process_figures() {
  ProcessFigures figures;
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages >> pages;
  figures.resident_bytes = pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  std::error_code error;
  for (auto at = std::filesystem::directory_iterator("/proc/self/fd", error); !error && at != end(at);
       at.increment(error))
    ++figures.open_files;
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  figures.cpu_seconds = seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime);
  return figures;
}

double process_start_seconds() { return now_of(CLOCK_REALTIME) - now_of(CLOCK_BOOTTIME) + start_since_boot(); }

}  // namespace pagoda::serve
