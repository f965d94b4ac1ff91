// Do sequences that pack documents train as the documents would apart, on context ranks too?
#include <gtest/gtest.h>

#include <numeric>

#include "models/plan/documents.h"
#include "tests/execution/drawn_plans.h"
#include "tests/execution/one_rank.h"
#include "tests/support/sanitized.h"

namespace foretrain {
namespace {

using Lengths = std::vector<std::int64_t>;

/// Two tensor ranks beside one or two of context, one beside four; two microbatches of two
/// sequences.
Plan packed(const Model& model, std::int64_t context, const Lengths& lengths) {
  Plan plan = in_fp32(small_plan(model, {context == 4 ? 1 : 2, 1, 1, context}, 2));
  plan.context = context;
  plan.sequence_length = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  plan.documents = lengths;
  plan.micro_batch = 2;
  plan.global_batch = plan.micro_batch * plan.batch_ranks() * 2;
  plan.dropout = 0.1;
  plan.recompute.attention = lengths.size() == 2;
  return plan;
}

// With slopes, positions, windows, dropout, stored scores, recomputation, and on the ranks of every
// exchange that takes documents.
TEST(Documents, TrainAsOneRank) {
  for (Model model : {narrowed(small_gpt(), 2), narrowed(small_llama(), 2)}) {
    if (model.positions > 0) model.positions = 16;
    model.heads = model.kv_heads = 4;
    for (const Lengths& lengths : {Lengths{8, 8}, Lengths{1, 10, 5}, Lengths{3, 3, 3, 3, 3, 1}}) {
      for (const std::int64_t context : {1, 2, 4}) {
        for (const auto exchange : {ContextExchange::kAllGather, ContextExchange::kAllToAll}) {
          const bool gathers = exchange == ContextExchange::kAllGather;
          model.sliding_window = !gathers && lengths.size() == 3 ? 4 : 0;
          Plan plan = packed(model, context, lengths);
          plan.context_exchange = exchange;
          if (context == 1 && gathers) plan.attention = AttentionKernel::kUnfused;
          expect_as_one_rank(model, plan);
        }
      }
    }
  }
}

// Every document in chunks of its own around a ring, also where neighbours exchange heads.
TEST(Documents, InARingTrainAsOneRank) {
  for (Model model : {narrowed(small_gpt(), 2), narrowed(small_llama(), 2)}) {
    if (model.positions > 0) model.positions = 32;
    model.heads = model.kv_heads = 4;
    for (const Lengths& lengths : {Lengths{16, 16}, Lengths{8, 24}, Lengths{16, 8, 8}}) {
      for (const std::int64_t context : {2, 4}) {
        for (const std::int64_t inner : {1, 2}) {
          if (inner == context) continue;
          Plan plan = packed(model, context, lengths);
          plan.context_inner = inner;
          ASSERT_TRUE(found_by(check_documents, model, plan).empty());
          expect_as_one_rank(model, plan);
        }
      }
    }
  }
}

// Drawn plans: tensor, pipeline and context ranks, units, co-shards, slices.
TEST(Documents, TrainAsOneRankUnderDrawnPlans) {
  int taken = 0;
  for (int seed = 0; seed < cases(120, 30); ++seed) {
    Rng rng(static_cast<std::uint64_t>(seed));
    const DrawnKind kinds[] = {DrawnKind::kContext, DrawnKind::kBuckets, DrawnKind::kUnits};
    Drawn drawn = draw_small(rng, kinds[rng.below(3)]);
    Plan& plan = drawn.plan;
    std::int64_t first = 1 + rng.below(plan.sequence_length - 1);
    const bool ring = plan.context > 1 && plan.context_exchange == ContextExchange::kRing;
    if (ring && first > 2 * plan.context) first -= first % (2 * plan.context);
    plan.documents = {first, plan.sequence_length - first};
    if (!found_by(check_documents, drawn.model, plan).empty()) continue;
    ++taken;
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(drawn.model, plan));
    const Result<Trained> one = train<double>(drawn.model, on_one_rank(plan));
    const Result<Trained> many = train<double>(drawn.model, plan);
    ASSERT_TRUE(one.ok()) << one.error().message;
    ASSERT_TRUE(many.ok()) << many.error().message;
    expect_same(one.value(), many.value(), 1e-8);
  }
  EXPECT_GT(taken, 10);
}

Trained trained(const Model& model, const Plan& plan) {
  const Result<Trained> out = train<double>(model, plan);
  EXPECT_TRUE(out.ok()) << out.error().message;
  return out.ok() ? out.value() : Trained();
}

// Fused and unfused kernels agree, and documents of one token attend to themselves alone: the same
// as a window of one key.
TEST(Documents, AreABlockDiagonalMask) {
  Model model = narrowed(small_llama(), 2);
  Plan plan = in_fp32(small_plan(model, {1, 1, 1, 1}, 1));
  plan.sequence_length = 8;
  const Trained whole = trained(model, plan);
  plan.documents.assign(8, 1);
  const Trained alone = trained(model, plan);
  EXPECT_GT(std::abs(alone.losses.front() - whole.losses.front()), 1e-6);
  plan.documents.clear();
  model.sliding_window = 1;
  expect_same(trained(model, plan), alone, 1e-12);
  model.sliding_window = 0;
  plan.documents = {3, 5};
  const Trained fused = trained(model, plan);
  plan.attention = AttentionKernel::kUnfused;
  plan.dropout = 0;
  expect_same(fused, trained(model, plan), 1e-9);
}

}  // namespace
}  // namespace foretrain
