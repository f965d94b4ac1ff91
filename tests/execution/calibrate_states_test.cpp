// Are bursts and what is sustained told apart, is slowdown beside held SMs measured, and does every
// sample say what the machine ran at? On a loop device whose clock and SMs a test makes.
#include <gtest/gtest.h>

#include <utility>

#include "executor/calibrate.h"
#include "executor/cuda/device_rank.h"
#include "executor/cuda/hold_kernel.h"
#include "tests/execution/loop_device.h"

namespace foretrain {
namespace {

constexpr double kFullClock = 1980;
constexpr std::int64_t kPsAtFullClock = 400'000;  // of an op

/// A GPU that falls from its full clock by a share a step, to a floor, and is back after a pause;
/// and that has so many SMs to hold. What time really passes does not matter to it.
struct FakeGpu {
  double fall = 0.02, floor = 1400, slower_by_clock = 1;
  int sms = 100;
  double clock = kFullClock;
  int held = 0, holds = 0, releases = 0;
  bool rested = true;

  void begin() {
    clock = std::exchange(rested, false) ? kFullClock : std::max(floor, clock * (1 - fall));
  }
  /// Twice as long beside 100 SMs.
  Time busy() const {
    const double by_clock = 1 + slower_by_clock * (kFullClock / clock - 1);
    const double beside = 1 + held / 100.0;
    return Time{static_cast<std::int64_t>(kPsAtFullClock * by_clock * beside)};
  }
  Status hold(int count) {
    if (count >= sms) return unsupported("only " + std::to_string(sms) + " SMs");
    held = count;
    ++holds;
    return ok_status();
  }
  Status release() {
    // The times of the step that it was held beside are read after it.
    ++releases;
    return ok_status();
  }
};

class FakeState final : public StateReader {
 public:
  explicit FakeState(const FakeGpu& gpu) : x_gpu(gpu) {}
  MachineState read() override { return {x_gpu.clock, 500, std::nullopt}; }
  std::string missing() const override { return "temperature: broken"; }

