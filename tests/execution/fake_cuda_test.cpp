// Does the layer between a rank and CUDA use the runtime, cublasLt and NCCL as they want to be
// used, and give back what it took? On fakes of them, which compute on the host.
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <thread>

#include "executor/calibrate.h"
#include "executor/cuda/cuda_device.h"
#include "executor/cuda/open_library.h"
#include "executor/cuda_module.h"
#include "executor/micro.h"
#include "tests/execution/device_ops.h"
#include "tests/execution/device_plans.h"
#include "tests/execution/fake_cuda.h"
#include "tests/execution/loop_device.h"

extern "C" void foretrain_open_cuda(foretrain::CudaModule& module, std::string& problem);

namespace foretrain {
namespace {

/// Begins with a machine that is as new and ends without anything that is still alive.
class FakeCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    setenv(kLibraryPath, FORETRAIN_FAKE_LIBRARIES, 1);
    fake::state().calls.clear();
    fake::state().memory = std::size_t{1} << 30;
    fake::state().refuses_bias = false;
    fake::state().refuses_split = false;
    x_sessions = std::make_unique<DeviceSessions>();
  }
  void TearDown() override {
    x_sessions.reset();
    for (const std::string& fault : fake::state().faults) ADD_FAILURE() << fault;
    fake::state().faults.clear();
    for (const auto& [what, count] : fake::state().alive) EXPECT_EQ(count, 0) << what;
    EXPECT_TRUE(fake::state().blocks.empty());
  }
  MakeDevice device() {
    return [this](const Workload& workload, RankId rank,
                  Transport& transport) -> Result<std::unique_ptr<Device>> {
      FT_ASSIGN(auto session, x_sessions->of(rank.value));
      return std::unique_ptr<Device>(
          std::make_unique<CudaDevice>(workload, rank, transport, std::move(session)));
    };
  }
  static int calls(const char* name) { return fake::state().calls[name]; }

  std::unique_ptr<DeviceSessions> x_sessions;
};

/// Of two ranks: the machine has two devices. Streams of the fake work when they are asked to, so
/// ranks that share the vocabulary, which meet in another order than they issue, would not meet.
std::vector<DeviceCase> two_rank_cases(std::vector<DeviceCase> all) {
  std::erase_if(all, [](const DeviceCase& one) {
    return one.plan.accelerators != 2 || one.name.find("Vocab") != std::string::npos;
  });
  return all;
}

// Products, bias, kernels, copies, scratch memory, rotary tables: as the host trains.
TEST_F(FakeCuda, TrainsLikeTheHost) {
  const std::vector<DeviceCase> cases = single_rank_cases();
  for (const std::size_t i : {0U, 1U, 3U}) {
    expect_trains_like_host(cases.at(i), DType::kFp32, device(), {});
  }
  expect_trains_like_host(cases.at(3), DType::kBf16, device(), kBf16Tolerance);
  EXPECT_EQ(calls("cublasLtCreate"), 1);
  EXPECT_GT(calls("heuristics"), 0);
}

TEST_F(FakeCuda, TrainsInGraphs) {
  const std::vector<DeviceCase> cases = single_rank_cases();
  for (const std::size_t i : {0U, 3U}) {
    expect_trains_like_host(cases.at(i), DType::kFp32, device(), {}, true);
  }
  EXPECT_GT(calls("cudaGraphLaunch"), calls("cudaGraphInstantiate"));
}

TEST_F(FakeCuda, OffloadedPlansTrain) {
  const std::vector<DeviceCase> cases = offload_cases(1);
  expect_trains_like_host(cases.front(), DType::kFp32, device(), {});
  expect_trains_like_host(cases.front(), DType::kFp32, device(), {}, true);
  EXPECT_GT(calls("cudaMallocHost"), 0);
}

// Groups and channels find their partners; graphs that captured them end before they do.
TEST_F(FakeCuda, TwoRanksTrain) {
  const std::vector<DeviceCase> cases = two_rank_cases(many_rank_cases());
  ASSERT_GT(cases.size(), 3U);
  for (const std::size_t i : {std::size_t{0}, cases.size() - 1}) {
    expect_trains_like_host(cases[i], DType::kFp32, device(), {});
  }
  EXPECT_GT(calls("ncclCommSplit"), 0);
  EXPECT_EQ(calls("ncclCommAbort"), 0);
}

