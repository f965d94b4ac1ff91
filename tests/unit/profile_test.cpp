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
  Json broken = to_json(profile);
  Json::Array samples = *std::as_const(broken).find("samples")->array();
  samples[0].set("median_us", -1.0);
  broken.set("samples", samples);
  const auto negative = read_profile(broken, "p.json");
  ASSERT_FALSE(negative.ok());
  EXPECT_NE(negative.error().message.find("/samples/0/median_us"), std::string::npos);
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
