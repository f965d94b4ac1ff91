#include <algorithm>

#include "models/plan/plan_reading.h"
#include "models/plan/plan_sharding.h"

namespace foretrain {
namespace {

/// States that lie in buckets instead of units.
std::optional<Refusal> refused_in_buckets(const Model& model, const Plan& p) {
  const auto no = [](const char* place, const std::string& message) {
    return Refusal{place, message, ErrorKind::kUnsupported};
  };
  if (p.sharding == Sharding::kNone && p.holders() > 1) {
    return no("offload/optimizer",
              "with sharding.level none each of " + text(p.holders()) +
                  " ranks that hold the same would update all of it on its host: set "
                  "sharding.level to optimizer, gradients or parameters");
  }
  if (p.sharding == Sharding::kNone && model.has_experts()) {
    return no("offload/optimizer",
              "is not modelled with experts and sharding.level none: set sharding.level to "
              "optimizer, gradients or parameters");
  }
  if (p.optimizer == Optimizer::kAdafactor) {
    return no("offload/optimizer", "is not modelled with kernels.optimizer adafactor");
  }
  const char* units =
      "goes unit by unit: set sharding.level to gradients or parameters, or it to 0";
  if (p.offload.device_share != 0) return no("offload/device_share", units);
  if (p.offload.page > 0) return no("offload/page_mib", units);
  return std::nullopt;
}

}  // namespace

std::optional<Refusal> refused_offload(const Model& model, const Plan& p) {
  const Offload& o = p.offload;
  const bool parameters = o.parameters != Memory::kDevice;
  const bool states = o.optimizer != Memory::kDevice;
  if (parameters && (p.sharding != Sharding::kParameters || !states)) {
    return Refusal{"offload/parameters",
                   "needs sharding.level parameters, and offload.optimizer cpu or nvme",
                   ErrorKind::kUnsupported};
  }
  if (states && !p.by_units()) {
    if (auto no = refused_in_buckets(model, p)) return no;
  }
  if (o.delayed_update && !states) {
    return Refusal{"offload/delayed_update", "needs offload.optimizer cpu or nvme",
                   ErrorKind::kUnsupported};
  }
  if (o.device_share != 0 && (!states || o.delayed_update)) {
    return Refusal{"offload/device_share",
                   "needs offload.optimizer cpu or nvme, without delayed_update",
                   ErrorKind::kUnsupported};
  }
  return std::nullopt;
}

}  // namespace foretrain
