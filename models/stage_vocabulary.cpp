// The passes of a vocabulary that lies on all stages (1f1b-interlaced; Lin et al., nnScaler, OSDI
// 2024; the interlaced pipeline of Yeung et al., arXiv 2411.05288).
//
// The token table and the output matrix are cut among all tensor ranks of all stages, tied or not.
// Three passes go over them on every stage at once, in one order: the embedding of a microbatch
// before the first stage's forward pass, the head forward and backward between the last stage's
// passes, the gradient of the table after the first stage's backward pass. What they look up and
// the gradients of hidden states are reduced to one stage, hidden states and the gradients of
// embeddings broadcast from it (models/ends.h). Positions and norms stay on that stage; all know
// the loss.
#include "models/stage_writer.h"
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
  switch (pass.kind) {
    case PassKind::kEmbedding:
      load_inputs(passage, mb);
      if (chunk.first) receive_input(0, mb, false);
      embedding_forward(chunk, passage, mb);
      break;
    case PassKind::kHead:
      if (chunk.last) receive_input(0, mb, true);
      if (!chunk.last) broadcast_waits();
      head_forward(chunk, passage, mb);
      head_backward(chunk, passage, mb);
      if (last && !x_model.tied_embeddings) {
        reduce_ready(chunk, chunk.head.cut_begin, x_head_done, x_head_segments->done);
      }
      x_pass_done = StreamWait{StreamId(), x_head_done, x_head_segments->done};
      break;
    default:
      FT_CHECK(pass.kind == PassKind::kEmbeddingGradients, "a pass of the vocabulary");
      if (!chunk.first) broadcast_waits();
      embedding_backward(chunk, passage, mb, last);
      x_pass_done = StreamWait{StreamId(), passage.done_frame, passage.done_event};
      x_passages.erase({0, mb});
  }
  if (alone) wait_on_host(pass.kind == PassKind::kEmbeddingGradients, mb, FrameId());
}

/// What only arrives here comes once compute is done with the pass before, like what is sent.
void StageWriter::broadcast_waits() {
  if (!x_pass_done.frame.valid()) return;
  x_before_next.push_back(x_pass_done);
  x_before_next.back().stream = x_builder.stream(kStagesGroup);
}

}  // namespace foretrain
