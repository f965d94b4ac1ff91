// Does a vocabulary that lies on all stages train as on one rank?
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/execution/one_rank.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

// Tied or not, with and without tensor and sequence parallelism, whatever the passes: all stages at
// once, Vocab-1, Vocab-2.
TEST(SharedVocabulary, TrainsAsOneRank) {
  for (Model model : {narrowed(small_gpt(), 4), narrowed(small_llama(), 4)}) {
    model.positions = std::min<std::int64_t>(model.positions, 8);
    model.embedding_norm = model.positions > 0;
    for (const PlanDegrees degrees : {PlanDegrees{1, 2, 1, 1}, PlanDegrees{1, 4, 1, 1},
                                      PlanDegrees{2, 2, 1, 1}, PlanDegrees{1, 3, 1, 2}}) {
      for (const bool tied : {false, true}) {
        model.tied_embeddings = tied;
        Plan plan = small_plan(model, degrees, 5);
        plan.sequence_length = 8;
        plan.sequence = tied && degrees.tensor > 1;
        plan.sharding = tied ? Sharding::kOptimizer : Sharding::kNone;
        plan.bucket_elements = 500;
        plan.clip_norm = 0.3;
        plan.dropout = tied ? 0.1 : 0;
        plan.recompute.layer = !tied;
        plan.fused_accumulation = tied;
        plan.overlap.gradient_reduce = plan.overlap.parameter_gather = true;
        for (const Schedule schedule :
             {Schedule::kSharedVocabulary, Schedule::kVocabulary1, Schedule::kVocabulary2}) {
          plan.schedule = schedule;
          expect_as_one_rank(model, in_fp32(plan));
        }
      }
    }
  }
}

// Ranks with nothing but padding, and fewer or more microbatches than the pipeline holds.
TEST(SharedVocabulary, WithPaddingAlone) {
  Model model = narrowed(small_llama(), 4);
  model.vocabulary = 140;
  model.tied_embeddings = false;
  for (const Schedule schedule : {Schedule::kVocabulary1, Schedule::kVocabulary2}) {
    for (const std::int64_t microbatches : {1, 2, 11}) {
      Plan plan = small_plan(model, {1, 4, 1, 1}, microbatches);
      plan.schedule = schedule;
      plan.sequence_length = 8;
      plan.overlap.pipeline = microbatches == 2;
      expect_as_one_rank(model, in_fp32(plan));
    }
  }
}

}  // namespace
}  // namespace foretrain