TEST_F(FakeCuda, TwoRanksTrainInGraphs) {
  const std::vector<DeviceCase> cases = two_rank_cases(many_rank_cases());
  ASSERT_FALSE(cases.empty());
  expect_trains_like_host(cases.front(), DType::kFp32, device(), {}, true);
  EXPECT_GT(calls("cudaGraphLaunch"), 0);
}

TEST_F(FakeCuda, ExpertsOfTwoRanksTrain) {
  const std::vector<DeviceCase> cases = two_rank_cases(expert_rank_cases());
  ASSERT_FALSE(cases.empty());
  expect_trains_like_host(cases.front(), DType::kFp32, device(), {});
}

/// `each` of every rank at the same time.
void on_two_ranks(const Workload& workload, Transport& transport, const MakeRank& make,
                  const HostOptions& options,
                  const std::function<Status(RankRunner&, RankId)>& each) {
  std::array<Status, 2> results{ok_status(), ok_status()};
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      auto rank = make(workload, RankId(r), transport, options);
      results.at(r) = rank.ok() ? rank.value()->set_up() : Status(rank.error());
      if (results.at(r).ok()) results.at(r) = each(*rank.value(), RankId(r));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Status& status : results) EXPECT_TRUE(status.ok()) << status.error().message;
}

CudaModule open_fake() {
  CudaModule out;
  std::string problem;
  foretrain_open_cuda(out, problem);
  EXPECT_EQ(problem, "");
  return out;
}

// A second rank of the same module makes nothing anew, on one device and on two: handles, streams,
// events, memory, communicators of the same transport. Another transport makes its own, and drops
// those that nobody uses.
TEST_F(FakeCuda, RanksOfAModuleShareASession) {
  CudaModule module = open_fake();
  EXPECT_EQ(module.devices, 2);
  EXPECT_EQ(module.sms, 132);
  EXPECT_NE(module.versions.find("NCCL 22803"), std::string::npos) << module.versions;
  const MicroOp micro = micro_collective(CollectiveKind::kAllReduce, 1000, 2);
  const Workload workload = micro_workload(micro, 2, 2, 4);
  const Workload other = micro_workload(micro_message(256), 2, 2, 4);
  const auto steps = [](RankRunner& rank, RankId) -> Status {
    for (int s = 0; s < 3; ++s) FT_TRY(rank.step());
    return ok_status();
  };
  const Workload world = micro_ranks(2);
  const auto transport = make_thread_transport(world);
  HostOptions options;
  options.graphs = true;
  std::map<std::string, int> first;
  for (int round = 0; round < 3; ++round) {
    on_two_ranks(workload, *transport, module.make_rank, options, steps);
    on_two_ranks(other, *transport, module.make_rank, {}, steps);
    if (round == 0) first = fake::state().calls;
  }
  for (const char* made : {"cublasLtCreate", "cudaStreamCreateWithFlags", "cudaMalloc",
                           "cudaEventCreateWithFlags", "ncclCommInitRank", "ncclCommSplit"}) {
    EXPECT_GT(first[made], 0) << made;
    EXPECT_EQ(calls(made), first[made]) << made;
  }
  EXPECT_EQ(calls("ncclCommDestroy"), 0);
  const auto second = make_thread_transport(world);
  on_two_ranks(workload, *second, module.make_rank, options, steps);
  EXPECT_EQ(calls("ncclCommInitRank"), 2 * first["ncclCommInitRank"]);
  const int of_one_transport = calls("ncclCommDestroy");
  EXPECT_GT(of_one_transport, 0);
  module.make_rank = nullptr;
  EXPECT_EQ(calls("ncclCommDestroy"), 2 * of_one_transport);
}

