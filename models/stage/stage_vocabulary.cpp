// The passes of a vocabulary that lies on all stages.
//
// The token table and the output matrix are cut among all tensor ranks of all stages, tied or not.
// What these look up and the gradients of hidden states are reduced to one stage, hidden states and
// the gradients of embeddings broadcast from it (models/layers/ends.h). Positions and norms stay on
// that stage; all know the loss.
//
// 1f1b-interlaced (Lin et al., nnScaler, OSDI 2024; the interlaced pipeline of Yeung et al., arXiv
// 2411.05288): three passes go over them on every stage at once, in one order: the embedding of a
// microbatch before the first stage's forward pass, the head forward and backward between the last
// stage's passes, the gradient of the table after the first stage's backward pass.
//
// 1f1b-vocab-1 and -2 (Yeung et al.): the head is two passes, S and T, and every stage takes each
// of the four when it has time. What they exchange travels beside the layers' passes, each kind in
// a group and on a stream of its own.
#include "models/stage/stage_writer.h"
#include "sim/base/check.h"

namespace foretrain {

void StageWriter::vocabulary_pass(const Pass& pass) {
  Chunk& chunk = x_chunks.front();
  const std::int32_t mb = pass.microbatch;
  Passage& passage = x_passages[{0, mb}];
  x_first_pass = mb == 0;
  const bool alone = x_plan.host_waits == HostWaits::kPasses;
  if (alone) wait_on_host(pass.kind == PassKind::kEmbeddingGradients, mb, FrameId());
  const bool last = mb + 1 == x_plan.microbatches();
  const bool spreads = x_plan.spreads_vocabulary();
  switch (pass.kind) {
    case PassKind::kEmbedding:
      load_inputs(passage, mb);
      if (chunk.first) receive_input(0, mb, false);
      embedding_forward(chunk, passage, mb);
      break;
    case PassKind::kHeadForward:
      if (!chunk.last) arrives_after(kStagesGroup, 1);
      head_forward(chunk, passage, mb);
      break;
    case PassKind::kHead:
      if (chunk.last) receive_input(0, mb, true);
      if (!chunk.last) broadcast_waits();
      head_forward(chunk, passage, mb);
      [[fallthrough]];
    case PassKind::kHeadBackward:
      head_backward(chunk, passage, mb);
      if (last && !x_model.tied_embeddings) {
        reduce_ready(chunk, chunk.head.cut_begin, x_head_done, x_head_segments->done);
      }
      x_pass_done = StreamWait{StreamId(), x_head_done, x_head_segments->done};
      break;
    default:
      FT_CHECK(pass.kind == PassKind::kEmbeddingGradients, "a pass of the vocabulary");
      if (!chunk.first && !spreads) broadcast_waits();
      if (!chunk.first && spreads) arrives_after(kStagesEmbeddingGradientGroup, 2);
      embedding_backward(chunk, passage, mb, last);
      x_pass_done = StreamWait{StreamId(), passage.done_frame, passage.done_event};
      x_passages.erase({0, mb});
  }
  if (alone) wait_on_host(pass.kind == PassKind::kEmbeddingGradients, mb, FrameId());
}

/// `frames` follow those of the part's parameters.
Call StageWriter::inner_call(SegmentId segment, const PartFrames& part, std::int32_t mb,
                             std::vector<FrameId> frames) {
  Call call{segment,
            -1,
            mb,
            {part.weights, part.gradients, part.shared, part.shared_gradients},
            std::move(x_before_next)};
  x_before_next.clear();
  call.frames.insert(call.frames.end(), frames.begin(), frames.end());
  return call;
}

/// Where the vocabulary's passes are spread: what goes with the passes of the first stage's layers.
void StageWriter::embedding_inner_forward(Chunk& chunk, Passage& passage, std::int32_t mb) {
  const EndSegments& s = *x_embedding_segments;
  if (!chunk.first || !s.inner_forward.valid()) return;
  Call call = inner_call(s.inner_forward, chunk.embedding, mb,
                         {passage.hidden.front(), FrameId(), passage.embedding_saved,
                          x_builder.frame(s.local_forward, -1, mb), passage.inputs});
  wait_gathered(chunk, chunk.embedding, call);
  x_builder.call(std::move(call));
}

void StageWriter::embedding_inner_backward(Chunk& chunk, Passage& passage, std::int32_t mb) {
  if (!chunk.first) return;
  const EndSegments& s = *x_embedding_segments;
  passage.embedding_local = x_builder.frame(s.local_backward, -1, mb);
  x_builder.call(inner_call(s.inner_backward, chunk.embedding, mb,
                            {FrameId(), passage.gradient, passage.embedding_saved,
                             passage.embedding_local, passage.inputs}));
}

/// And before the last stage's backward pass.
void StageWriter::head_inner_backward(Chunk& chunk, Passage& passage, std::int32_t mb) {
  if (!chunk.last) return;
  const EndSegments& s = *x_head_segments;
  x_builder.call(
      inner_call(s.inner_backward, chunk.head, mb,
                 {passage.hidden.back(), passage.gradient, passage.head_saved,
                  x_builder.frame(s.local_backward, -1, mb), passage.inputs, x_scalar_frame}));
}

/// What only arrives here comes once compute is done with the pass before, like what is sent.
void StageWriter::broadcast_waits() {
  if (!x_pass_done.frame.valid()) return;
  x_before_next.push_back(x_pass_done);
  x_before_next.back().stream = x_builder.stream(kStagesGroup);
}

/// A kernel that waits for what others send holds SMs: it starts so many of the layers' passes
/// before what reads it.
void StageWriter::arrives_after(const char* group, std::size_t passes) {
  if (x_layer_passes.size() <= passes) return;
  x_before_next.push_back(x_layer_passes[x_layer_passes.size() - 1 - passes]);
  x_before_next.back().stream = x_builder.stream(group);
}

}  // namespace foretrain
