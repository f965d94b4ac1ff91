#include "tools/goodput/checkpoint_bytes.h"

#include <algorithm>

#include "models/lower.h"

namespace foretrain {
namespace {

/// Of all ranks together, copies included.
struct Held {
  double weights = 0, weight_elements = 0, states = 0;
};

Held held_by(const Program& program) {
  Held out;
  for (const Frame& frame : program.frames) {
    if (frame.alias_of.valid()) continue;
    for (const Buffer& buffer : program.layouts[frame.layout.index()].buffers) {
      if (!buffer.persistent) continue;
      const auto bytes = static_cast<double>(buffer.bytes());
      if (buffer.kind == BufferKind::kOptimizer) out.states += bytes;
      if (buffer.kind != BufferKind::kParameters) continue;
      out.weights += bytes;
      out.weight_elements += static_cast<double>(buffer.count);
    }
  }
  return out;
}

double expert_parameters(const Model& model) {
  double sum = 0;
  for (std::int64_t layer = 0; model.has_experts() && layer < model.layers; ++layer) {
    for (const Parameter& p : layer_parameters(model, model.kind(layer))) {
      if (p.expert) sum += static_cast<double>(p.count());
    }
  }
  return sum;
}

}  // namespace

CheckpointBytes checkpoint_bytes(const Run& run) {
  Plan lowered = run.plan;
  // A step of few microbatches has the same states, as long as it has several of them.
  if (!lowerable(run.model, lowered).ok()) {
    lowered.global_batch = 2 * lowered.pipeline * lowered.micro_batch * lowered.batch_ranks();
  }
  const Workload workload = lower(run.model, lowered);
  std::vector<Held> of_program;
  for (const Program& program : workload.programs) of_program.push_back(held_by(program));
  CheckpointBytes out;
  Held all;
  for (const RankBinding& rank : workload.ranks) {
    const Held& held = of_program[rank.program.index()];
    all.weights += held.weights;
    all.weight_elements += held.weight_elements;
    all.states += held.states;
    out.rank = std::max(out.rank, held.weights + held.states);
  }
  // `copies`: of every parameter, over all ranks. Further copies, such as norms on every
  // tensor rank, padding and tied tables on two stages, multiply weights and states alike.
  const Plan& plan = run.plan;
  const auto total = static_cast<double>(parameter_count(run.model));
  const double experts = expert_parameters(run.model);
  const auto copies = [&](bool sharded) {
    const auto dense = static_cast<double>(plan.replica_ranks()) /
                       static_cast<double>(sharded ? plan.shards() : 1);
    const auto of_experts = static_cast<double>(plan.expert_data() * plan.directions()) /
                            static_cast<double>(sharded ? plan.expert_shards() : 1);
    return dense * (total - experts) + of_experts * experts;
  };
  const double of_weights = copies(plan.shards_parameters());
  const double of_states = copies(plan.sharding != Sharding::kNone);
  const double more = all.weight_elements / of_weights;
  const double weight = all.weights / all.weight_elements;
  const double state = all.states / (of_states * more);
  out.total = (weight + state) * total;
  return out;
}

}  // namespace foretrain
