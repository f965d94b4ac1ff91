#include "tools/predict/idle_keys.h"

#include <algorithm>

#include "hardware/keys/cluster_keys.h"

namespace foretrain {
namespace {

std::int64_t most_layers_of_a_stage(const Plan& p) {
  std::vector<std::int64_t> layers(static_cast<std::size_t>(p.pipeline));
  for (std::int64_t chunk = 0; chunk < p.chunks(); ++chunk) {
    for (std::int64_t way = 0; way < p.directions(); ++way) {
      layers[static_cast<std::size_t>(p.stage_of(chunk, way))] +=
          p.pipeline_layout[static_cast<std::size_t>(chunk)];
    }
  }
  return *std::max_element(layers.begin(), layers.end());
}

/// Of the value, or of the object that brought it.
std::string origin_of(const Run& run, const std::string& pointer) {
  auto found = run.origins.find(pointer);
  if (found == run.origins.end()) found = run.origins.find(pointer.substr(0, pointer.rfind('/')));
  return found == run.origins.end() ? "" : found->second;
}

bool asks_for_nothing(const Json& value) {
  return value == Json(false) || value == Json("none") || value == Json(std::int64_t{0});
}

/// What asks for nothing is named where the system would do something.
bool set_by_user(const Run& run, const std::string& pointer) {
  const Json* value = value_at(run.resolved, pointer);
  const std::string origin = origin_of(run, pointer);
  if (value == nullptr || value->is_null() || !is_users(origin)) return false;
  const Json* usual = value_at(run.usual, pointer);
  return !asks_for_nothing(*value) || (usual != nullptr && !(*usual == *value));
}

}  // namespace

KeyContext context_of(const Run& run) {
  return {run.model,
          run.plan,
          run.resolved,
          run.usual,
          is_nvidia(run.cluster.device.architecture),
          run.cluster.scale_up == ScaleUp::kTorus};
}

namespace {

template <typename Keys, typename Context>
void list_idle(const Run& run, const Keys& keys, const Context& context,
               std::vector<std::string>& out) {
  for (const auto& key : keys) {
    const std::string pointer = key.pointer();
    if (!set_by_user(run, pointer)) continue;
    const auto* reason = key.idle_in(context);
    if (reason != nullptr) out.push_back(pointer + " has no effect: " + reason->why);
  }
}

}  // namespace

std::vector<std::string> idle_keys(const Run& run) {
  std::vector<std::string> out;
  list_idle(run, all_run_keys(), context_of(run), out);
  list_idle(run, cluster_keys(), run.cluster, out);
  const char* pointer = "/offload/activation_layers";
  const std::int64_t layers = most_layers_of_a_stage(run.plan);
  if (run.plan.offload.activation_layers > layers && set_by_user(run, pointer)) {
    out.push_back(std::string(pointer) + " has no effect beyond the " + std::to_string(layers) +
                  " layers of a stage");
  }
  return out;
}

}  // namespace foretrain
