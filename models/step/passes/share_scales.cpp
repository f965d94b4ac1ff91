// Scales that ranks share.
//
// With delayed scaling (Transformer Engine's DelayedScaling) a tensor's scale comes of the largest
// values that it had in earlier microbatches. Ranks that compute parts of a tensor, or the same
// layers on other tokens, agree on them: at the end of a chunk's forward pass the largest values of
// inputs and weights of its linears are put together, all-reduced and turned into the next scales,
// at the end of the backward pass those of output gradients. Compute waits for it, so that ranks of
// a stage keep step with each other in every pass. Left out: what the exchange of joined passes
// (two chunks at once) would be; they have none.
#include "models/step/passes.h"

namespace foretrain {

void share_scales(const StageContext& s, StageStep& step) {
  insert(
      step, false,
      [&](const Task& at) {
        if (at.kind != TaskKind::kEnd || at.direction == Direction::kWeights) return false;
        const PassPlace& place = step.place_of(at);
        return place.in_pair < 0 && place.through_layers();
      },
      [&](TaskId, const Task& at) {
        const std::int64_t largest = scaled_linears(s, at.chunk);
        if (largest == 0) return std::vector<Task>();
        Task task = beside(at, TaskKind::kShareScales, at.direction);
        const bool back = at.direction == Direction::kBackward;
        task.index = static_cast<std::int32_t>(largest * (back ? 1 : 2));
        return std::vector<Task>{task};
      });
}

}  // namespace foretrain
