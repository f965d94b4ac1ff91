// Contiguous buckets of sharded gradients (ZeRO-2): what a backward pass makes lives until it is
// copied into the bucket that is being filled, which is reduced when the next parameter would not
// fit, in every microbatch: models/gradients/contiguous.cpp.
#include "models/step/passes.h"

namespace foretrain {

void copy_contiguous(const StageContext& s, StageStep& step) {
  insert(
      step, true,
      [&](const Task& at) {
        if (at.kind == TaskKind::kGradientsReady) return true;
        if (at.direction != Direction::kBackward) return false;
        if (at.kind == TaskKind::kLayer) return true;
        // A table that the head shares with the embedding is not final yet.
        return at.kind == TaskKind::kHead &&
               !(s.model.tied_embeddings && s.chunk(at.chunk).has_embedding);
      },
      [](TaskId id, const Task& at) {
        const bool ends = at.kind == TaskKind::kGradientsReady;
        Task task = beside(at, ends ? TaskKind::kFinishContiguous : TaskKind::kCopyGradients,
                           Direction::kBackward);
        if (ends) task.after = {{id, nullptr, true}};
        return std::vector<Task>{task};
      });
}

}  // namespace foretrain
