// What `--device cuda` does from end to end, on a GPU of loops that the driver calls an H100.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "tests/cli/run_command.h"

namespace foretrain {
namespace {

/// As the shipped small run: on the cluster of the host.
constexpr const char* kTiny = R"({
  "name": "tiny",
  "model": {"model_type": "gpt2", "n_layer": 1, "n_embd": 32, "n_head": 2, "n_positions": 16,
            "vocab_size": 96, "attn_pdrop": 0, "resid_pdrop": 0},
  "cluster": {"preset": "host", "accelerators": 1},
  "batch": {"global": 2, "micro": 1, "sequence": 16},
  "precision": "bf16",
  "kernels": {"attention": "flash"}
})";

class LoopGpuCommand : public ::testing::Test {
 protected:
  LoopGpuCommand() {
    x_place.write("run.json", kTiny);
    setenv("XDG_DATA_HOME", x_place.path("in/data").c_str(), 1);
  }
  ~LoopGpuCommand() override {
    for (const char* name : {"XDG_DATA_HOME", "FORETRAIN_LOOP_GPU", "FORETRAIN_LOOP_GPUS"}) {
      unsetenv(name);
    }
  }
  Json json_of(const std::vector<std::string>& words) const {
    const CommandResult result = x_place.run_on_loop_gpu(words);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    const Result<Json> json = parse_json(result.out, "stdout");
    EXPECT_TRUE(json.ok()) << result.out << result.err;
    return json.ok() ? json.value() : Json();
  }
  Workplace x_place;
};

// A run on the host's cluster, whose model refuses its attention, is priced as a node of the GPU at
// hand.
TEST_F(LoopGpuCommand, ValidatesRunsOfTheHostsSize) {
  const Json json = json_of({"validate", "run.json", "--device", "cuda", "--steps", "4",
                             "--seconds-per-op", "0.002", "--json", "-"});
  EXPECT_EQ(at(json, "machine/device"), Json("h100-sxm-80gb"));
  EXPECT_EQ(at(json, "machine/processor"), Json("NVIDIA H100 80GB HBM3"));
  EXPECT_GT(at(json, "predicted/step_time_s").number(), 0);
  EXPECT_GT(at(json, "executed/step_time_s").number(), 0);
  EXPECT_TRUE(std::isfinite(at(json, "error/step_time_s").number()));
  EXPECT_EQ(at(json, "numerics/matches_one_rank"), Json(true));
}

// A GPU that no device is called by is on the host's cluster, priced by what is measured alone.
TEST_F(LoopGpuCommand, ValidatesOnAGpuThatNobodyKnows) {
  setenv("FORETRAIN_LOOP_GPU", "NVIDIA Abacus", 1);
  const Json json = json_of({"validate", "run.json", "--device", "cuda", "--steps", "4",
                             "--seconds-per-op", "0.002", "--json", "-"});
  EXPECT_GT(at(json, "predicted/step_time_s").number(), 0);
  const CommandResult refused = x_place.run_on_loop_gpu({"calibrate", "--device", "cuda"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_NE(refused.err.find("NVIDIA Abacus"), std::string::npos) << refused.err;
  EXPECT_NE(refused.err.find("--name DEVICE"), std::string::npos) << refused.err;
}

// A profile has its device's name, lies where simulations look, and stops at its budget.
TEST_F(LoopGpuCommand, CalibratesTheShapesOfARunWithinABudget) {
  const CommandResult made = x_place.run_on_loop_gpu(
      {"calibrate", "--device", "cuda", "--shapes-of", "run.json", "--budget", "10"});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  EXPECT_LT(made.wall_s, 40);
  const std::string path = "data/foretrain/profiles/h100-sxm-80gb.json";
  ASSERT_TRUE(x_place.has(path)) << made.out;
  const Result<Json> profile = parse_json(x_place.read(path), path);
  ASSERT_TRUE(profile.ok());
  EXPECT_EQ(at(profile.value(), "schema"), Json("foretrain/profile/2"));
  EXPECT_NE(
      at(profile.value(), "machine/command").string()->find("--shapes-of run.json --budget 10"),
      std::string::npos);
  std::int64_t products = 0;
  const Json samples = at(profile.value(), "samples");
  for (const Json& sample : *samples.array()) {
    const bool gemm = at(sample, "op").string()->starts_with("gemm");
    if (!gemm) continue;
    ++products;
    EXPECT_EQ(at(sample, "by"), Json("vendor"));
    EXPECT_EQ(at(sample, "state"), Json("sustained"));
  }
  EXPECT_GE(products, 1);  // the first of all

  const Json with = simulated(x_place, "llama-3-8b-8-h100");
  EXPECT_NE(dump_json(at(with, "notes")).find("priced from"), std::string::npos);
}

TEST_F(LoopGpuCommand, WhereThereIsNoGpuItSaysSo) {
  setenv("FORETRAIN_LOOP_GPUS", "0", 1);
  for (const char* verb : {"execute", "validate"}) {
    const CommandResult refused = x_place.run_on_loop_gpu({verb, "run.json", "--device", "cuda"});
    EXPECT_EQ(refused.exit_code, 1);
    EXPECT_NE(refused.err.find("no CUDA device"), std::string::npos) << refused.err;
  }
}

}  // namespace
}  // namespace foretrain
