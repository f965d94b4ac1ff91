// What passes over a stage's tasks know: the model, the plan, and what the stage holds.
#pragma once

#include <vector>

#include "models/holdings/chunk.h"
#include "models/step/task.h"

namespace foretrain {

struct StageContext {
  const Model& model;
  const Plan& plan;
  std::int64_t stage;
  const std::vector<Chunk>& chunks;        ///< experts' chunks behind the others
  const std::vector<ShardLayout>& shapes;  ///< of sharded units
  const EndLayouts& embedding;
  const EndLayouts& head;
  std::vector<std::vector<const LayerLayouts*>> kinds;  ///< by chunk and layer of it

  const Chunk& chunk(std::int32_t c) const { return chunks[static_cast<std::size_t>(c)]; }
  const LayerLayouts& kind(std::int32_t c, std::int64_t l) const {
    return *kinds[static_cast<std::size_t>(c)][static_cast<std::size_t>(l)];
  }
  const ShardLayout& shape(const Unit& unit) const { return shapes[unit.shape]; }
};

/// The token table is also the output matrix, and another stage has one of the two.
bool tied_across(const Model& model, const Plan& plan);

/// Whether the layer of a stage is computed again alone in its backward pass.
bool recomputes(const Plan& plan, std::int64_t layer_of_stage);

/// The chunk before (-1) or after (1) this one in the pipeline stands on this stage too.
bool stays_on_stage(const Plan& plan, std::int64_t stage, std::int32_t chunk, std::int64_t step);
inline bool stays_on_stage(const StageContext& s, std::int32_t chunk, std::int64_t step) {
  return stays_on_stage(s.plan, s.stage, chunk, step);
}

/// What tensor ranks hold alike but computed in part: with sequence parallelism everything, from
/// their own tokens; without it the norms of queries and keys, from their own heads. Of the first
/// `shared` elements of a chunk, in which `before` stand before those of its `layers`.
std::vector<ElementRange> partial_gradients(const Model& model, const Plan& plan,
                                            const std::vector<const LayerLayouts*>& layers,
                                            std::int64_t shared, std::int64_t before);

/// What the end of a step waits for: an update for `summed`, what is summed over small groups; new
/// weights of a delayed update and the mean loss beside a host's update for the gradients of
/// chunks, which are final at `done`, by chunk; invalid where there are none.
void wait_for_gradients(const StageContext& s, const std::vector<After>& done,
                        const std::vector<After>& summed, Task& task);

/// The linears of a chunk's layers whose inputs have a scale each.
std::int64_t scaled_linears(const StageContext& s, std::int32_t chunk);

/// A task of another kind for the same pass, chunk and layer.
Task beside(const Task& at, TaskKind kind, Direction direction);

/// Adds a task behind (`after`) or before each one of a kind, in order: `make` returns the tasks.
template <typename Wanted, typename Make>
void insert(StageStep& step, bool behind, const Wanted& wanted, const Make& make) {
  std::vector<TaskId> order;
  order.reserve(step.order().size());
  for (const TaskId id : step.order()) {
    if (behind) order.push_back(id);
    if (wanted(step[id])) {
      for (Task& task : make(id, step[id])) order.push_back(step.make(std::move(task)));
    }
    if (!behind) order.push_back(id);
  }
  step.place(std::move(order));
}

}  // namespace foretrain
