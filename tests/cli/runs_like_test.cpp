// Are the nearest published runs told, with their errors, and nothing where none is near?
#include <gtest/gtest.h>

#include "tests/cli/run_command.h"
#include "tools/score/runs_like.h"

namespace foretrain {
namespace {

PublishedRun published(const std::string& id, const RunTraits& traits) {
  PublishedRun out;
  out.id = id;
  out.group = id.substr(0, 1);
  out.traits = traits;
  return out;
}

const RunTraits kOf = {"megatron-lm", "H100", "hopper", "bf16", "dense", 8'000'000'000, 64};

// Each term of the distance by itself, in the units that the page states.
TEST(RunsLike, DistanceIsASumOfTerms) {
  EXPECT_DOUBLE_EQ(distance_between(kOf, kOf), 0);
  RunTraits other = kOf;
  other.device = "H200";
  EXPECT_DOUBLE_EQ(distance_between(kOf, other), 1);
  other.system = "torchtitan";
  EXPECT_DOUBLE_EQ(distance_between(kOf, other), 2);
  other = kOf;
  other.precision = "fp8-blockwise";
  EXPECT_DOUBLE_EQ(distance_between(kOf, other), 1);
  other.precision = "fp16";
  EXPECT_DOUBLE_EQ(distance_between(kOf, other), 0);
  other = kOf;
  other.parameters /= 4;
  EXPECT_DOUBLE_EQ(distance_between(kOf, other), 1);
  EXPECT_DOUBLE_EQ(distance_between(other, kOf), 1);
  other = kOf;
  other.accelerators *= 8;
  EXPECT_DOUBLE_EQ(distance_between(kOf, other), 1);
  other = kOf;
  other.family = "experts";
  EXPECT_LT(distance_between(kOf, other), 0);
  other = kOf;
  other.architecture = "ampere";
  EXPECT_LT(distance_between(kOf, other), 0);
}

TEST(RunsLike, NearestFirstAtMostTwoOfAGroup) {
  std::vector<PublishedRun> all;
  for (const auto& [id, accelerators] :
       {std::pair("a1", 8), std::pair("a2", 64), std::pair("a3", 128), std::pair("b1", 512),
        std::pair("c1", 1 << 30)}) {
    RunTraits traits = kOf;
    traits.accelerators = accelerators;
    all.push_back(published(id, traits));
  }
  std::string ids;
  for (const PublishedRun& run : nearest_runs(all, kOf, 5)) ids += run.id + " ";
  EXPECT_EQ(ids, "a2 a3 b1 ");
  EXPECT_EQ(nearest_runs(all, kOf, 1).size(), 1U);
}

// A published run finds itself, and the error is that of its row.
TEST(RunsLike, ReportsAndResultsSayThem) {
  const Workplace place;
  const CommandResult run =
      place.run({"simulate", "llama-3.1-405b-16384-h100", "--no-advice", "--json", "r.json"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_NE(run.out.find("Runs like yours, predicted over measured\n"), std::string::npos);
  const Json result = parse_json(place.read("r.json"), "r.json").value();
  const Json::Array& runs = *result.find("runs_like_yours")->array();
  ASSERT_GT(runs.size(), 0U);
  double last = 0;
  for (const Json& one : runs) {
    EXPECT_EQ(*one.find("family"), Json("dense"));
    EXPECT_GE(one.find("distance")->number(), last);
    last = one.find("distance")->number();
    bool known = false;
    for (const PublishedRun& row : published_runs()) {
      known = known ||
              (row.id == *one.find("name")->string() && row.error == one.find("error")->number());
    }
    EXPECT_TRUE(known) << *one.find("name")->string();
  }
}

TEST(RunsLike, SayWhereNoneIsNear) {
  const Workplace place;
  const CommandResult run =
      place.run({"simulate", "gpipe-transformer-48-8-tpu-v3", "--no-advice", "--json", "r.json"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_NE(run.out.find("Runs like yours: no published run is near\n"), std::string::npos);
  const Json result = parse_json(place.read("r.json"), "r.json").value();
  EXPECT_TRUE(result.find("runs_like_yours")->array()->empty());
}

}  // namespace
}  // namespace foretrain
