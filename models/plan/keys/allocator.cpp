#include "models/plan/keys/keys.h"

namespace foretrain {

PlanKeys allocator_keys() {
  return {
      PlanKey::choice<int>("allocator.kind", {"caching", "planned"},
                           [](Request& r, int v) { r.plan.memory.planned = v == 1; })
          .fallback_to("caching")
          .says("PyTorch's caching allocator, or memory laid out before the step (XLA).")
          .probe("planned"),
      PlanKey::flag("allocator.expandable_segments",
                    [](Request& r, bool v) { r.plan.memory.expandable_segments = v; })
          .fallback_to(false)
          .says("Segments of the caching allocator grow.")
          .probe("true"),
      PlanKey::flag("allocator.record_stream",
                    [](Request& r, bool v) { r.plan.memory.records_streams = v; })
          .fallback_to(false)
          .says("Units are free again once the host knows that the device is through with them.")
          .probe("true", kSharded)
          .idle_if([](const KeyContext& c) { return c.plan.memory.planned; },
                   "allocator.kind is planned", with(kSharded, {"allocator.kind=planned"}))
          .idle(if_contiguous_passes())
          .idle(if_not_by_units()),
      PlanKey::number("allocator.context_gib", [](Request& r, double v) { r.plan.context_gib = v; })
          .range(0, 1e3)
          .fallback_to(0.7)
          .says("What CUDA and its libraries hold before the first tensor.")
          .probe("1.5")
          .idle_if([](const KeyContext& c) { return c.torus; }, "TPUs have no CUDA",
                   {"cluster.preset=tpu-v5p"}),
  };
}

}  // namespace foretrain