 private:
  const FakeGpu& x_gpu;
};

CalibrateOptions options_on(FakeGpu& gpu) {
  CalibrateOptions out;
  out.seconds = 0.05;
  out.rotation = 1 << 16;
  out.library = "loops";
  out.gemm_rate = out.byte_rate = 1e8;
  out.rest = [&gpu](double) { gpu.rested = true; };
  out.long_step = 4e-6;
  out.window = 0.005;
  out.settle = 0.01;
  out.heat = 0.02;
  out.most_settle = 2;
  out.state = std::make_shared<FakeState>(gpu);
  out.make_rank = [&gpu](const Workload& of, RankId rank, Transport& transport,
                         const HostOptions& how) {
    LoopGpu loops;
    loops.begin = [&gpu] { gpu.begin(); };
    loops.busy = [&gpu] {
      const Time took = gpu.busy();
      gpu.held = 0;
      return took;
    };
    loops.hold = [&gpu](int sms) { return gpu.hold(sms); };
    loops.release = [&gpu] { return gpu.release(); };
    return Result<std::unique_ptr<RankRunner>>(std::make_unique<DeviceRank>(
        of, rank, transport, how, make_loop_device(rank, transport, 1, std::move(loops))));
  };
  return out;
}

MicroOp product(const char* state, std::int32_t sms = 0) {
  MicroOp out = micro_gemm(Gemm{8, 8, 8, 1, false, true, false, DType::kBf16, DType::kBf16}, 1);
  out.key.state = state;
  out.key.sms = sms;
  return out;
}

Profile measured(const std::vector<MicroOp>& ops, const CalibrateOptions& options) {
  Profile out;
  out.machine = Json{Json::Object{}};
  out.machine.set("blas", "loops");
  const Result<bool> whole = calibrate_threads(ops, 1, options, out);
  EXPECT_TRUE(whole.ok()) << whole.error().message;
  return out;
}

// t = 0.4 us at 1980 MHz: that in a burst, 1980/1400 of it once the clock has come to its floor.
TEST(States, BurstAndSustainedAreToldApart) {
  FakeGpu gpu;
  const std::vector<MicroOp> ops = {product(kBurst), product(kSustained)};
  CalibrateOptions options = options_on(gpu);
  options.seconds = 0.5;  // two steps of some 0.1 ms that do not differ end it
  const Profile profile = measured(ops, options);
  const Sample* const burst = profile.find(ops[0].key);
  const Sample* const sustained = profile.find(ops[1].key);
  ASSERT_TRUE(burst != nullptr && sustained != nullptr);
  EXPECT_NEAR(burst->median_us, 0.4, 1e-3);
  EXPECT_NEAR(sustained->median_us, 0.4 * kFullClock / 1400, 1e-3);
  EXPECT_EQ(burst->ran_at, (MachineState{kFullClock, 500, std::nullopt}));
  EXPECT_EQ(sustained->ran_at.clock_mhz, 1400);
  EXPECT_EQ(sustained->stopped, "spread");
  // A step takes the sustained time, and says so.
  const auto price = ProfileTable(profile).price(ops[0].work, 1);
  ASSERT_TRUE(price.ok());
  EXPECT_NEAR(price.value().seconds * 1e6, 0.4 * kFullClock / 1400, 1e-3);
  EXPECT_NE(price.value().from.find("sustained, at 1400 MHz, 500 W"), std::string::npos)
      << price.value().from;
}

// Without the other state what there is counts.
TEST(States, BurstsPriceWhereNothingIsSustained) {
  FakeGpu gpu;
  const Profile profile = measured({product(kBurst)}, options_on(gpu));
  const auto price = ProfileTable(profile).price(product("").work, 1);
  ASSERT_TRUE(price.ok());
  EXPECT_EQ(price.value().provenance, Provenance::kMeasured);
  EXPECT_NE(price.value().from.find(", burst"), std::string::npos) << price.value().from;
}

// The clock never stops falling, the time stays: it is said that the state was not reached.
TEST(States, WhatDriftsOnIsSaid) {
  FakeGpu gpu;
  gpu.floor = 0;
  gpu.slower_by_clock = 0;
  CalibrateOptions options = options_on(gpu);
  options.most_settle = 0.1;
  const Profile profile = measured({product(kSustained)}, options);
  const Sample* const sample = profile.find(product(kSustained).key);
  ASSERT_NE(sample, nullptr);
  EXPECT_EQ(sample->stopped, "drifting");
  EXPECT_NEAR(sample->median_us, 0.4, 1e-3);
}

// What is known in a state is known where none is asked for; another state is measured.
TEST(States, AreResumedOneByOne) {
  FakeGpu gpu;
  CalibrateOptions options = options_on(gpu);
  Profile profile = measured({product(kBurst)}, options);
  std::vector<std::string> shown;
  options.progress = [&](std::size_t, std::size_t, const std::string& what) {
    shown.push_back(what);
  };
  ASSERT_TRUE(calibrate_threads({product(kBurst), product("")}, 1, options, profile).ok());
  EXPECT_TRUE(shown.empty());
  ASSERT_TRUE(calibrate_threads({product(kSustained)}, 1, options, profile).ok());
  EXPECT_EQ(shown.size(), 1U);
}

// t(k) = (1 + k/100) t: alone and beside in turns, every hold is let go.
TEST(States, SlowdownBesideHeldSms) {
  FakeGpu gpu;
  gpu.fall = 0;
  const std::vector<MicroOp> ops = {product(""), product("", 8), product("", 32)};
  const Profile profile = measured(ops, options_on(gpu));
  EXPECT_GT(gpu.holds, 2);
  EXPECT_EQ(gpu.holds, gpu.releases);
  for (const int sms : {8, 32}) {
    const Sample* const sample = profile.find(product("", sms).key);
    ASSERT_NE(sample, nullptr);
    EXPECT_NEAR(sample->alone_us, 0.4, 1e-3);
    EXPECT_NEAR(sample->price_us(), 0.4 * (1 + sms / 100.0), 1e-3);
  }
  const ProfileTable table(profile);
  EXPECT_NEAR(table.price(ops[0].work, 1).value().seconds * 1e6, 0.4, 1e-3);
  const auto& beside = table.beside(ops[0].work);
  ASSERT_EQ(beside.size(), 2U);
  EXPECT_EQ(beside[0].sms, 8);
  EXPECT_NEAR(beside[0].slowdown, 1.08, 1e-3);
  EXPECT_NEAR(beside[1].slowdown, 1.32, 1e-3);
}

// What cannot be held is left out by name; the rest is measured.
TEST(States, WhatCannotBeHeldIsLeftOutAndSaid) {
  FakeGpu gpu;
  gpu.sms = 16;
  const Profile profile = measured({product("", 8), product("", 32), product("")}, options_on(gpu));
  EXPECT_NE(profile.find(product("", 8).key), nullptr);
  EXPECT_EQ(profile.find(product("", 32).key), nullptr);
  EXPECT_NE(profile.find(product("").key), nullptr);
  const Json* const skipped = profile.machine.find("skipped");
  ASSERT_TRUE(skipped != nullptr && skipped->array() != nullptr);
  ASSERT_EQ(skipped->array()->size(), 1U);
  EXPECT_NE((*skipped->array())[0].string()->find("only 16 SMs"), std::string::npos);
}

// The host has no SMs; its samples say its clock where it can be read, the profile what cannot.
TEST(States, OfTheHost) {
  CalibrateOptions options;
  options.seconds = 0.001;
  options.rotation = 1 << 16;
  options.no_state = "clock: nobody looks";
  MicroOp plain = micro_gemm(Gemm{8, 8, 8, 1, false, true, false, DType::kFp32, DType::kFp32}, 1);
  MicroOp beside = plain;
  beside.key.sms = 4;
  Profile profile;
  profile.machine = machine_identity();
  ASSERT_TRUE(calibrate_threads({plain, beside}, 1, options, profile).ok());
  EXPECT_NE(profile.find(plain.key), nullptr);
  EXPECT_EQ(profile.find(beside.key), nullptr);
  EXPECT_EQ(profile.find(plain.key)->ran_at, MachineState{});
  EXPECT_EQ(*profile.machine.find("state")->find("not_readable")->string(), options.no_state);
  EXPECT_NE(dump_json(*profile.machine.find("skipped")).find("the host has no SMs"),
            std::string::npos);
}

// The medians of samples, and of what is in the whole profile.
TEST(States, AreOfTheWholeProfileToo) {
  FakeGpu gpu;
  const Profile profile = measured({product(kBurst)}, options_on(gpu));
  const Json* const state = profile.machine.find("state");
  ASSERT_NE(state, nullptr);
  EXPECT_EQ(state->find("power_w")->number(), 500);
  EXPECT_GT(state->find("clock_mhz")->number(), 1000);
  EXPECT_EQ(state->find("temperature_c"), nullptr);
  EXPECT_EQ(*state->find("not_readable")->string(), "temperature: broken");
  for (const auto& [key, sample] : profile.samples) EXPECT_EQ(sample.ran_at.power_w, 500) << key.op;
}

// The blocks of the kernel that holds SMs copy every word of their part, chunk by chunk, and begin
// again behind the last.
TEST(HoldCopy, BlocksCopyTheirPartsOverAndOver) {
  for (const std::int64_t blocks : {1, 3, 7}) {
    device::HoldCopy copy;
    copy.words = 100;
    copy.chunk = 8;
    std::vector<int> copied(100, 0);
    for (std::int64_t block = 0; block < blocks; ++block) {
      const std::int64_t part = 100 * (block + 1) / blocks - 100 * block / blocks;
      const std::int64_t rounds = (part + 7) / 8;
      for (std::int64_t round = 0; round < 2 * rounds; ++round) {
        std::int64_t count = 0;
        const std::int64_t first = copy.chunk_begin(block, blocks, round, count);
        EXPECT_LE(count, 8);
        for (std::int64_t i = 0; i < count; ++i) ++copied[static_cast<std::size_t>(first + i)];
      }
    }
    for (const int times : copied) EXPECT_EQ(times, 2);
  }
  std::int64_t count = 1;
  EXPECT_EQ(device::HoldCopy{}.chunk_begin(0, 1, 0, count), 0);
  EXPECT_EQ(count, 0);
}

}  // namespace
}  // namespace foretrain
