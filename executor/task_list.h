// A Program as an executor runs it: every stream's ops in issue order, with the events they wait
// for.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "executor/operands.h"
#include "sim/program/program.h"

namespace foretrain {

/// An op of a call. Events are numbered over all frames of the Program.
struct QueuedOp {
  std::int32_t call = 0, op = 0;
  std::vector<std::size_t> waits;
  std::int64_t event = -1;  ///< that it records
};

struct TaskList {
  explicit TaskList(const Program& program);

  const Program* program;
  std::size_t events = 0;
  std::vector<std::vector<QueuedOp>> tasks;                 ///< by stream
  std::vector<std::pair<std::int32_t, std::size_t>> issue;  ///< (stream, task) in issue order
  FrameId loss_frame;                                       ///< invalid where no loss is computed
  std::int16_t loss_buffer = 0;

  const Call& call_of(const QueuedOp& task) const {
    return program->calls[static_cast<std::size_t>(task.call)];
  }
  const Op& op_of(const QueuedOp& task) const {
    return program->segments[call_of(task).segment.index()].ops[static_cast<std::size_t>(task.op)];
  }
  const Work& work_of(const QueuedOp& task) const {
    return program->works[op_of(task).work.index()];
  }
};

/// The kernel that a device or the host's processor runs; none where the work is no kernel, or one
/// that is not written down.
const Kernel* kernel_in(const Work& work);

/// A view as a call binds it.
struct KeptView {
  const Call* call = nullptr;
  View view;
  FrameId frame() const { return call->frames[static_cast<std::size_t>(view.frame)]; }
};
/// Where the content of an optimizer's buffer is between steps: a buffer that comes and goes is
/// copied from or to one that stays.
KeptView kept_view(const TaskList& list, const Call& call, const View& view);

/// The weights of an update, the fp32 copies that they equal after it, if any, and its moments.
struct UpdatedWeights {
  View weights;
  std::optional<View> master;
  View momentum, variance;
};
/// Of an Adam; none of other ops. Where it updates the copies alone, a cast of its call follows.
std::optional<UpdatedWeights> updated_weights(const TaskList& list, const QueuedOp& task);

/// A rank's places in the groups that its slots are bound to.
std::vector<Place> places_of(const Workload& workload, RankId rank);

}  // namespace foretrain
