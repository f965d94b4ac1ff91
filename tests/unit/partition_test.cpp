// Are layers divided as the best of all ways to cut them would be?
#include "models/plan/layout/partition.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <tuple>

#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

using Counts = std::vector<std::int64_t>;

/// All ways to cut the embedding, `layers` and the head into chunks of an item at least: layers of
/// each.
void every_layout(std::int64_t layers, std::int64_t chunks, Counts& begun,
                  std::vector<Counts>& out) {
  const auto done = static_cast<std::int64_t>(begun.size());
  const std::int64_t left = layers - std::accumulate(begun.begin(), begun.end(), std::int64_t{0});
  if (done + 1 == chunks) {
    out.push_back(begun);
    out.back().push_back(left);
    return;
  }
  for (std::int64_t n = done == 0 ? 0 : 1; n <= left; ++n) {
    begun.push_back(n);
    every_layout(layers, chunks, begun, out);
    begun.pop_back();
  }
}

/// Least of these is best: the heaviest chunk, the lightest the other way round, the chunks' length
/// likewise.
std::tuple<std::int64_t, std::int64_t, Counts> rank_of(const std::vector<LayerWeights>& kinds,
                                                       const Counts& layout) {
  const Counts weights = chunk_weights(kinds, layout);
  const auto [low, high] = std::minmax_element(weights.begin(), weights.end());
  Counts shorter;
  for (const std::int64_t n : layout) shorter.push_back(-n);
  return {*high, -*low, shorter};
}

LayerWeights draw_weights(Rng& rng, std::int64_t layers) {
  const std::int64_t most = rng.below(3) == 0 ? 3 : 50;
  LayerWeights out;
  const bool alike = rng.below(3) == 0;
  for (std::int64_t l = 0; l < layers; ++l) {
    out.layers.push_back(alike && l > 0 ? out.layers.front() : rng.below(most));
  }
  out.embedding = rng.below(2) == 0 ? 0 : rng.below(3 * most);
  out.head = rng.below(2) == 0 ? 0 : rng.below(5 * most);
  return out;
}

TEST(BalancedLayout, IsTheBestOfAll) {
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    Rng rng(seed);
    const std::int64_t layers = 1 + rng.below(9);
    const std::int64_t chunks = 1 + rng.below(layers + 2);
    std::vector<LayerWeights> kinds = {draw_weights(rng, layers)};
    if (rng.below(2) == 0) kinds.push_back(draw_weights(rng, layers));
    std::vector<Counts> all;
    Counts begun;
    every_layout(layers, chunks, begun, all);
    const Counts best = *std::min_element(
        all.begin(), all.end(),
        [&](const Counts& a, const Counts& b) { return rank_of(kinds, a) < rank_of(kinds, b); });
    EXPECT_EQ(balanced_layout(kinds, chunks), best)
        << "seed " << seed << ", " << layers << " layers in " << chunks;
  }
}

// Layers weigh otherwise in some chunks than in others, as on devices of several kinds.
TEST(BalancedLayout, IsTheBestOfAllWhereChunksDiffer) {
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    Rng rng(seed);
    const std::int64_t layers = 1 + rng.below(8);
    const std::int64_t chunks = 1 + rng.below(layers + 2);
    const LayerWeights slow = draw_weights(rng, layers);
    const LayerWeights fast = draw_weights(rng, layers);
    std::vector<std::size_t> kind_of_chunk;
    for (std::int64_t c = 0; c < chunks; ++c) {
      kind_of_chunk.push_back(static_cast<std::size_t>(rng.below(2)));
    }
    const auto heaviest = [&](const Counts& layout) {
      const Counts of_slow = chunk_weights({slow}, layout);
      const Counts of_fast = chunk_weights({fast}, layout);
      std::int64_t most = 0;
      for (std::size_t c = 0; c < layout.size(); ++c) {
        most = std::max(most, kind_of_chunk[c] == 0 ? of_slow[c] : of_fast[c]);
      }
      return most;
    };
    std::vector<Counts> all;
    Counts begun;
    every_layout(layers, chunks, begun, all);
    std::int64_t best = heaviest(all.front());
    for (const Counts& layout : all) best = std::min(best, heaviest(layout));
    EXPECT_EQ(heaviest(balanced_layout({{slow}, {fast}}, kind_of_chunk)), best) << "seed " << seed;
  }
}

