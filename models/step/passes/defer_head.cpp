// Gradients of the output matrix that wait for the end of the step (`overlap.head_deferral`;
// Megatron-LM's --defer-embedding-wgrad-compute): of the first so many microbatches they follow the
// last stage's last pass, when it has sent its last gradients and waits for others.
#include "models/step/passes.h"

namespace foretrain {

void defer_head(const StageContext& s, StageStep& step) {
  std::vector<TaskId> order;
  std::vector<Task> left;
  Task ready;
  for (const TaskId id : std::vector<TaskId>(step.order())) {
    const Task at = step[id];
    const bool back = at.direction == Direction::kBackward;
    // The chunk's gradients are complete when those are; the embedding's own end comes before.
    const bool of_last = at.chunk >= 0 && s.chunk(at.chunk).last && !s.chunk(at.chunk).first;
    if (at.kind == TaskKind::kGradientsReady && back && of_last) {
      ready = at;
      continue;
    }
    if (at.last && at.pass < 0) {  // the end of the step
      for (Task& head : left) order.push_back(step.make(std::move(head)));
      if (!left.empty()) {
        ready.direction = Direction::kWeights;
        ready.last = true;
        ready.of = order.back();
        order.push_back(step.make(std::move(ready)));
      }
      left.clear();
    }
    order.push_back(id);
    if (at.kind != TaskKind::kHead || !back) continue;
    Task weights = beside(at, TaskKind::kHead, Direction::kWeights);
    if (static_cast<std::int64_t>(left.size()) < s.plan.overlap.head_deferral) {
      left.push_back(std::move(weights));
    } else {
      order.push_back(step.make(std::move(weights)));
    }
  }
  step.place(std::move(order));
}

}  // namespace foretrain
