// A stage whose layers are the blocks of a network: its frames and segments. Images come in place
// of tokens, the loss in place of a head.
#include <algorithm>

#include "models/layers/network_block.h"
#include "models/layers/network_loss.h"
#include "models/stage/stage_writer.h"

namespace foretrain {

/// What stands between two blocks, and its gradient.
const StageWriter::BetweenBlocks& StageWriter::between_blocks(const ImageShape& shape) {
  for (const BetweenBlocks& known : x_between) {
    if (known.shape == shape) return known;
  }
  const auto layout = [&](const char* name, bool saved) {
    LayoutWriter writer(name, 0);
    writer.add(name, BufferKind::kActivations, x_plan.precision.compute,
               x_plan.micro_batch * shape.elements(), saved);
    writer.event("ready");
    writer.event("sent");
    return x_builder.layout(writer.layout());
  };
  x_between.push_back({shape, layout("activations", true), layout("gradients", false)});
  return x_between.back();
}

/// Images and labels; the images are what the first block reads.
LayoutId StageWriter::image_inputs() {
  LayoutWriter inputs("inputs", 0);
  inputs.add("images", BufferKind::kInputs, x_plan.precision.compute,
             x_plan.micro_batch * x_model.network.image.elements());
  inputs.add("labels", BufferKind::kInputs, DType::kInt64, x_plan.micro_batch);
  inputs.event("ready");
  return x_builder.layout(inputs.layout());
}

/// Layouts and segments of every kind of block, and of the loss; blocks that are alike share them.
void StageWriter::write_blocks() {
  const std::vector<NetworkBlock>& blocks = x_model.network.blocks;
  std::vector<std::size_t> first;  // block, by kind
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    const auto known = std::find_if(first.begin(), first.end(),
                                    [&](std::size_t k) { return blocks[k] == blocks[b]; });
    x_block_kinds.push_back(static_cast<std::size_t>(known - first.begin()));
    if (known != first.end()) continue;
    first.push_back(b);
    LayerLayouts l;
    parameter_frames(l, "block " + std::to_string(b), block_parameters(blocks[b]));
    l.hidden = b == 0 ? x_inputs : between_blocks(blocks[b].in).output;
    l.hidden_gradient = between_blocks(blocks[b].in).gradient;
    l.output = between_blocks(blocks[b].out).output;
    l.output_gradient = between_blocks(blocks[b].out).gradient;
    x_blocks.push_back(std::move(l));
    x_block_segments.push_back(
        write_block(x_builder, blocks[b], x_plan, x_blocks.back(), x_inputs, x_scalars));
  }
  const BetweenBlocks& classes = between_blocks(blocks.back().out);
  x_layer.hidden = x_inputs;
  for (EndLayouts* end : {&x_embedding, &x_head}) {
    parameter_frames(*end, "model", {});
    end->hidden = classes.output;
    end->hidden_gradient = classes.gradient;
    end->inputs = x_inputs;
    end->scalars = x_scalars;
  }
  x_head_segments = write_classes(x_builder, x_model, x_plan, x_head);
}

/// A block with a loss reads labels and adds to the step's loss.
void StageWriter::bind_loss(const Chunk& chunk, std::int64_t l, Call& call) const {
  if (!x_model.is_network()) return;
  const auto block = static_cast<std::size_t>(chunk.first_layer + l);
  if (!x_model.network.blocks[block].has_loss()) return;
  call.frames.push_back(inputs_of(call.microbatch));
  call.frames.push_back(x_scalar_frame);
}

}  // namespace foretrain
