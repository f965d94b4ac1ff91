// Clusters of several kinds of nodes: laws of their steps, and what is refused.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "hardware/pools/pools.h"
#include "tests/cli/run_command.h"
#include "tools/predict/predict.h"
#include "tools/predict/run_file.h"

namespace foretrain {
namespace {

constexpr const char* kH100 = R"({"preset": "dgx-h100", "accelerators": 8})";
constexpr const char* kA100 = R"({"preset": "dgx-a100-80gb", "accelerators": 8})";

std::string pools(const std::string& first, const std::string& second) {
  return R"({"pools": [)" + first + ", " + second + "]}";
}

Result<foretrain::Run> run_on(const std::string& cluster,
                              const std::vector<std::string>& sets = {}) {
  const std::string text = R"({"model": {"model_type": "llama", "num_hidden_layers": 16,
      "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 8,
      "intermediate_size": 5632, "vocab_size": 32000}, "cluster": )" +
                           cluster + R"(, "batch": {"global": 32, "micro": 1, "sequence": 4096},
      "parallel": {"pipeline": 2, "tensor": 2}})";
  return resolve_run(parse_json(text, "a RUN").value(), "RUN", sets);
}

Prediction predicted(const foretrain::Run& run, bool full = false) {
  PredictOptions options;
  options.sensitivity = !full;
  options.full = full;
  const Result<Prediction> out = predict(run, options);
  EXPECT_TRUE(out.ok()) << out.error().message;
  return out.ok() ? out.value() : Prediction();
}

Prediction predicted_on(const std::string& cluster, const std::vector<std::string>& sets = {},
                        bool full = false) {
  const Result<foretrain::Run> run = run_on(cluster, sets);
  EXPECT_TRUE(run.ok()) << run.error().message;
  return run.ok() ? predicted(run.value(), full) : Prediction();
}

const std::vector<std::vector<std::string>>& plans() {
  static const std::vector<std::vector<std::string>> all = {
      {},
      {"sharding.level=optimizer"},
      {"parallel.pipeline=1", "parallel.tensor=4", "sharding.level=parameters"},
      {"parallel.pipeline=4", "parallel.virtual_pipeline=2", "parallel.tensor=1"},
      {"parallel.pipeline=8", "recompute=full"},
      {"offload.optimizer=nvme"},
      {"parallel.tensor=8", "overlap.tensor=true", "parallel.pipeline_partition=profiled"}};
  return all;
}

// Nodes that are alike make no other cluster when they are named in two parts.
TEST(Pools, OfEqualNodesAreOneCluster) {
  for (const auto& sets : plans()) {
    const Prediction one = predicted_on(R"({"preset": "dgx-h100", "accelerators": 16})", sets);
    const Prediction two = predicted_on(pools(kH100, kH100), sets);
    EXPECT_EQ(one.iteration_time_s, two.iteration_time_s) << ::testing::PrintToString(sets);
    EXPECT_EQ(one.memory.peak_gib, two.memory.peak_gib);
    EXPECT_EQ(one.mfu, two.mfu);
    EXPECT_EQ(one.hfu, two.hfu);
    ASSERT_EQ(one.sensitivity.size(), two.sensitivity.size());
    for (std::size_t i = 0; i < one.sensitivity.size(); ++i) {
      EXPECT_EQ(one.sensitivity[i].gain_s, two.sensitivity[i].gain_s)
          << one.sensitivity[i].resource;
    }
  }
}

TEST(Pools, FoldedIsFull) {
  for (const auto& sets : plans()) {
    const std::string mixed = pools(kA100, kH100);
    EXPECT_EQ(predicted_on(mixed, sets).iteration_time_s,
              predicted_on(mixed, sets, true).iteration_time_s)
        << ::testing::PrintToString(sets);
  }
}

