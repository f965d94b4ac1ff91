// Forward passes whose output comes back (recycling, as AlphaFold 2 has it; 3f1b of Lin et al.,
// nnScaler, OSDI 2024).
//
// A microbatch goes n times through the layers. The first n - 1 times nothing is kept, and the last
// stage sends the residual stream behind its layers to the first one:
//
//   x_0 = embedding(tokens)   x_k = embedding(tokens) + layers(x_{k-1}), k < n
//   loss(layers(x_{n-1}))
//
// Only the last pass through the layers has gradients: none goes through what came back. Tokens
// stay from the first pass to the last. Left out: a norm of what comes back (AlphaFold 2's),
// dropout that differs between the passes, kernels that write nothing for a backward pass.
#include "models/step/passes.h"

namespace foretrain {

void recycle_outputs(const StageContext& s, StageStep& step) {
  const auto comes_back = [&](const Task& at) {
    return at.pass >= 0 && step.place_of(at).pass.round > 0 &&
           at.direction == Direction::kForward && s.chunk(at.chunk).first;
  };
  // Of one stage alone the output is there.
  insert(
      step, false,
      [&](const Task& at) {
        return at.kind == TaskKind::kBegin && comes_back(at) && !s.chunk(at.chunk).last;
      },
      [](TaskId, const Task& at) {
        Task receive = beside(at, TaskKind::kReceive, Direction::kForward);
        receive.form = kReturned;
        return std::vector<Task>{receive};
      });
  for (const TaskId id : step.order()) {
    if (step[id].kind == TaskKind::kEmbedding && comes_back(step[id])) step[id].form = kReturned;
  }
  insert(
      step, true,
      [](const Task& at) { return at.kind == TaskKind::kEmbedding && at.form == kReturned; },
      [](TaskId, const Task& at) {
        return std::vector<Task>{beside(at, TaskKind::kAddReturned, Direction::kForward)};
      });
}

}  // namespace foretrain
