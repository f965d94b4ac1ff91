// Loads of experts from the command line: what is predicted, what is refused by name.
#include <gtest/gtest.h>

#include "tests/cli/run_command.h"

namespace foretrain {
namespace {

const char* const kLoadRun = R"({"model": {"preset": "mixtral-8x7b", "num_hidden_layers": 4},
    "cluster": {"preset": "dgx-h100", "accelerators": 8}, "parallel": {"expert": 4},
    "batch": {"global": 8, "micro": 1, "sequence": 4096}, "moe": {"routing": "natural"}})";

TEST(ExpertLoad, SetsThePace) {
  const Workplace place;
  place.write("run.json", kLoadRun);
  const auto time = [&place](const std::vector<std::string>& sets) {
    return at(simulated(place, "run.json", sets), "iteration_time_s").number();
  };
  const double balanced = time({"moe.routing=balanced"});
  EXPECT_EQ(time({"moe.load=[1,1,1,1,1,1,1,1]"}), balanced);
  double last = balanced;
  for (const char* exponent : {"0.2", "0.4", "0.6"}) {
    const double now = time({"moe.load={\"zipf\":" + std::string(exponent) + "}"});
    EXPECT_GT(now, last) << exponent;
    last = now;
  }
  // As many tokens on every rank, but not of every expert.
  const double uneven = time({"moe.load=[3,1,3,1,3,1,3,1]"});
  EXPECT_GE(uneven, balanced);
  EXPECT_LT(uneven, time({"moe.load=[3,3,3,3,1,1,1,1]"}));
}

// Products side by side on several streams, beside the gathers of sharded parameters: no faster,
// but for what rounding up to tiles gives and takes.
TEST(ExpertLoad, SetsThePaceBesideCollectives) {
  const Workplace place;
  place.write("run.json", kLoadRun);
  const auto time = [&place](const std::string& load) {
    return at(simulated(place, "run.json",
                        {"cluster.preset=dgx-b200", "parallel.expert=1",
                         "sharding.level=parameters", "moe.load=" + load}),
              "iteration_time_s")
        .number();
  };
  EXPECT_GT(time("[1.1,0.9,1,1,1,1,1,1]"), 0.995 * time("[1,1,1,1,1,1,1,1]"));
  EXPECT_GT(time("[2,1,1,1,1,1,1,0.5]"), time("[1,1,1,1,1,1,1,1]"));
}

TEST(ExpertLoad, ThatCannotBe) {
  const Workplace place;
  place.write("run.json", kLoadRun);
  const std::vector<std::pair<std::vector<std::string>, const char*>> bad = {
      {{"moe.load=[1,2]"}, "found 2 shares, expected a share of the choices for each of the 8"},
      {{"moe.load=[1,1,1,1,1,1,1,-1]"}, "found -1 in the list"},
      {{"moe.load=[0,0,0,0,0,0,0,0]"}, "all shares are 0"},
      {{"moe.load=2"}, "found 2, expected a share"},
      {{"moe.load={}"}, "the exponent"},
      {{"moe.load=[9,1,1,1,1,1,1,1]"}, "one has at most 4 times"},
      {{"moe.load={\"zipf\":0.5}", "moe.imbalance=1.5"}, "in place of imbalance"},
      {{"moe.load={\"zipf\":0.5}", "moe.routing=capacity"}, "is of routing \"natural\""},
      {{"moe.load={\"zipf\":0.5}", "moe.routing=balanced"}, "routing \"balanced\" has none"}};
  for (const auto& [sets, part] : bad) {
    const CommandResult result = place.run(with_sets({"simulate", "run.json"}, sets));
    expect_refused(place, result, {"/moe/load", part});
  }
}

// The busiest rank sets the pace; what all ranks execute stays the same.
TEST(ExpertLoad, AddsNoArithmetic) {
  const Workplace place;
  place.write("run.json", kLoadRun);
  const auto executed = [&place](const std::vector<std::string>& sets) {
    const Json result = simulated(place, "run.json", sets);
    return at(result, "hfu").number() * at(result, "iteration_time_s").number();
  };
  const double balanced = executed({"moe.routing=balanced"});
  for (const char* imbalance : {"moe.imbalance=1.25", "moe.imbalance=2"}) {
    EXPECT_NEAR(executed({imbalance}), balanced, 2e-3 * balanced) << imbalance;
  }
}

// Groups of shards hold all experts, of ranks that follow each other.
TEST(ExpertGroups, HoldAllExperts) {
  const Workplace place;
  place.write("run.json", kLoadRun);
  const std::vector<std::string> base = {"cluster.accelerators=32", "batch.global=32",
                                         "sharding.level=parameters"};
  const auto with_base = [&base](std::vector<std::string> sets) {
    sets.insert(sets.begin(), base.begin(), base.end());
    return sets;
  };
  const auto peak = [&](const char* group) {
    const Json result = simulated(place, "run.json", with_base({group}));
    return at(result, "memory/peak_gib").number();
  };
  EXPECT_LT(peak("sharding.group_size=16"), peak("sharding.group_size=8"));
  const std::vector<std::pair<std::vector<std::string>, const char*>> bad = {
      {{"sharding.group_size=2"}, "a multiple of expert 4 x expert_tensor 1 = 4"},
      {{"sharding.group_size=8", "parallel.rank_order=dp-tp-pp", "parallel.tensor=2"},
       "one with dp behind tp, cp and ep"}};
  for (const auto& [sets, part] : bad) {
    const CommandResult result = place.run(with_sets({"simulate", "run.json"}, with_base(sets)));
    expect_refused(place, result, {"/sharding/group_size", part});
  }
}

}  // namespace
}  // namespace foretrain
