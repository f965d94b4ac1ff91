// Do gradients that travel in contiguous buckets train as those of one rank?
#include <gtest/gtest.h>

#include "tests/execution/one_rank.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

// Gradients copied into contiguous buckets: of the sums of all microbatches, or pass by pass;
// reduced by compute or beside it, to everybody or in parts; tables tied or not.
TEST(ContiguousBuckets, TrainAsOneRank) {
  for (const Model& shape : {narrowed(small_gpt(), 4), narrowed(small_llama(), 4)}) {
    for (int choice = 0; choice < 32; ++choice) {
      const auto bit = [choice](int n) { return (choice >> n & 1) != 0; };
      Model model = shape;
      model.positions = model.positions > 0 ? 8 : 0;
      model.tied_embeddings = bit(0);
      Plan plan = small_plan(model, {bit(1) ? 2 : 1, 1, 1, bit(1) ? 2 : 3}, bit(2) ? 3 : 1);
      plan.sequence_length = 8;
      plan.sequence = bit(1);
      plan.sharding = bit(3) ? Sharding::kGradients : Sharding::kOptimizer;
      plan.overlap.gradient_reduce = bit(4);
      plan.overlap.parameter_gather = bit(2);
      plan.reduction = bit(0) ? GradientReduction::kAllReduce : GradientReduction::kReduceScatter;
      plan.buckets.cut = Bucketing::kContiguous;
      plan.bucket_elements = bit(2) ? 700 : 1;
      plan.clip_norm = 0.3;
      expect_as_one_rank(model, in_fp32(plan));
    }
  }
}

}  // namespace
}  // namespace foretrain
