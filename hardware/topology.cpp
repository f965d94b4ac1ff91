#include "hardware/topology.h"

#include <algorithm>
#include <numeric>

#include "hardware/presets.h"

namespace foretrain {
namespace {

const std::vector<std::string>& kind_names() {
  static const std::vector<std::string> names = {"fat-tree", "rail-fat-tree", "dragonfly", "torus"};
  return names;
}

constexpr std::int64_t kMostAccelerators = 1 << 20;

using Dims = std::vector<std::int32_t>;

std::int64_t product(const Dims& dims) {
  return std::accumulate(dims.begin(), dims.end(), std::int64_t{1},
                         [](std::int64_t a, std::int32_t b) { return a * b; });
}

std::string text_of_dims(const Dims& dims) {
  std::string text;
  for (const std::int32_t dim : dims) text += (text.empty() ? "" : "x") + std::to_string(dim);
  return text;
}

/// An array of 1 to 3 extents, their product bounded.
void read_dims(JsonReader& reader, std::string_view key, Dims& out) {
  const Json* json = reader.take(key);
  if (json == nullptr) return;
  const Json::Array* items = json->array();
  if (items == nullptr || items->empty() || items->size() > kMaxAxes) {
    reader.fail(key, "found " + describe(*json) + "; accepted: 1 to 3 extents, such as [16, 16]");
    return;
  }
  Dims dims;
  for (const Json& item : *items) {
    const auto* extent = std::get_if<std::int64_t>(&item.value);
    if (extent == nullptr || *extent < 1 || *extent > kMostAccelerators) {
      reader.fail(key, "found " + describe(item) + "; accepted: integers from 1 to 1048576");
      return;
    }
    dims.push_back(static_cast<std::int32_t>(*extent));
    if (product(dims) > kMostAccelerators) {
      reader.fail(key, "found more than 1048576 accelerators; accepted: a smaller torus");
      return;
    }
  }
  out = std::move(dims);
}

void read_wrap(JsonReader& reader, std::vector<bool>& out) {
  const Json* json = reader.take("wrap");
  if (json == nullptr) return;
  const Json::Array* items = json->array();
  std::vector<bool> wrap;
  for (std::size_t i = 0; items != nullptr && i < items->size(); ++i) {
    const bool* closes = std::get_if<bool>(&(*items)[i].value);
    if (closes == nullptr) items = nullptr;
    if (closes != nullptr) wrap.push_back(*closes);
  }
  if (items == nullptr || wrap.empty()) {
    reader.fail("wrap", "found " + describe(*json) + "; accepted: true or false for each axis");
    return;
  }
  out = std::move(wrap);
}

Status read_levels(const Json& json, const std::string& source, const std::string& pointer,
                   std::vector<NetworkLevel>& out) {
  const Json::Array* items = json.array();
  if (items == nullptr || items->empty() || items->size() > kMaxLevels) {
    return input_error(place_in(source, pointer) + "found " + describe(json) +
                       "; accepted: 1 to 3 levels, innermost first, each {\"nodes\", "
                       "\"oversubscription\", \"latency_us\"}");
  }
  std::vector<NetworkLevel> levels;
  for (std::size_t i = 0; i < items->size(); ++i) {
    NetworkLevel level;
    JsonReader reader((*items)[i], source, pointer + "/" + std::to_string(i));
    reader.require("nodes", "the nodes below one domain of the level");
    reader.read("nodes", level.nodes, {1, kMostAccelerators});
    reader.read("oversubscription", level.oversubscription, {0.01, 1e4});
    reader.read("latency_us", level.latency_us, {0, 1e6});
    if (!levels.empty() && level.nodes % levels.back().nodes != 0) {
      reader.fail("nodes", "found " + std::to_string(level.nodes) +
                               "; accepted: a multiple of the level below, " +
                               std::to_string(levels.back().nodes));
    }
    FT_TRY(reader.finish());
    levels.push_back(level);
  }
  out = std::move(levels);
  return ok_status();
}

Status read_at_depth(const Json& json, const std::string& source, const std::string& pointer,
                     Topology& topology, double& latency_us, int depth);

Status read_preset(const std::string& name, const std::string& source, const std::string& pointer,
                   Topology& topology, double& latency_us, int depth) {
  FT_ASSIGN(const NamedJson preset, load_base("fabrics", name, source, pointer, depth));
  return read_at_depth(preset.json, preset.source, "", topology, latency_us, depth + 1);
}

/// The keys of one kind; those of the others stay unknown and are refused.
Status read_kind(JsonReader& reader, Topology& topology) {
  if (topology.kind == TopologyKind::kTorus) {
    read_dims(reader, "pod", topology.pod);
    reader.read("cube", topology.cube, {0, 1024});
    read_dims(reader, "dims", topology.dims);
    read_wrap(reader, topology.wrap);
    reader.read("hop_latency_us", topology.hop_latency_us, {0, 1e6});
    return reader.finish();
  }
  reader.read("utilisation", topology.utilisation, {0.01, 1});
  if (topology.kind == TopologyKind::kDragonfly) {
    NetworkLevel& group = topology.levels.front();
    double taper = 1 / group.oversubscription;
    reader.read("group_nodes", group.nodes, {1, kMostAccelerators});
    reader.read("taper", taper, {1e-4, 1});
    reader.read("global_latency_us", group.latency_us, {0, 1e6});
    group.oversubscription = 1 / taper;
  } else if (const Json* levels = reader.take("levels")) {
    reader.adopt(read_levels(*levels, reader.source(), reader.pointer("levels"), topology.levels));
  }
  return reader.finish();
}

Status read_at_depth(const Json& json, const std::string& source, const std::string& pointer,
                     Topology& topology, double& latency_us, int depth) {
  if (const std::string* name = json.string()) {
    return read_preset(*name, source, pointer, topology, latency_us, depth);
  }
  if (json.object() == nullptr) {
    return input_error(place_in(source, pointer) + "found " + describe(json) +
                       "; accepted: a fabric's name, a path, or an object with \"kind\"");
  }
  JsonReader reader(json, source, pointer);
  if (reader.has("preset")) {
    std::string preset;
    reader.read("preset", preset);
    if (reader.failed()) return reader.status();
    FT_TRY(read_preset(preset, source, reader.pointer("preset"), topology, latency_us, depth));
  }
  read_remarks(reader, "foretrain/fabric/1");
  reader.ignore("name");
  const TopologyKind before = topology.kind;
  reader.read_enum("kind", topology.kind, kind_names());
  if (reader.failed()) return reader.status();
  if (topology.kind != before) {
    const TopologyKind kind = topology.kind;
    topology = Topology{};
    topology.kind = kind;
    if (kind == TopologyKind::kTorus) topology.levels.clear();
  }
  reader.read("latency_us", latency_us, {0, 1e6});
  return read_kind(reader, topology);
}

/// Whether `a` suits better than `b`: whole cubes first, then the shortest longest axis.
bool better(const Dims& a, const Dims& b, std::int32_t cube) {
  const auto whole = [cube](const Dims& dims) {
    return cube > 0 && std::all_of(dims.begin(), dims.end(),
                                   [cube](std::int32_t dim) { return dim % cube == 0; });
  };
  if (whole(a) != whole(b)) return whole(a);
  const std::int32_t longest_a = *std::max_element(a.begin(), a.end());
  const std::int32_t longest_b = *std::max_element(b.begin(), b.end());
  if (longest_a != longest_b) return longest_a < longest_b;
  return *std::min_element(a.begin(), a.end()) > *std::min_element(b.begin(), b.end());
}

/// Tries every way to write `left` as extents that fit in the pod's remaining axes, ascending.
void search_dims(const Topology& topology, std::int32_t left, Dims& chosen, Dims& best) {
  const std::size_t axis = chosen.size();
  const std::int32_t least = chosen.empty() ? 1 : chosen.back();
  if (axis + 1 == topology.pod.size()) {
    if (left > topology.pod[axis] || left < least) return;
    chosen.push_back(left);
    if (best.empty() || better(chosen, best, topology.cube)) best = chosen;
    chosen.pop_back();
    return;
  }
  for (std::int32_t extent = least; extent <= std::min(left, topology.pod[axis]); ++extent) {
    if (left % extent != 0) continue;
    chosen.push_back(extent);
    search_dims(topology, left / extent, chosen, best);
    chosen.pop_back();
  }
}

Status check_given_dims(const std::string& at, std::int32_t accelerators,
                        const Topology& topology) {
  const Dims& dims = topology.dims;
  if (accelerators % product(dims) != 0) {
    return input_error(at + "/dims: " + text_of_dims(dims) + " is " +
                       std::to_string(product(dims)) + " accelerators, and the cluster has " +
                       std::to_string(accelerators) +
                       "; accepted: extents whose product divides that number (each slice alike)");
  }
  if (topology.pod.empty()) return ok_status();
  Dims sorted = dims, pod = topology.pod;
  std::sort(sorted.rbegin(), sorted.rend());
  std::sort(pod.rbegin(), pod.rend());
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    if (i >= pod.size() ? sorted[i] > 1 : sorted[i] > pod[i]) {
      return input_error(at + "/dims: found " + text_of_dims(dims) +
                         "; accepted: a slice of the pod, " + text_of_dims(topology.pod));
    }
  }
  return ok_status();
}

}  // namespace

