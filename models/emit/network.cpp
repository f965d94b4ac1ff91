// A stage whose layers are the blocks of a network: its frames and segments. Images come in place
// of tokens, the loss in place of a head.
#include <algorithm>

#include "models/emit/frames.h"
#include "models/emit/tasks.h"
#include "models/emit/update.h"
#include "models/gradients/buckets.h"
#include "models/layers/network_block.h"
#include "models/layers/network_loss.h"
#include "models/units/units.h"

namespace foretrain {

static const BetweenBlocks& between_blocks(Stage& stage, const ImageShape& shape);

/// What stands between two blocks, and its gradient.
const BetweenBlocks& between_blocks(Stage& stage, const ImageShape& shape) {
  for (const BetweenBlocks& known : stage.holds.between) {
    if (known.shape == shape) return known;
  }
  const auto layout = [&](const char* name, bool saved) {
    LayoutWriter writer(name, 0);
    writer.add(name, BufferKind::kActivations, stage.plan.precision.compute,
               stage.plan.micro_batch * shape.elements(), saved);
    writer.event("ready");
    writer.event("sent");
    return stage.builder.layout(writer.layout());
  };
  stage.holds.between.push_back({shape, layout("activations", true), layout("gradients", false)});
  return stage.holds.between.back();
}

/// Images and labels; the images are what the first block reads.
LayoutId image_inputs(Stage& stage) {
  LayoutWriter inputs("inputs", 0);
  inputs.add("images", BufferKind::kInputs, stage.plan.precision.compute,
             stage.plan.micro_batch * stage.model.network.image.elements());
  inputs.add("labels", BufferKind::kInputs, DType::kInt64, stage.plan.micro_batch);
  inputs.event("ready");
  return stage.builder.layout(inputs.layout());
}

/// Layouts and segments of every kind of block, and of the loss; blocks that are alike share them.
void write_blocks(Stage& stage) {
  const std::vector<NetworkBlock>& blocks = stage.model.network.blocks;
  std::vector<std::size_t> first;  // block, by kind
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    const auto known = std::find_if(first.begin(), first.end(),
                                    [&](std::size_t k) { return blocks[k] == blocks[b]; });
    stage.holds.block_kinds.push_back(static_cast<std::size_t>(known - first.begin()));
    if (known != first.end()) continue;
    first.push_back(b);
    LayerLayouts l;
    parameter_frames(stage, l, "block " + std::to_string(b), block_parameters(blocks[b]));
    l.hidden = b == 0 ? stage.holds.inputs : between_blocks(stage, blocks[b].in).output;
    l.hidden_gradient = between_blocks(stage, blocks[b].in).gradient;
    l.output = between_blocks(stage, blocks[b].out).output;
    l.output_gradient = between_blocks(stage, blocks[b].out).gradient;
    stage.holds.blocks.push_back(std::move(l));
    stage.segments.of_blocks.push_back(write_block(stage.builder, blocks[b], stage.plan,
                                                   stage.holds.blocks.back(), stage.holds.inputs,
                                                   stage.holds.scalars));
  }
  const BetweenBlocks& classes = between_blocks(stage, blocks.back().out);
  stage.holds.layer.hidden = stage.holds.inputs;
  for (EndLayouts* end : {&stage.holds.embedding, &stage.holds.head}) {
    parameter_frames(stage, *end, "model", {});
    end->hidden = classes.output;
    end->hidden_gradient = classes.gradient;
    end->inputs = stage.holds.inputs;
    end->scalars = stage.holds.scalars;
  }
  stage.segments.head = write_classes(stage.builder, stage.model, stage.plan, stage.holds.head);
}

/// A block with a loss reads labels and adds to the step's loss.
void bind_loss(Stage& stage, const Chunk& chunk, std::int64_t l, Call& call) {
  if (!stage.model.is_network()) return;
  const auto block = static_cast<std::size_t>(chunk.first_layer + l);
  if (!stage.model.network.blocks[block].has_loss()) return;
  call.frames.push_back(inputs_of(stage, call.microbatch));
  call.frames.push_back(stage.holds.scalar_values);
}

}  // namespace foretrain
