// Prices from a profile: which sample answers, and what lies between samples.
#include <gtest/gtest.h>

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

// On a device the number of ranks tells nothing of what each does alone: the same shape is measured
// whatever it was, and all shapes are neighbours.
TEST(Profile, RanksOfADeviceDoNotMatter) {
  Profile profile;
  Sample launch;
  launch.key = {kLaunchSample, "by the host", 1};
  launch.size = 1;
  launch.median_us = 5;
  profile.add(launch);
  add(profile, gemm(64, 64, 64), 1, 10);
  add(profile, gemm(256, 64, 64), 2, 40);
  add(profile, kernel(1'200), 2, 3);
  const ProfileTable table(profile);
  for (const std::int64_t ranks : {1, 2, 8}) {
    EXPECT_DOUBLE_EQ(table.price(gemm(64, 64, 64), ranks).value().seconds, 10e-6);
    EXPECT_DOUBLE_EQ(table.price(gemm(256, 64, 64), ranks).value().seconds, 40e-6);
    EXPECT_NEAR(table.price(gemm(128, 64, 64), ranks).value().seconds, 20e-6, 1e-12);
    EXPECT_DOUBLE_EQ(table.price(kernel(1'200), ranks).value().seconds, 3e-6);
  }
  add(profile, gemm(64, 64, 64), 2, 12);
  EXPECT_DOUBLE_EQ(ProfileTable(profile).price(gemm(64, 64, 64), 4).value().seconds, 12e-6);
}

// ln t linear in ln size: twice the geometric mean of the sizes takes that of the times.
TEST(Profile, BetweenTwoSizes) {
  Profile profile;
  add(profile, kernel(1'200), 1, 1);
  add(profile, kernel(120'000), 1, 64);
  const ProfileTable table(profile);
  const auto us = [&table](Bytes bytes) {
    const auto price = table.price(kernel(bytes), 1);
    EXPECT_EQ(price.value().provenance, Provenance::kInterpolated);
    return price.value().seconds * 1e6;
  };
  EXPECT_NEAR(us(12'000), 8, 1e-9);
  EXPECT_NEAR(us(240'000), 128, 1e-9);  // at the largest's rate
  EXPECT_NEAR(us(120), 1, 1e-9);        // no less than the smallest
}

TEST(Profile, GemmsGoByTheRateOfTheirNeighbours) {
  Profile profile;
  // 2 m n k / t = 1e9 FLOP/s for one shape, 4e9 for the other: half way, sqrt of the product.
  add(profile, gemm(64, 64, 64), 1, 2.0 * 64 * 64 * 64 / 1e9 * 1e6);
  add(profile, gemm(256, 64, 64), 1, 2.0 * 256 * 64 * 64 / 4e9 * 1e6);
  const ProfileTable table(profile);
  const auto price = table.price(gemm(128, 64, 64), 1);
  ASSERT_TRUE(price.ok());
  EXPECT_NEAR(price.value().seconds, 2.0 * 128 * 64 * 64 / 2e9, 1e-12);
  EXPECT_EQ(price.value().provenance, Provenance::kInterpolated);
  // Another layout has no sample: the mean rate of all GEMMs, and it says so.
  Gemm other = gemm(128, 64, 64);
  other.transpose_a = true;
  const auto guess = table.price(other, 1);
  EXPECT_EQ(guess.value().provenance, Provenance::kAnalytic);
  EXPECT_NEAR(guess.value().seconds, 2.0 * 128 * 64 * 64 / 2e9, 1e-12);
  EXPECT_FALSE(table.price(kernel(1'200), 1).ok());
}

// Steps of ring self-attention without samples of their own: products go by the rate of attention,
// softmax by the bytes of memory-bound kernels.
TEST(Profile, StepsOfAttentionGoByWhatTheyAre) {
  Profile profile;
  Attention whole;
  whole.kernel = AttentionKernel::kUnfused;
  whole.q_len = whole.kv_len = 64;
  whole.head_dim = 16;
  whole.dtype = DType::kFp32;
  add(profile, whole, 1, flops_of(Work{whole}) / 1e9 * 1e6);
  add(profile, kernel(1'200), 1, 1'200 / 1e8 * 1e6);
  const ProfileTable table(profile);
  Attention scores = whole;
  scores.step = AttentionStep::kScores;
  EXPECT_NEAR(table.price(scores, 1).value().seconds, 2.0 * 64 * 64 * 16 / 1e9, 1e-12);
  Attention softmax = whole;
  softmax.step = AttentionStep::kSoftmax;
  EXPECT_NEAR(table.price(softmax, 1).value().seconds, 2.0 * 4 * 64 * 64 / 1e8, 1e-12);
  softmax.dropout = 0.1;
  softmax.backward = true;
  EXPECT_NEAR(table.price(softmax, 1).value().seconds, 5.0 * 4 * 64 * 64 / 1e8, 1e-12);
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

Sample in_state(const Work& work, const char* state, double us) {
  Sample out;
  out.key = sample_key(work, 1);
  out.key.state = state;
  out.size = sample_size(work);
  out.count = 10;
  out.median_us = us;
  return out;
}

// Sustained before what is not told apart before bursts, shape by shape; the price says which.
TEST(Profile, StatesOfASample) {
  Profile profile;
  const auto us = [&profile](const Gemm& work) {
    return ProfileTable(profile).price(work, 1).value().seconds * 1e6;
  };
  const auto from = [&profile](const Gemm& work) {
    return ProfileTable(profile).price(work, 1).value().from;
  };
  const Gemm work = gemm(64, 64, 64);
  profile.add(in_state(work, kBurst, 8));
  EXPECT_DOUBLE_EQ(us(work), 8);
  EXPECT_NE(from(work).find(", burst"), std::string::npos) << from(work);
  profile.add(in_state(work, "", 9));
  EXPECT_DOUBLE_EQ(us(work), 9);
  EXPECT_EQ(from(work), "measured 10 times");
  profile.add(in_state(work, kSustained, 10));
  EXPECT_DOUBLE_EQ(us(work), 10);
  EXPECT_NE(from(work).find(", sustained"), std::string::npos) << from(work);
  // Between shapes: one sample of each, (64, 64, 64) at its sustained rate.
  profile.add(in_state(gemm(256, 64, 64), kBurst, 40));
  EXPECT_NEAR(us(gemm(128, 64, 64)), 20, 1e-9);
  EXPECT_NE(from(gemm(128, 64, 64)).find("2 samples of gemm nt, 1 sustained, 1 burst"),
            std::string::npos)
      << from(gemm(128, 64, 64));
}

// A rate in one type says nothing of another.
TEST(Profile, TypesAreApart) {
  Profile profile;
  Gemm low = gemm(64, 64, 64);
  low.in = DType::kFp8;
  low.out = DType::kBf16;
  profile.add(in_state(low, kSustained, 5));
  const auto price = ProfileTable(profile).price(low, 1);
  ASSERT_TRUE(price.ok()) << price.error().message;
  EXPECT_EQ(price.value().provenance, Provenance::kMeasured);
  Gemm half = low;
  half.in = DType::kBf16;
  const auto none = ProfileTable(profile).price(half, 1);
  ASSERT_FALSE(none.ok());
  EXPECT_NE(none.error().message.find("no sample of gemm of bf16"), std::string::npos)
      << none.error().message;
  Attention attention;
  attention.q_len = attention.kv_len = 128;
  attention.head_dim = 64;
  profile.add(in_state(attention, kSustained, 7));
  attention.kv_len = attention.q_len = 256;
  EXPECT_EQ(ProfileTable(profile).price(attention, 1).value().provenance,
            Provenance::kInterpolated);
  attention.dtype = DType::kFp16;
  EXPECT_FALSE(ProfileTable(profile).price(attention, 1).ok());
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

// On a device work beside communication takes what was measured, in place of the equation of
// shares, and its price says so. fp8 products have measured prices like others.
TEST(Profile, PricesADevice) {
  const auto cluster = read_cluster(Json("dgx-h100"), "test", "");
  ASSERT_TRUE(cluster.ok()) << cluster.error().message;
  Gemm low{4096, 4096, 4096, 1, false, true, false, DType::kFp8, DType::kBf16};
  Profile profile;
  Sample launch;
  launch.key = {kLaunchSample, "by the host", 1};
  launch.size = 1;
  launch.count = 1;
  launch.median_us = 5;
  profile.add(launch);
  profile.add(in_state(low, kSustained, 130));
  profile.add(beside(low, 16, 150, 100));
  const auto model =
      make_measured_cost_model(make_cost_model(cluster.value(), PriceOptions{}), profile, 1);
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
  Gemm half = low;
  half.in = DType::kBf16;
  const auto modelled = model->price(half, {});
  ASSERT_TRUE(modelled.ok());
  EXPECT_EQ(modelled.value().provenance, Provenance::kAnalytic);
  EXPECT_EQ(duration_beside(modelled.value(), model->sm_count(), 16, 0).ps,
            (modelled.value().duration.ps * 3 + 1) / 2);
  // Memory-bound kernels have no such sample: as modelled, and it says so.
  const auto other = model->price(kernel(1 << 20), {});
  ASSERT_TRUE(other.ok());
  EXPECT_EQ(other.value().slowdowns, Cost{}.slowdowns);
  EXPECT_NE(model->explain(kernel(1 << 20), {}).find("as modelled"), std::string::npos);
}

// Host time of a launch: that within graphs where a step is one, and modelled where it was not
// measured. The gap between ops likewise.
TEST(Profile, LaunchesWithAndWithoutGraphs) {
  const auto cluster = read_cluster(Json("dgx-h100"), "test", "");
  ASSERT_TRUE(cluster.ok()) << cluster.error().message;
  PriceOptions modelled;
  modelled.dispatch_per_kernel = Time::from_us(2);
  Profile profile;
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
    const auto model =
        make_measured_cost_model(make_cost_model(cluster.value(), modelled), profile, 1, graphs);
    return model->price(work, {}).value();
  };
  const auto base = make_cost_model(cluster.value(), modelled)->price(work, {}).value();
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
  full.ran_at = {1755, 690.5, 61};
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