std::string_view name_of(TopologyKind kind) {
  return kind_names().at(static_cast<std::size_t>(kind));
}

std::int32_t Topology::slice_size() const {
  return dims.empty() ? 0 : static_cast<std::int32_t>(product(dims));
}

double Topology::oversubscription_through(std::size_t level) const {
  double ratio = 1 / utilisation;
  for (std::size_t i = 0; i <= level && i < levels.size(); ++i) ratio *= levels[i].oversubscription;
  return ratio;
}

Status read_topology(const Json& json, const std::string& source, const std::string& pointer,
                     Topology& topology, double& latency_us) {
  return read_at_depth(json, source, pointer, topology, latency_us, 0);
}

Status resolve_torus(const std::string& source, const std::string& pointer,
                     std::int32_t accelerators, Topology& topology) {
  if (topology.kind != TopologyKind::kTorus) return ok_status();
  const std::string at = source + ": " + pointer;
  if (topology.dims.empty() && topology.pod.empty()) {
    return input_error(at + ": a torus needs \"dims\" (a slice), or \"pod\" (the largest slice)");
  }
  std::sort(topology.pod.begin(), topology.pod.end());
  if (!topology.dims.empty()) {
    FT_TRY(check_given_dims(at, accelerators, topology));
  } else if (accelerators > product(topology.pod)) {
    topology.dims = topology.pod;
    if (accelerators % product(topology.pod) != 0) {
      return input_error(at + ": " + std::to_string(accelerators) + " accelerators are no whole " +
                         "pods of " + text_of_dims(topology.pod) +
                         "; give the \"dims\" of a slice");
    }
  } else {
    Dims chosen;
    search_dims(topology, accelerators, chosen, topology.dims);
    if (topology.dims.empty()) {
      return input_error(at + ": no slice of a pod of " + text_of_dims(topology.pod) + " has " +
                         std::to_string(accelerators) +
                         " accelerators; give the \"dims\" of a slice, or another number");
    }
  }
  if (topology.wrap.empty()) {
    const bool cubes = topology.cube > 0 &&
                       std::all_of(topology.dims.begin(), topology.dims.end(),
                                   [&](std::int32_t dim) { return dim % topology.cube == 0; });
    for (std::size_t i = 0; i < topology.dims.size(); ++i) {
      const bool spans = i < topology.pod.size() && topology.dims[i] == topology.pod[i];
      topology.wrap.push_back(topology.cube > 0 ? cubes : spans);
    }
  }
  if (topology.wrap.size() != topology.dims.size()) {
    return input_error(at + "/wrap: found " + std::to_string(topology.wrap.size()) +
                       " values for the " + std::to_string(topology.dims.size()) + " axes of " +
                       text_of_dims(topology.dims) + "; accepted: one for each axis");
  }
  return ok_status();
}

