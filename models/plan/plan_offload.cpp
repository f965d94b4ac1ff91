#include <algorithm>

#include "models/plan/plan_reading.h"
#include "models/plan/plan_sharding.h"

namespace foretrain {
namespace {

using IntRange = JsonReader::IntRange;

/// A share, or "auto".
void read_device_share(JsonReader& reader, Offload& offload) {
  const char* key = "device_share";
  const Json* json = reader.take(key);
  if (json == nullptr) return;
  if (const std::string* name = json->string(); name != nullptr && *name == "auto") {
    offload.device_share = Offload::kRoom;
    return;
  }
  const bool number = std::holds_alternative<std::int64_t>(json->value) ||
                      std::holds_alternative<double>(json->value);
  if (!number || json->number() < 0 || json->number() > 1) {
    reader.fail(key, "found " + describe(*json) + ", expected 0 to 1 or \"auto\"");
    return;
  }
  offload.device_share = json->number();
}

}  // namespace

void read_offload(JsonReader& reader, Offload& offload) {
  const std::vector<std::string> places = {"none", "cpu", "nvme"};
  reader.read("activation_layers", offload.activation_layers, IntRange{0, kAnyCount.high});
  int activations = 0;
  reader.read_choice("activations", activations, {"cpu", "nvme"});
  offload.activations = activations == 1 ? Memory::kStorage : Memory::kHost;
  reader.read_enum("optimizer", offload.optimizer, places);
  reader.read_enum("parameters", offload.parameters, places);
  reader.read("delayed_update", offload.delayed_update);
  reader.read("pageable", offload.pageable);
  read_device_share(reader, offload);
  double mib = 0;
  reader.read("page_mib", mib, JsonReader::Range{0, 1024});
  offload.page = static_cast<Bytes>(mib * 1048576);
  if (offload.optimizer == Memory::kDevice && offload.device_share < 0) offload.device_share = 0;
}

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
