// Do experts whose states are shared in groups of ranks, and held once more by others, train as on
// one rank?
#include <gtest/gtest.h>

#include "tests/execution/one_rank.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

// In buckets and in units, with and without tensor parallelism; with two ranks a group and four
// that hold all experts together, no rank shares its own with others of its group.
TEST(ExpertGroups, TrainAsOneRank) {
  Model model = narrowed(small_moe(), 3);
  model.experts.count = 4;
  for (const Sharding sharding :
       {Sharding::kOptimizer, Sharding::kGradients, Sharding::kParameters}) {
    for (int choice = 0; choice < 8; ++choice) {
      const auto bit = [choice](int n) { return (choice >> n & 1) != 0; };
      Plan plan = in_fp32(small_plan(model, {bit(0) ? 2 : 1, 1, 1, bit(0) ? 4 : 8}, 2));
      plan.sequence = plan.tensor > 1;
      plan.sequence_length = 8;
      plan.sharding = sharding;
      plan.shard_group = bit(1) ? 2 : 4;
      plan.experts.expert = bit(0) || !bit(1) ? 4 : 2;
      if (bit(2)) plan.experts.expert /= 2;
      plan.units.reduce_each = bit(2);
      plan.overlap.gradient_reduce = plan.overlap.parameter_gather = bit(2);
      plan.bucket_elements = 2000;
      plan.clip_norm = 0.3;
      expect_as_one_rank(model, plan);
    }
  }
}

// Parameters that stay from a unit's forward to its backward pass, all of them or the last ones.
TEST(ReusedParameters, TrainAsOneRank) {
  const Model model = narrowed(small_llama(), 4);
  for (const std::int64_t elements : {2000, 1 << 20}) {
    Plan plan = in_fp32(small_plan(model, {1, 1, 1, 4}, 2));
    plan.sequence_length = 8;
    plan.sharding = Sharding::kParameters;
    plan.units.reuse_elements = elements;
    plan.recompute.layer = elements == 2000;
    plan.clip_norm = 0.3;
    expect_as_one_rank(model, plan);
  }
}

}  // namespace
}  // namespace foretrain