// One rank alone asks NCCL for nothing.
TEST_F(FakeCuda, OneRankNeedsNoCommunicator) {
  const CudaModule module = open_fake();
  const Workload alone = micro_workload(
      micro_gemm(Gemm{8, 8, 8, 1, false, true, false, DType::kFp32, DType::kFp32}, 1), 1, 2, 4);
  const auto transport = make_thread_transport(alone);
  auto rank = module.make_rank(alone, RankId(0), *transport, {});
  ASSERT_TRUE(rank.ok()) << rank.error().message;
  ASSERT_TRUE(rank.value()->set_up().ok());
  ASSERT_TRUE(rank.value()->step().ok());
  EXPECT_EQ(calls("ncclCommInitRank"), 0);
}

/// A device that has been opened with one stream.
std::unique_ptr<Device> opened(const MakeDevice& make, const Workload& workload,
                               Transport& transport) {
  auto made = make(workload, RankId(0), transport);
  EXPECT_TRUE(made.ok() && made.value()->open(1, 4).ok());
  return std::move(made).value();
}

// What another rank left in memory is zeroed before the next has it.
TEST_F(FakeCuda, MemoryThatIsUsedAgainIsZeroed) {
  const Workload alone = micro_ranks(1);
  const auto transport = make_thread_transport(alone);
  const std::vector<std::uint64_t> ones(1000, 1);
  std::vector<std::uint64_t> seen(1000, 2);
  for (int round = 0; round < 2; ++round) {
    const auto device = opened(this->device(), alone, *transport);
    for (const bool host : {false, true}) {
      const auto taken = host ? device->take_host(8000) : device->take(8000);
      ASSERT_TRUE(taken.ok());
      ASSERT_TRUE(device->read(seen.data(), taken.value(), 8000).ok());
      EXPECT_EQ(seen, std::vector<std::uint64_t>(1000, 0));
      ASSERT_TRUE(device->write(taken.value(), ones.data(), 8000).ok());
    }
  }
  EXPECT_EQ(calls("cudaMalloc"), 1);
  EXPECT_EQ(calls("cudaMallocHost"), 1);
}

// Where memory is short, what lies unused is given up, and what is left unused counts as free. The
// refusal does not show as a kernel's error.
TEST_F(FakeCuda, UnusedMemoryIsGivenUpWhereItIsShort) {
  constexpr std::size_t kMiB = 1 << 20;
  fake::state().memory = 100 * kMiB;
  const Workload alone = micro_ranks(1);
  const auto transport = make_thread_transport(alone);
  { ASSERT_TRUE(opened(device(), alone, *transport)->take(24 * kMiB).ok()); }
  const auto device = opened(this->device(), alone, *transport);
  EXPECT_EQ(device->free_bytes().value(), 100 * kMiB);
  const auto most = device->take(90 * kMiB);
  ASSERT_TRUE(most.ok()) << most.error().message;
  ASSERT_TRUE(device->fill_random(most.value(), DType::kFp32, 100, Fill{1, true, 1}).ok());
  const auto more = device->take(20 * kMiB);
  ASSERT_FALSE(more.ok());
  EXPECT_EQ(more.error().message, "CUDA: memory: cudaErrorMemoryAllocation (out of memory)");
  EXPECT_TRUE(device->fill_random(most.value(), DType::kFp32, 100, Fill{1, true, 1}).ok());
}

// What `take` gives up first counts as free: scratch memory and what could hold SMs.
TEST_F(FakeCuda, WhatIsGivenUpFirstCountsAsFree) {
  constexpr std::size_t kMiB = 1 << 20;
  fake::state().memory = 700 * kMiB;
  const auto session = x_sessions->of(0);
  ASSERT_TRUE(session.ok());
  DeviceSession& own = *session.value();
  ASSERT_TRUE(own.scratch(0, 0, 40 * kMiB).ok());
  ASSERT_TRUE(own.scratch(0, 0, 80 * kMiB).ok());
  own.end_step();
  ASSERT_TRUE(own.holder().ok());
  ASSERT_LT(own.free_bytes().value(), 701 * kMiB);
  ASSERT_GT(own.free_bytes().value(), 699 * kMiB);
  const auto most = own.take(690 * kMiB);
  ASSERT_TRUE(most.ok()) << most.error().message;
  own.give_back(most.value());
}

