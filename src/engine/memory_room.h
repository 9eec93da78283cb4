// What memory the system leaves this process. `root` stands for "/": tests have files of their own there.   Units: bytes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace pagoda::engine {

struct CgroupMemory {
  uint64_t limit_bytes = 0;
  uint64_t used_bytes = 0;  // by its processes, ours among them; without file pages, which the kernel takes back
  uint64_t room_bytes() const { return limit_bytes > used_bytes ? limit_bytes - used_bytes : 0; }
};
// Of this process's cgroup and those above it (v2, else v1), the one that leaves least; none where none has a limit.
std::optional<CgroupMemory> cgroup_memory(const std::filesystem::path& root = "/");

// What the system would give now: MemAvailable, or what the cgroup leaves.
uint64_t available_memory_bytes(const std::filesystem::path& root = "/");

}  // namespace pagoda::engine
