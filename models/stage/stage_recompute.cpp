// Blocks of layers that are computed again together (Megatron-LM's --recompute-method uniform with
// --recompute-num-layers above one; GPipe, arXiv 1811.06965, section 2.3, whose block is the
// stage).
//
// Of n layers the forward pass keeps the input of the first alone. Before the last of them goes
// back all n run forward once more, now keeping what their backward passes read, so that
// activations of one block and inputs of all blocks are what a stage holds. Nothing that this
// repeats depends on the gradient: a stage that waits for one may repeat its last block meanwhile
// (`early`), as GPipe does. Left out: the embedding in the first block.
#include "models/stage/stage_writer.h"

namespace foretrain {

/// Before layer `last` goes back, if a block ends there; else nothing.
void StageWriter::block_again(Chunk& chunk, Passage& passage, std::int64_t last, std::int32_t mb) {
  if (!x_plan.recompute.in_blocks() || passage.again <= last) return;
  const std::int64_t n = x_plan.recompute.block_layers;
  const std::int64_t first = n == 0 ? 0 : last / n * n;
  passage.again = first;
  if (!x_checkpoint.valid() && x_plan.checkpoint_time.ps > 0) {
    LayoutWriter events("checkpoint", 1);
    SegmentWriter w(x_builder, "checkpoint", events);
    w.phase = Phase::kRecompute;
    w.pause("checkpoint.state", x_plan.checkpoint_time);
    x_checkpoint = x_builder.segment(std::move(w.segment()));
  }
  if (x_checkpoint.valid()) x_builder.call(Call{x_checkpoint, -1, mb, {}, {}});
  for (std::int64_t l = first; l <= last; ++l) {
    const auto at = static_cast<std::size_t>(l);
    const auto index = static_cast<std::int32_t>(chunk.first_layer + l);
    const LayerSegments& s = layer_segments(chunk, l);
    passage.saved[at] = x_builder.frame(s.saved, index, mb);
    const FrameId out = x_builder.frame(kind_of(chunk, l).output, index, mb);
    Call call = forward_call(chunk, passage, l, mb, out);
    call.segment = l == last ? s.again_last : s.again;
    const bool waits = l == first && !x_plan.recompute.early && passage.gradient.valid();
    if (waits) call.waits.push_back({StreamId(std::size_t{0}), passage.gradient, kReady});
    x_builder.call(std::move(call));
    // What lies behind the block is kept: the next block's input, or the head's.
    if (l < last) passage.hidden[at + 1] = out;
  }
}

}  // namespace foretrain
