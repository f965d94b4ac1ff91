// Parameters that are gathered or kept in fp8, from the command line.
#include <gtest/gtest.h>

#include "tests/cli/run_command.h"

namespace foretrain {
namespace {

const char* const kFp8Run = R"({"model": "llama-3-8b", "cluster": {"preset": "dgx-h100",
    "accelerators": 16, "network": {"nic_gbit_per_s": 100}}, "batch": {"global": 16,
    "sequence": 1024}, "sharding": {"level": "parameters"}, "precision": "fp8",
    "kernels": {"fp8_recipe": "tensorwise"}})";

TEST(Fp8Gathers, HalveWhatTravels) {
  const Workplace place;
  place.write("run.json", kFp8Run);
  const double wide = at(simulated(place, "run.json"), "iteration_time_s").number();
  const double narrow =
      at(simulated(place, "run.json", {"sharding.gather_dtype=fp8"}), "iteration_time_s").number();
  EXPECT_LT(narrow, 0.9 * wide);
}

TEST(Fp8Gathers, ThatCannotBe) {
  const Workplace place;
  place.write("run.json", kFp8Run);
  const std::vector<std::pair<std::string, const char*>> bad = {
      {"precision=bf16", "fp8 needs precision fp8"},
      {"precision=mxfp8", "one scale for a matrix"},
      {"sharding.secondary_group=8", "does not go with secondary_group"},
      {"sharding.level=optimizer", "needs sharding.level parameters"}};
  for (const auto& [set, part] : bad) {
    const CommandResult run =
        place.run({"simulate", "run.json", "--set", "sharding.gather_dtype=fp8", "--set", set,
                   "--set", set.starts_with("precision") ? "kernels={}" : "dropout=0"});
    expect_refused(place, run, {"/sharding/gather_dtype", part});
  }
}

const char* const kMegatronRun = R"({"model": "llama-3-8b", "cluster": {"preset": "dgx-h100",
    "accelerators": 8}, "system": "megatron-lm", "parallel": {"tensor": 2}, "batch": {"global": 8,
    "sequence": 1024}, "precision": "fp8"})";

double parameters_gib(const Workplace& place, std::vector<std::string> sets) {
  const Json result = simulated(place, "run.json", std::move(sets));
  return at(result, "memory/by_kind_gib/parameters").number();
}

// Llama-3-8B has 0.87 of its parameters in the matrices of layers: of 4 bytes each 2 stay on
// Hopper, 1 where products read one copy. The system's own choice is the former.
TEST(Fp8Weights, TakeHalfTheMemory) {
  const Workplace place;
  place.write("run.json", kMegatronRun);
  const double copies = parameters_gib(place, {"kernels.fp8_weights=false"});
  const double low = parameters_gib(place, {});
  EXPECT_EQ(low, parameters_gib(place, {"kernels.fp8_weights=true"}));
  const double one = parameters_gib(place, {"kernels.fp8_copies=one"});
  EXPECT_NEAR(low / copies, (0.87 * 2 + 0.13 * 2) / (0.87 * 4 + 0.13 * 2), 0.01);
  EXPECT_NEAR(one / copies, (0.87 * 1 + 0.13 * 2) / (0.87 * 4 + 0.13 * 2), 0.01);
  EXPECT_EQ(one, parameters_gib(place, {"cluster.preset=dgx-b200"}));
  const auto head = [&place](const char* set) {
    return place.run({"simulate", "run.json", "--set", set}).out;
  };
  EXPECT_NE(head("kernels.fp8_weights=true").find("linears and their weights in fp8"),
            std::string::npos);
  EXPECT_NE(head("kernels.fp8_weights=false").find(", linears in fp8"), std::string::npos);
  EXPECT_EQ(head("precision=bf16").find("linears"), std::string::npos);
}

TEST(Fp8Weights, ThatCannotBe) {
  const Workplace place;
  place.write("run.json", kMegatronRun);
  struct Case {
    std::vector<std::string> sets;
    const char* why;
  };
  const Case cases[] = {
      {{"precision=bf16"}, "needs precision fp8"},
      {{"precision=mxfp8"}, "one scale for a matrix"},
      {{"precision={\"compute\":\"fp8\",\"master_weights\":false}"},
       "needs precision.master_weights"},
      {{"sharding.level=gradients"}, "is not modelled with sharding.level gradients"},
      {{"gradients.bucketing=parameters", "sharding.level=none"},
       "gradients.bucketing other than ranges"},
      {{"offload.optimizer=cpu"}, "is not modelled with offload.optimizer"},
      {{"gradients.reduction=reduce"}, "is not modelled with gradients.reduction"}};
  for (const Case& one : cases) {
    const CommandResult run = place.run(
        with_sets({"simulate", "run.json", "--set", "kernels.fp8_weights=true"}, one.sets));
    expect_refused(place, run, {"/kernels/fp8_weights", one.why});
  }
  const CommandResult wrong =
      place.run({"simulate", "run.json", "--set", "kernels.fp8_weights=\"low\""});
  expect_refused(place, wrong, {"/kernels/fp8_weights", "true, false or \"auto\""});
}

}  // namespace
}  // namespace foretrain
