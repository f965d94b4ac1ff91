// Does compute take as much longer beside communication as was measured?
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "hardware/hardware_cost_model.h"
#include "models/lower.h"
#include "tools/predict/predict.h"

namespace foretrain {
namespace {

const Json& figures() {
  static const Json json =
      read_json_file(std::string(FORETRAIN_TEST_DATA) + "/contention.json").value();
  return json;
}

double figure(const char* of, const char* name) { return figures().find(of)->find(name)->number(); }

/// How much longer the kernels of all passes together take, each beside a gather of parameters.
double slowdown_of_layers(const std::string& model, const std::string& cluster) {
  const std::string text = R"({"model": {"preset": ")" + model +
                           R"(", "num_hidden_layers": 2}, "cluster": {"preset": ")" + cluster +
                           R"(", "accelerators": 4}, "system": "pytorch-fsdp",
      "batch": {"global": 32, "micro": 8, "sequence": 1024}, "precision": "bf16"})";
  const Run run = resolve_run(parse_json(text, "test").value(), "test", {}).value();
  const auto prices = make_cost_model(run.cluster, {});
  const Program program = lower(run.model, run.plan).programs[0];
  const std::vector<RankId> ranks = {RankId(std::size_t{0}), RankId(std::size_t{1}),
                                     RankId(std::size_t{2}), RankId(std::size_t{3})};
  const std::vector<PlacementId> all = {prices->place(ranks).value()};
  Cost beside;
  double alone_s = 0;
  for (const bool gathers : {true, false}) {
    double beside_s = 0;
    for (const Call& call : program.calls) {
      for (const Op& op : program.segments[call.segment.index()].ops) {
        const Work& work = program.works[op.work.index()];
        const auto* collective = std::get_if<Collective>(&work);
        const bool gather = collective != nullptr && collective->kind == CollectiveKind::kAllGather;
        if (gathers && gather) beside = prices->price(work, all).value();
        if (gathers || op.category != Category::kCompute || call.layer < 0) continue;
        const Cost cost = prices->price(work, {}).value();
        alone_s += cost.duration.seconds();
        beside_s += duration_beside(cost, prices->sm_count(), beside.sms_held, beside.memory_share)
                        .seconds();
      }
    }
    if (!gathers) return beside_s / alone_s - 1;
  }
  return 0;
}

// In the study communication runs beside a part of the kernels: its mean is less than what kernels
// lose that always have some beside them, and its most is about what these lose at most.
TEST(Contention, LayersBesideGathers) {
  double most = 0;
  for (const char* cluster : {"dgx-a100-40gb", "dgx-h100"}) {
    for (const char* model : {"gpt3-1.3b", "gpt3-2.7b", "gpt3-6.7b", "llama-2-13b"}) {
      const double slowdown = slowdown_of_layers(model, cluster);
      std::printf("| %s | %s | %.1f %% |\n", cluster, model, 100 * slowdown);
      EXPECT_GT(slowdown, figure("compute_beside_communication", "average")) << model;
      most = std::max(most, slowdown);
    }
  }
  EXPECT_NEAR(most, figure("compute_beside_communication", "most"), 0.05);
}

// All of a wave's CTAs but for those beside them: the rest wait for a second one. What is left of
// the first was measured to be of some use, of which the price knows nothing.
TEST(Contention, ASecondWave) {
  const std::string text = R"({"preset": "dgx-h100", "accelerators": 8, "rate_spread": 0})";
  const Cluster cluster = read_cluster(parse_json(text, "test").value(), "test", "").value();
  const auto prices = make_cost_model(cluster, {});
  Gemm work;
  work.m = 256 * 11;
  work.n = 128 * 12;
  work.k = 16384;
  const Cost cost = prices->price(Work(work), {}).value();
  ASSERT_EQ(cost.tiles, static_cast<std::int64_t>(figure("one_wave", "sms")));
  const auto held = static_cast<std::int32_t>(figure("one_wave", "held"));
  const double ratio =
      cost.duration.seconds() / duration_beside(cost, prices->sm_count(), held, 0).seconds();
  const double measured = figure("one_wave", "mfu_beside") / figure("one_wave", "mfu_alone");
  std::printf("| a second wave | measured %.2f | priced %.2f |\n", measured, ratio);
  EXPECT_NEAR(ratio / measured, 1, 0.2);
}

}  // namespace
}  // namespace foretrain
