// What the host does beside issuing ops: where it waits for the device (`host.synchronize`), and
// what the framework's own code takes beside every pass (`host.pass_us`).
//
// The host stops until compute and what a pass has received are done. Not for sends: another stage
// may post their receives only after this one has gone on.
#include <map>

#include "models/step/passes.h"

namespace foretrain {
namespace {

bool waits_before(const Plan& plan, const Task& at, bool received) {
  const bool blocks = plan.chunks_of_stage() == 1 || !plan.overlap.pipeline;
  switch (plan.host_waits) {
    case HostWaits::kNone:
      return false;
    case HostWaits::kForward:
      return at.direction == Direction::kForward;
    case HostWaits::kTransfers:
      return received && blocks;
    case HostWaits::kPasses:
      return true;
  }
  return false;
}

}  // namespace

void host_time(const StageContext& s, StageStep& step) {
  std::map<std::int32_t, TaskId> receives;  // by pass
  std::vector<TaskId> order;
  for (const TaskId id : step.order()) {
    const Task& at = step[id];
    if (at.kind == TaskKind::kReceive) receives[at.pass] = id;
    const bool layers = step.through_layers(at) && at.direction != Direction::kWeights;
    const bool alone =
        !layers && at.direction != Direction::kWeights && s.plan.host_waits == HostWaits::kPasses;
    const auto wait = [&](TaskId received) {
      Task task = beside(at, TaskKind::kHostWait, at.direction);
      if (received.valid()) task.after.push_back({received, kComputeStream, true});
      order.push_back(step.make(std::move(task)));
    };
    if (at.kind == TaskKind::kOpen && alone) wait(TaskId());
    const bool ends = at.kind == TaskKind::kEnd && (layers || alone);
    if (ends && s.plan.host_waits == HostWaits::kPasses) wait(TaskId());
    order.push_back(id);
    if (at.kind != TaskKind::kBegin || !layers) continue;
    const auto found = receives.find(at.pass);
    const TaskId received = found == receives.end() ? TaskId() : found->second;
    if (waits_before(s.plan, at, received.valid())) wait(received);
    if (s.plan.pass_time.ps > 0) {
      order.push_back(step.make(beside(at, TaskKind::kHostTime, at.direction)));
    }
  }
  step.place(std::move(order));
}

}  // namespace foretrain