// A step takes no less than on quick nodes alone and no more than on slow ones.
TEST(Pools, TakeWhatLiesBetween) {
  for (const auto& sets : plans()) {
    if (sets.size() == 3 && sets.back().ends_with("profiled")) continue;
    const double quick =
        predicted_on(R"({"preset": "dgx-h100", "accelerators": 16})", sets).iteration_time_s;
    const double slow =
        predicted_on(R"({"preset": "dgx-a100-80gb", "accelerators": 16})", sets).iteration_time_s;
    for (const std::string& mixed : {pools(kH100, kA100), pools(kA100, kH100)}) {
      const double both = predicted_on(mixed, sets).iteration_time_s;
      EXPECT_GE(both, quick) << ::testing::PrintToString(sets);
      EXPECT_LE(both, slow * 1.001) << ::testing::PrintToString(sets);
    }
  }
}

// Layers divided by time go where they take less.
TEST(Pools, DivideLayersByTime) {
  const std::vector<std::string> profiled = {"parallel.pipeline_partition=profiled"};
  for (const bool quick_first : {true, false}) {
    const std::string mixed = quick_first ? pools(kH100, kA100) : pools(kA100, kH100);
    const Result<foretrain::Run> run = run_on(mixed, profiled);
    ASSERT_TRUE(run.ok()) << run.error().message;
    const std::vector<std::int64_t>& layers = run.value().plan.pipeline_layout;
    ASSERT_EQ(layers.size(), 2);
    EXPECT_EQ(layers[0] + layers[1], 16);
    EXPECT_GE(layers[quick_first ? 0 : 1], 10);
    EXPECT_LT(predicted(run.value()).iteration_time_s, 0.85 * predicted_on(mixed).iteration_time_s);
  }
}

// The device that is fullest decides, not the one that holds most.
TEST(Pools, FitWhereEveryDeviceHasRoom) {
  const std::string small = R"({"preset": "dgx-h100", "accelerators": 8,
      "device": {"preset": "h100-sxm-80gb", "memory_gib": 3}})";
  const Prediction first = predicted_on(pools(small, kA100));
  EXPECT_FALSE(first.memory.fits);
  EXPECT_EQ(first.memory.capacity_gib, 3);
  const Prediction last = predicted_on(pools(kA100, small));
  EXPECT_FALSE(last.memory.fits);
  EXPECT_GE(last.memory.peak_rank, 8);
  EXPECT_TRUE(predicted_on(pools(kH100, kA100)).memory.fits);
}

// Each pool's nodes have memory of their own; what is not known of one hides no other.
TEST(Pools, FitOnEveryHost) {
  const std::vector<std::string> offloaded = {"offload.optimizer=cpu"};
  const std::string little = R"({"preset": "dgx-h100", "accelerators": 8, "host_memory_gib": 1})";
  for (const std::string& mixed : {pools(kA100, little), pools(little, kA100),
                                   pools(R"({"preset": "hgx-h800", "accelerators": 8})", little)}) {
    const Prediction tight = predicted_on(mixed, offloaded);
    EXPECT_FALSE(tight.memory.fits) << mixed;
    EXPECT_FALSE(tight.memory.host_fits());
    EXPECT_FALSE(tight.memory.within(1));
    EXPECT_TRUE(tight.memory.storage_fits());
  }
  EXPECT_TRUE(predicted_on(pools(kA100, kH100), offloaded).memory.fits);
}

// Which pool comes first decides nothing of how both reach each other.
TEST(Pools, MeetOnTheSlowerNetwork) {
  const std::string one_nic = R"({"preset": "dgx-h100", "accelerators": 8,
      "network": {"nics_per_node": 1}})";
  const std::vector<std::string> data = {"parallel.pipeline=1", "parallel.tensor=1",
                                         "sharding.level=none"};
  const double first = predicted_on(pools(one_nic, kH100), data).iteration_time_s;
  EXPECT_EQ(first, predicted_on(pools(kH100, one_nic), data).iteration_time_s);
  EXPECT_EQ(first, predicted_on(R"({"preset": "dgx-h100", "accelerators": 16,
      "network": {"nics_per_node": 1}})",
                                data)
                       .iteration_time_s);
}

