// Does a layer whose branches stand side by side exchange its products once?
#include <gtest/gtest.h>

#include <set>
#include <tuple>

#include "models/lower.h"
#include "sim/program/verify.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

/// Collectives of a layer's passes, all of tokens x hidden elements.
struct Counts {
  int forward_gathers = 0, forward_reductions = 0, backward_gathers = 0, backward_reductions = 0;
  bool operator==(const Counts&) const = default;
};
void PrintTo(const Counts& c, std::ostream* out) {
  *out << "forward " << c.forward_gathers << " gathers and " << c.forward_reductions
       << " reductions, backward " << c.backward_gathers << " and " << c.backward_reductions;
}

Counts counts_of(const Model& model, const Plan& plan) {
  const Workload workload = lower(model, plan);
  const Status status = verify(workload);
  EXPECT_TRUE(status.ok()) << status.error().message;
  const Program& program = workload.programs[0];
  Counts out;
  std::set<SegmentId> called;
  for (const Call& call : program.calls) called.insert(call.segment);
  for (const SegmentId id : called) {
    const Segment& segment = program.segments[id.index()];
    const bool forward = segment.name.starts_with("layer forward");
    if (!forward && !segment.name.starts_with("layer backward")) continue;
    for (const Op& op : segment.ops) {
      const auto* c = std::get_if<Collective>(&program.works[op.work.index()]);
      if (c == nullptr) continue;
      EXPECT_EQ(c->count, plan.tokens() * model.hidden);
      const bool gathers = c->kind == CollectiveKind::kAllGather;
      EXPECT_TRUE(gathers || c->kind == (plan.sequence ? CollectiveKind::kReduceScatter
                                                       : CollectiveKind::kAllReduce));
      if (forward) ++(gathers ? out.forward_gathers : out.forward_reductions);
      if (!forward) ++(gathers ? out.backward_gathers : out.backward_reductions);
    }
  }
  return out;
}

Counts counts_of(Model model, bool parallel, bool shared, bool sequence, std::int64_t parts = 1) {
  model.parallel_residual = parallel;
  model.shared_norm = shared;
  Plan plan = small_plan(model, {2, 1, 1, 1}, 1);
  plan.sequence = sequence;
  plan.recompute.parts = parts;
  return counts_of(model, plan);
}

// One after the other the branches take two reductions each way, and four gathers backward. Side by
// side their products are reduced once, and the gradient of their sum is gathered once; with one
// norm so is what they read, and the gradient of that reduced once.
TEST(ParallelBranches, AreReducedOnce) {
  for (const Model& model : {small_gpt(), small_llama()}) {
    for (const std::int64_t parts : {1, 2}) {
      EXPECT_EQ(counts_of(model, false, false, false, parts), (Counts{0, 2, 0, 2}));
      EXPECT_EQ(counts_of(model, true, false, false, parts), (Counts{0, 1, 0, 2}));
      EXPECT_EQ(counts_of(model, true, true, false, parts), (Counts{0, 1, 0, 1}));
      EXPECT_EQ(counts_of(model, false, false, true, parts), (Counts{2, 2, 4, 2}));
      EXPECT_EQ(counts_of(model, true, false, true, parts), (Counts{2, 1, 3, 2}));
      EXPECT_EQ(counts_of(model, true, true, true, parts), (Counts{1, 1, 2, 1}));
    }
  }
}

// Where every second product is computed again, both inputs are gathered for it, or the one.
TEST(ParallelBranches, RepeatGathersAlone) {
  Model model = small_llama();
  model.parallel_residual = true;
  Plan plan = small_plan(model, {2, 1, 1, 1}, 1);
  plan.sequence = plan.recompute.operations = true;
  EXPECT_EQ(counts_of(model, plan), (Counts{2, 1, 3 + 2, 2}));
  model.shared_norm = true;
  EXPECT_EQ(counts_of(model, plan), (Counts{1, 1, 2 + 1, 1}));
}

// In rings t - 1 exchanges stand for each collective of the forward pass and for the gather of the
// gradient that comes back.
TEST(ParallelBranches, RingsCarryEachOnce) {
  Model model = small_gpt();
  for (const std::int64_t t : {2, 4}) {
    for (const auto& [parallel, shared, rings] :
         {std::tuple{false, false, 6}, std::tuple{true, false, 4}, std::tuple{true, true, 3}}) {
      model.parallel_residual = parallel;
      model.shared_norm = shared;
      Plan plan = small_plan(model, {t, 1, 1, 1}, 1);
      plan.sequence = plan.overlap.tensor = true;
      std::int64_t exchanges = 0;
      const Program program = lower(model, plan).programs[0];
      for (const Segment& segment : program.segments) {
        if (!segment.name.starts_with("layer")) continue;
        for (const Op& op : segment.ops) {
          if (std::holds_alternative<P2PBatch>(program.works[op.work.index()])) ++exchanges;
        }
      }
      EXPECT_EQ(exchanges, rings * (t - 1));
    }
  }
}

// A norm a layer.
TEST(ParallelBranches, OneNormHasFewerParameters) {
  for (Model model : {small_gpt(), small_llama()}) {
    model.parallel_residual = true;
    const std::int64_t two = parameter_count(model);
    model.shared_norm = true;
    const std::int64_t norm = model.hidden * (model.biases.norm ? 2 : 1);
    EXPECT_EQ(two - parameter_count(model), model.layers * norm);
  }
}

}  // namespace
}  // namespace foretrain
