// Slices of a microbatch that take turns, so that tensor-parallel collectives of one travel under
// the products of the others (DeepSpeed-Domino, Wang et al., arXiv 2409.15241, section 3: the cut
// of the inputs by rows).
//
// A layer's pass over a slice is cut into blocks wherever compute would wait for a collective. Of n
// slices compute takes the k-th blocks one after another, so that between the op before a
// collective and the op that waits for it stand the blocks of n - 1 slices; the last blocks of a
// layer go together with the first ones of the next:
//
//   compute  s0: attention | s1: attention | s0: MLP | s1: MLP | s0: next layer | s1: next layer
//   tensor                 | s0: reduce    | s1: reduce | s0: reduce | s1: reduce   |
//
// So a layer is two tasks here: its first blocks, with the last ones of the layer before, and those
// between. Reductions of a layer's gradients follow its last blocks. Backward passes are cut the
// same way. The same bytes travel, in n times as many collectives. The cost: every product has 1/n
// of the rows, and n gradients of every matrix are added up. Left out: the cut of the
// second matrices by columns (Domino's second dimension), sequence parallelism, whose scattered
// rows would have to be those of the slices.
#include "models/step/passes.h"

namespace foretrain {

void slice_microbatch(const StageContext&, StageStep& step) {
  std::vector<TaskId> order;
  std::vector<TaskId> waiting;  // what follows the layer whose last blocks are still to come
  TaskId open;                  // that layer's first blocks
  const auto close = [&] {
    order.insert(order.end(), waiting.begin(), waiting.end());
    waiting.clear();
  };
  for (const TaskId id : step.order()) {
    const Task& at = step[id];
    const bool layer = at.kind == TaskKind::kLayer;
    const bool reduces = at.kind == TaskKind::kReduceBucket || at.kind == TaskKind::kReduceParts;
    if (open.valid() && reduces) {
      waiting.push_back(id);
      continue;
    }
    if (open.valid() && !layer) {
      Task tails = beside(step[open], TaskKind::kSliceTails, step[open].direction);
      tails.of = open;
      order.push_back(step.make(std::move(tails)));
      close();
      open = TaskId();
    }
    if (!layer) {
      order.push_back(id);
      continue;
    }
    step[id].form = kSliceHeads;
    step[id].of = open;
    order.push_back(id);
    close();
    Task body = beside(at, TaskKind::kLayer, at.direction);
    body.form = kSliceBody;
    body.of = id;
    order.push_back(step.make(std::move(body)));
    open = id;
  }
  step.place(std::move(order));
}

}  // namespace foretrain
