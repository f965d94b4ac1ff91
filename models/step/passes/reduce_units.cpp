// When sharded units (ZeRO-2, ZeRO-3, FSDP) are reduced: after the backward pass of their first
// layer, those of the ends and of what stays gathered when the chunk's pass is over. Where
// gradients of weights have passes of their own, what a backward pass wrote of a unit's gradients,
// those of norms and biases, waits for them: then the unit is reduced. A tied table's units are
// summed over both stages before the update.
#include "models/step/passes.h"

namespace foretrain {

void reduce_units(const StageContext& s, StageStep& step) {
  std::vector<TaskId> order;
  std::vector<After> done(s.chunks.size());
  std::vector<After> summed;
  const auto reduce = [&](std::int32_t c, std::int32_t unit, TaskId id, const Task& at, bool end) {
    if (unit < 0 || (!s.plan.units.reduce_each && !at.last)) return;
    Task task = beside(at, TaskKind::kReduceUnit, Direction::kBackward);
    task.chunk = c;
    task.layer = -1;
    task.index = unit;
    task.after = {{id, nullptr, end}};
    order.push_back(step.make(std::move(task)));
  };
  const Direction writes = s.plan.splits_backward() ? Direction::kWeights : Direction::kBackward;
  for (const TaskId id : step.order()) {
    const Task& at = step[id];
    const bool ends_step = at.last && at.pass < 0;
    if (ends_step && at.kind == TaskKind::kUpdate && tied_across(s.model, s.plan)) {
      for (std::size_t c = 0; c < s.chunks.size(); ++c) {
        const std::int32_t root = s.chunks[c].root;
        if (root < 0) continue;
        Task task;
        task.kind = TaskKind::kReduceParts;
        task.form = kOverTied;
        task.chunk = static_cast<std::int32_t>(c);
        task.index = root;
        order.push_back(step.make(std::move(task)));
        summed.push_back({order.back(), kComputeStream, true});
      }
    }
    if (ends_step) wait_for_gradients(s, done, summed, step[id]);
    order.push_back(id);
    if (at.direction != writes) continue;
    const bool end = writes == Direction::kWeights;
    if (at.kind == TaskKind::kLayer) {
      const std::int32_t unit = unit_of_layer(s.chunk(at.chunk), at.layer);
      const Chunk& chunk = s.chunk(at.chunk);
      if (chunk.units[static_cast<std::size_t>(unit)].first != at.layer) continue;
      reduce(at.chunk, unit, id, at, end);
      if (chunk.experts >= 0) {
        reduce(chunk.experts, unit_of_layer(s.chunk(chunk.experts), at.layer), id, at, end);
      }
    }
    if (at.kind != TaskKind::kGradientsReady) continue;
    done[static_cast<std::size_t>(at.chunk)] = {id, nullptr, true};
    reduce(at.chunk, s.chunk(at.chunk).root, id, at, true);
    reduce(at.chunk, s.chunk(at.chunk).small, id, at, true);
  }
  step.place(std::move(order));
}

}  // namespace foretrain
