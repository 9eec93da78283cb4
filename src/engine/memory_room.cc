#include "engine/memory_room.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

namespace pagoda::engine {
namespace {

namespace fs = std::filesystem;
constexpr uint64_t kNoLimit = std::numeric_limits<uint64_t>::max();
constexpr uint64_t kHugeLimit = uint64_t{1} << 62;  // v1 says "none" by a number beyond any memory

// Where a version keeps its figures.
struct Files {
  const char* folder;  // of the hierarchy
  const char* limit;
  const char* used;
  const char* file_pages;  // keys in memory.stat: these, less the ones that are nobody's file
  const char* shared_pages;
};
constexpr Files kV2{"sys/fs/cgroup", "memory.max", "memory.current", "file", "shmem"};
constexpr Files kV1{"sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache",
                    "total_shmem"};

std::optional<uint64_t> number_in(const fs::path& path) {
  uint64_t value = 0;
  if (std::ifstream file(path); file >> value) return value;
  return std::nullopt;
}

uint64_t value_of(const fs::path& path, const std::string& wanted) {
  std::ifstream file(path);
  std::string key;
  for (uint64_t value = 0; file >> key >> value; file.ignore(std::numeric_limits<std::streamsize>::max(), '\n')) {
    if (key == wanted) return value;
  }
  return 0;
}

// Of this process, as "/a/b" in the hierarchy; "/" where the system does not say.
std::string own_group(const fs::path& root, const std::string& controllers) {
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    if (line.substr(first + 1, second - first - 1) == controllers) return line.substr(second + 1);
  }
  return "/";
}

// A container may see its own group as the top, whatever it is called outside: groups that are not there are passed over.
std::optional<CgroupMemory> tightest(const fs::path& root, const Files& files, const std::string& group) {
  std::optional<CgroupMemory> least;
  fs::path relative = fs::path(group).relative_path();
  for (;;) {
    const fs::path folder = root / files.folder / relative;
    const uint64_t limit = number_in(folder / files.limit).value_or(kNoLimit);
    if (limit < kHugeLimit) {
      const uint64_t used = number_in(folder / files.used).value_or(0);
      const uint64_t shared = value_of(folder / "memory.stat", files.shared_pages);
      const uint64_t pages = std::max(value_of(folder / "memory.stat", files.file_pages), shared) - shared;
      const CgroupMemory found{limit, used - std::min(used, pages)};
      if (!least || found.room_bytes() < least->room_bytes()) least = found;
    }
    if (relative.empty()) return least;
    relative = relative.parent_path();
  }
}

}  // namespace

std::optional<CgroupMemory> cgroup_memory(const fs::path& root) {
  const auto v2 = tightest(root, kV2, own_group(root, ""));
  return v2 ? v2 : tightest(root, kV1, own_group(root, "memory"));
}

uint64_t available_memory_bytes(const fs::path& root) {
  const auto group = cgroup_memory(root);
  const uint64_t room = group ? group->room_bytes() : kNoLimit;
  const uint64_t kib = value_of(root / "proc/meminfo", "MemAvailable:");
  return kib == 0 ? room : std::min(kib * 1024, room);
}

}  // namespace pagoda::engine
