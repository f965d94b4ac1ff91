// Do plans under autocast train as one rank without it? In double, where casts are copies.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/execution/one_rank.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

/// Both networks of the tests, and the latter with branches side by side and a tied table.
std::vector<Model> cast_models() {
  std::vector<Model> out = {narrowed(small_gpt(), 4), narrowed(small_llama(), 4)};
  out[0].positions = std::min<std::int64_t>(out[0].positions, 8);
  out.push_back(out[0]);
  out[2].parallel_residual = out[2].tied_embeddings = true;
  out.push_back(out[0]);
  out[3].bidirectional = out[3].embedding_norm = out[3].tied_embeddings = true;
  return out;
}

Plan cast_plan(const Model& model, PlanDegrees degrees, std::int64_t microbatches) {
  Plan plan = in_fp32(under_autocast(small_plan(model, degrees, microbatches)));
  plan.sequence_length = 8;
  plan.fusion = Fusion::kEager;
  plan.loss.form = LossForm::kTorch;
  return plan;
}

TEST(AutocastRuns, TrainAsOneRankWithoutIt) {
  for (const Model& model : cast_models()) {
    for (const PlanDegrees degrees :
         {PlanDegrees{1, 1, 1, 1}, PlanDegrees{1, 1, 1, 2}, PlanDegrees{1, 2, 1, 2}}) {
      for (const std::int64_t microbatches : {1, 3}) {
        for (const bool more : {false, true}) {
          Plan plan = cast_plan(model, degrees, microbatches);
          plan.attention = more ? AttentionKernel::kFlash : AttentionKernel::kUnfused;
          plan.separate_projections = more;
          plan.dropout = more ? 0 : 0.1;
          plan.sharding = more ? Sharding::kOptimizer : Sharding::kNone;
          plan.recompute.layer = microbatches == 3;
          plan.recompute.early_stop = more;
          plan.recompute.attention = !plan.recompute.layer && more;
          plan.overlap.gradient_reduce = plan.overlap.parameter_gather = true;
          if (!more) {
            plan.buckets.cut = Bucketing::kParameters;
            plan.buckets.bytes = plan.buckets.first_bytes = 2000;
            plan.buckets.copy = true;
          }
          expect_as_one_rank(model, plan);
        }
      }
    }
  }
}

// Gradients of weights in passes of their own, chunks that come back, gradients of each pass added
// after it, the output matrix' at the end, activations on the host.
TEST(AutocastRuns, GoWithSchedules) {
  const Model model = narrowed(small_llama(), 4);
  for (const Schedule schedule :
       {Schedule::kGpipe, Schedule::k1F1B, Schedule::kZbH1, Schedule::kZbV, Schedule::kDualPipe}) {
    Plan plan = cast_plan(model, {1, 2, 1, 1}, 4);
    plan.schedule = schedule;
    if (schedule == Schedule::kZbV) {
      plan.virtual_pipeline = 2;
      plan.pipeline_layout = default_layout(model.layers, 4);
    }
    expect_as_one_rank(model, plan);
    if (plan.splits_backward()) continue;
    plan.offload.activation_layers = 1;
    expect_as_one_rank(model, plan);
    if (schedule == Schedule::kDualPipe) continue;
    plan.overlap.head_deferral = 2;
    expect_as_one_rank(model, plan);
    plan.overlap.head_deferral = 0;
    plan.sums_after_pass = true;
    expect_as_one_rank(model, plan);
  }
}

}  // namespace
}  // namespace foretrain
