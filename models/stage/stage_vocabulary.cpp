// The parts of a vocabulary on all stages that go with passes of layers:
// models/step/passes/spread_vocabulary.cpp.
#include "models/stage/stage_writer.h"

namespace foretrain {

/// `frames` follow those of the part's parameters.
Call StageWriter::inner_call(SegmentId segment, const PartFrames& part, const Task& task,
                             std::vector<FrameId> frames) {
  Call call{segment,
            -1,
            task.microbatch,
            {part.weights, part.gradients, part.shared, part.shared_gradients},
            waits_of(task, segment)};
  call.frames.insert(call.frames.end(), frames.begin(), frames.end());
  return call;
}

/// Where the vocabulary's passes are spread: what goes with the passes of the first stage's layers.
void StageWriter::embedding_inner_forward(Chunk& chunk, Passage& passage, const Task& task) {
  const EndSegments& s = *x_embedding_segments;
  if (!s.inner_forward.valid()) return;
  Call call = inner_call(
      s.inner_forward, chunk.embedding, task,
      {passage.hidden.front(), FrameId(), passage.embedding_saved,
       x_builder.frame(s.local_forward, -1, task.microbatch), inputs_of(task.microbatch)});
  x_builder.call(std::move(call));
}

void StageWriter::embedding_inner_backward(Chunk& chunk, Passage& passage, const Task& task) {
  const EndSegments& s = *x_embedding_segments;
  passage.embedding_local = x_builder.frame(s.local_backward, -1, task.microbatch);
  x_builder.call(inner_call(s.inner_backward, chunk.embedding, task,
                            {FrameId(), passage.gradient, passage.embedding_saved,
                             passage.embedding_local, inputs_of(task.microbatch)}));
}

/// And before the last stage's backward pass.
void StageWriter::head_inner_backward(Chunk& chunk, Passage& passage, const Task& task) {
  const EndSegments& s = *x_head_segments;
  x_builder.call(inner_call(s.inner_backward, chunk.head, task,
                            {passage.hidden.back(), passage.gradient, passage.head_saved,
                             x_builder.frame(s.local_backward, -1, task.microbatch),
                             inputs_of(task.microbatch), x_scalar_frame}));
}

}  // namespace foretrain
