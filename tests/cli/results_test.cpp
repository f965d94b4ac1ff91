// What the command answers: whole, consistent, repeatable, and moved by every field of a RUN.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "hardware/keys/cluster_keys.h"
#include "models/plan/keys/keys.h"
#include "sim/base/json.h"
#include "tests/cli/run_command.h"
#include "tests/support/sanitized.h"

namespace foretrain {

void PrintTo(const Probe& probe, std::ostream* out) { *out << probe.set; }

namespace {

TEST(Result, HasEveryPromisedKey) {
  const Json json = simulated(small_place(), "run.json");
  for (const char* path : {"iteration_time_s",
                           "iteration_time_interval_s",
                           "tokens_per_s",
                           "tokens_per_s_per_accelerator",
                           "model_tflops_per_accelerator",
                           "mfu",
                           "hfu",
                           "memory/peak_gib",
                           "memory/capacity_gib",
                           "memory/fits",
                           "memory/by_kind_gib/parameters",
                           "memory/by_kind_gib/gradients",
                           "memory/by_kind_gib/optimizer",
                           "memory/by_kind_gib/activations",
                           "memory/by_kind_gib/communication",
                           "memory/by_kind_gib/workspace",
                           "memory/by_kind_gib/framework",
                           "memory/peak_rank",
                           "breakdown_s/host",
                           "breakdown_s/data",
                           "sensitivity",
                           "provenance/measured",
                           "provenance/interpolated",
                           "provenance/analytic",
                           "simulation/ranks",
                           "simulation/ranks_simulated",
                           "simulation/far_messages",
                           "simulation/stages_simulated",
                           "simulation/estimated_s",
                           "simulation/estimated_gib",
                           "simulation/advice_left_out",
                           "simulation/operations",
                           "simulation/events",
                           "simulation/wall_s",
                           "simulation/seed",
                           "simulation/revision",
                           "simulation/config_hash",
                           "schema"}) {
    EXPECT_FALSE(at(json, path).is_null()) << path;
  }
}

TEST(Result, ThePartsAddUp) {
  const Json json = simulated(small_place(), "run.json");
  const double step = at(json, "iteration_time_s").number();
  const auto sum_of = [&json](const char* path) {
    const Json parts = at(json, path);
    double sum = 0;
    for (const auto& [name, part] : *parts.object()) {
      EXPECT_GE(part.number(), 0) << path << "/" << name;
      sum += part.number();
    }
    return sum;
  };
  EXPECT_GT(step, 0);
  EXPECT_NEAR(sum_of("breakdown_s") / step, 1, 1e-9);
  EXPECT_NEAR(sum_of("provenance"), 1, 1e-9);
  EXPECT_NEAR(sum_of("memory/by_kind_gib") / at(json, "memory/peak_gib").number(), 1, 1e-9);
  EXPECT_NEAR(at(json, "tokens_per_s").number() * step / (16 * 512), 1, 1e-9);
}

// Data that is prepared while the device computes costs nothing; what is longer shows as such.
TEST(Result, DataThatIsTheBottleneckShowsAsSuch) {
  const auto with_data = [](double us) {
    const std::string data = "host.data_us=" + std::to_string(us);
    return simulated(small_place(), "run.json",
                     {"parallel.pipeline=1", "parallel.virtual_pipeline=1", "schedule=1f1b", data});
  };
  const Json quick = with_data(0);
  EXPECT_EQ(at(quick, "breakdown_s/data").number(), 0);
  const double step = at(quick, "iteration_time_s").number();
  const Json slow = with_data(1e6 * step);
  const double waits = at(slow, "breakdown_s/data").number();
  const double slow_step = at(slow, "iteration_time_s").number();
  EXPECT_GT(waits, 0.5 * slow_step);
  EXPECT_NEAR((slow_step - waits) / step, 1, 0.02);
}

// Workers prepare the next step's data beside this one: the step takes the longer of both.
TEST(Result, DataFromWorkersIsWaitedForWhereItTakesLonger) {
  const auto with_loader = [](double us) {
    return simulated(small_place(), "run.json",
                     {"parallel.pipeline=1", "parallel.virtual_pipeline=1", "schedule=1f1b",
                      "host.data_us=0", "host.loader_us=" + std::to_string(us)});
  };
  const Json none = with_loader(0);
  const double step = at(none, "iteration_time_s").number();
  constexpr double kMicrobatches =
      16 / 2 / 4;  // of a rank: sequences over their number, data ranks
  EXPECT_EQ(at(with_loader(1e6 * 0.9 * step / kMicrobatches), "iteration_time_s").number(), step);
  const Json slow = with_loader(1e6 * 3 * step / kMicrobatches);
  EXPECT_NEAR(at(slow, "iteration_time_s").number() / step, 3, 1e-6);
  EXPECT_NEAR(at(slow, "breakdown_s/data").number() / step, 2, 0.05);
  EXPECT_NEAR(at(slow, "sensitivity/data loading").number() / step, 3 - 3 / 1.1, 0.01);
}

TEST(Result, IsTheSameTwice) {
  Json first = simulated(small_place(), "run.json");
  Json second = simulated(small_place(), "run.json");
  for (Json* json : {&first, &second}) json->find("simulation")->set("wall_s", 0);
  EXPECT_EQ(dump_json(first), dump_json(second));
}

TEST(Result, FullSaysWhatFoldedSays) {
  const std::vector<std::string> sets = {"cluster.accelerators=16"};
  // The gains are left out of a full simulation.
  const std::vector<std::string> apart = {"simulation", "sensitivity"};
  const Json folded = simulated(small_place(), "run.json", sets);
  const Json full = simulated(small_place(), "run.json", sets, {"--full"});
  EXPECT_EQ(dump_json(without(folded, apart)), dump_json(without(full, apart)));
  EXPECT_EQ(at(full, "simulation/ranks_simulated").number(), 16);
  EXPECT_LT(at(folded, "simulation/ranks_simulated").number(), 16);
}

// A ring of 1,024 ranks on four leaves, whose classes by hop would have 42 million operations.
TEST(Result, LongRingsTakeFarMessages) {
  Workplace place;
  place.write("ring.json", R"({"model": {"preset": "llama-3-8b", "num_hidden_layers": 20},
    "cluster": {"preset": "dgx-h100", "accelerators": 1024}, "parallel": {"context": 1024},
    "batch": {"global": 1, "sequence": 131072}})");
  const Json ring = simulated(place, "ring.json", {}, {"--no-advice"});
  EXPECT_EQ(at(ring, "simulation/far_messages"), Json(true));
  EXPECT_EQ(at(ring, "simulation/ranks_simulated").number(), 8);
  EXPECT_EQ(at(simulated(small_place(), "run.json"), "simulation/far_messages"), Json(false));
}

TEST(Result, ScoreDoesNotDependOnThreads) {
  Workplace& place = small_place();
  std::string rows;
  for (int i = 0; i < 4; ++i) {
    rows += std::string(i == 0 ? "[" : ",") + R"({"id": "row)" + std::to_string(i) +
            R"(", "source": "none", "trust": "A", "group": "g", "run": )" + kSmallRun +
            R"(, "measured": {"step_time_s": 0.0)" + std::to_string(i + 1) + "}}";
  }
  place.write("rows.json", rows + "]");
  const CommandResult one = place.run({"score", "rows.json", "--json", "-", "--threads", "1"});
  const CommandResult two = place.run({"score", "rows.json", "--json", "-", "--threads", "2"});
  EXPECT_EQ(one.exit_code, 0) << one.err;
  EXPECT_EQ(one.err + two.err, "");
  EXPECT_EQ(one.out, two.out);
  const Result<Json> json = parse_json(one.out, "stdout");
  ASSERT_TRUE(json.ok());
  const Json all = at(json.value(), "rows");
  ASSERT_TRUE(all.array() != nullptr);
  EXPECT_EQ(all.array()->size(), 4U);
}

