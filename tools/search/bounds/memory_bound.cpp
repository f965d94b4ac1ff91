#include "tools/search/bounds/memory_bound.h"

#include <algorithm>

#include "models/emit/emit.h"
#include "sim/program/memory.h"

namespace foretrain {

Plan of_few_microbatches(Plan plan) {
  // Orders that were made for all microbatches stay; others are made for as many as may be alive.
  const std::int64_t alive = plan.pipeline == 1 ? 2 : 4 * plan.pipeline;
  const bool free_order = plan.passes.empty() && plan.buckets.lists.empty();
  const std::int64_t few = std::min(plan.microbatches(), alive);
  if (free_order) plan.global_batch = few * plan.micro_batch * plan.batch_ranks();
  return plan;
}

double least_memory_gib(const Run& run) {
  const Plan plan = of_few_microbatches(run.plan);
  Bytes most = 0;
  for (const std::int64_t stage : {std::int64_t{0}, plan.pipeline - 1}) {
    most = std::max(most, memory_peak(write_stage(run.model, plan, stage)).bytes);
    if (plan.pipeline == 1) break;
  }
  const bool torus = run.cluster.scale_up == ScaleUp::kTorus;
  return static_cast<double>(most) / kGiB + (torus ? 0 : plan.context_gib);
}

}  // namespace foretrain
