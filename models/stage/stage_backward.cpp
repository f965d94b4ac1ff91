// A microbatch's backward pass through a chunk: what runs, what is reduced when, what is sent.
#include "models/stage/stage_writer.h"
#include "sim/base/check.h"

namespace foretrain {

/// The head; its table is reduced once it is final.
void StageWriter::head_goes_back(Chunk& chunk, Passage& passage, std::int32_t mb, bool reduces) {
  head_backward(chunk, passage, mb);
  // A table that it shares with the embedding is not final yet, nor does anything lie behind it.
  if (x_model.tied_embeddings && chunk.has_embedding) return;
  if (reduces) reduce_ready(chunk, chunk.head.cut_begin, passage.gradient, kReady);
  if (x_plan.contiguous_passes()) copy_in(chunk, chunk.head.gradients, chunk.head.cut_begin);
}

void StageWriter::layers_go_back(Chunk& chunk, Passage& passage, std::int32_t mb, bool last,
                                 bool reduces) {
  load_from_host(chunk, passage, chunk.layers - 1);
  for (std::int64_t l = chunk.layers; l-- > 0;) {
    load_from_host(chunk, passage, l - 1);
    block_again(chunk, passage, l, mb);
    layer_backward(chunk, passage, l, mb);
    unit_ends(chunk, l, passage.gradient, true, last);
    if (x_plan.contiguous_passes()) {
      const PartFrames& part = chunk.parts[static_cast<std::size_t>(l)];
      copy_in(chunk, part.gradients, part.cut_begin);
    }
    if (!reduces) continue;
    const auto reduce = [this, &chunk, l, gradient = passage.gradient] {
      reduce_ready(chunk, chunk.parts[static_cast<std::size_t>(l)].cut_begin, gradient, kReady);
      reduce_experts_ready(chunk, l, gradient, kReady);
    };
    sliced() ? after_slices(reduce) : reduce();
  }
  finish_slices();
}

/// The embedding where the chunk has it, else what is left to finish.
void StageWriter::pass_goes_out(Chunk& chunk, Passage& passage, std::int32_t mb, bool last) {
  const bool shares = x_plan.shares_vocabulary();
  if (chunk.first && !x_model.is_network() && !shares) {
    return embedding_backward(chunk, passage, mb, last);
  }
  passage.done_frame = passage.gradient;
  passage.done_event = kReady;
  const bool head_left = chunk.last && x_plan.defers_head();
  if (!shares && !head_left) finish_pass(chunk, passage.gradient, kReady, last);
}

void StageWriter::backward(std::int32_t c, std::int32_t mb, bool last) {
  Chunk& chunk = x_chunks[static_cast<std::size_t>(c)];
  const auto found = x_passages.find({c, mb});
  FT_CHECK(found != x_passages.end(), "a backward pass before its forward");
  Passage& passage = found->second;
  const bool reduces =
      !by_units() && !x_plan.contiguous_passes() && (last || x_plan.reduces_each_pass());
  if (Unit* root = root_of(chunk)) open_unit(*root, true);
  if (sharded_parameters()) prefetch(chunk, chunk.layers - 1, true, 0);
  const FrameId arrived = receive_input(c, mb, true);
  if (x_plan.recompute.early && !chunk.last) block_again(chunk, passage, chunk.layers - 1, mb);
  pass_begins(true, mb, arrived);
  if (passage.part.valid()) gather_output(passage, mb);
  const bool shares = x_plan.shares_vocabulary();
  if (chunk.last && !shares) head_goes_back(chunk, passage, mb, reduces);
  if (x_plan.spreads_vocabulary()) head_inner_backward(chunk, passage, mb);
  layers_go_back(chunk, passage, mb, last, reduces);
  if (x_plan.spreads_vocabulary()) embedding_inner_backward(chunk, passage, mb);
  pass_goes_out(chunk, passage, mb, last);
  if (x_plan.keep_outputs && !chunk.last && !turns(c, 1)) let_go_of_output(chunk, passage, mb);
  pass_ends(true, mb);
  share_scales(chunk, mb, true);
  if (!chunk.first && turns(c, -1)) {
    x_turned[mb] = passage.gradient;
  } else if (!chunk.first) {
    send(c, passage.gradient, mb, true);
  }
  set_gradients_aside(chunk, passage);
  x_pass_done = StreamWait{StreamId(), passage.done_frame, passage.done_event};
  x_layer_passes.push_back(x_pass_done);
  if (!x_plan.splits_backward() && !shares) x_passages.erase(found);
}

}  // namespace foretrain
