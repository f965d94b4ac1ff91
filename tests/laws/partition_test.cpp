// Does a balanced division never load a stage more than the even one does?
#include <gtest/gtest.h>

#include <algorithm>

#include "models/lower.h"
#include "models/plan/layout/partition.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

using LayerCounts = std::vector<std::int64_t>;

std::int64_t heaviest(const LayerWeights& weights, const LayerCounts& layout) {
  const LayerCounts chunks = chunk_weights({weights}, layout);
  return *std::max_element(chunks.begin(), chunks.end());
}

LayerWeights scaled(LayerWeights weights, std::int64_t factor) {
  weights.embedding *= factor;
  weights.head *= factor;
  for (std::int64_t& layer : weights.layers) layer *= factor;
  return weights;
}

// Nor does one more stage or a layer less make the heaviest heavier, and the unit does not matter.
TEST(Partition, IsNoHeavierThanTheEvenOne) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    Rng rng(seed);
    const bool sparse = seed % 2 == 0;
    const Drawn drawn = sparse ? draw_sparse_plan(rng) : draw_plan(rng);
    const LayerWeights weights = parameter_weights(drawn.model, drawn.plan);
    std::int64_t before = heaviest(weights, {drawn.model.layers});
    for (std::int64_t chunks = 1; chunks <= drawn.model.layers + 2; ++chunks) {
      const LayerCounts layout = balanced_layout({weights}, chunks);
      const std::int64_t now = heaviest(weights, layout);
      EXPECT_LE(now, heaviest(weights, default_layout(drawn.model.layers, chunks)))
          << "seed " << seed;
      EXPECT_LE(now, before) << "seed " << seed;
      before = now;
      EXPECT_EQ(balanced_layout({scaled(weights, 3)}, chunks), layout) << "seed " << seed;
    }
  }
}

/// Elements of the parameters that a rank of a stage holds.
std::int64_t parameters_of(const Program& program) {
  std::int64_t sum = 0;
  for (const Frame& frame : program.frames) {
    if (frame.alias_of.valid()) continue;
    for (const Buffer& buffer : program.layouts[frame.layout.index()].buffers) {
      if (buffer.kind == BufferKind::kParameters) sum += buffer.count;
    }
  }
  return sum;
}

// What is balanced is what the stages' Programs hold, but for rows of tables that are padding.
TEST(Partition, BalancesWhatProgramsHold) {
  for (Model model : {small_gpt(), small_llama(), small_moe()}) {
    for (const bool tied : {false, true}) {
      model.tied_embeddings = tied;
      model.vocabulary = 128 * 80;
      Plan plan = small_plan(model, {1, 3, 1, 1}, 4);
      const LayerWeights weights = parameter_weights(model, plan);
      plan.pipeline_layout = balanced_layout({weights}, plan.chunks());
      const LayerCounts expected = chunk_weights({weights}, plan.pipeline_layout);
      const Workload workload = lower(model, plan);
      for (std::size_t s = 0; s < expected.size(); ++s) {
        EXPECT_EQ(parameters_of(workload.programs[s]), expected[s]) << "stage " << s;
      }
    }
  }
}

}  // namespace
}  // namespace foretrain
