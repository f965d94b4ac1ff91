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
      QueuedOp task;
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

const Kernel* kernel_in(const Work& work) {
  const auto* opaque = std::get_if<Opaque>(&work);
  if (opaque != nullptr) return opaque->kernel ? &*opaque->kernel : nullptr;
  return std::get_if<Kernel>(&work);
}

namespace {

bool stays(const Program& program, const KeptView& of) {
  const Frame& frame = program.frames[of.frame().index()];
  const Frame& home = frame.alias_of.valid() ? program.frames[frame.alias_of.index()] : frame;
  const std::int16_t buffer = frame.alias_of.valid() ? frame.alias_buffer : of.view.buffer;
  return program.layouts[home.layout.index()].buffers[static_cast<std::size_t>(buffer)].persistent;
}

}  // namespace

KeptView kept_view(const TaskList& list, const Call& call, const View& view) {
  const KeptView own{&call, view};
  if (stays(*list.program, own)) return own;
  for (const auto& [stream, index] : list.issue) {
    const QueuedOp& task = list.tasks[static_cast<std::size_t>(stream)][index];
    if (!std::holds_alternative<Copy>(list.work_of(task))) continue;
    const Op& op = list.op_of(task);
    for (std::size_t i = 0; i < op.reads.size(); ++i) {
      const KeptView from{&list.call_of(task), op.reads[i]};
      const KeptView to{&list.call_of(task), op.writes[i]};
      for (const auto& [here, there] : {std::pair(from, to), std::pair(to, from)}) {
        const bool same = here.frame() == own.frame() && here.view.buffer == view.buffer;
        if (same && stays(*list.program, there)) return there;
      }
    }
  }
  FT_CHECK(false, "an optimizer's buffer that is nowhere kept");
  return own;
}

std::optional<UpdatedWeights> updated_weights(const TaskList& list, const QueuedOp& task) {
  const Kernel* const adam = kernel_in(list.work_of(task));
  if (adam == nullptr || adam->kind != KernelKind::kAdam) return std::nullopt;
  const Op& op = list.op_of(task);
  const std::vector<Op>& ops = list.program->segments[list.call_of(task).segment.index()].ops;
  const auto casts = [&](const Op& other) {
    const Kernel* const cast = kernel_in(list.program->works[other.work.index()]);
    return cast != nullptr && cast->kind == KernelKind::kCast && other.reads[0] == op.writes[0];
  };
  const auto cast = std::find_if(ops.begin() + task.op + 1, ops.end(), casts);
  const View& momentum = op.writes[1];
  const View& variance = op.writes[2];
  if (cast != ops.end()) return UpdatedWeights{cast->writes[0], op.writes[0], momentum, variance};
  if (op.writes.size() < 4) return UpdatedWeights{op.writes[0], {}, momentum, variance};
  return UpdatedWeights{op.writes[0], op.writes[3], momentum, variance};
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