// An op that does not fit is left out of a calibration, by name; the next one is measured.
TEST_F(FakeCuda, CalibrationLeavesOutWhatDoesNotFit) {
  fake::state().memory = std::size_t{48} << 20;
  const CudaModule module = open_fake();
  CalibrateOptions options;
  options.seconds = 0.005;
  options.rotation = 1 << 10;
  options.make_rank = module.make_rank;
  options.library = "fake";
  options.gemm_rate = options.byte_rate = 1e8;
  std::vector<MicroOp> ops;
  for (const std::int64_t size : {1 << 14, 8}) {
    ops.push_back(
        micro_gemm(Gemm{size, 1024, 8, 1, false, true, false, DType::kFp32, DType::kFp32}, 1));
  }
  Profile profile;
  profile.machine = Json{Json::Object{}};
  const auto whole = calibrate_threads(ops, 1, options, profile);
  ASSERT_TRUE(whole.ok()) << whole.error().message;
  EXPECT_EQ(profile.find(ops[0].key), nullptr);
  EXPECT_NE(profile.find(ops[1].key), nullptr);
  const std::string skipped = dump_json(profile.machine);
  // Once, as operands that are larger than the caches need no second set.
  EXPECT_NE(skipped.find(ops[0].key.shape +
                         ": out of device memory: this rank needs 64 MiB, the device has 48 MiB"),
            std::string::npos)
      << skipped;
}

// A bias that no algorithm adds is added by a kernel, and asked for once.
TEST_F(FakeCuda, ABiasThatIsRefusedIsAskedForOnce) {
  fake::state().refuses_bias = true;
  const DeviceCase gpt = single_rank_cases().at(1);
  expect_trains_like_host(gpt, DType::kFp32, device(), {});
  const int refused = calls("heuristics that refused");
  EXPECT_GT(refused, 0);
  EXPECT_GT(calls("add_bias_on_cuda"), 3 * refused);
}

// Steps without marks record what streams wait for, without times, and their ends.
TEST_F(FakeCuda, StepsWithoutMarksTakeNoTimesOfOps) {
  constexpr int kHandOvers = 20;
  const Workload workload = event_workload(1, kHandOvers);
  const auto transport = make_thread_transport(workload);
  for (const bool graphs : {false, true}) {
    HostOptions options;
    options.marks = false;
    options.graphs = graphs;
    auto device = this->device()(workload, RankId(0), *transport);
    ASSERT_TRUE(device.ok());
    DeviceRank rank(workload, RankId(0), *transport, options, std::move(device).value());
    ASSERT_TRUE(rank.set_up().ok());
    for (const bool marks : {false, false, true, false}) {
      rank.mark_ops(marks);
      const int before = calls("timed records");
      const Status done = rank.step();
      ASSERT_TRUE(done.ok()) << done.error().message;
      EXPECT_GT(rank.step_seconds(), 0);
      // The origin and the ends of two streams; of ops two each.
      EXPECT_EQ(calls("timed records") - before, 3 + (marks ? 4 * kHandOvers : 0));
      rank.queue_ahead(marks);
    }
  }
}

// SMs are held until the step is over, with or without copies.
TEST_F(FakeCuda, HeldSmsTellWhatTheyMoved) {
  const Workload alone = dispatch_workload(1, 4);
  const auto transport = make_thread_transport(alone);
  auto device = this->device()(alone, RankId(0), *transport);
  ASSERT_TRUE(device.ok());
  DeviceRank rank(alone, RankId(0), *transport, {}, std::move(device).value());
  ASSERT_TRUE(rank.set_up().ok());
  for (const bool copies : {true, false}) {
    ASSERT_TRUE(rank.hold_sms(8, copies).ok());
    ASSERT_TRUE(rank.step().ok());
    EXPECT_EQ(rank.held_gb_per_s(), copies ? 24 : 0);
  }
  const Status too_many = rank.hold_sms(132, true);
  ASSERT_FALSE(too_many.ok());
  EXPECT_EQ(too_many.error().kind, ErrorKind::kUnsupported);
}

