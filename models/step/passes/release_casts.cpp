// Autocast holds its copies of weights to the end of the forward pass; those of layers that are
// computed again nobody else does (torch.autocast's cache: aten/src/ATen/autocast_mode.cpp).
#include "models/step/passes.h"

namespace foretrain {

void release_casts(const StageContext& s, StageStep& step) {
  insert(
      step, false,
      [&](const Task& at) {
        return at.kind == TaskKind::kEnd && at.direction == Direction::kForward &&
               step.through_layers(at);
      },
      [&](TaskId, const Task& at) {
        std::vector<Task> out;
        for (std::int64_t l = 0; l < s.chunk(at.chunk).layers; ++l) {
          if (!recomputes(s.plan, s.chunk(at.chunk).layers_before + l)) continue;
          Task task = beside(at, TaskKind::kReleaseCasts, Direction::kForward);
          task.layer = static_cast<std::int32_t>(l);
          out.push_back(std::move(task));
        }
        return out;
      });
}

}  // namespace foretrain
