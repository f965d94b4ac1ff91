// A stage's step as a list of tasks: what passes rewrite, and what emission turns into a Program.
//
// A task is one thing that a stage does for a chunk, a layer or a microbatch. The order of the list
// is the order in which the host issues the tasks: order is meaning, since collectives match by
// order and the allocator sees it. Waits that follow from data (a layer reads what the one before
// wrote) are emission's; `after` names those that data does not imply, such as a pass that waits
// for a blocking send.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "models/plan/plan.h"
#include "sim/base/id.h"

namespace foretrain {

using TaskId = Id<struct TaskTag>;

enum class TaskKind : std::uint8_t {
  // Markers: nothing is issued, other tasks are placed by them.
  kOpen,            ///< a pass is the next thing to do
  kBegin,           ///< its inputs have been asked for
  kEnd,             ///< it has issued all that it computes
  kGradientsReady,  ///< a microbatch's gradients of a chunk are complete
  kPairBegin,       ///< the calls of a pass that runs as one with others begin
  kPairEnd,         ///< and those of the last of them end
  // The host and inputs.
  kLoadAhead,
  kZero,  ///< the step's first kernels
  kLoadInputs,
  kHostWait,
  kHostTime,
  // Passes through layers and ends.
  kEmbedding,
  kEmbeddingInner,  ///< of a vocabulary on all stages: what goes with the first stage's layers
  kAddReturned,     ///< to the embedding: an earlier pass's output
  kQuantize,        ///< weights of a layer, before their first use in a step
  kLayer,
  kSliceTails,  ///< the last blocks of a layer's slices
  kHead,
  kHeadInner,
  kCheckpoint,  ///< the host's part of a recomputation
  kShareScales,
  // Messages.
  kReceive,
  kSend,
  kGatherMessage,
  kKeepPart,
  kGatherOutput,
  kReleaseOutput,
  kReleaseCasts,
  // Parameters.
  kGather,         ///< a unit's parameters, for a pass
  kRelease,        ///< a pass was the last to read them
  kGatherUpdated,  ///< what the update made, of a bucket or of a unit that stays whole
  // Gradients.
  kAddPass,  ///< a pass's gradients to the sum of those before
  kReduceBucket,
  kReduceUnit,
  kReduceParts,       ///< what ranks of a small group computed in parts
  kCopyGradients,     ///< into contiguous buckets
  kFinishContiguous,  ///< a pass's last gradients, into contiguous buckets
  kCopyBack,          ///< out of buckets
  kCollect,           ///< a pass's sums into those of the step
  // Memory.
  kMoveOut,       ///< what a layer keeps leaves the device
  kReleaseMoved,  ///< and is let go of there
  kReadBack,      ///< from storage to the host
  kMoveBack,      ///< from the host to the device
  // The end of a step.
  kValidate,
  kUpdate,
  kHostUpdate,
  kDeviceUpdate,  ///< of what stays on the device beside a host's update
  kLoadWeights,
  kReduceLoss,
};
std::string_view name_of(TaskKind kind);

enum class Direction : std::uint8_t { kForward, kBackward, kRecompute, kWeights };
std::string_view name_of(Direction direction);

inline constexpr const char* kComputeStream = "compute";

/// A stream goes on once a task is done.
struct After {
  TaskId task;
  const char* stream = nullptr;  ///< null: that of the first op of the task that waits
  /// The task's last op; else what other tasks read of it is there, which may be earlier.
  bool end = false;
};

struct Task {
  TaskKind kind = TaskKind::kLayer;
  Direction direction = Direction::kForward;
  /// Which of several forms, in the words of the kind's emission; 0: the plain one.
  std::int16_t form = 0;
  std::int32_t chunk = -1;  ///< counts on the stage; experts' chunks follow the layers'
  std::int32_t layer = -1;  ///< of the chunk
  std::int32_t microbatch = -1;
  std::int32_t index = -1;  ///< of a bucket or a unit of the chunk
  std::int32_t pass = -1;   ///< in `StageStep::passes`
  bool last = false;        ///< nothing adds to these gradients in this step any more
  TaskId of = {};           ///< the task that this one is about, if it is
  std::vector<After> after = {};
};

/// Forms of kReceive.
inline constexpr std::int16_t kHoisted = 1;   ///< before the first of passes that run as one
inline constexpr std::int16_t kReturned = 2;  ///< an earlier pass's output; also of kEmbedding
/// Forms of kLayer, besides the plain one.
inline constexpr std::int16_t kBlockFirst = 1;  ///< of layers that are computed again together
inline constexpr std::int16_t kBlockLast = 2;   ///< both may be set
inline constexpr std::int16_t kSliceHeads = 4;  ///< first blocks of slices, with `of`'s last ones
inline constexpr std::int16_t kSliceBody = 8;   ///< those between the first and the last ones
/// Form of kGather: n, the unit's all-gathers up to the n-th that are not issued yet; 0, all.
/// Forms of kReduceParts; from kOverGrid on by group of the grid.
inline constexpr std::int16_t kOverTensor = 0, kOverTied = 1, kOverGrid = 2;

/// A pass of the schedule, and where it stands among others.
struct PassPlace {
  Pass pass;
  bool first = false;         ///< of the chunk's forward passes in this step
  bool last = false;          ///< nothing adds to the chunk's gradients after it
  bool same_follows = false;  ///< a pass of the same chunk and kind comes next
  std::int32_t in_pair = -1;  ///< place among passes that run as one; -1: it runs alone
  /// Of a chunk's layers; else of a vocabulary that lies on all stages.
  bool through_layers() const { return pass.kind < PassKind::kEmbedding; }
};

/// The tasks of a stage, in order.
class StageStep {
 public:
  /// A task that stands nowhere yet.
  TaskId make(Task task) {
    x_tasks.push_back(std::move(task));
    return TaskId(x_tasks.size() - 1);
  }
  TaskId append(Task task) {
    x_order.push_back(make(std::move(task)));
    return x_order.back();
  }
  Task& operator[](TaskId id) { return x_tasks[id.index()]; }
  const Task& operator[](TaskId id) const { return x_tasks[id.index()]; }
  /// The pass that a task is of; it must be of one.
  const PassPlace& place_of(const Task& task) const {
    return passes[static_cast<std::size_t>(task.pass)];
  }
  /// Whether the task is of a pass through layers.
  bool through_layers(const Task& task) const {
    return task.pass >= 0 && place_of(task).through_layers();
  }
  const std::vector<TaskId>& order() const { return x_order; }
  void place(std::vector<TaskId> order) { x_order = std::move(order); }
  std::size_t made() const { return x_tasks.size(); }

  std::vector<PassPlace> passes;
  std::string rewritten_by;  ///< names of the passes that have run

 private:
  std::deque<Task> x_tasks;  ///< places stay while tasks are made
  std::vector<TaskId> x_order;
};

/// One line a task: kind, chunk, layer, microbatch, what it comes after.
std::string text_of(const StageStep& step);

}  // namespace foretrain