// Memory that moved in the step is given back once nothing holds SMs: CUDA would wait for that.
TEST_F(FakeCuda, MemoryIsFreedOnceSmsAreReleased) {
  constexpr std::size_t kMiB = 1 << 20;
  fake::state().memory = 4 * kMiB;  // a quarter may lie unused
  const auto session = x_sessions->of(0);
  ASSERT_TRUE(session.ok());
  fake::state().memory = 1024 * kMiB;
  const Workload alone = micro_ranks(1);
  const auto transport = make_thread_transport(alone);
  const auto device = opened(this->device(), alone, *transport);
  ASSERT_TRUE(device->hold_sms(8, true).ok());
  ASSERT_TRUE(session.value()->scratch(0, 0, 2 * kMiB).ok());
  ASSERT_TRUE(session.value()->scratch(0, 0, 4 * kMiB).ok());
  const std::size_t before = fake::state().used[0];
  ASSERT_TRUE(device->finish().ok());
  EXPECT_EQ(fake::state().used[0], before);
  ASSERT_TRUE(device->release_sms().ok());
  EXPECT_LT(fake::state().used[0], before);
}

// Communicators that could be made go with those that could not.
TEST_F(FakeCuda, AWorldThatIsHalfMadeIsAborted) {
  const CudaModule module = open_fake();
  const Workload workload =
      micro_workload(micro_collective(CollectiveKind::kAllReduce, 1000, 2), 2, 2, 4);
  const auto transport = make_thread_transport(workload);
  fake::state().refuses_split = true;
  std::array<Status, 2> results{ok_status(), ok_status()};
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      auto rank = module.make_rank(workload, RankId(r), *transport, {});
      results.at(r) = rank.ok() ? rank.value()->set_up() : Status(rank.error());
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Status& status : results) EXPECT_FALSE(status.ok());
  EXPECT_EQ(calls("ncclCommAbort"), 2);
  fake::state().refuses_split = false;
  on_two_ranks(workload, *transport, module.make_rank, {},
               [](RankRunner& rank, RankId) { return rank.step(); });
  EXPECT_EQ(calls("ncclCommInitRank"), 4);
}

// After an error communicators are aborted, graphs before them; ranks that come later get new ones.
TEST_F(FakeCuda, CommunicatorsAreAbortedAfterAnError) {
  const CudaModule module = open_fake();
  const Workload workload =
      micro_workload(micro_collective(CollectiveKind::kAllReduce, 1000, 2), 2, 2, 4);
  HostOptions options;
  options.graphs = true;
  const auto transport = make_thread_transport(workload);
  on_two_ranks(workload, *transport, module.make_rank, options,
               [&](RankRunner& rank, RankId) -> Status {
                 for (int s = 0; s < 2; ++s) FT_TRY(rank.step());
                 transport->abort("a rank gave up");
                 EXPECT_FALSE(rank.step().ok());
                 return ok_status();
               });
  EXPECT_GT(calls("ncclCommAbort"), 0);
  EXPECT_EQ(calls("ncclCommDestroy"), 0);
  const auto next = make_thread_transport(workload);
  on_two_ranks(workload, *next, module.make_rank, options,
               [](RankRunner& rank, RankId) { return rank.step(); });
}

// The operations of a calibration one after another, with what they are filled with.
TEST_F(FakeCuda, CalibratesOnOneSession) {
  const CudaModule module = open_fake();
  CalibrateOptions options;
  options.seconds = 0.01;
  options.rotation = 1 << 14;
  options.make_rank = module.make_rank;
  options.library = "fake";
  options.gemm_rate = options.byte_rate = 1e8;
  std::vector<MicroOp> ops;
  for (const DType type : {DType::kFp32, DType::kBf16, DType::kFp16}) {
    ops.push_back(micro_gemm(Gemm{16, 8, 8, 1, false, true, false, type, type}, 1));
  }
  Profile profile;
  profile.machine = Json{Json::Object{}};
  const auto whole = calibrate_threads(ops, 1, options, profile);
  ASSERT_TRUE(whole.ok()) << whole.error().message;
  for (const MicroOp& op : ops) EXPECT_NE(profile.find(op.key), nullptr);
  EXPECT_EQ(calls("cublasLtCreate"), 1);
}

}  // namespace
}  // namespace foretrain
