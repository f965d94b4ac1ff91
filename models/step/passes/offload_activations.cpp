// What layers keep on the host: it is copied out, their input included, after their forward pass,
// for which compute waits after the next layer's, and back while the layer after them computes
// backward.
//
// Or in storage (ZeRO-Infinity, arXiv 2104.07857; SSDTrain, arXiv 2408.10013), by way of the host,
// where two layers' have room: written once it is there, before the layer after the next one's is
// copied out, and read while the layer two behind computes backward. Left out: copies between
// device and storage without the host (SSDTrain's, by GPUDirect Storage), that what is needed again
// too soon stays; what the host is said to hold counts one of the two layers.
//
// What was copied out of the device is there until compute has waited for the copy, which it does
// after the next layer's pass: a framework gives memory to what comes next only then.
#include <set>
#include <tuple>

#include "models/step/passes.h"

namespace foretrain {
namespace {

/// Layers on their way to storage for which there is room on the host.
constexpr std::size_t kStaged = 2;

/// One walk over the tasks of a step.
class Moves {
 public:
  Moves(const StageContext& s, StageStep& step) : x_s(s), x_step(step) {}

  void run() {
    for (const TaskId id : x_step.order()) {
      const Task& at = x_step[id];
      const bool layer = at.kind == TaskKind::kLayer;
      const std::int64_t layers = at.chunk < 0 ? 0 : x_s.chunk(at.chunk).layers;
      if (layer && at.direction == Direction::kBackward) {
        if (at.layer + 1 == layers) load(at, at.layer);
        load(at, at.layer - 1);
      }
      const bool behind_layers =
          at.kind == TaskKind::kEmbedding || at.kind == TaskKind::kGradientsReady;
      if (layers == 0 && behind_layers && at.direction == Direction::kBackward) release(at);
      // Blocks of a pass that is interleaved with another go in between: it lets go of its own.
      const bool woven = at.pass >= 0 && at.kind == TaskKind::kEnd &&
                         x_s.plan.interleaves_pairs() && x_s.model.has_experts() &&
                         x_step.place_of(at).in_pair >= 0;
      if (woven && at.direction == Direction::kForward) release(at);
      x_order.push_back(id);
      if (layer && at.direction == Direction::kForward && keeps_anything(at)) keep(at);
    }
    x_step.place(std::move(x_order));
  }

 private:
  bool stored() const { return x_s.plan.offload.activations == Memory::kStorage; }
  bool keeps_anything(const Task& at) const {
    const PassKind kind = x_step.place_of(at).pass.kind;
    return kind == PassKind::kForward;
  }
  bool offloads(const Task& at, std::int64_t layer) const {
    return x_s.chunk(at.chunk).layers_before + layer < x_s.plan.offload.activation_layers;
  }

  TaskId add(const Task& at, TaskKind kind, std::int64_t layer) {
    Task task = beside(at, kind, at.direction);
    task.layer = static_cast<std::int32_t>(layer);
    x_order.push_back(x_step.make(std::move(task)));
    return x_order.back();
  }

  void release(const Task& at) {
    for (const TaskId moved : x_moved) {
      const TaskId id = add(at, TaskKind::kReleaseMoved, x_step[moved].layer);
      x_step[id].of = moved;
    }
    x_moved.clear();
  }

  void keep(const Task& at) {
    release(at);
    if (!offloads(at, at.layer)) return;
    const TaskId id = add(at, TaskKind::kMoveOut, at.layer);
    x_moved.push_back(id);
    if (!stored()) return;
    if (x_stored.size() >= kStaged) {
      x_step[id].after.push_back({x_stored[x_stored.size() - kStaged], kOut, true});
    }
    x_stored.push_back(id);
    x_away.insert({at.chunk, at.microbatch, at.layer});
  }

  void read_back(const Task& at, std::int64_t layer) {
    if (x_away.erase({at.chunk, at.microbatch, layer}) > 0) add(at, TaskKind::kReadBack, layer);
  }

  /// Before the backward pass of the layer behind `layer` (or of `layer` itself, the last one): its
  /// frames come back, into new memory, while that one computes.
  void load(const Task& at, std::int64_t layer) {
    release(at);
    if (layer < 0) return;
    read_back(at, layer);
    if (offloads(at, layer)) add(at, TaskKind::kMoveBack, layer);
    read_back(at, layer - 1);
  }

  const StageContext& x_s;
  StageStep& x_step;
  std::vector<TaskId> x_order;
  std::vector<TaskId> x_moved;   ///< what is still on the device too
  std::vector<TaskId> x_stored;  ///< what has gone on to storage
  /// Chunk, microbatch, layer of what is in storage alone.
  std::set<std::tuple<std::int32_t, std::int32_t, std::int64_t>> x_away;
};

}  // namespace

void offload_activations(const StageContext& s, StageStep& step) { Moves(s, step).run(); }

}  // namespace foretrain
