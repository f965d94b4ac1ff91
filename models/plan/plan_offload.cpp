#include <algorithm>

#include "models/plan/plan_reading.h"
#include "models/plan/plan_sharding.h"

namespace foretrain {
namespace {

/// States that lie in buckets instead of units.
void check_in_buckets(const Model& model, const Plan& p, Violations& out) {
  if (p.sharding == Sharding::kNone && p.replica_ranks() > 1) {
    out.unsupported("offload/optimizer",
                    "with sharding.level none each of " + text(p.replica_ranks()) +
                        " ranks that hold the same would update all of it on its host: set "
                        "sharding.level to optimizer, gradients or parameters");
  } else if (p.sharding == Sharding::kNone && model.has_experts()) {
    out.unsupported("offload/optimizer",
                    "is not modelled with experts and sharding.level none: set sharding.level to "
                    "optimizer, gradients or parameters");
  }
  if (p.optimizer == Optimizer::kAdafactor) {
    out.unsupported("offload/optimizer", "is not modelled with kernels.optimizer adafactor");
  }
  const char* const units =
      p.stages.empty()
          ? "goes unit by unit: set sharding.level to gradients or parameters, or it to 0"
          : "goes unit by unit: set sharding.level to gradients or parameters, or leave "
            "offload.optimizer out of pipeline_stages";
  if (p.offload.device_share != 0) out.unsupported("offload/device_share", units);
  if (p.offload.page > 0) out.unsupported("offload/page_mib", units);
}

}  // namespace

void check_offload(const Model& model, const Plan& p, Violations& out) {
  const Offload& o = p.offload;
  const bool parameters = o.parameters != Memory::kDevice;
  const bool states = o.optimizer != Memory::kDevice;
  if (parameters && (p.sharding != Sharding::kParameters || !states)) {
    out.unsupported("offload/parameters",
                    "needs sharding.level parameters, and offload.optimizer cpu or nvme");
  }
  if (states && !p.by_units()) check_in_buckets(model, p, out);
  if (o.delayed_update && !states) {
    out.unsupported("offload/delayed_update", "needs offload.optimizer cpu or nvme");
  }
  if (o.device_share != 0 && (!states || o.delayed_update)) {
    out.unsupported("offload/device_share",
                    "needs offload.optimizer cpu or nvme, without delayed_update");
  }
}

}  // namespace foretrain