// A node of eight stands for two of four where those have the slower network.
TEST(Pools, AreOneClusterBetweenThem) {
  const Result<foretrain::Run> run =
      run_on(pools(kH100, R"({"preset": "jean-zay-v100", "accelerators": 8})"),
             {"precision=fp16", "kernels.attention=unfused"});
  ASSERT_TRUE(run.ok()) << run.error().message;
  const Pools two(run.value().cluster);
  const std::vector<RankId> of_one = {RankId(9), RankId(12)};
  ASSERT_EQ(two.view_of(of_one), 1);
  EXPECT_EQ(two.placed(of_one, 1), (std::vector<RankId>{RankId(1), RankId(4)}));
  const std::vector<RankId> of_both = {RankId(0), RankId(5), RankId(8), RankId(12)};
  const std::size_t slowest = two.view_of(of_both);
  ASSERT_EQ(slowest, 3) << "two pools, then the whole job on the nodes of each";
  EXPECT_EQ(two.view(slowest).accelerators_per_node, 4);
  EXPECT_EQ(two.view(slowest).accelerators, 16);
  EXPECT_EQ(two.placed(of_both, slowest), of_both);
  EXPECT_EQ(two.pool_of(RankId(7)), 0);
  EXPECT_EQ(two.pool_of(RankId(8)), 1);
  EXPECT_EQ(device_names(run.value().cluster), "h100-sxm-80gb (8) and v100-sxm2-32gb (8)");
}

TEST(Pools, SayWhatIsWrong) {
  const std::pair<std::string, const char*> wrong[] = {
      {R"({"pools": []})", "expected two or more clusters"},
      {R"({"pools": [)" + std::string(kH100) + "]}", "expected two or more clusters"},
      {R"({"pools": 3})", "expected two or more clusters"},
      {R"({"pools": null})", "/cluster/pools: found null, expected two or more clusters"},
      {pools(R"({"preset": "dgx-h100", "accelerators": 65536, "accelerators_per_node": 1})",
             R"({"preset": "dgx-h100", "accelerators": 65536, "accelerators_per_node": 65536})"),
       "sizes out of proportion"},
      {R"({"preset": "dgx-h100", "pools": [)" + std::string(kH100) + ", " + kA100 + "]}",
       "/cluster/preset: stands beside \"pools\""},
      {pools(kH100, pools(kH100, kA100)), "/cluster/pools/1: a pool has no pools of its own"},
      {pools(kH100, R"({"preset": "tpu-v4", "accelerators": 8})"), "is a torus"},
      {pools(kH100, R"({"preset": "none"})"), "/cluster/pools/1/preset: no preset \"none\""},
      {pools(kH100,
             R"({"preset": "dgx-h100", "accelerators": 8, "network": {"nics_per_node": 0}})"),
       "/cluster/pools/1"}};
  for (const auto& [cluster, message] : wrong) {
    const Result<foretrain::Run> run = run_on(cluster);
    ASSERT_FALSE(run.ok()) << cluster;
    EXPECT_NE(run.error().message.find(message), std::string::npos) << run.error().message;
  }
  const std::string volta = R"({"preset": "dgx-1v-32gb", "accelerators": 8})";
  const Result<foretrain::Run> run = run_on(pools(kH100, volta), {"precision=fp8"});
  ASSERT_FALSE(run.ok());
  EXPECT_NE(run.error().message.find("v100-sxm2-32gb has no arithmetic in"), std::string::npos)
      << run.error().message;
}

TEST(Pools, AreRefusedWhereNodesMustBeAlike) {
  const Workplace place;
  const std::string run = R"({"model": "gpt3-125m", "cluster": )" + pools(kH100, kA100) +
                          R"(, "batch": {"global": 16, "sequence": 2048}})";
  place.write("run.json", run);
  for (const std::vector<std::string>& verb : {std::vector<std::string>{"execute", "run.json"},
                                               {"export", "run.json", "--to", "megatron-lm"},
                                               {"goodput", "run.json"}}) {
    const CommandResult result = place.run(verb);
    EXPECT_EQ(result.exit_code, 1) << verb.front();
    EXPECT_NE(result.err.find("/cluster/pools"), std::string::npos) << verb.front() << result.err;
  }
}

}  // namespace
}  // namespace foretrain
