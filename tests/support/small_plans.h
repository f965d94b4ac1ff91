// Small models and plans, filled in by hand, for tests of the lowering and the engine.
#pragma once

#include <string>
#include <vector>

#include "models/plan/plan.h"
#include "sim/base/rng.h"

namespace foretrain {

/// h 256, 4 heads, 8 layers, f 1024, vocabulary 1000, LayerNorm, GELU, biases, learned positions.
Model small_gpt();
/// h 256, 4 heads of which 2 for keys, 8 layers, f 512, RMSNorm, SwiGLU, RoPE, no biases.
Model small_llama();

struct PlanDegrees {
  std::int64_t tensor = 1, pipeline = 1, virtual_pipeline = 1, data = 1;
};
/// Sequence 128, micro 1, `microbatches` on every data rank, the default layout, no dropout.
Plan small_plan(const Model& model, PlanDegrees degrees, std::int64_t microbatches);

/// Changes what the plan's schedule does not go with: microbatches, stages' chunks, a tied table;
/// or the schedule.
void fit_schedule(Model& model, Plan& plan);
/// Takes parts of layers back where the plan does not go with them.
void fit_parts(const Model& model, Plan& plan);

/// fp32 parameters and 16-bit linears, as the key `kernels.autocast` makes them.
Plan under_autocast(Plan plan);
/// Takes autocast back where it does not go with the plan.
void fit_autocast(const Model& model, Plan& plan);

/// Takes contiguous buckets back where the plan does not go with them.
void fit_buckets(const Model& model, Plan& plan);

/// A model and a plan that fit each other, drawn with `rng`; at most 32 ranks.
struct Drawn {
  Model model;
  Plan plan;
};
Drawn draw_plan(Rng& rng);

/// The same with tensor parallelism on a grid, and at most so many ranks, 8 or more.
Drawn draw_grid_plan(Rng& rng, std::int64_t most_ranks);

/// The same with sharded gradients or parameters, in units.
Drawn draw_sharded_plan(Rng& rng);

/// States of plans that have them in buckets outside of the device, where that goes.
void draw_offloaded_buckets(Rng rng, const Model& model, Plan& plan);

/// h 128, 4 heads, 4 layers of which the first keeps its MLP; 8 experts of width 64, 2 a token, one
/// shared.
Model small_moe();
/// The same with latent attention.
Model small_latent();
/// `draw_plan` with experts in some layers, all dispatchers and routings; half by units.
Drawn draw_sparse_plan(Rng& rng);

/// Packed documents, norms that are handed on, deferred gradients, gathers and weights in fp8,
/// loads of experts. What is drawn later does not depend on it.
void add_rare(Rng rng, Drawn& drawn);

/// Elements of the collectives of that name in the first Program, in order.
std::vector<std::int64_t> collective_sizes(const Workload& workload, const std::string& name);

/// One line that tells two plans apart, for messages.
std::string describe(const Model& model, const Plan& plan);

}  // namespace foretrain
