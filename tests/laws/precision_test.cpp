// Low precision: do ranks agree on fp8's scales as often, and over as many, as the recipe says?
// What has 8 bits?
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "models/lower.h"
#include "models/slots.h"
#include "sim/program/memory.h"
#include "sim/program/verify.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

struct ScaleReduction {
  std::string group;
  std::int64_t values = 0;
  std::int32_t microbatch = -1;
  bool backward = false;
  bool operator==(const ScaleReduction&) const = default;
};

/// The reductions of a rank's Program in issue order. Compute issues them, and turns what comes
/// into scales before anything else.
std::vector<ScaleReduction> scale_reductions(const Program& program) {
  std::vector<ScaleReduction> out;
  const StreamId compute(std::size_t{0});
  for (const Call& call : program.calls) {
    const Segment& segment = program.segments[call.segment.index()];
    for (std::size_t o = 0; o < segment.ops.size(); ++o) {
      const Op& op = segment.ops[o];
      if (op.name != "scales.reduce") continue;
      const auto& work = std::get<Collective>(program.works[op.work.index()]);
      EXPECT_EQ(work.kind, CollectiveKind::kAllReduce);
      EXPECT_EQ(work.dtype, DType::kFp32);
      EXPECT_EQ(op.stream, compute);
      EXPECT_EQ(segment.ops.at(o + 1).name, "scales.update");
      EXPECT_EQ(segment.ops.at(o + 1).stream, compute);
      out.push_back({program.group_slots[work.group.index()], work.count, call.microbatch,
                     op.phase == Phase::kBackward});
    }
  }
  return out;
}

Plan fp8_plan(const Model& model, PlanDegrees degrees, ScaleSharing sharing) {
  Plan plan = small_plan(model, degrees, 3);
  plan.precision.linear = DType::kFp8;
  plan.precision.scales = sharing;
  return plan;
}

// Two values of each of a layer's four linears after a forward pass, one after a backward pass, in
// the order of the passes: 1F1B on the first of two stages.
TEST(SharedScales, OnceAPass) {
  const Model model = small_gpt();
  const Plan plan = fp8_plan(model, {2, 2, 1, 2}, ScaleSharing::kStage);
  const Workload workload = lower(model, plan);
  ASSERT_TRUE(verify(workload).ok()) << verify(workload).error().message;
  const std::int64_t linears = 4 * plan.pipeline_layout.at(0);
  std::vector<ScaleReduction> expected;
  for (const auto& [microbatch, backward] : std::vector<std::pair<int, bool>>{
           {0, false}, {1, false}, {0, true}, {2, false}, {1, true}, {2, true}}) {
    expected.push_back({kScaleGroup, linears * (backward ? 1 : 2), microbatch, backward});
  }
  EXPECT_EQ(scale_reductions(workload.programs[0]), expected);
}

// The ranks of a stage, of all tensor and data ranks, and of no other stage.
TEST(SharedScales, AmongAllRanksOfAStage) {
  const Model model = small_gpt();
  const Workload workload = lower(model, fp8_plan(model, {2, 2, 1, 2}, ScaleSharing::kStage));
  std::set<std::vector<RankId>> groups;
  for (const RankBinding& rank : workload.ranks) {
    const Program& program = workload.programs[rank.program.index()];
    for (std::size_t slot = 0; slot < program.group_slots.size(); ++slot) {
      if (program.group_slots[slot] != kScaleGroup) continue;
      groups.insert(workload.groups[rank.groups.at(slot).index()]);
    }
  }
  ASSERT_EQ(groups.size(), 2U);
  for (const std::vector<RankId>& group : groups) EXPECT_EQ(group.size(), 4U);
}