TEST(BalancedLayout, ByHand) {
  const LayerWeights alike{0, 0, Counts(10, 1)};
  EXPECT_EQ(balanced_layout({alike}, 1), (Counts{10}));
  EXPECT_EQ(balanced_layout({alike}, 4), (Counts{3, 3, 2, 2}));
  // 12 layers of 2 and a head of 5: 8 and 8 and 6 + 5 would be as heavy as 11.
  EXPECT_EQ(balanced_layout({{0, 5, Counts(12, 2)}}, 3), (Counts{5, 5, 2}));
  // A head as heavy as all stands alone, as does an embedding.
  EXPECT_EQ(balanced_layout({{0, 100, Counts(8, 1)}}, 3), (Counts{4, 4, 0}));
  EXPECT_EQ(balanced_layout({{100, 100, Counts(8, 1)}}, 4), (Counts{0, 4, 4, 0}));
  // Three light layers first.
  EXPECT_EQ(balanced_layout({{0, 0, {1, 1, 1, 3, 3, 3, 3}}}, 3), (Counts{4, 2, 1}));
  // One kind alone would cut 4 and 2, the other 2 and 4.
  const LayerWeights late{0, 0, {1, 1, 1, 1, 2, 2}};
  const LayerWeights early{0, 0, {2, 2, 1, 1, 1, 1}};
  EXPECT_EQ(balanced_layout({late}, 2), (Counts{4, 2}));
  EXPECT_EQ(balanced_layout({early}, 2), (Counts{2, 4}));
  EXPECT_EQ(balanced_layout({late, early}, 2), (Counts{3, 3}));
  EXPECT_EQ(chunk_weights({late, early}, {3, 3}), (Counts{5, 5}));
}

TEST(BalancedLayout, OfMany) {
  LayerWeights weights{7, 60'000, {}};
  for (std::int64_t l = 0; l < kMostBalanced; ++l) weights.layers.push_back(1 + l % 97);
  for (const std::int64_t chunks : {std::int64_t{2}, std::int64_t{128}, kMostBalanced + 2}) {
    const Counts layout = balanced_layout({weights}, chunks);
    EXPECT_EQ(std::accumulate(layout.begin(), layout.end(), std::int64_t{0}), kMostBalanced);
  }
}

// Whole tables at the ends, a tied one at both; experts in the layers that have them; nothing at
// the ends where all stages share the vocabulary.
TEST(ParameterWeights, AreTheModels) {
  for (Model model : {small_gpt(), small_llama(), small_moe()}) {
    for (const bool tied : {false, true}) {
      model.tied_embeddings = tied;
      Plan plan = small_plan(model, {1, 2, 1, 1}, 2);
      LayerWeights w = parameter_weights(model, plan);
      const std::int64_t table = model.vocabulary * model.hidden;
      std::int64_t sum = std::accumulate(w.layers.begin(), w.layers.end(), std::int64_t{0});
      EXPECT_EQ(w.embedding + sum + w.head, parameter_count(model) + (tied ? table : 0));
      EXPECT_GE(w.embedding, table);
      EXPECT_GE(w.head, table);
      for (std::size_t l = 0; l < w.layers.size(); ++l) {
        const bool more = w.layers[l] > w.layers[0];
        EXPECT_EQ(more, model.sparse(static_cast<std::int64_t>(l)));
      }
      plan.schedule = Schedule::kVocabulary1;
      EXPECT_EQ(parameter_weights(model, plan).embedding, 0);
      EXPECT_EQ(parameter_weights(model, plan).head, 0);
    }
  }
  // A V has both ends on its first stage, where a tied table lies once.
  Model model = small_gpt();
  model.tied_embeddings = true;
  Plan plan = small_plan(model, {1, 2, 2, 1}, 4);
  plan.schedule = Schedule::kZbV;
  EXPECT_LT(parameter_weights(model, plan).head, model.vocabulary * model.hidden);
  // Layers for multi-token prediction stand where the head does.
  model = small_moe();
  const std::int64_t without = parameter_weights(model, plan).head;
  model.predict_layers = 1;
  EXPECT_GT(parameter_weights(model, plan).head,
            without + parameter_weights(model, plan).layers[1]);
}

}  // namespace
}  // namespace foretrain
