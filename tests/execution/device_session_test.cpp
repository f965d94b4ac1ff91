// What ranks on one device share: is memory used again, are communicators made in few goes, are
// libraries found, and does a step mark and record what its rank asks for? All of it without one.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <set>
#include <vector>

#include "executor/cuda/block_pool.h"
#include "executor/cuda/device_rank.h"
#include "executor/cuda/disjoint_layers.h"
#include "executor/cuda/hold_kernel.h"
#include "executor/cuda/open_library.h"
#include "executor/cuda/peers.h"
#include "executor/execute.h"
#include "executor/micro.h"
#include "executor/op_timings.h"
#include "tests/execution/loop_device.h"

namespace foretrain {
namespace {

/// Memory of so many bytes, in blocks that are only named.
struct Room {
  std::size_t left = 0;
  std::map<void*, std::size_t> blocks;
  std::uintptr_t next = 4096;
  int allocated = 0;

  BlockPool pool(std::size_t most_free) {
    return BlockPool(
        [this](std::size_t bytes) -> void* {
          if (bytes > left) return nullptr;
          left -= bytes;
          ++allocated;
          void* const out = reinterpret_cast<void*>(next);
          next += 4096;
          blocks[out] = bytes;
          return out;
        },
        [this](void* block) {
          left += blocks.at(block);
          blocks.erase(block);
        },
        most_free);
  }
};

TEST(BlockPool, TakesTheSmallestThatHoldsIt) {
  Room room{1 << 20, {}};
  BlockPool pool = room.pool(1 << 20);
  void* const large = pool.take(12'000);
  void* const small = pool.take(10'000);
  pool.give_back(large);
  pool.give_back(small);
  EXPECT_EQ(pool.free_bytes(), 12'288U + 10'240U);
  EXPECT_EQ(pool.take(9'900), small);
  EXPECT_EQ(pool.take(9'900), large);
  EXPECT_EQ(room.allocated, 2);
  EXPECT_EQ(pool.free_bytes(), 0U);
}

// A block that is more than a quarter larger waits for something larger.
TEST(BlockPool, WastesAQuarterAtMost) {
  Room room{1 << 20, {}};
  BlockPool pool = room.pool(1 << 20);
  void* const large = pool.take(20'000);
  pool.give_back(large);
  EXPECT_NE(pool.take(10'000), large);
  EXPECT_EQ(room.allocated, 2);
}

TEST(BlockPool, ReleasesWhatIsUnusedWhereThereIsNoRoom) {
  Room room{30'720, {}};
  BlockPool pool = room.pool(1 << 20);
  void* const first = pool.take(10'000);
  void* const second = pool.take(10'000);
  pool.give_back(first);
  EXPECT_NE(pool.take(20'000), nullptr);
  EXPECT_EQ(pool.free_bytes(), 0U);
  EXPECT_EQ(room.blocks.count(first), 0U);
  EXPECT_EQ(room.blocks.count(second), 1U);
  EXPECT_EQ(pool.take(10'000), nullptr);
}

TEST(BlockPool, KeepsSoMuchUnusedAndNoMore) {
  Room room{1 << 20, {}};
  {
    BlockPool pool = room.pool(15'000);
    void* const first = pool.take(10'000);
    void* const second = pool.take(10'000);
    void* const third = pool.take(10'000);
    pool.give_back(first);
    EXPECT_EQ(pool.free_bytes(), 10'240U);
    pool.give_back(second);
    EXPECT_EQ(pool.free_bytes(), 0U);
    EXPECT_EQ(room.blocks.size(), 1U);
    EXPECT_EQ(room.blocks.count(third), 1U);
  }
  EXPECT_EQ(room.left, std::size_t{1} << 20);
}

std::vector<RankId> ranks(const std::vector<std::int32_t>& values) {
  std::vector<RankId> out;
  for (const std::int32_t value : values) out.emplace_back(value);
  return out;
}

// Tensor groups {0 1} {2 3} go together, data groups {0 2} {1 3} too, the world alone.
TEST(DisjointLayers, GroupsThatShareNoRankGoTogether) {
  const auto layers = disjoint_layers({ranks({0, 1}), ranks({2, 3}), ranks({0, 2}), ranks({1, 3}),
                                       ranks({0, 1, 2, 3}), ranks({3, 2})});
  const std::vector<std::vector<std::size_t>> expected = {{0, 1}, {2, 3}, {4}, {5}};
  EXPECT_EQ(layers, expected);
  EXPECT_TRUE(disjoint_layers({}).empty());
}

TEST(DisjointLayers, EveryGroupOnceAndNoRankTwiceInALayer) {
  const Workload world = micro_ranks(12);
  const auto layers = disjoint_layers(world.groups);
  std::set<std::size_t> seen;
  for (const std::vector<std::size_t>& layer : layers) {
    std::set<std::int32_t> members;
    for (const std::size_t g : layer) {
      EXPECT_TRUE(seen.insert(g).second);
      for (const RankId rank : world.groups[g]) EXPECT_TRUE(members.insert(rank.value).second);
    }
  }
  EXPECT_EQ(seen.size(), world.groups.size());
  EXPECT_LT(layers.size(), world.groups.size());
}

class LibraryPath {
 public:
  explicit LibraryPath(const std::string& value) { setenv(kLibraryPath, value.c_str(), 1); }
  LibraryPath(const LibraryPath&) = delete;
  LibraryPath& operator=(const LibraryPath&) = delete;
  LibraryPath(LibraryPath&&) = delete;
  LibraryPath& operator=(LibraryPath&&) = delete;
  ~LibraryPath() { unsetenv(kLibraryPath); }
};

TEST(OpenLibrary, LooksWhereItIsTold) {
  const std::filesystem::path file(FORETRAIN_FAKE_NVML);
  const std::string folder = file.parent_path().string();
  const std::string name = file.filename().string();
  EXPECT_FALSE(open_library({name}, {}).ok());
  EXPECT_TRUE(open_library({"libnone.so", name}, {"nowhere", folder}).ok());
  const LibraryPath path("nowhere:" + folder);
  const auto found = open_library({name}, {});
  ASSERT_TRUE(found.ok()) << found.error().message;
  int (*function)() = nullptr;
  EXPECT_TRUE(find_function(found.value(), "nvmlInit_v2", function));
  EXPECT_FALSE(find_function(found.value(), "nvmlOfNoVersion", function));
}

TEST(OpenLibrary, SaysWhereItLooked) {
  const LibraryPath path("one/place:another");
  const auto none = open_library({"libnone.so.2", "libnone.so"}, {"third"});
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().message,
            "libnone.so.2 is not found: neither where the loader looks, nor in one/place, nor in "
            "another, nor in third; name its folder in FORETRAIN_LIBRARY_PATH");
}

// What is there and is no library tells why.
TEST(OpenLibrary, SaysWhatTheLoaderSays) {
  const std::string folder = FORETRAIN_SOURCE_DIR;
  const auto bad = open_library({"README.md"}, {folder});
  ASSERT_FALSE(bad.ok());
  EXPECT_NE(bad.error().message.find("README.md cannot be loaded: "), std::string::npos);
  EXPECT_NE(bad.error().message.find("ELF"), std::string::npos) << bad.error().message;
}

// As the CUDA module needs cuBLASLt, which may lie in a Python package only.
TEST(OpenLibrary, ModulesFindWhatTheyNeed) {
  const std::filesystem::path file(FORETRAIN_FAR_LIBRARY);
  const auto none = open_module(FORETRAIN_NEEDS_FAR, {"third"});
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().message, file.filename().string() +
                                      " is not found: neither where the loader looks, nor in "
                                      "third; name its folder in FORETRAIN_LIBRARY_PATH");
  const LibraryPath path(file.parent_path().string());
  const auto found = open_module(FORETRAIN_NEEDS_FAR, {});
  ASSERT_TRUE(found.ok()) << found.error().message;
  int (*function)() = nullptr;
  ASSERT_TRUE(find_function(found.value(), "ask_far", function));
  EXPECT_EQ(function(), 42);
  // A module that is not there is no library that it needs.
  const auto nowhere = open_module("/none/libmodule.so", {});
  ASSERT_FALSE(nowhere.ok());
  EXPECT_TRUE(nowhere.error().message.starts_with("/none/libmodule.so: cannot open"));
}

// A launcher says how many; without one ranks may be threads where there are several devices.
TEST(Peers, WhatShowsBeforeCudaStarts) {
  EXPECT_FALSE(may_have_peers(1, "", 8));
  EXPECT_TRUE(may_have_peers(2, "0", 1));
  EXPECT_FALSE(may_have_peers(0, "", 1));
  EXPECT_TRUE(may_have_peers(0, "", 2));
  EXPECT_FALSE(may_have_peers(0, "3", 8));
  EXPECT_TRUE(may_have_peers(0, "3,4", 8));
}

TEST(Peers, DevicesAreCountedByTheirFiles) {
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / "foretrain-peers";
  std::filesystem::create_directories(folder);
  for (const char* name : {"nvidia0", "nvidia12", "nvidiactl", "nvidia", "nvidia-uvm", "null"}) {
    std::ofstream(folder / name) << "";
  }
  EXPECT_EQ(count_device_files(folder.string()), 2);
  std::filesystem::remove_all(folder);
  EXPECT_EQ(count_device_files(folder.string()), 0);
}

/// A rank that hands an op back and forth between two streams.
struct TwoStreams {
  explicit TwoStreams(LoopGpu gpu, HostOptions options = {})
      : workload(event_workload(1, 5)),
        transport(make_thread_transport(workload)),
        rank(workload, RankId(0), *transport, std::move(options),
             make_loop_device(RankId(0), *transport, 1, std::move(gpu))) {}
  Workload workload;
  std::unique_ptr<Transport> transport;
  DeviceRank rank;
};

// The loop device refuses the time of a mark without; ops are ordered all the same.
TEST(Marks, AStepWithoutThemHasItsOwnTime) {
  for (const bool graphs : {false, true}) {
    HostOptions options;
    options.marks = false;
    options.graphs = graphs;
    TwoStreams run({}, options);
    ASSERT_TRUE(run.rank.set_up().ok());
    for (const bool marks : {false, false, true, false}) {
      run.rank.mark_ops(marks);
      const Status done = run.rank.step();
      ASSERT_TRUE(done.ok()) << done.error().message;
      EXPECT_GT(run.rank.step_seconds(), 0);
      std::size_t ops = 0;
      for (const auto& stream : run.rank.records()) {
        for (const OpRecord& record : stream) {
          ++ops;
          EXPECT_EQ(record.end.ps > 0, marks);
          EXPECT_LE(record.end.seconds(), run.rank.step_seconds());
        }
      }
      EXPECT_EQ(ops, 10U);
    }
  }
}

// Busy times are known without marks too.
TEST(Marks, RecordsTellTheWorkWithoutThem) {
  LoopGpu gpu;
  gpu.busy = [] { return Time{300'000}; };
  HostOptions options;
  options.marks = false;
  options.records = true;
  TwoStreams run(std::move(gpu), options);
  ASSERT_TRUE(run.rank.set_up().ok());
  ASSERT_TRUE(run.rank.step().ok());
  for (const auto& stream : run.rank.records()) {
    for (const OpRecord& record : stream) EXPECT_EQ(record.work.ps, 300'000);
  }
}

/// Ranks on loop devices.
MakeRank on_loops(const std::function<LoopGpu()>& gpu) {
  return [gpu](const Workload& of, RankId rank, Transport& transport, const HostOptions& how) {
    return Result<std::unique_ptr<RankRunner>>(std::make_unique<DeviceRank>(
        of, rank, transport, how, make_loop_device(rank, transport, 1, gpu())));
  };
}

std::vector<bool> marks_of(const Executed& executed) {
  std::vector<bool> out;
  for (const StepMeasure& step : executed.steps) out.push_back(step.marks);
  return out;
}

// The time is of steps without marks, the Timeline of one that has them.
TEST(Marks, ExecutionTimesStepsWithoutThem) {
  const Workload workload = event_workload(2, 5);
  ExecuteOptions options;
  options.make_rank = on_loops([] { return LoopGpu{}; });
  options.name_of = [](RankId) { return std::string("rank"); };
  options.steps = 4;
  const auto executed = execute_threads(workload, options);
  ASSERT_TRUE(executed.ok()) << executed.error().message;
  EXPECT_EQ(marks_of(executed.value()), (std::vector<bool>{false, false, false, true}));
  EXPECT_EQ(counted_steps(executed.value().steps), (std::vector<std::size_t>{1, 2}));
  EXPECT_EQ(executed.value().median, 3U);
  EXPECT_EQ(executed.value().timeline.spans.size(), 20U);
  for (const StepMeasure& step : executed.value().steps) EXPECT_GT(step.seconds, 0);
  // What was queued is told of every step, between its marks.
  options.host.records = true;
  const auto recorded = execute_threads(workload, options);
  ASSERT_TRUE(recorded.ok());
  EXPECT_EQ(marks_of(recorded.value()), std::vector<bool>(4, true));
  // One step shows itself; single ones show the second.
  options.host.records = false;
  const Workload alone = event_workload(1, 5);
  const auto transport = make_thread_transport(alone);
  const auto execution = Execution::create(alone, RankId(0), *transport, options);
  ASSERT_TRUE(execution.ok());
  ASSERT_TRUE(execution.value()->run(1).ok());
  EXPECT_EQ(execution.value()->result().timeline.spans.size(), 10U);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(execution.value()->run(1).ok());
  EXPECT_EQ(marks_of(execution.value()->result()), (std::vector<bool>{true, true, false, false}));
  EXPECT_EQ(execution.value()->result().median, 1U);
}

// The step takes 1 us for each of its two streams' ends and what is waited for; ops ran 0.1 us.
TEST(Marks, GapsAreWhatIsLeftOfTheStep) {
  LoopGpu gpu;
  gpu.busy = [] { return Time{100'000}; };
  HostOptions options;
  options.marks = false;
  options.records = true;
  TwoStreams run(gpu, options);
  ASSERT_TRUE(run.rank.set_up().ok());
  ASSERT_TRUE(run.rank.step().ok());
  const std::vector<std::int64_t> gaps = gaps_of(run.rank);
  ASSERT_EQ(gaps.size(), 1U);
  EXPECT_EQ(gaps[0], std::llround(run.rank.step_seconds() * 1e12 - 10 * 100'000) / 10);
  // Without busy times marks tell; without either nothing does.
  TwoStreams unknown({});
  ASSERT_TRUE(unknown.rank.set_up().ok());
  ASSERT_TRUE(unknown.rank.step().ok());
  EXPECT_EQ(gaps_of(unknown.rank).size(), 9U);
  unknown.rank.mark_ops(false);
  ASSERT_TRUE(unknown.rank.step().ok());
  EXPECT_TRUE(gaps_of(unknown.rank).empty());
}

// The switch is the process's: a rank that steps after one that records does not record itself.
TEST(Marks, EveryStepRecordsAsItsRankWants) {
  bool on = false;
  const auto gpu = [&on](std::vector<bool>& at_begin) {
    LoopGpu out;
    out.record = [&on](bool wanted) { on = wanted; };
    out.begin = [&on, &at_begin] { at_begin.push_back(on); };
    return out;
  };
  std::vector<bool> of_first;
  std::vector<bool> of_second;
  HostOptions records;
  records.records = true;
  TwoStreams first(gpu(of_first), records);
  TwoStreams second(gpu(of_second));
  ASSERT_TRUE(first.rank.set_up().ok());
  ASSERT_TRUE(second.rank.set_up().ok());
  for (TwoStreams* run : {&first, &second, &first, &second}) ASSERT_TRUE(run->rank.step().ok());
  EXPECT_EQ(of_first, (std::vector<bool>{true, true}));
  EXPECT_EQ(of_second, (std::vector<bool>{false, false}));
}

// Rates of blocks add up: 300 bytes in 100 ns and 100 in 200 ns; what is beyond does not count.
TEST(HoldFlags, RatesOfBlocksAddUp) {
  device::HoldFlags flags;
  flags.moved = {300, 100, 999};
  flags.ran_ns = {100, 200, 1};
  EXPECT_DOUBLE_EQ(flags.gb_per_s(2), 3.5);
  EXPECT_EQ(device::HoldFlags{}.gb_per_s(4), 0);
}

// A hold lasts for one step, whose rank then knows what it moved.
TEST(HoldFlags, RanksTellWhatHeldSmsMoved) {
  std::vector<std::pair<int, bool>> held;
  LoopGpu gpu;
  gpu.holds = [&held](int sms, bool copies) {
    held.emplace_back(sms, copies);
    return ok_status();
  };
  gpu.held_gb_per_s = 120;
  TwoStreams run(std::move(gpu));
  ASSERT_TRUE(run.rank.set_up().ok());
  ASSERT_TRUE(run.rank.hold_sms(8, true).ok());
  ASSERT_TRUE(run.rank.step().ok());
  EXPECT_EQ(run.rank.held_gb_per_s(), 120);
  ASSERT_TRUE(run.rank.step().ok());
  EXPECT_EQ(run.rank.held_gb_per_s(), 0);
  RankRunner& runner = run.rank;
  ASSERT_TRUE(runner.hold_sms(4).ok());
  ASSERT_TRUE(runner.hold_sms(2, false).ok());
  EXPECT_EQ(held, (std::vector<std::pair<int, bool>>{{8, true}, {4, true}, {2, false}}));
}

}  // namespace
}  // namespace foretrain
