// Do units whose parameters are cut one by one train as one rank?
#include <gtest/gtest.h>

#include "tests/execution/one_rank.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

// Every parameter is cut among the ranks by itself, several of them travel at once: over ranks that
// divide their sizes and ranks that do not.
TEST(UnitsByParameter, TrainAsOneRank) {
  for (const std::int64_t ranks : {2, 3}) {
    for (const bool experts : {false, true}) {
      const Model model = narrowed(experts ? small_moe() : small_gpt(), 3);
      for (const std::int64_t least : {1, 300}) {
        Plan plan = in_fp32(small_plan(model, {1, 1, 1, ranks}, 2));
        plan.sequence_length = 8;
        plan.sharding = Sharding::kParameters;
        plan.units.reduce = DType::kFp32;
        plan.units.gather_elements = least;
        plan.bucket_elements = 500;
        plan.clip_norm = 0.3;
        expect_as_one_rank(model, plan);
        plan.units.persist_elements = 16;
        plan.units.narrow_shards = true;
        expect_as_one_rank(model, plan);
        plan.offload.optimizer = plan.offload.parameters = Memory::kHost;
        expect_as_one_rank(model, plan);
      }
    }
  }
}

}  // namespace
}  // namespace foretrain
