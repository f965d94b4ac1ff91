// Blocks that several layers share: their parameters lie with the embedding's, and every layer that
// has one in front of it reads the embedding too (models/layers/mixers/shared_block.h).
#include "models/emit/frames.h"

namespace foretrain {

void add_block_frames(Stage& stage) {
  const EndLayouts& embedding = stage.holds.embedding;
  const LayoutId gradient = stage.holds.layer.hidden_gradient;
  for (LayerLayouts& layer : stage.holds.kinds) {
    if (layer.kind.shared == 0) continue;
    layer.block_frames = {embedding.weights, embedding.gradients, stage.holds.layer.hidden,
                          gradient};
    layer.borrowed = embedding.parameters;
    layer.borrowed_gradients = embedding.parameter_gradients;
  }
}

void bind_block(Stage& stage, const Chunk& chunk, MicrobatchState& passage, std::int64_t l,
                bool backward, Call& call) {
  if (kind_of(stage, chunk, l).kind.shared == 0) return;
  if (backward && !passage.memory_gradient.valid()) {
    passage.memory_gradient =
        stage.builder.frame(stage.holds.layer.hidden_gradient, -1, call.microbatch);
  }
  const PartFrames& part = chunk.embedding;
  call.frames.push_back(part.weights);
  call.frames.push_back(part.gradients);
  call.frames.push_back(passage.hidden.front());
  call.frames.push_back(passage.memory_gradient);
}

}  // namespace foretrain
