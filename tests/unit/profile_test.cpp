// Prices from a profile: which sample answers, and what lies between samples.
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <utility>

#include "hardware/cluster.h"
#include "hardware/hardware_cost_model.h"
#include "hardware/profile.h"

namespace foretrain {
namespace {

Gemm gemm(std::int64_t m, std::int64_t n, std::int64_t k) {
  return Gemm{m, n, k, 1, false, true, false, DType::kFp32, DType::kFp32};
}

Work kernel(Bytes bytes) {
  Kernel out;
  out.kind = KernelKind::kAdd;
  out.rows = 1;
  out.cols = bytes / 12;
  out.dtype = DType::kFp32;
  out.bytes = bytes;
  return out;
}

void add(Profile& profile, const Work& work, std::int64_t ranks, double us) {
  Sample sample;
  sample.key = sample_key(work, ranks);
  sample.size = sample_size(work);
  sample.count = 10;
  sample.median_us = us;
  sample.p10_us = 0.9 * us;
  sample.p90_us = 1.1 * us;
  profile.add(sample);
}

TEST(Profile, TheSameShapeIsMeasured) {
  Profile profile;
  add(profile, gemm(64, 64, 64), 1, 10);
  add(profile, gemm(64, 64, 64), 2, 14);
  const ProfileTable table(profile);
  for (const auto& [ranks, us] : {std::pair{1, 10.0}, std::pair{2, 14.0}, std::pair{8, 14.0}}) {
    const auto price = table.price(gemm(64, 64, 64), ranks);
    ASSERT_TRUE(price.ok());
    EXPECT_DOUBLE_EQ(price.value().seconds, us * 1e-6) << ranks;
    EXPECT_EQ(price.value().provenance, Provenance::kMeasured);
    EXPECT_NEAR(price.value().deviation, 0.2 / 2.56, 1e-12);
  }
}

Profile of_device(const char* device) {
  Profile out;
  out.machine = Json{Json::Object{}};
  out.machine.set("device", device);
  return out;
}

// On a device the number of ranks tells nothing of what each does alone: the same shape is measured
// whatever it was.
TEST(Profile, RanksOfADeviceDoNotMatter) {
  Profile profile = of_device("h100-sxm-80gb");
  add(profile, gemm(64, 64, 64), 1, 10);
  add(profile, gemm(256, 64, 64), 2, 40);
  add(profile, kernel(1'200), 2, 3);
  const ProfileTable table(profile);
  for (const std::int64_t ranks : {1, 2, 8}) {
    EXPECT_DOUBLE_EQ(table.price(gemm(64, 64, 64), ranks).value().seconds, 10e-6);
    EXPECT_DOUBLE_EQ(table.price(gemm(256, 64, 64), ranks).value().seconds, 40e-6);
    EXPECT_DOUBLE_EQ(table.price(kernel(1'200), ranks).value().seconds, 3e-6);
  }
  EXPECT_FALSE(table.price(gemm(128, 64, 64), 1).ok()) << "no model, no sample";
  add(profile, gemm(64, 64, 64), 2, 12);
  EXPECT_DOUBLE_EQ(ProfileTable(profile).price(gemm(64, 64, 64), 4).value().seconds, 12e-6);
}

std::unique_ptr<CostModel> prices_of(const char* preset, const PriceOptions& options = {}) {
  Json json{Json::Object{}};
  json.set("preset", preset);
  json.set("accelerators", std::int64_t{64});
  const auto cluster = read_cluster(json, "test", "");
  EXPECT_TRUE(cluster.ok()) << cluster.error().message;
  return make_cost_model(cluster.value(), options);
}

double seconds_by(CostModel& model, const Work& work) {
  return modelled_seconds(model, work, 1).value();
}

Gemm half(std::int64_t m, std::int64_t n, std::int64_t k) {
  return Gemm{m, n, k, 1, false, true, false, DType::kBf16, DType::kBf16};
}

// Samples that are all twice what is modelled: so is what lies between them; far from all of them a
// price is the modelled one, and each says so.
TEST(Profile, ResidualsFadeWithTheDistance) {
  const auto model = prices_of("dgx-h100");
  Profile profile = of_device("h100-sxm-80gb");
  for (const std::int64_t m : {2048, 8192}) {
    for (const std::int64_t k : {2048, 8192}) {
      const Gemm work = half(m, 4096, k);
      add(profile, work, 1, 2e6 * seconds_by(*model, work));
    }
  }
  const ProfileTable table(profile, PricesFor::kFramework, model.get());
  const auto ratio = [&](const Gemm& work) {
    return table.price(work, 1).value().seconds / seconds_by(*model, work);
  };
  EXPECT_NEAR(ratio(half(2048, 4096, 2048)), 2, 1e-9);
  EXPECT_NEAR(ratio(half(4096, 4096, 4096)), 2, 0.1);
  const auto near = table.price(half(4096, 4096, 4096), 1).value();
  EXPECT_EQ(near.provenance, Provenance::kInterpolated);
  const float doubt = model->price(half(4096, 4096, 4096), {}).value().deviation;
  EXPECT_LT(near.deviation, doubt);
  EXPECT_NE(near.from.find("4 samples of gemm of bf16"), std::string::npos) << near.from;
  EXPECT_NE(near.from.find("gemm 2048x4096x8192 nt bf16->bf16: weight"), std::string::npos)
      << near.from;
  double before = ratio(half(4096, 4096, 4096));
  for (const std::int64_t m : {1 << 16, 1 << 20, 1 << 24}) {
    const double now = ratio(half(m, 4096, 4096));
    EXPECT_LT(now, before);
    EXPECT_GT(now, 1);
    before = now;
  }
  const auto far = table.price(half(1 << 24, 1 << 20, 1), 1).value();
  EXPECT_EQ(far.provenance, Provenance::kAnalytic);
  EXPECT_GT(far.deviation, near.deviation);
  EXPECT_LE(far.deviation, doubt);
  EXPECT_LT(ratio(half(1 << 24, 1 << 20, 1)), 1.4);
  // Another type, and what no sample is of: as modelled.
  Gemm other = half(4096, 4096, 4096);
  other.in = other.out = DType::kFp16;
  EXPECT_NEAR(ratio(other), 1, 1e-12);
  EXPECT_NE(table.price(other, 1).value().from.find("no sample of gemm of fp16"),
            std::string::npos);
}

Sample in_state(const Work& work, const char* state, double us) {
  Sample out;
  out.key = sample_key(work, 1);
  out.key.state = state;
  out.size = sample_size(work);
  out.count = 10;
  out.median_us = us;
  return out;
}

// What is bound by its launch says nothing of rates.
TEST(Profile, LaunchBoundShapesSayNothingOfRates) {
  const auto model = prices_of("dgx-h100");
  const Gemm large = half(8192, 14336, 4096);
  for (const double us : {1.5, 5.0, 30.0, 100.0, 5e3}) {
    Profile profile = of_device("h100-sxm-80gb");
    for (const std::int64_t m : {64, 128, 192, 256}) add(profile, half(m, 128, 128), 1, us);
    const ProfileTable table(profile, PricesFor::kFramework, model.get());
    const auto price = table.price(large, 1).value();
    EXPECT_EQ(price.provenance, Provenance::kAnalytic);
    EXPECT_NEAR(price.seconds / seconds_by(*model, large), 1, 0.02) << us;
    EXPECT_EQ(table.price(half(160, 128, 128), 1).value().provenance, Provenance::kInterpolated);
  }
}

// A sample whose name and shape do not agree, or that no device could take, is not learned.
TEST(Profile, WhatCannotBeIsNotLearned) {
  const auto model = prices_of("dgx-h100");
  Profile profile = of_device("h100-sxm-80gb");
  Sample strange;
  strange.key = sample_key(half(4096, 4096, 4096), 8);
  strange.key.op = "all-reduce";
  strange.size = 1e6;
  strange.count = 1;
  strange.median_us = 1e5;
  profile.add(strange);
  Sample tiny = strange;
  tiny.key = sample_key(half(4096, 4096, 2048), 1);
  tiny.median_us = 1e-300;
  profile.add(tiny);
  const ProfileTable table(profile, PricesFor::kFramework, model.get());
  const Gemm work = half(4096, 4096, 4096);
  EXPECT_DOUBLE_EQ(table.price(work, 1).value().seconds, seconds_by(*model, work));
}

// Of two makers' samples of one shape that in the better state prices, then the framework's own.
TEST(Profile, TheBetterStateBeforeTheMaker) {
  const Gemm work = half(4096, 4096, 4096);
  Profile profile = of_device("h100-sxm-80gb");
  const auto add_by = [&](Maker by, const char* state, double us) {
    Sample sample = in_state(work, state, us);
    sample.key.by = by;
    profile.add(sample);
  };
  const auto us = [&] {
    return ProfileTable(profile, PricesFor::kFramework).price(work, 1).value().seconds * 1e6;
  };
  add_by(Maker::kVendor, kBurst, 200);
  add_by(Maker::kFramework, kSustained, 230);
  EXPECT_NEAR(us(), 230, 1e-9);
  add_by(Maker::kVendor, kSustained, 220);
  EXPECT_NEAR(us(), 230, 1e-9);
}

// A layout without samples takes less from another's than one with them.
TEST(Profile, LayoutsAreApart) {
  const auto model = prices_of("dgx-h100");
  Profile profile = of_device("h100-sxm-80gb");
  const Gemm work = half(4096, 4096, 4096);
  add(profile, work, 1, 2e6 * seconds_by(*model, work));
  const ProfileTable table(profile, PricesFor::kFramework, model.get());
  Gemm gradient = work;
  gradient.transpose_b = false;
  const double ratio = table.price(gradient, 1).value().seconds / seconds_by(*model, gradient);
  EXPECT_GT(ratio, 1.2);
  EXPECT_LT(ratio, 1.8);
}

// The kernels, launches and gaps of `execute` say nothing of a framework, the vendor's libraries
// do.
TEST(Profile, OnlyTheVendorPricesBoth) {
  const auto model = prices_of("dgx-h100");
  Profile profile = of_device("h100-sxm-80gb");
  Attention flash;
  flash.batch = 2;
  flash.q_heads = flash.kv_heads = 16;
  flash.q_len = flash.kv_len = 4096;
  flash.head_dim = 128;
  Attention cudnn = flash;
  cudnn.kernel = AttentionKernel::kCudnn;
  add(profile, Work{flash}, 1, 1e6);
  add(profile, Work{cudnn}, 1, 1e3);
  add(profile, kernel(12 << 20), 1, 1e5);
  add(profile, half(4096, 4096, 4096), 1, 300);
  Sample launch;
  launch.key = {kLaunchSample, "by the host", 1};
  launch.size = 1;
  launch.count = 1;
  launch.median_us = 50;
  profile.add(launch);
  const auto cost = [&](PricesFor what, const Work& work) {
    return make_measured_cost_model(prices_of("dgx-h100"), profile, {what, 1, false})
        ->price(work, {})
        .value();
  };
  const auto modelled = [&](const Work& work) { return model->price(work, {}).value(); };
  constexpr PricesFor kFramework = PricesFor::kFramework, kExecution = PricesFor::kExecution;
  EXPECT_EQ(cost(kFramework, Work{flash}), modelled(Work{flash}));
  EXPECT_EQ(cost(kFramework, kernel(12 << 20)), modelled(kernel(12 << 20)));
  EXPECT_EQ(cost(kFramework, kernel(24 << 20)), modelled(kernel(24 << 20)));
  EXPECT_NEAR(cost(kFramework, Work{cudnn}).duration.us(), 1e3, 1e-6);
  EXPECT_NEAR(cost(kFramework, half(4096, 4096, 4096)).duration.us(), 300, 1e-6);
  EXPECT_EQ(cost(kFramework, half(4096, 4096, 4096)).launch,
            modelled(half(4096, 4096, 4096)).launch);
  EXPECT_NEAR(cost(kExecution, Work{flash}).duration.us(), 1e6, 1e-3);
  EXPECT_NEAR(cost(kExecution, kernel(12 << 20)).duration.us(), 1e5, 1e-3);
  EXPECT_EQ(cost(kExecution, Work{flash}).launch.us(), 50);
  // A framework's own kernels price a framework alone.
  Sample norm;
  norm.key = sample_key(kernel(12 << 20), 1);
  norm.key.by = Maker::kFramework;
  norm.library = "PyTorch 2.9";
  norm.size = 12 << 20;
  norm.count = 1;
  norm.median_us = 30;
  profile.add(norm);
  EXPECT_NEAR(cost(kFramework, kernel(12 << 20)).duration.us(), 30, 1e-6);
  EXPECT_NEAR(cost(kExecution, kernel(12 << 20)).duration.us(), 1e5, 1e-3);
}

// What the model refuses has the price of its own sample, and no other.
TEST(Profile, RefusedByTheModel) {
  Profile profile = of_device("some-gpu");
  Attention work;
  work.q_len = work.kv_len = 512;
  work.head_dim = 64;
  add(profile, Work{work}, 1, 70);
  const auto model =
      make_measured_cost_model(prices_of("host"), profile, {PricesFor::kExecution, 1, false});
  ASSERT_FALSE(prices_of("host")->price(Work{work}, {}).ok());
  const auto cost = model->price(Work{work}, {});
  ASSERT_TRUE(cost.ok()) << cost.error().message;
  EXPECT_NEAR(cost.value().duration.us(), 70, 1e-6);
  EXPECT_NE(model->explain(Work{work}, {}).find("measured 10 times"), std::string::npos);
  work.q_len = 256;
  EXPECT_FALSE(model->price(Work{work}, {}).ok());
}

// A rate that is changed changes a measured price by as much as the modelled one.
TEST(Profile, WhatIfARateWereHigher) {
  Profile profile = of_device("h100-sxm-80gb");
  add(profile, half(8192, 8192, 8192), 1, 2000);
  PriceOptions faster;
  faster.compute_rate = 1.1;
  const auto model =
      make_measured_cost_model(prices_of("dgx-h100", faster), profile, {}, prices_of("dgx-h100"));
  const double ratio =
      prices_of("dgx-h100", faster)->price(half(8192, 8192, 8192), {}).value().duration.seconds() /
      prices_of("dgx-h100")->price(half(8192, 8192, 8192), {}).value().duration.seconds();
  ASSERT_LT(ratio, 0.95);
  EXPECT_NEAR(model->price(half(8192, 8192, 8192), {}).value().duration.us(), 2000 * ratio, 1e-3);
}

// A collective's sample is of a group within a node: one across nodes costs what is modelled.
TEST(Profile, GroupsThatLieElsewhereAreModelled) {
  Profile profile = of_device("h100-sxm-80gb");
  const Collective work{CollectiveKind::kAllReduce, GroupSlot(std::size_t{0}), 1 << 24,
                        DType::kBf16, false};
  add(profile, Work{work}, 8, 5000);
  const auto model = make_measured_cost_model(prices_of("dgx-h100"), profile, {});
  const auto us = [&](std::int64_t ranks, std::int64_t stride) {
    std::vector<RankId> members;
    for (std::int64_t r = 0; r < ranks; ++r)
      members.emplace_back(static_cast<std::size_t>(r * stride));
    const std::array placements = {model->place(members).value()};
    return model->price(Work{work}, placements).value().duration.us();
  };
  const auto modelled_us = [&](std::int64_t ranks, std::int64_t stride) {
    const auto plain = prices_of("dgx-h100");
    std::vector<RankId> members;
    for (std::int64_t r = 0; r < ranks; ++r)
      members.emplace_back(static_cast<std::size_t>(r * stride));
    const std::array placements = {plain->place(members).value()};
    return plain->price(Work{work}, placements).value().duration.us();
  };
  EXPECT_NEAR(us(8, 1), 5000, 1e-6);
  EXPECT_DOUBLE_EQ(us(8, 8), modelled_us(8, 8));
  EXPECT_DOUBLE_EQ(us(16, 1), modelled_us(16, 1));
  EXPECT_GT(us(4, 1), 1.5 * modelled_us(4, 1)) << "fewer ranks of the same node";
}

// Messages likewise: the sample is of ranks 0 and 1, whose links those of other nodes have not.
TEST(Profile, MessagesBetweenNodesAreModelled) {
  Message message;
  message.send = true;
  message.channel = ChannelSlot(std::size_t{0});
  message.bytes = 8 << 20;
  const Work work = P2PBatch{{message}};
  Profile profile = of_device("h100-sxm-80gb");
  add(profile, work, 2, 5000);
  const auto us = [&](CostModel& model, std::size_t to) {
    const std::array pair = {RankId(std::size_t{0}), RankId(to)};
    const std::array placements = {model.place(pair).value()};
    return model.price(work, placements).value().duration.us();
  };
  const auto measured = make_measured_cost_model(prices_of("dgx-h100"), profile, {});
  EXPECT_NEAR(us(*measured, 1), 5000, 1e-6);
  EXPECT_DOUBLE_EQ(us(*measured, 8), us(*prices_of("dgx-h100"), 8));
}

TEST(Profile, ReadsBackAndRefuses) {
  Profile profile;
  profile.machine.set("device", "host");
  add(profile, gemm(64, 64, 64), 1, 10);
  Json json = to_json(profile);
  const auto again = read_profile(json, "p.json");
  ASSERT_TRUE(again.ok()) << again.error().message;
  EXPECT_EQ(dump_json(to_json(again.value())), dump_json(json));
  EXPECT_EQ(again.value().about("device"), "host");
  json.set("schema", "foretrain/device/1");
  const auto other = read_profile(json, "p.json");
  ASSERT_FALSE(other.ok());
  EXPECT_NE(other.error().message.find("/schema"), std::string::npos);
  const auto refused = [&profile](const std::string& key, const Json& value) {
    Json broken = to_json(profile);
    Json::Array samples = *std::as_const(broken).find("samples")->array();
    samples[0].set(key, value);
    broken.set("samples", samples);
    const auto read = read_profile(broken, "p.json");
    ASSERT_FALSE(read.ok()) << key;
    EXPECT_NE(read.error().message.find("/samples/0/" + key), std::string::npos);
  };
  refused("median_us", Json(-1.0));
  for (const char* shape : {"", "gemm 64x64", "gemm 0x64x64 nt", "gemm nanx64x64"}) {
    refused("shape", Json(shape));
  }
}

// A collective of several runs is measured apart from a whole one, whose price it takes without.
TEST(Profile, RunsAreMeasuredApart) {
  Collective whole{CollectiveKind::kAllGather, GroupSlot(std::size_t{0}), 1200, DType::kFp32,
                   false};
  Collective cut = whole;
  cut.runs = {400, 400, 400};
  Profile profile;
  add(profile, Work{whole}, 2, 10);
  const auto us = [&profile](const Collective& work) {
    return ProfileTable(profile).price(Work{work}, 2).value().seconds * 1e6;
  };
  EXPECT_DOUBLE_EQ(us(cut), 10);
  add(profile, Work{cut}, 2, 25);
  EXPECT_DOUBLE_EQ(us(cut), 25);
  EXPECT_DOUBLE_EQ(us(whole), 10);
}

// A product's price is never that of another library than the machine's.
TEST(Profile, OtherLibrariesDoNotCount) {
  Profile profile;
  profile.machine = Json{Json::Object{}};
  profile.machine.set("blas", "one");
  Sample sample;
  sample.key = sample_key(gemm(64, 64, 64), 1);
  sample.size = sample_size(gemm(64, 64, 64));
  sample.count = 10;
  sample.median_us = 5;
  sample.library = "other";
  profile.add(sample);
  EXPECT_FALSE(ProfileTable(profile).price(gemm(64, 64, 64), 1).ok());
  const Result<Profile> read = read_profile(to_json(profile), "here");
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read.value().samples.begin()->second.library, "other");
  profile.machine.set("blas", "other");
  EXPECT_TRUE(ProfileTable(profile).price(gemm(64, 64, 64), 1).ok());
}

// Sustained before what is not told apart before bursts, shape by shape; the price says which.
TEST(Profile, StatesOfASample) {
  Profile profile;
  const Gemm work = gemm(64, 64, 64);
  const auto price = [&] { return ProfileTable(profile).price(work, 1).value(); };
  profile.add(in_state(work, kBurst, 8));
  EXPECT_DOUBLE_EQ(price().seconds, 8e-6);
  EXPECT_NE(price().from.find(", burst"), std::string::npos) << price().from;
  profile.add(in_state(work, "", 9));
  EXPECT_DOUBLE_EQ(price().seconds, 9e-6);
  EXPECT_EQ(price().from, "measured 10 times");
  profile.add(in_state(work, kSustained, 10));
  EXPECT_DOUBLE_EQ(price().seconds, 10e-6);
  EXPECT_NE(price().from.find(", sustained"), std::string::npos) << price().from;
}

Sample beside(const Work& work, std::int32_t sms, double us, double alone_us) {
  Sample out = in_state(work, "", us);
  out.key.sms = sms;
  out.alone_us = alone_us;
  return out;
}

// f(k) of a family: the geometric mean of its samples, never falling. What was taken beside others
// is no price.
TEST(Profile, SlowdownsByFamily) {
  Profile profile;
  profile.add(beside(gemm(64, 64, 64), 8, 11, 10));
  profile.add(beside(gemm(256, 64, 64), 8, 44, 40));
  profile.add(beside(gemm(64, 64, 64), 16, 40, 10));
  profile.add(beside(gemm(256, 64, 64), 16, 40, 40));
  profile.add(beside(gemm(64, 64, 64), 24, 15, 10));
  profile.add(beside(kernel(1'200), 8, 3, 2));
  const ProfileTable table(profile);
  const auto& of_gemms = table.beside(gemm(8, 8, 8));
  ASSERT_EQ(of_gemms.size(), 3U);
  EXPECT_EQ(of_gemms[0].samples, 2);
  EXPECT_NEAR(of_gemms[0].slowdown, 1.1, 1e-12);
  EXPECT_NEAR(of_gemms[1].slowdown, 2, 1e-12);
  EXPECT_EQ(of_gemms[2].sms, 24);
  EXPECT_NEAR(of_gemms[2].slowdown, 2, 1e-12);
  ASSERT_EQ(table.beside(kernel(120'000)).size(), 1U);
  EXPECT_NEAR(table.beside(kernel(120'000))[0].slowdown, 1.5, 1e-12);
  EXPECT_TRUE(table.beside(Work{Attention{}}).empty());
  EXPECT_FALSE(table.price(gemm(64, 64, 64), 1).ok());
}

// Between SMs that spin and SMs that copy, by what communication copies.
TEST(Profile, SlowdownsByWhatIsCopied) {
  const Gemm work = half(4096, 4096, 4096);
  Profile profile = of_device("h100-sxm-80gb");
  profile.add(in_state(work, kSustained, 100));
  Sample copies = beside(work, 16, 200, 100);
  copies.beside_gb_per_s = 670;
  profile.add(copies);
  Sample spins = beside(work, 16, 120, 100);
  spins.key.spin = true;
  profile.add(spins);
  MeasuredPricesOptions how;
  how.memory_gb_per_s = 3350;
  const auto model = make_measured_cost_model(prices_of("dgx-h100"), profile, how);
  const Cost cost = model->price(work, {}).value();
  const auto us = [&](std::int32_t sms, double share) {
    const auto memory = static_cast<std::int32_t>(share * kWhole);
    return duration_beside(cost, model->sm_count(), sms, memory).us();
  };
  EXPECT_NEAR(us(16, 0), 120, 0.01);
  EXPECT_NEAR(us(16, 0.1), 160, 0.01);
  EXPECT_NEAR(us(16, 0.2), 200, 0.01);
  EXPECT_NEAR(us(16, 0.5), 200, 0.01);
  EXPECT_NEAR(us(8, 0), 110, 0.01);
  const std::string why = model->explain(work, {});
  EXPECT_NE(why.find("1.2 times where they copy nothing, copying 670 GB/s"), std::string::npos)
      << why;
}

// A kind of kernel says little of another, whatever their sizes.
TEST(Profile, KindsOfKernelsAreFarApart) {
  const auto model = prices_of("host");
  Profile profile;
  Kernel slow = std::get<Kernel>(kernel(12 << 20));
  slow.kind = KernelKind::kGelu;
  add(profile, Work{slow}, 1, 1e7 * seconds_by(*model, Work{slow}));
  add(profile, kernel(12 << 20), 1, 1e6 * seconds_by(*model, kernel(12 << 20)));
  const ProfileTable table(profile, PricesFor::kExecution, model.get());
  const auto ratio = [&](const Work& work) {
    return table.price(work, 1).value().seconds / seconds_by(*model, work);
  };
  slow.cols *= 4;
  slow.bytes *= 4;
  EXPECT_GT(ratio(Work{slow}), 4);
  EXPECT_LT(ratio(kernel(48 << 20)), 1.5);
}

// On a device work beside communication takes what was measured, in place of the equation of
// shares, and its price says so. fp8 products have measured prices like others.
TEST(Profile, PricesADevice) {
  Gemm low{4096, 4096, 4096, 1, false, true, false, DType::kFp8, DType::kBf16};
  Profile profile = of_device("h100-sxm-80gb");
  profile.add(in_state(low, kSustained, 130));
  profile.add(beside(low, 16, 150, 100));
  const auto model = make_measured_cost_model(prices_of("dgx-h100"), profile, {});
  const auto cost = model->price(low, {});
  ASSERT_TRUE(cost.ok()) << cost.error().message;
  EXPECT_EQ(cost.value().provenance, Provenance::kMeasured);
  EXPECT_NEAR(cost.value().duration.us(), 130, 1e-6);
  EXPECT_NEAR(duration_beside(cost.value(), model->sm_count(), 16, kWhole / 2).us(), 195, 1e-3);
  EXPECT_NEAR(duration_beside(cost.value(), model->sm_count(), 8, 0).us(), 162.5, 1e-3);
  const std::string why = model->explain(low, {});
  EXPECT_NE(why.find("1.5 times beside 16 SMs (1 sample)"), std::string::npos) << why;
  EXPECT_NE(why.find("measured 10 times, sustained"), std::string::npos) << why;
  // A product in a type without samples costs what is modelled, beside others what was measured.
  Gemm other = low;
  other.in = DType::kBf16;
  const auto modelled = model->price(other, {});
  ASSERT_TRUE(modelled.ok());
  EXPECT_EQ(modelled.value().provenance, Provenance::kAnalytic);
  EXPECT_EQ(duration_beside(modelled.value(), model->sm_count(), 16, 0).ps,
            (modelled.value().duration.ps * 3 + 1) / 2);
  // Memory-bound kernels have no such sample: as modelled, and it says so.
  const auto norm = model->price(kernel(1 << 20), {});
  ASSERT_TRUE(norm.ok());
  EXPECT_EQ(norm.value().slowdowns, Cost{}.slowdowns);
  EXPECT_NE(model->explain(kernel(1 << 20), {}).find("as modelled"), std::string::npos);
}

// Of what `execute` runs, host time of a launch: that within graphs where a step is one, and
// modelled where it was not measured. The gap between ops likewise.
TEST(Profile, LaunchesWithAndWithoutGraphs) {
  PriceOptions modelled;
  modelled.dispatch_per_kernel = Time::from_us(2);
  Profile profile = of_device("h100-sxm-80gb");
  const auto overhead = [&profile](const char* op, double us) {
    Sample sample;
    sample.key = {op, op, 1};
    sample.size = 1;
    sample.count = 10;
    sample.median_us = us;
    profile.add(sample);
  };
  const Gemm work = gemm(64, 64, 64);
  profile.add(in_state(work, kSustained, 50));
  const auto cost = [&](bool graphs) {
    const auto model = make_measured_cost_model(prices_of("dgx-h100", modelled), profile,
                                                {PricesFor::kExecution, 1, graphs});
    return model->price(work, {}).value();
  };
  const auto base = prices_of("dgx-h100", modelled)->price(work, {}).value();
  overhead(kLaunchSample, 6);
  overhead(kDispatchSample, 3);
  EXPECT_EQ(cost(false).launch.us(), 6);
  EXPECT_EQ(cost(true).launch, base.launch);
  EXPECT_NE(cost(true).launch, cost(false).launch);
  EXPECT_NEAR(cost(true).duration.us(), 53, 1e-6);
  overhead(kGraphLaunchSample, 1.5);
  overhead(kGraphDispatchSample, 1);
  EXPECT_EQ(cost(false).launch.us(), 6);
  EXPECT_NEAR(cost(false).duration.us(), 53, 1e-6);
  EXPECT_EQ(cost(true).launch.us(), 1.5);
  EXPECT_NEAR(cost(true).duration.us(), 51, 1e-6);
}

// What a sample says of states and held SMs is read back; profiles without it are read as before.
TEST(Profile, StatesReadBack) {
  Profile profile;
  profile.machine.set("device", "some");
  Sample full = beside(gemm(64, 64, 64), 8, 11, 10);
  full.ran_at = {1755, 690.5, 61, 0x4 | 0x20};
  full.beside_gb_per_s = 420;
  full.key.spin = true;
  profile.add(full);
  profile.add(in_state(gemm(64, 64, 64), kBurst, 9));
  const Json json = to_json(profile);
  const auto again = read_profile(json, "p.json");
  ASSERT_TRUE(again.ok()) << again.error().message;
  EXPECT_EQ(dump_json(to_json(again.value())), dump_json(json));
  const Sample* const read = again.value().find(full.key);
  ASSERT_NE(read, nullptr);
  EXPECT_EQ(read->ran_at, full.ran_at);
  EXPECT_EQ(read->alone_us, 10);
  EXPECT_EQ(read->beside_gb_per_s, 420);
  EXPECT_EQ(median_state(again.value()), full.ran_at);
  const auto plain = read_profile(
      parse_json(R"({"schema": "foretrain/profile/1", "machine": {}, "samples": [{"op": "add",
        "shape": "s", "dtype": "fp32", "count": 3, "median_us": 2, "p10_us": 1, "p90_us": 3}],
        "fits": []})",
                 "p.json")
          .value(),
      "p.json");
  ASSERT_TRUE(plain.ok()) << plain.error().message;
  EXPECT_EQ(plain.value().samples.begin()->first, (SampleKey{"add", "s", 1}));
  // Profiles without makers: that of who computes the op in `execute`.
  for (const auto& [op, by] :
       {std::pair{"all-gather", Maker::kVendor},
        std::pair{"attention causal cudnn", Maker::kVendor},
        std::pair{"attention causal flash", Maker::kOwn}, std::pair{"copy", Maker::kVendor},
        std::pair{"launch", Maker::kOwn}, std::pair{"reduce", Maker::kVendor}}) {
    const auto old = read_profile(
        parse_json(std::string(
                       R"({"schema": "foretrain/profile/1", "machine": {}, "samples": [{"op": ")") +
                       op + R"(", "shape": "s", "median_us": 2}]})",
                   "p.json")
            .value(),
        "p.json");
    ASSERT_TRUE(old.ok()) << old.error().message;
    EXPECT_EQ(old.value().samples.begin()->first.by, by) << op;
  }
  Json broken = to_json(profile);
  Json::Array samples = *std::as_const(broken).find("samples")->array();
  samples[0].set("state", "warm");
  broken.set("samples", samples);
  const auto unknown = read_profile(broken, "p.json");
  ASSERT_FALSE(unknown.ok());
  EXPECT_NE(unknown.error().message.find("/samples/0/state: found \"warm\""), std::string::npos)
      << unknown.error().message;
}

// t = mean where it is known: a step of n equal operations takes n means, not n medians.
TEST(Profile, PricesAreMeans) {
  Sample sample;
  sample.median_us = 10;
  EXPECT_EQ(sample.price_us(), 10);
  sample.mean_us = 12;
  EXPECT_EQ(sample.price_us(), 12);
}

}  // namespace
}  // namespace foretrain
