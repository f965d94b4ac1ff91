// Do GPT-2's layers take experts in the place of their MLPs, biases and gelu included?
#include <gtest/gtest.h>

#include <set>

#include "models/lower.h"
#include "sim/base/assets.h"
#include "sim/program/verify.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

Model gpt_with_experts() {
  const std::string text(find_asset("models/gpt-1.3b-moe-128.json"));
  return read_model(parse_json(text, "preset").value(), "preset", "").value();
}

// Of 24 layers every other one has 128 MLPs of 8 h^2 + 5 h parameters and a router of 128 h in the
// place of one: DeepSpeed-MoE's 52 billion parameters. A token is multiplied with as many as
// without experts, and the routers.
TEST(GptExperts, HaveTheParametersOfTheirMlps) {
  const Model model = gpt_with_experts();
  Model dense = model;
  dense.experts = Experts{};
  const std::int64_t h = model.hidden;
  EXPECT_EQ(parameter_count(model),
            parameter_count(dense) + 12 * (127 * (8 * h * h + 5 * h) + 128 * h));
  EXPECT_NEAR(static_cast<double>(parameter_count(model)), 52e9, 1e9);
  EXPECT_EQ(active_parameter_count(model), parameter_count(dense) + 12 * 128 * h);
}

double flops_of_gemms(const Program& program, const std::string& prefix) {
  double out = 0;
  for (const Call& call : program.calls) {
    for (const Op& op : program.segments[call.segment.index()].ops) {
      const Work& work = program.works[op.work.index()];
      const bool product = std::holds_alternative<Gemm>(work);
      if (product && std::string(op.name).starts_with(prefix)) out += flops_of(work);
    }
  }
  return out;
}

// One expert for every token is an MLP: the same GEMMs and the same activation.
TEST(GptExperts, OneExpertIsAnMlp) {
  Model model = small_gpt();
  model.experts = Experts{1, 1, model.intermediate, 0, 0, 1, true};
  Model dense = model;
  dense.experts = Experts{};
  const Plan plan = small_plan(model, {1, 1, 1, 1}, 1);
  const Workload sparse = lower(model, plan);
  ASSERT_TRUE(verify(sparse).ok()) << verify(sparse).error().message;
  const Program plain = lower(dense, plan).programs[0];
  EXPECT_DOUBLE_EQ(flops_of_gemms(sparse.programs[0], "moe.experts"),
                   flops_of_gemms(plain, "mlp."));
  std::set<KernelKind> kinds;
  for (const Work& work : sparse.programs[0].works) {
    if (const auto* kernel = std::get_if<Kernel>(&work)) kinds.insert(kernel->kind);
  }
  EXPECT_TRUE(kinds.contains(KernelKind::kGelu) && kinds.contains(KernelKind::kGeluBackward));
  EXPECT_FALSE(kinds.contains(KernelKind::kSwiglu));
}

// On expert ranks, recomputed and not, with a tied table, dropout, shared experts and stages.
TEST(GptExperts, AreLoweredUnderEveryPlan) {
  Model model = small_gpt();
  model.experts = Experts{8, 1, model.intermediate, 0, 0, 2, true};
  for (const std::int64_t shared : {0, 64}) {
    model.experts.shared_width = shared;
    for (const PlanDegrees degrees :
         {PlanDegrees{1, 1, 1, 8}, PlanDegrees{2, 1, 1, 4}, PlanDegrees{1, 2, 1, 4}}) {
      for (const bool whole : {false, true}) {
        Plan plan = small_plan(model, degrees, 2);
        plan.sequence = degrees.tensor > 1;
        plan.experts.expert = 4;
        plan.experts.routing = Routing::kCapacity;
        plan.dropout = 0.1;
        plan.recompute.layer = whole;
        plan.recompute.expert_activation = !whole;
        const Status status = verify(lower(model, plan));
        EXPECT_TRUE(status.ok()) << status.error().message;
      }
    }
  }
}

// DeepSpeed's masks: two products forward and three backward of s tokens, E c places and h columns,
// whatever the ranks, with places for at least so many tokens; tokens alone travel, twice each way.
TEST(GptExperts, ArePickedByMasks) {
  Model model = gpt_with_experts();
  model.layers = 2;
  for (const std::int64_t ranks : {1, 4}) {
    for (const std::int64_t least : {0, 64}) {
      Plan plan = small_plan(model, {1, 1, 1, ranks}, 1);
      plan.experts.expert = ranks;
      plan.experts.routing = Routing::kCapacity;
      plan.experts.masks = true;
      plan.experts.least_capacity = least;
      const Workload workload = lower(model, plan);
      const Status status = verify(workload);
      ASSERT_TRUE(status.ok()) << status.error().message;
      const Program& program = workload.programs[0];
      const std::int64_t tokens = plan.tokens();
      const std::int64_t places = std::max((tokens + 127) / 128, least) * 128;
      EXPECT_DOUBLE_EQ(flops_of_gemms(program, "moe.masks."),
                       5 * 2.0 * static_cast<double>(tokens * places * model.hidden));
      std::int64_t exchanges = 0;
      for (const Call& call : program.calls) {
        for (const Op& op : program.segments[call.segment.index()].ops) {
          const auto* c = std::get_if<Collective>(&program.works[op.work.index()]);
          if (c == nullptr || c->kind != CollectiveKind::kAllToAll) continue;
          EXPECT_EQ(c->count, places * model.hidden) << op.name;
          ++exchanges;
        }
      }
      EXPECT_EQ(exchanges, ranks > 1 ? 4 : 0);
    }
  }
}

}  // namespace
}  // namespace foretrain
