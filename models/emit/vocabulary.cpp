// The parts of a vocabulary on all stages that go with passes of layers:
// models/step/passes/spread_vocabulary.cpp.
#include "models/emit/frames.h"
#include "models/emit/tasks.h"
#include "models/emit/update.h"
#include "models/gradients/buckets.h"
#include "models/units/units.h"

namespace foretrain {

static Call inner_call(Stage& stage, SegmentId segment, const PartFrames& part, const Task& task,
                       std::vector<FrameId> frames);

/// `frames` follow those of the part's parameters.
Call inner_call(Stage& stage, SegmentId segment, const PartFrames& part, const Task& task,
                std::vector<FrameId> frames) {
  Call call{segment,
            -1,
            task.microbatch,
            {part.weights, part.gradients, part.shared, part.shared_gradients},
            waits_of(stage, task, segment)};
  call.frames.insert(call.frames.end(), frames.begin(), frames.end());
  return call;
}

/// Where the vocabulary's passes are spread: what goes with the passes of the first stage's layers.
void embedding_inner_forward(Stage& stage, Chunk& chunk, MicrobatchState& passage,
                             const Task& task) {
  const EndSegments& s = *stage.segments.embedding;
  if (!s.inner_forward.valid()) return;
  Call call = inner_call(stage, s.inner_forward, chunk.embedding, task,
                         {passage.hidden.front(), FrameId(), passage.embedding_saved,
                          stage.builder.frame(s.local_forward, -1, task.microbatch),
                          inputs_of(stage, task.microbatch)});
  stage.builder.call(std::move(call));
}

void embedding_inner_backward(Stage& stage, Chunk& chunk, MicrobatchState& passage,
                              const Task& task) {
  const EndSegments& s = *stage.segments.embedding;
  passage.embedding_local = stage.builder.frame(s.local_backward, -1, task.microbatch);
  stage.builder.call(inner_call(stage, s.inner_backward, chunk.embedding, task,
                                {FrameId(), passage.gradient, passage.embedding_saved,
                                 passage.embedding_local, inputs_of(stage, task.microbatch)}));
}

/// And before the last stage's backward pass.
void head_inner_backward(Stage& stage, Chunk& chunk, MicrobatchState& passage, const Task& task) {
  const EndSegments& s = *stage.segments.head;
  stage.builder.call(inner_call(stage, s.inner_backward, chunk.head, task,
                                {passage.hidden.back(), passage.gradient, passage.head_saved,
                                 stage.builder.frame(s.local_backward, -1, task.microbatch),
                                 inputs_of(stage, task.microbatch), stage.holds.scalar_values}));
}

}  // namespace foretrain