class Probes : public testing::TestWithParam<Probe> {};

TEST_P(Probes, MoveTheResult) {
  const Workplace& place = small_place();
  std::vector<std::string> sets = GetParam().base;
  const Json base = simulated(place, "run.json", sets);
  sets.push_back(GetParam().set);
  const Json other = simulated(place, "run.json", sets);
  // A note alone is no effect.
  const std::vector<std::string> apart = {"simulation", "notes"};
  EXPECT_NE(dump_json(without(base, apart)), dump_json(without(other, apart))) << GetParam().set;
  const std::vector<std::string> arguments = with_sets({"show", "run.json"}, sets);
  std::string pointer = "/" + sets.back().substr(0, sets.back().find('='));
  std::replace(pointer.begin(), pointer.end(), '.', '/');
  EXPECT_EQ(place.run(arguments).err.find(pointer + " has no effect"), std::string::npos);
}

/// Every key's own, but those of keys that change nothing anywhere.
std::vector<Probe> probes() {
  std::vector<Probe> all;
  const auto add = [&all](const auto& keys) {
    for (const auto& key : keys) {
      if (key.path() == "cluster.device.clock_mhz") continue;
      all.insert(all.end(), key.probes.begin(), key.probes.end());
    }
  };
  add(all_run_keys());
  add(cluster_keys());
  std::vector<Probe> out;
  for (std::size_t i = 0; i < all.size(); i += std::size_t{cases(1, 4)}) out.push_back(all[i]);
  return out;
}
INSTANTIATE_TEST_SUITE_P(Each, Probes, testing::ValuesIn(probes()));

// 16-bit convolutions copy what comes channels first, unless a compiler lays images out.
TEST(Result, ImagesChannelsFirstTakeLonger) {
  const Workplace& place = small_place();
  if (!place.has("images.json")) {
    place.write("images.json", R"({"model": "resnet-50", "batch": {"micro": 32},
        "cluster": {"preset": "dgx-1v", "accelerators": 8}, "precision": "fp16"})");
  }
  const auto seconds = [&place](const std::vector<std::string>& sets) {
    return at(simulated(place, "images.json", sets), "iteration_time_s").number();
  };
  const std::string first = "kernels.image_layout=channels-first";
  EXPECT_GT(seconds({first}), 1.1 * seconds({}));
  EXPECT_EQ(seconds({first, "kernels.compile=true"}), seconds({"kernels.compile=true"}));
  EXPECT_EQ(seconds({first, "precision=fp32"}), seconds({"precision=fp32"}));
}

}  // namespace
}  // namespace foretrain
