// The passes of a vocabulary that lies on all stages.
//
// The token table and the output matrix are cut among all tensor ranks of all stages, tied or not.
// What these look up and the gradients of hidden states are reduced to one stage, hidden states and
// the gradients of embeddings broadcast from it (models/layers/ends.h). Positions and norms stay on
// that stage; all know the loss.
//
// 1f1b-interlaced (Lin et al., nnScaler, OSDI 2024; the interlaced pipeline of Yeung et al., arXiv
// 2411.05288): three passes go over them on every stage at once, in one order: the embedding of a
// microbatch before the first stage's forward pass, the head forward and backward between the last
// stage's passes, the gradient of the table after the first stage's backward pass.
//
// 1f1b-vocab-1 and -2 (Yeung et al.): the head is two passes, S and T, and every stage takes each
// of the four when it has time. What they exchange travels beside the layers' passes, each kind in
// a group and on a stream of its own, and a part of the ends goes with the layers' passes of the
// first and the last stage.
//
// A kernel that waits for what other stages send holds SMs. What only arrives at a stage starts
// once compute is done with the pass before, or so many of the layers' passes before what reads it.
#include "models/slots.h"
#include "models/step/passes.h"

namespace foretrain {
namespace {

/// The parts of the ends that go with passes of layers.
void add_inner_parts(const StageContext& s, StageStep& step) {
  const auto of = [](TaskKind kind) {
    return [kind](TaskId, const Task& at) {
      return std::vector<Task>{beside(at, kind, at.direction)};
    };
  };
  const auto through_layers = [&step](const Task& at) { return step.through_layers(at); };
  insert(
      step, true,
      [&](const Task& at) {
        return at.kind == TaskKind::kBegin && through_layers(at) &&
               at.direction == Direction::kForward && s.chunk(at.chunk).first;
      },
      of(TaskKind::kEmbeddingInner));
  insert(
      step, true,
      [&](const Task& at) {
        return at.kind == TaskKind::kBegin && through_layers(at) &&
               at.direction == Direction::kBackward && s.chunk(at.chunk).last;
      },
      of(TaskKind::kHeadInner));
  insert(
      step, false,
      [&](const Task& at) {
        return at.kind == TaskKind::kEnd && through_layers(at) &&
               at.direction == Direction::kBackward && s.chunk(at.chunk).first;
      },
      of(TaskKind::kEmbeddingInner));
}

}  // namespace

void spread_vocabulary(const StageContext& s, StageStep& step) {
  const bool spreads = s.plan.spreads_vocabulary();
  if (spreads) add_inner_parts(s, step);
  TaskId done;                 // end of the last pass
  std::vector<TaskId> layers;  // ends of passes through layers
  for (const TaskId id : step.order()) {
    Task& task = step[id];
    if (task.pass < 0) continue;
    const PassKind kind = step.place_of(task).pass.kind;
    const Chunk& chunk = s.chunk(task.chunk);
    const auto behind_last = [&] {
      if (done.valid()) task.after.push_back({done, kStagesGroup, true});
    };
    const auto behind_layers = [&](const char* group, std::size_t passes) {
      if (layers.size() <= passes) return;
      task.after.push_back({layers[layers.size() - 1 - passes], group, true});
    };
    const bool forward = task.direction == Direction::kForward;
    if (task.kind == TaskKind::kHead && forward && !chunk.last) {
      if (kind == PassKind::kHeadForward) behind_layers(kStagesGroup, 1);
      if (kind == PassKind::kHead) behind_last();
    }
    if (task.kind == TaskKind::kEmbedding && !forward && !chunk.first) {
      spreads ? behind_layers(kStagesEmbeddingGradientGroup, 2) : behind_last();
    }
    if (task.kind != TaskKind::kEnd) continue;
    if (step.through_layers(task)) layers.push_back(id);
    if (kind != PassKind::kEmbedding && kind != PassKind::kHeadForward) done = id;
  }
}

}  // namespace foretrain
