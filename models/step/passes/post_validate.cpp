// Post-validation of the update (Qi et al., arXiv 2401.10241, section 4).
//
// In place of an all-reduce of the gradients' norm, in which all stages wait for each other, a
// stage takes what those before it have summed, adds its own, hands that on and updates by it. In
// the warm-up of the next step the last stage's sum comes back up the stages, each of which looks
// whether its update was right, and would undo and repeat it if not:
//
//   stage s, end of a step     receive sum(0 .. s-1) | add own | send sum(0 .. s) | update
//   stage s, warm-up           receive sum(0 .. p-1) | send it to s - 1 | look
//
// (pre_step and post_validation of megatron/core/optimizer/optimizer.py in
// sail-sg/zero-bubble-pipeline-parallelism). Gradients are taken to be finite and within the limit,
// so nothing scales them: left out are updates that are undone and made again with clipped
// gradients.
//
// The stage looks before the forward pass by which the last stage's state can be here, at most the
// last one of the warm-up: get_post_validation_time of that repository's
// megatron/core/pipeline_parallel/zerobubble/scheduler/communication.py.
#include <algorithm>

#include "models/step/passes.h"

namespace foretrain {

void post_validate(const StageContext& s, StageStep& step) {
  std::size_t warmup = 0;
  while (warmup < step.passes.size() && step.passes[warmup].pass.kind == PassKind::kForward) {
    ++warmup;
  }
  const auto hops = static_cast<std::size_t>(s.plan.pipeline - 1 - s.stage);
  const std::size_t place = std::min(2 * hops, std::max<std::size_t>(warmup, 1) - 1);
  TaskId before;  // end of the pass before
  insert(
      step, false,
      [&](const Task& at) {
        const bool here = at.pass == static_cast<std::int32_t>(place);
        return at.kind == TaskKind::kOpen && here;
      },
      [&](TaskId, const Task&) {
        Task task;
        task.kind = TaskKind::kValidate;
        for (const TaskId id : step.order()) {
          const bool earlier = step[id].pass < static_cast<std::int32_t>(place);
          if (step[id].kind == TaskKind::kEnd && earlier) before = id;
        }
        if (before.valid()) task.after.push_back({before, "validation", true});
        return std::vector<Task>{task};
      });
}

}  // namespace foretrain
