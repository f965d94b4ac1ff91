// Parameters that are gathered in fp8, from the command line.
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

}  // namespace
}  // namespace foretrain
