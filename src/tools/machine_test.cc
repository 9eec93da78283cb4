#include "tools/machine.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <fstream>

#include "tools/machine_probe.h"

namespace pagoda::tools {
namespace {

namespace fs = std::filesystem;

// A system of our own, below a folder.
class MachineTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(::testing::TempDir()) / ("machine_" + std::to_string(getpid()));
    fs::create_directories(root_);
  }
  void TearDown() override { fs::remove_all(root_); }
  void write(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  fs::path root_;
};

TEST_F(MachineTest, ReadsWhatTheSystemSays) {
  write("proc/cpuinfo", "processor\t: 0\nmodel name\t: Some CPU @ 3 GHz\n\nprocessor\t: 1\nmodel name\t: Other\n");
  write("proc/meminfo", "MemTotal:       1024 kB\nMemFree: 5 kB\n");
  write("sys/fs/cgroup/cpu.max", "150000 100000\n");
  write("sys/fs/cgroup/memory.max", "4096\n");
  write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
  const std::string caches = "sys/devices/system/cpu/cpu0/cache/";
  write(caches + "index0/size", "48K\n");
  write(caches + "index0/level", "1\n");
  write(caches + "index0/type", "Data\n");
  write(caches + "index0/shared_cpu_list", "0\n");
  write(caches + "index1/size", "32K\n");
  write(caches + "index1/type", "Instruction\n");
  write(caches + "index3/size", "32M\n");
  write(caches + "index3/level", "3\n");
  write(caches + "index3/shared_cpu_list", "0-3,8\n");
  const Machine machine = read_machine(root_);
  EXPECT_EQ(machine.cpu, "Some CPU @ 3 GHz");
  EXPECT_EQ(machine.logical_cpus, 2);
  EXPECT_EQ(machine.memory_bytes, 1024U << 10);
  EXPECT_EQ(machine.quota_cpus, 1.5);
  EXPECT_EQ(machine.limit_bytes, 4096U);
  EXPECT_EQ(machine.huge_pages, "madvise");
  ASSERT_EQ(machine.caches.size(), 2U);
  EXPECT_EQ(machine.caches[0].bytes, 48U << 10);
  EXPECT_EQ(machine.caches[1].bytes, 32U << 20);
  EXPECT_EQ(machine.caches[1].shared_by, 5);
}

TEST_F(MachineTest, ASystemThatSaysNothingIsNoError) {
  write("sys/fs/cgroup/cpu.max", "max 100000\n");
  write("sys/fs/cgroup/memory.max", "max\n");
  const Machine machine = read_machine(root_);
  EXPECT_TRUE(machine.cpu.empty());
  EXPECT_FALSE(machine.quota_cpus);
  EXPECT_FALSE(machine.limit_bytes);
  EXPECT_TRUE(machine.huge_pages.empty());
  EXPECT_TRUE(machine.caches.empty());
  EXPECT_GE(machine.usable_cores, 1);
}

TEST(AutoChoice, IsTheBestThatRunsHere) {
  const AutoChoice choice = auto_choice();
  EXPECT_EQ(choice.isa, kernels::best_isa());
  EXPECT_EQ(choice.arithmetic, *kernels::parse_arithmetic("auto", choice.isa));
  EXPECT_FALSE(choice.isa_reason.empty());
  EXPECT_FALSE(choice.arithmetic_reason.empty());
}

TEST(MachineProbe, MeasuresRatesOfThisMachine) {
  auto probe = MachineProbe::make(2, 1 << 20);
  ASSERT_TRUE(probe);
  using Threads = MachineProbe::Threads;
  for (const kernels::Isa isa : kernels::supported_isas()) {
    EXPECT_GT(probe->read_rate(isa, 1 << 20, Threads::kOne, 0), 1e8) << to_string(isa);
    EXPECT_GT(probe->read_rate(isa, 1 << 30, Threads::kAll, 0), 1e8);  // no more than the buffer
    for (const double rate : probe->dot_rates(isa, 0)) EXPECT_GT(rate, 1e6) << to_string(isa);
  }
  EXPECT_EQ(probe->dot_rate(kernels::Isa::kRef, kernels::DotKind::kBf16, Threads::kOne, 0), 0);
  const MachineProbe::Clock clock = probe->clock(kernels::best_isa(), 0.01);
  EXPECT_GT(clock.alone, 1e8);
  EXPECT_LT(clock.alone, 1e10);
  EXPECT_GT(clock.after_vectors, 1e8);
}

}  // namespace
}  // namespace pagoda::tools
