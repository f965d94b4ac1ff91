#include "models/plan/keys/keys.h"

namespace foretrain {
namespace {

const Sets& offloaded() {
  static const Sets sets = {"sharding.level=parameters", "parallel.pipeline=1",
                            "offload.optimizer=cpu"};
  return sets;
}

/// A share, or "auto".
void set_share(const PlanKey& key, JsonReader& reader, Request& out) {
  const Json* json = reader.take(key.name);
  if (json == nullptr) return;
  if (*json == Json("auto")) {
    out.plan.offload.device_share = Offload::kRoom;
    return;
  }
  if (!json->is_number() || json->number() < 0 || json->number() > 1) {
    return reader.fail(key.name, "found " + describe(*json) + ", expected 0 to 1 or \"auto\"");
  }
  out.plan.offload.device_share = json->number();
}

}  // namespace

PlanKeys offload_keys() {
  const std::vector<std::string> places = {"none", "cpu", "nvme"};
  return {
      PlanKey::count("offload.activation_layers",
                     [](Request& r, auto v) { r.plan.offload.activation_layers = v; })
          .range(0, kMostCount)
          .fallback_to(0)
          .says("The first so many layers of a stage keep their activations on the host.")
          .probe("2"),
      PlanKey::choice<int>("offload.activations", {"cpu", "nvme"},
                           [](Request& r, int v) {
                             r.plan.offload.activations = v == 1 ? Memory::kStorage : Memory::kHost;
                           })
          .fallback_to("cpu")
          .says("Where those go; nvme by way of the host.")
          .probe("nvme", {"offload.activation_layers=2"})
          .idle_if([](const KeyContext& c) { return c.plan.offload.activation_layers == 0; },
                   "offload.activation_layers is 0"),
      PlanKey::choice<Memory>("offload.optimizer", places,
                              [](Request& r, auto v) { r.plan.offload.optimizer = v; })
          .fallback_to("none")
          .says("Where optimizer states live, which the host then updates.")
          .alias({"cpu_offload"}, ": cpu, offload.parameters: cpu")
          .alias({"offload_optimizer"}, ": cpu or nvme")
          .probe("cpu", kSharded)
          .probe("nvme", offloaded())
          .probe("cpu")
          .probe("nvme", {"offload.optimizer=cpu"}),
      PlanKey::choice<Memory>("offload.parameters", places,
                              [](Request& r, auto v) { r.plan.offload.parameters = v; })
          .fallback_to("none")
          .says("Where shards of parameters live.")
          .alias({"offload_param"}, ": cpu or nvme")
          .probe("cpu", offloaded()),
      PlanKey::flag("offload.delayed_update",
                    [](Request& r, bool v) { r.plan.offload.delayed_update = v; })
          .fallback_to(false)
          .says("The host updates beside the next step's passes.")
          .probe("true", offloaded())
          .probe("true", with(offloaded(), {"offload.parameters=cpu"}))
          .probe("true", {"offload.optimizer=cpu"}),
      PlanKey::flag("offload.pageable", [](Request& r, bool v) { r.plan.offload.pageable = v; })
          .fallback_to(false)
          .says("The host's memory is not pinned: slower copies, for each of which it waits.")
          .probe("true", offloaded())
          .probe("true", {"offload.optimizer=cpu"})
          .idle_if([](const KeyContext& c) { return c.plan.offload.optimizer != Memory::kHost; },
                   "offload.optimizer is not cpu", kShardedGradients),
      PlanKey("offload.device_share", KeyType::kNumber, set_share)
          .range(0, 1)
          .auto_too()
          .fallback_to(0)
          .says("The share of the layers whose states stay on the device; auto: as many as fit.")
          .probe("0.5", offloaded())
          .probe("\"auto\"", offloaded()),
      PlanKey::number(
          "offload.page_mib",
          [](Request& r, double v) { r.plan.offload.page = static_cast<Bytes>(v * 1048576); })
          .range(0, 1024)
          .fallback_to(0)
          .says("States lie in pages of so many MiB; 0: as they come.")
          .probe("16", offloaded())
          .idle_if([](const KeyContext& c) { return !c.plan.offload.states(); },
                   "offload.optimizer is none", kShardedGradients),
  };
}

}  // namespace foretrain