TEST(SharedScales, OfTensorRanksAlone) {
  const Model model = small_gpt();
  const Plan plan = fp8_plan(model, {2, 1, 1, 2}, ScaleSharing::kTensor);
  // Beside the exchanges of activations, on another stream: in a group of its own.
  const Workload workload = lower(model, plan);
  ASSERT_TRUE(verify(workload).ok()) << verify(workload).error().message;
  for (const ScaleReduction& one : scale_reductions(workload.programs[0])) {
    EXPECT_EQ(one.group, kTensorScaleGroup);
  }
  EXPECT_EQ(scale_reductions(workload.programs[0]).size(), 6U);
}

// Scales of the tensor itself, of its blocks, and of ranks that keep their own need no exchange.
TEST(SharedScales, OnlyWhereTheyAreDelayed) {
  const Model model = small_gpt();
  Plan plan = fp8_plan(model, {2, 1, 1, 2}, ScaleSharing::kStage);
  const auto count = [&] { return scale_reductions(lower(model, plan).programs[0]).size(); };
  EXPECT_EQ(count(), 6U);
  plan.precision.current_scaling = true;
  EXPECT_EQ(count(), 0U);
  plan.precision.current_scaling = false;
  plan.precision.blocks = true;
  EXPECT_EQ(count(), 0U);
  plan.precision.blocks = false;
  plan.precision.scales = ScaleSharing::kNone;
  EXPECT_EQ(count(), 0U);
  plan = fp8_plan(model, {1, 1, 1, 1}, ScaleSharing::kStage);
  EXPECT_EQ(count(), 0U);
}

// The four linears' activations are cast in every forward pass, their weights once a step; backward
// products and what is kept for them are those of 16 bits.
TEST(Int8, ForwardProductsAloneHave8Bits) {
  const Model model = small_gpt();
  Plan plan = small_plan(model, {1, 1, 1, 1}, 3);
  const Workload wide = lower(model, plan);
  plan.precision.linear = DType::kInt8;
  const Workload workload = lower(model, plan);
  EXPECT_TRUE(verify(workload).ok());
  const Program& program = workload.programs[0];
  std::int64_t casts = 0;
  std::int64_t products = 0;
  for (const Call& call : program.calls) {
    for (const Op& op : program.segments[call.segment.index()].ops) {
      const Work& work = program.works[op.work.index()];
      if (const auto* kernel = std::get_if<Kernel>(&work)) {
        if (kernel->kind == KernelKind::kQuantize) ++casts;
      }
      const auto* gemm = std::get_if<Gemm>(&work);
      if (gemm == nullptr || call.layer < 0) continue;
      const bool forward = op.phase == Phase::kForward;
      EXPECT_EQ(gemm->in, forward ? DType::kInt8 : plan.precision.compute) << op.name;
      EXPECT_NE(gemm->out, DType::kInt8);
      if (forward) ++products;
    }
  }
  EXPECT_EQ(products, 3 * 4 * model.layers);
  EXPECT_EQ(casts, products + 4 * model.layers);
  EXPECT_EQ(memory_peak(program).saved, memory_peak(wide.programs[0]).saved);
}

// PyTorch's cross_entropy in 16 bits: a gradient of the targets' logarithms, one of the logits,
// both in fp32, then the one in 16 bits.
TEST(Loss, GradientsOfTorchAreKernelsOfTheirOwn) {
  const Model model = small_gpt();
  for (const DType type : {DType::kBf16, DType::kFp32}) {
    Plan plan = small_plan(model, {1, 1, 1, 1}, 1);
    plan.loss.form = LossForm::kTorch;
    plan.precision.compute = plan.precision.matrix = type;
    std::vector<std::string> names;
    const Workload workload = lower(model, plan);
    const Program& program = workload.programs[0];
    for (const Call& call : program.calls) {
      for (const Op& op : program.segments[call.segment.index()].ops) {
        if (op.name.starts_with("loss.") && op.phase == Phase::kBackward) names.push_back(op.name);
      }
    }
    std::vector<std::string> expected = {"loss.targets", "loss.gradient"};
    if (type == DType::kBf16) expected.emplace_back("loss.narrow");
    EXPECT_EQ(names, expected);
  }
}

}  // namespace
}  // namespace foretrain
