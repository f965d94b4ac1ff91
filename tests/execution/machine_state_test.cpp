// Is what a machine runs at read right, and is what cannot be read said?
#include "executor/machine_state.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace foretrain {
namespace {

namespace fs = std::filesystem;

const GpuName kGpu = {"0000:1b:00.0", "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"};

/// The library that stands for NVML, and what it reads.
class Nvml : public ::testing::Test {
 protected:
  Nvml() : x_library(dlopen(FORETRAIN_FAKE_NVML, RTLD_NOW)) { set(1980, 689'500, 61, true, true); }
  void set(unsigned mhz, unsigned mw, unsigned celsius, bool power, bool buses) {
    using Set = void (*)(unsigned, unsigned, unsigned, bool, bool);
    reinterpret_cast<Set>(dlsym(x_library, "fake_nvml_set"))(mhz, mw, celsius, power, buses);
  }
  int users() { return reinterpret_cast<int (*)()>(dlsym(x_library, "fake_nvml_users"))(); }
  static Result<std::unique_ptr<StateReader>> open(const GpuName& gpu) {
    return make_nvml_state_reader(gpu, FORETRAIN_FAKE_NVML);
  }

 private:
  void* x_library;
};

constexpr std::uint64_t kCapped = 0x4;  // by power; that it idles is no reason

TEST_F(Nvml, ReadsInMegahertzWattsAndDegrees) {
  auto reader = open(kGpu);
  ASSERT_TRUE(reader.ok()) << reader.error().message;
  EXPECT_EQ(reader.value()->missing(), "");
  EXPECT_EQ(reader.value()->read(), (MachineState{1980, 689.5, 61, kCapped}));
  set(1410, 399'000, 74, true, true);
  EXPECT_EQ(reader.value()->read(), (MachineState{1410, 399, 74, kCapped}));
  EXPECT_EQ(users(), 1);
  reader.value().reset();
  EXPECT_EQ(users(), 0);
}

TEST_F(Nvml, WhatIsNotSupportedIsAbsentAndSaid) {
  set(1980, 0, 61, false, true);
  const auto reader = open(kGpu);
  ASSERT_TRUE(reader.ok()) << reader.error().message;
  EXPECT_EQ(reader.value()->missing(), "power: Not Supported");
  EXPECT_EQ(reader.value()->read(), (MachineState{1980, std::nullopt, 61, kCapped}));
}

// By its place on the bus, else by its identifier; another GPU is not found.
TEST_F(Nvml, FindsTheGpu) {
  set(1980, 0, 61, true, false);
  EXPECT_TRUE(open(kGpu).ok());
  EXPECT_TRUE(open({"", kGpu.uuid}).ok());
  const auto other = open({"0000:99:00.0", "GPU-other"});
  ASSERT_FALSE(other.ok());
  EXPECT_EQ(other.error().message, "NVML: GPU 0000:99:00.0 GPU-other: Not Found");
  EXPECT_EQ(users(), 0);
}

TEST_F(Nvml, SaysWhichLibraryOrFunctionIsMissing) {
  const auto none = make_nvml_state_reader(kGpu, "libno-such-library.so.1");
  ASSERT_FALSE(none.ok());
  EXPECT_NE(none.error().message.find("libno-such-library.so.1"), std::string::npos);
  const auto other = make_nvml_state_reader(kGpu, "libm.so.6");
  ASSERT_FALSE(other.ok());
  EXPECT_EQ(other.error().message, "NVML: the library has no nvmlInit_v2");
}

/// A folder that stands for the root of a file system.
class Root {
 public:
  Root() : x_folder(fs::temp_directory_path() / ("host_state_" + std::to_string(getpid()))) {
    fs::remove_all(x_folder);
  }
  Root(const Root&) = delete;
  Root(Root&&) = delete;
  Root& operator=(const Root&) = delete;
  Root& operator=(Root&&) = delete;
  ~Root() { fs::remove_all(x_folder); }
  void write(const std::string& path, const std::string& text) const {
    fs::create_directories((x_folder / path).parent_path());
    std::ofstream(x_folder / path) << text;
  }
  std::unique_ptr<StateReader> reader() const { return make_host_state_reader(x_folder.string()); }

 private:
  fs::path x_folder;
};

TEST(HostState, NothingThere) {
  const Root root;
  EXPECT_EQ(root.reader()->read(), MachineState{});
  EXPECT_NE(root.reader()->missing().find("clock: "), std::string::npos);
}

// The core that asks may change between two readings, so all cores say the same here.
TEST(HostState, CpufreqBeforeCpuinfo) {
  const Root root;
  const auto cores = static_cast<int>(sysconf(_SC_NPROCESSORS_CONF));
  std::string listed;
  for (int core = 0; core < cores; ++core) {
    listed += "processor\t: " + std::to_string(core) + "\ncpu MHz\t\t: 2445.5\n\n";
  }
  root.write("proc/cpuinfo", listed);
  EXPECT_EQ(root.reader()->read(), (MachineState{2445.5, std::nullopt, std::nullopt}));
  EXPECT_EQ(root.reader()->missing(), "power, temperature: not read of hosts");
  for (int core = 0; core < cores; ++core) {
    root.write("sys/devices/system/cpu/cpu" + std::to_string(core) + "/cpufreq/scaling_cur_freq",
               "3100000\n");
  }
  EXPECT_EQ(root.reader()->read(), (MachineState{3100, std::nullopt, std::nullopt}));
}

}  // namespace
}  // namespace foretrain
