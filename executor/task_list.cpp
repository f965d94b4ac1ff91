#include "executor/task_list.h"

#include <algorithm>

#include "sim/base/check.h"

namespace foretrain {

TaskList::TaskList(const Program& of) : program(&of), tasks(of.streams.size()) {
  std::vector<std::size_t> event_base;
  for (const Frame& frame : of.frames) {
    event_base.push_back(events);
    events += of.layouts[frame.layout.index()].events.size();
  }
  const auto event_of = [&](const Call& call, EventRef ref) {
    return event_base[call.frames[static_cast<std::size_t>(ref.frame)].index()] +
           static_cast<std::size_t>(ref.event);
  };
  std::vector<std::vector<std::size_t>> pending(tasks.size());  // of calls, until the next op
  for (std::size_t c = 0; c < of.calls.size(); ++c) {
    const Call& call = of.calls[c];
    for (const StreamWait& wait : call.waits) {
      pending[wait.stream.index()].push_back(event_base[wait.frame.index()] +
                                             static_cast<std::size_t>(wait.event));
    }
    const Segment& segment = of.segments[call.segment.index()];
    for (std::size_t o = 0; o < segment.ops.size(); ++o) {
      const Op& op = segment.ops[o];
      Task task;
      task.call = static_cast<std::int32_t>(c);
      task.op = static_cast<std::int32_t>(o);
      task.waits = std::move(pending[op.stream.index()]);
      pending[op.stream.index()].clear();
      for (const EventRef& ref : op.waits) task.waits.push_back(event_of(call, ref));
      if (op.records.valid()) task.event = static_cast<std::int64_t>(event_of(call, op.records));
      const auto* kernel = std::get_if<Kernel>(&of.works[op.work.index()]);
      if (kernel != nullptr && kernel->kind == KernelKind::kLossMean) {
        loss_frame = call.frames[static_cast<std::size_t>(op.writes[0].frame)];
        loss_buffer = op.writes[0].buffer;
      }
      issue.emplace_back(op.stream.value, tasks[op.stream.index()].size());
      tasks[op.stream.index()].push_back(std::move(task));
    }
  }
}

std::vector<Place> places_of(const Workload& workload, RankId rank) {
  std::vector<Place> out;
  for (const GroupId id : workload.ranks[rank.index()].groups) {
    Place place;
    if (id.valid()) {
      const std::vector<RankId>& members = workload.groups[id.index()];
      const auto at = std::find(members.begin(), members.end(), rank);
      FT_CHECK(at != members.end(), "a rank is bound to a group that it is no member of");
      place.index = at - members.begin();
      place.size = static_cast<std::int64_t>(members.size());
    }
    out.push_back(place);
  }
  return out;
}

}  // namespace foretrain
