#include "engine/memory_room.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "base/test_folder.h"

namespace pagoda::engine {
namespace {

class MemoryRoomTest : public testing::Test {
 protected:
  void write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root() / path).parent_path());
    std::ofstream(root() / path) << text;
  }
  std::filesystem::path root() const { return folder_.path(); }

 private:
  TestFolder folder_;
};

TEST_F(MemoryRoomTest, TheMachineHasMemory) { EXPECT_GT(available_memory_bytes(), uint64_t{1} << 20); }

TEST_F(MemoryRoomTest, WithoutAGroupMemAvailableCounts) {
  write("proc/meminfo", "MemTotal:       9000 kB\nMemAvailable:   4000 kB\n");
  EXPECT_FALSE(cgroup_memory(root()));
  EXPECT_EQ(available_memory_bytes(root()), 4000u * 1024);
}

TEST_F(MemoryRoomTest, TheTightestGroupAboveCounts) {
  write("proc/meminfo", "MemAvailable:   4000 kB\n");
  write("proc/self/cgroup", "0::/slice/service\n");
  write("sys/fs/cgroup/slice/service/memory.max", "max\n");
  write("sys/fs/cgroup/slice/memory.max", "3000000\n");
  write("sys/fs/cgroup/slice/memory.current", "1000000\n");
  EXPECT_EQ(cgroup_memory(root())->limit_bytes, 3'000'000u);
  EXPECT_EQ(available_memory_bytes(root()), 2'000'000u);
}

TEST_F(MemoryRoomTest, FilePagesAreTakenBackButNotShared) {
  write("proc/self/cgroup", "0::/\n");
  write("sys/fs/cgroup/memory.max", "1000\n");
  write("sys/fs/cgroup/memory.current", "900\n");
  write("sys/fs/cgroup/memory.stat", "anon 300\nfile 600\nkernel 0\nshmem 50\n");
  EXPECT_EQ(cgroup_memory(root())->room_bytes(), 1000u - (900 - 550));
}

TEST_F(MemoryRoomTest, AContainerThatCannotSeeItsOwnPath) {
  write("proc/self/cgroup", "0::/docker/abc\n");
  write("sys/fs/cgroup/memory.max", "5000\n");
  EXPECT_EQ(cgroup_memory(root())->room_bytes(), 5000u);
}

TEST_F(MemoryRoomTest, VersionOneIsReadToo) {
  write("proc/self/cgroup", "5:cpu:/x\n4:memory:/box\n");
  write("sys/fs/cgroup/memory/box/memory.limit_in_bytes", "7000\n");
  write("sys/fs/cgroup/memory/box/memory.usage_in_bytes", "1000\n");
  write("sys/fs/cgroup/memory/box/memory.stat", "cache 900\ntotal_cache 400\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(cgroup_memory(root())->room_bytes(), 7000u - 600);
}

TEST_F(MemoryRoomTest, AGroupThatIsFullLeavesNothing) {
  write("sys/fs/cgroup/memory.max", "100\n");
  write("sys/fs/cgroup/memory.current", "200\n");
  EXPECT_EQ(cgroup_memory(root())->room_bytes(), 0u);
}

}  // namespace
}  // namespace pagoda::engine
