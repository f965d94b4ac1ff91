// A framework that runs its backward passes from the tensors that it sent keeps them until then
// (`retain_outputs`: DeepSpeed's runtime/pipe/engine.py).
#include "models/step/passes.h"

namespace foretrain {

void retain_outputs(const StageContext& s, StageStep& step) {
  insert(
      step, false,
      [&](const Task& at) {
        return at.kind == TaskKind::kEnd && at.direction == Direction::kBackward &&
               step.through_layers(at) && !s.chunk(at.chunk).last &&
               !stays_on_stage(s, at.chunk, 1);
      },
      [](TaskId, const Task& at) {
        return std::vector<Task>{beside(at, TaskKind::kReleaseOutput, Direction::kBackward)};
      });
}

}  // namespace foretrain
