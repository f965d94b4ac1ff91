// Messages of which every tensor rank sends its own part.
//
// Without sequence parallelism all tensor ranks hold the residual stream alike. With
// `parallel.scatter_gather` each sends its part of it alone, over its own network card, and gathers
// what the others of its group received before the pass begins (Narayanan et al., SC'21, section
// 4.1; DeepSpeed's PartitionedTensor, runtime/pipe/engine.py and runtime/utils.py, v0.6.4, with
// which `retain_outputs` keeps the part, and the backward pass gathers the output again, whose
// values nothing reads). The gather stands at the begin of the pass and not where the message is
// received: collectives of a group have one order. Left out: its other copies of parts, and the
// mask that it sends along.
#include <map>

#include "models/step/passes.h"

namespace foretrain {
namespace {

/// Whether the output of a task's chunk goes to another stage.
bool goes_on(const StageContext& s, const StageStep& step, const Task& at) {
  const Chunk& chunk = s.chunk(at.chunk);
  const PassKind kind = step.place_of(at).pass.kind;
  if (kind == PassKind::kForwardOnly) return !(chunk.first && chunk.last);
  return !chunk.last && !stays_on_stage(s, at.chunk, 1);
}

}  // namespace

void scatter_messages(const StageContext& s, StageStep& step) {
  std::map<std::int32_t, TaskId> receives;  // by pass
  std::vector<TaskId> order;
  const auto gather = [&](const Task& at, TaskId receive) {
    Task task = beside(at, TaskKind::kGatherMessage, at.direction);
    task.of = receive;
    order.push_back(step.make(std::move(task)));
  };
  for (const TaskId id : step.order()) {
    const Task& at = step[id];
    order.push_back(id);
    const bool layers = step.through_layers(at);
    const bool sends = layers && s.plan.retain_outputs && goes_on(s, step, at);
    if (sends && at.kind == TaskKind::kEnd && at.direction == Direction::kForward) {
      order.push_back(step.make(beside(at, TaskKind::kKeepPart, Direction::kForward)));
    }
    if (at.kind == TaskKind::kReceive) {
      receives[at.pass] = id;
      if (at.form == kHoisted) gather(at, id);
    }
    if (at.kind != TaskKind::kBegin) continue;
    const auto received = receives.find(at.pass);
    if (received != receives.end() && step[received->second].form != kHoisted) {
      gather(at, received->second);
    }
    if (sends && at.direction == Direction::kBackward) {
      order.push_back(step.make(beside(at, TaskKind::kGatherOutput, at.direction)));
    }
  }
  step.place(std::move(order));
}

}  // namespace foretrain
