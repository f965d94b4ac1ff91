// Do layers whose parts one device computes one after the other train as whole ones?
#include <gtest/gtest.h>

#include <utility>

#include "tests/execution/one_rank.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

Model narrow(const Model& whole) {
  Model model = narrowed(whole, 3);
  if (model.positions > 0) model.positions = 8;
  return model;
}

Plan in_parts(const Model& model, PlanDegrees degrees, std::int64_t parts) {
  Plan plan = small_plan(model, degrees, 3);
  plan.sequence_length = 8;
  plan.recompute.parts = parts;
  plan.overlap.gradient_reduce = plan.overlap.parameter_gather = true;
  return in_fp32(plan);
}

// With dropout everywhere, whose masks do not depend on who computes a head; tied tables, scattered
// tokens, normed inputs that are computed again as well, or all of the layer.
TEST(CoShard, TrainsAsOneRank) {
  for (Model model : {narrow(small_gpt()), narrow(small_llama())}) {
    for (const PlanDegrees degrees : {PlanDegrees{1, 1, 1, 1}, PlanDegrees{2, 1, 1, 1},
                                      PlanDegrees{2, 1, 1, 2}, PlanDegrees{1, 3, 1, 1}}) {
      for (const int again : {0, 1, 2}) {
        model.tied_embeddings = again == 1;
        model.parallel_residual = again == 2;
        Plan plan = in_parts(model, degrees, degrees.tensor == 1 && again != 1 ? 4 : 2);
        plan.sequence = degrees.tensor > 1 && again > 0;
        plan.overlap.tensor_backward = again == 1;
        plan.sharding = again == 1 ? Sharding::kOptimizer : Sharding::kNone;
        plan.bucket_elements = 500;
        plan.dropout = 0.1;
        plan.recompute.norm = again == 1;
        plan.recompute.layer = again == 2;
        plan.attention = again == 1 ? AttentionKernel::kUnfused : AttentionKernel::kFlash;
        expect_as_one_rank(model, plan);
      }
    }
  }
}

// Sequences cut among ranks: each part of the heads meets the keys of the others.
TEST(CoShard, WithContextTrainsAsOneRank) {
  const std::pair<ContextExchange, std::int64_t> exchanges[] = {{ContextExchange::kRing, 1},
                                                                {ContextExchange::kRing, 2},
                                                                {ContextExchange::kAllGather, 1},
                                                                {ContextExchange::kAllToAll, 1}};
  for (const auto& [exchange, inner] : exchanges) {
    for (const bool alibi : {false, true}) {
      Model model = narrow(small_llama());
      model.heads = model.kv_heads = 8;
      if (alibi) model.position = Position::kAlibi;
      for (const std::int64_t tensor : {1, 2}) {
        Plan plan = in_parts(model, {tensor, 1, 1, 2 * inner}, 2);
        plan.context = 2 * inner;
        plan.context_inner = inner;
        plan.context_exchange = exchange;
        plan.global_batch = 3;
        plan.sequence = tensor > 1;
        plan.dropout = alibi ? 0.1 : 0;
        expect_as_one_rank(model, plan);
      }
    }
  }
}

// What heads share or know: one key for two queries, norms of queries and keys, whose gradients add
// up over parts, slopes.
TEST(CoShard, HeadsTrainAsOneRank) {
  for (const Position position : {Position::kRope, Position::kAlibi}) {
    for (const Sharding sharding : {Sharding::kOptimizer, Sharding::kParameters}) {
      for (const bool each : {false, true}) {
        Model model = narrow(small_llama());
        model.position = position;
        model.heads = 8;
        model.qk_norm = true;
        for (const std::int64_t tensor : {1, 2}) {
          Plan plan = in_parts(model, {tensor, 1, 1, 2}, 2);
          plan.sharding = sharding;
          plan.units.reduce_each = each;
          plan.fused_accumulation = each;
          expect_as_one_rank(model, plan);
        }
      }
    }
  }
}

}  // namespace
}  // namespace foretrain
