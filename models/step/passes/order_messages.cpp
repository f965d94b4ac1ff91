// What messages and reductions wait for, and what waits for them, beside their data.
//
// A kernel that waits for what another stage sends holds SMs. Like NCCL's under PyTorch a receive
// starts behind the compute that was issued before it: with `overlap.pipeline` it is posted a pass
// early. Without overlap the next pass waits until what this one sends is gone. Receives are posted
// late: between several chunks, in schedules that send more than one microbatch ahead and with
// hosts that wait for counts of tokens, compute that waited for its messages could then wait for
// ever, and does not. With `units.reduce_waits` compute goes on when gradients are reduced.
#include "models/step/passes.h"

namespace foretrain {
namespace {

/// Compute that goes on only behind what it was told to wait for.
bool takes_waits(TaskKind kind) {
  switch (kind) {
    case TaskKind::kEmbedding:
    case TaskKind::kEmbeddingInner:
    case TaskKind::kQuantize:
    case TaskKind::kLayer:
    case TaskKind::kHead:
    case TaskKind::kHeadInner:
    case TaskKind::kShareScales:
    case TaskKind::kUpdate:
      return true;
    default:
      return false;
  }
}

}  // namespace

void order_messages(const StageContext& s, StageStep& step) {
  const Plan& plan = s.plan;
  const bool in_turn = plan.chunks_of_stage() == 1 &&
                       (plan.schedule == Schedule::kGpipe || plan.schedule == Schedule::k1F1B);
  const bool blocks = !plan.overlap.pipeline && !s.model.has_experts() && in_turn;
  const std::size_t back = plan.overlap.pipeline ? 2 : 1;
  std::vector<TaskId> ends;    // of passes through layers
  std::vector<After> waiting;  // for the next compute
  for (const TaskId id : step.order()) {
    Task& task = step[id];
    if (takes_waits(task.kind)) {
      task.after.insert(task.after.end(), waiting.begin(), waiting.end());
      waiting.clear();
    }
    switch (task.kind) {
      case TaskKind::kEnd:
        if (step.through_layers(task)) {
          ends.push_back(id);
        }
        break;
      case TaskKind::kReceive:
        if (ends.size() >= back) task.after.push_back({ends[ends.size() - back], nullptr, true});
        if (task.form == kHoisted) waiting.push_back({id, kComputeStream});
        break;
      case TaskKind::kGatherMessage:
        if (step[task.of].form == kHoisted) {
          waiting.back() = {id, kComputeStream};
        }
        break;
      case TaskKind::kSend:
        if (blocks) waiting.push_back({id, kComputeStream, true});
        break;
      case TaskKind::kReduceUnit:
        if (plan.units.reduce_waits) waiting.push_back({id, kComputeStream, true});
        break;
      default:
        break;
    }
  }
}

}  // namespace foretrain
