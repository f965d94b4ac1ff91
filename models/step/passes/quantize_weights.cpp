// Copies of weights in less than 16 bits, cast before the first use of a layer's weights in a step.
// Gathered units cast within the layer's pass instead.
#include <set>

#include "models/step/passes.h"

namespace foretrain {

void quantize_weights(const StageContext& s, StageStep& step) {
  std::set<std::pair<std::int32_t, std::int32_t>> known;
  insert(
      step, false,
      [&](const Task& at) {
        return at.kind == TaskKind::kLayer && at.direction == Direction::kForward &&
               s.kind(at.chunk, at.layer).quantized.valid() &&
               known.insert({at.chunk, at.layer}).second;
      },
      [](TaskId, const Task& at) {
        return std::vector<Task>{beside(at, TaskKind::kQuantize, Direction::kForward)};
      });
}

}  // namespace foretrain
