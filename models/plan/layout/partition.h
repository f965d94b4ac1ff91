// How layers are divided over the chunks of a pipeline where not by their number.
//
// Items, in order: the embedding, the layers, the head. Of all ways to cut them into chunks of at
// least one item each, those whose heaviest chunk is lightest (DeepSpeed's partition_balanced,
// runtime/utils.py, takes the least difference of heaviest and lightest); of these, those whose
// lightest chunk is heaviest; of these, the one whose chunks from the first on are longest: in 1f1b
// the later a stage the fewer microbatches it has to wait with. All of it in integers.
#pragma once

#include <cstdint>
#include <vector>

#include "models/plan/plan.h"

namespace foretrain {

/// What is balanced, in any unit: parameters, times.
struct LayerWeights {
  std::int64_t embedding = 0, head = 0;
  std::vector<std::int64_t> layers;
};

/// Layers of more are not balanced: the search may grow with their square times the chunks.
inline constexpr std::int64_t kMostBalanced = 2048;

/// Parameters of the whole model that train: with all its experts, a tied matrix on both stages
/// that hold it, layers for multi-token prediction in the head. Where all stages share the
/// vocabulary the ends weigh nothing.
LayerWeights parameter_weights(const Model& model, const Plan& plan);

/// Layers of every chunk, whose weight is the largest of its sums by each of the `kinds`. From 1 to
/// two more chunks than layers; weights from 0, of sums that 63 bits hold.
std::vector<std::int64_t> balanced_layout(const std::vector<LayerWeights>& kinds,
                                          std::int64_t chunks);

/// The same of chunks that differ in what layers weigh in them, as on devices of several kinds:
/// each has the weights `weights[kind_of_chunk[c]]`.
std::vector<std::int64_t> balanced_layout(const std::vector<std::vector<LayerWeights>>& weights,
                                          const std::vector<std::size_t>& kind_of_chunk);

/// Weight of every chunk of a layout.
std::vector<std::int64_t> chunk_weights(const std::vector<LayerWeights>& kinds,
                                        const std::vector<std::int64_t>& layout);

}  // namespace foretrain