Json to_json(const Topology& topology) {
  Json out{Json::Object{}};
  out.set("kind", name_of(topology.kind));
  if (topology.kind == TopologyKind::kTorus) {
    const auto extents = [](const Dims& dims) { return Json::Array(dims.begin(), dims.end()); };
    out.set("pod", extents(topology.pod));
    if (topology.cube > 0) out.set("cube", topology.cube);
    out.set("dims", extents(topology.dims));
    Json::Array wrap;
    for (const bool closes : topology.wrap) wrap.emplace_back(closes);
    out.set("wrap", std::move(wrap));
    out.set("hop_latency_us", topology.hop_latency_us);
    return out;
  }
  if (topology.kind == TopologyKind::kDragonfly) {
    out.set("group_nodes", topology.levels.front().nodes);
    out.set("taper", 1 / topology.levels.front().oversubscription);
    out.set("global_latency_us", topology.levels.front().latency_us);
  } else {
    Json::Array levels;
    for (const NetworkLevel& level : topology.levels) {
      Json item{Json::Object{}};
      item.set("nodes", level.nodes);
      item.set("oversubscription", level.oversubscription);
      item.set("latency_us", level.latency_us);
      levels.push_back(std::move(item));
    }
    out.set("levels", std::move(levels));
  }
  out.set("utilisation", topology.utilisation);
  return out;
}

std::map<std::string, std::string> fabric_sources(const std::string& preset) {
  return preset_sources("fabrics", preset);
}

std::vector<std::string> fabric_preset_names() { return preset_names("fabrics"); }

}  // namespace foretrain
