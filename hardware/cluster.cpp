#include "hardware/cluster.h"

#include <algorithm>

#include "hardware/kernel_constants.h"
#include "hardware/keys/cluster_keys.h"
#include "hardware/presets.h"

namespace foretrain {
namespace {

/// Links that each device must have for the scale-up to be what it says.
Status check_links(const Cluster& cluster, const std::string& source, const std::string& pointer) {
  std::int64_t needed = 0;
  if (cluster.scale_up == ScaleUp::kFullMesh) needed = cluster.accelerators_per_node - 1;
  for (const std::int32_t extent : cluster.topology.dims) needed += extent > 1 ? 2 : 0;
  if (needed <= cluster.device.scale_up_links) return ok_status();
  return input_error(place_in(source, pointer) + "scale_up " +
                     std::string(name_of(cluster.scale_up)) + " needs " + std::to_string(needed) +
                     " links a device (a peer each, or two an axis), and " + cluster.device.name +
                     " has scale_up_links " + std::to_string(cluster.device.scale_up_links) +
                     "; accepted: fewer accelerators_per_node, fewer axes, or another device");
}

/// Short for the first level of switches.
Status check_first_level(JsonReader& reader, const Topology& topology) {
  for (const char* key : {"nodes_per_leaf", "oversubscription"}) {
    if (reader.has(key) && topology.kind == TopologyKind::kTorus) {
      reader.fail(key,
                  "is of the leaves of a switched network, and this one is a torus; accepted: "
                  "\"topology\" with another kind, or leave it out");
    }
  }
  if (reader.failed()) return reader.status();
  return ok_status();
}

Status read_network(const Json& json, const std::string& source, const std::string& pointer,
                    Cluster& cluster) {
  JsonReader reader(json, source, pointer);
  if (const Json* topology = reader.take("topology")) {
    FT_TRY(read_topology(*topology, source, reader.pointer("topology"), cluster.topology,
                         cluster.network_latency_us));
  }
  FT_TRY(check_first_level(reader, cluster.topology));
  read_cluster_keys(reader, "cluster.network", cluster);
  return reader.finish();
}

Result<Cluster> read_at_depth(const Json& json, const std::string& source,
                              const std::string& pointer, int depth);

Result<Cluster> read_preset(const std::string& name, const std::string& source,
                            const std::string& pointer, int depth) {
  FT_ASSIGN(NamedJson preset, load_base("clusters", name, source, pointer, depth));
  FT_ASSIGN(Cluster cluster, read_at_depth(preset.json, preset.source, "", depth + 1));
  if (cluster.name.empty()) cluster.name = name;
  return cluster;
}

/// `mesh_links`, which a mesh has and nothing else; those of the preset where none are given.
Status read_mesh(JsonReader& reader, const std::string& source, Cluster& cluster) {
  const Json* own = reader.take("mesh_links");
  if (cluster.scale_up != ScaleUp::kMesh) {
    if (own != nullptr) {
      reader.fail("mesh_links", "are of scale_up \"mesh\", and this one is \"" +
                                    std::string(name_of(cluster.scale_up)) + "\"");
    }
    cluster.mesh_links.clear();
    return ok_status();
  }
  if (reader.failed() || (own == nullptr && cluster.mesh_links.empty())) return ok_status();
  const Json inherited = to_json(cluster.mesh_links);
  FT_ASSIGN(cluster.mesh_links,
            read_links(own != nullptr ? *own : inherited, source, reader.pointer("mesh_links"),
                       cluster.accelerators_per_node, cluster.device.scale_up_links));
  return ok_status();
}

double rate_spread_of(const Cluster& cluster) {
  return cluster.rate_spread.value_or(kernel_constants(cluster.device.architecture).rate_spread);
}

Status check_complete(const Cluster& cluster, const std::string& source,
                      const std::string& pointer) {
  const auto lacks = [&](std::string_view key) {
    return input_error(place_in(source, pointer) + "without a preset a cluster needs \"" +
                       std::string(key) + "\"");
  };
  if (cluster.device.sm_count == 0) return lacks("device");
  if (cluster.accelerators == 0) return lacks("accelerators");
  if (cluster.accelerators_per_node == 0) return lacks("accelerators_per_node");
  if (cluster.scale_up == ScaleUp::kMesh && cluster.mesh_links.empty()) {
    return input_error(source + ": " + pointer +
                       ": scale_up \"mesh\" needs \"mesh_links\", a row for each accelerator of a "
                       "node with its links to each; see configs/clusters/dgx-1v.json");
  }
  if ((cluster.scale_up == ScaleUp::kTorus) != (cluster.topology.kind == TopologyKind::kTorus)) {
    return input_error(place_in(source, pointer) + "scale_up is " +
                       std::string(name_of(cluster.scale_up)) + " and network/topology is " +
                       std::string(name_of(cluster.topology.kind)) +
                       "; accepted: \"torus\" for both or for neither");
  }
  if (cluster.package.accelerators > 1 && cluster.package.gb_per_s <= 0) {
    return lacks("package_gb_per_s");
  }
  if (cluster.nodes() > 1 && (cluster.nics_per_node == 0 || cluster.nic_gbit_per_s <= 0)) {
    return lacks("network");
  }
  return ok_status();
}

Result<Cluster> read_at_depth(const Json& json, const std::string& source,
                              const std::string& pointer, int depth) {
  if (const std::string* name = json.string()) return read_preset(*name, source, pointer, depth);
  if (json.object() == nullptr) {
    return input_error(place_in(source, pointer) + "found " + describe(json) +
                       "; accepted: a cluster's name, a path, or an object");
  }
  if (json.find("pools") != nullptr) {
    return input_error(place_in(source, pointer) +
                       "pools stand in a RUN's own cluster, not in what it names");
  }
  JsonReader reader(json, source, pointer);
  Cluster cluster;
  if (reader.has("preset")) {
    std::string preset;
    reader.read("preset", preset);
    if (reader.failed()) return reader.status().error();
    FT_ASSIGN(cluster, read_preset(preset, source, reader.pointer("preset"), depth));
  }
  read_remarks(reader, "foretrain/cluster/1");
  if (const Json* device = reader.take("device")) {
    FT_ASSIGN(cluster.device,
              read_device(*device, source, reader.pointer("device"), cluster.device));
  }
  read_cluster_keys(reader, "cluster", cluster);
  FT_TRY(read_mesh(reader, source, cluster));
  if (const Json* network = reader.take("network")) {
    FT_TRY(read_network(*network, source, reader.pointer("network"), cluster));
  }
  FT_TRY(reader.finish());
  FT_TRY(check_complete(cluster, source, pointer));
  cluster.device.slowest = slowest_rate(cluster.accelerators, rate_spread_of(cluster));
  return cluster;
}

}  // namespace

std::string_view name_of(ScaleUp scale_up) {
  return scale_up_names().at(static_cast<std::size_t>(scale_up));
}
std::string_view name_of(Cpu cpu) { return cpu_names().at(static_cast<std::size_t>(cpu)); }
std::string_view name_of(Fabric fabric) {
  return fabric_names().at(static_cast<std::size_t>(fabric));
}

std::int32_t Cluster::nic_ports_per_node() const {
  return std::max(1, std::min(nics_per_node, accelerators_per_node));
}

std::int32_t Cluster::nic_port_of_local(std::int32_t local) const {
  return static_cast<std::int32_t>(static_cast<std::int64_t>(local) * nic_ports_per_node() /
                                   accelerators_per_node);
}

double Cluster::most_memory_gib() const {
  double out = device.memory_gib;
  for (const Cluster& pool : pools) out = std::max(out, pool.device.memory_gib);
  return out;
}

double Cluster::power_w() const {
  if (pools.empty()) return accelerators * device.power_w;
  double out = 0;
  for (const Cluster& pool : pools) {
    if (pool.power_w() <= 0) return 0;
    out += pool.power_w();
  }
  return out;
}

double Cluster::mean_tflops(DType type) const {
  if (pools.empty()) return peak_tflops(device, type);
  double out = 0;
  for (const Cluster& pool : pools) out += pool.accelerators * peak_tflops(pool.device, type);
  return out / accelerators;
}

double Cluster::nic_port_gb_per_s() const { return node_network_gb_per_s() / nic_ports_per_node(); }

namespace {

/// A job of more than one rack takes the same number of trays of every rack: as many as divide its
/// own (NVIDIA's launchers ask their scheduler for such segments: NeMo and Megatron-Bridge,
/// scripts/performance, `segment`). Its racks are then nodes of so many accelerators.
void take_trays(Cluster& cluster) {
  const std::int32_t tray = cluster.accelerators_per_tray;
  if (tray == 0 || cluster.accelerators <= cluster.accelerators_per_node) return;
  if (cluster.accelerators % tray != 0 || cluster.accelerators_per_node % tray != 0) return;
  const std::int32_t trays = cluster.accelerators / tray;
  std::int32_t taken = cluster.accelerators_per_node / tray;
  while (trays % taken != 0) --taken;
  cluster.nics_per_node = cluster.nics_per_node * taken * tray / cluster.accelerators_per_node;
  cluster.accelerators_per_node = taken * tray;
}

}  // namespace

namespace {

/// `{"pools": [...]}`: every pool is a cluster of its own.
Result<Cluster> read_pools(const Json& json, const std::string& source,
                           const std::string& pointer) {
  JsonReader reader(json, source, pointer);
  std::string name;
  reader.read("name", name);
  read_remarks(reader, "foretrain/cluster/1");
  const Json* pools = reader.take("pools");
  for (const std::string& key : reader.unknown()) {
    reader.fail(key, "stands beside \"pools\"; every pool has its own");
    reader.ignore(key);
  }
  FT_TRY(reader.finish());
  const std::string place = reader.pointer("pools");
  if (pools == nullptr || pools->array() == nullptr || pools->array()->size() < 2) {
    return input_error(place_in(source, place) + "found " + describe(*json.find("pools")) +
                       ", expected two or more clusters, each with its accelerators");
  }
  std::vector<Cluster> all;
  std::int64_t accelerators = 0;
  for (std::size_t i = 0; i < pools->array()->size(); ++i) {
    const Json& pool = (*pools->array())[i];
    const std::string at = place + "/" + std::to_string(i);
    if (pool.find("pools") != nullptr) {
      return input_error(place_in(source, at) + "a pool has no pools of its own");
    }
    FT_ASSIGN(Cluster one, read_cluster(pool, source, at));
    if (one.scale_up == ScaleUp::kTorus) {
      return unsupported(place_in(source, at) + one.name +
                         " is a torus; pools are nodes of a switched network");
    }
    if (one.nics_per_node == 0 || one.nic_gbit_per_s <= 0) {
      return input_error(place_in(source, at) + one.name +
                         " has no network to reach other pools by; give it \"network\"");
    }
    accelerators += one.accelerators;
    all.push_back(std::move(one));
  }
  if (accelerators > 1 << 20) {
    return input_error(place_in(source, place) + "pools have " + std::to_string(accelerators) +
                       " accelerators, accepted are up to 1048576");
  }
  // Groups of several pools lie as on equal nodes of one (hardware/pools/pools.h).
  constexpr std::int64_t kMostPlaces = 1 << 24;
  for (const Cluster& nodes : all) {
    std::int64_t places = 0;
    for (const Cluster& pool : all) {
      const std::int64_t each = nodes.accelerators_per_node;
      places += pool.nodes() * ((pool.accelerators_per_node + each - 1) / each) * each;
    }
    if (places <= kMostPlaces) continue;
    return input_error(place_in(source, place) + "nodes of " +
                       std::to_string(nodes.accelerators_per_node) +
                       " accelerators and nodes of few in one job; found sizes out of proportion");
  }
  // Every rank is as slow as the slowest of the job.
  for (Cluster& one : all) {
    one.device.slowest = slowest_rate(static_cast<std::int32_t>(accelerators), rate_spread_of(one));
  }
  Cluster out = all.front();
  out.accelerators = static_cast<std::int32_t>(accelerators);
  out.name = name;
  for (const Cluster& one : all) {
    if (name.empty()) out.name += (out.name.empty() ? "" : " + ") + one.name;
  }
  out.pools = std::move(all);
  return out;
}

}  // namespace

Result<Cluster> read_cluster(const Json& json, const std::string& source,
                             const std::string& pointer) {
  if (json.find("pools") != nullptr) return read_pools(json, source, pointer);
  FT_ASSIGN(Cluster cluster, read_at_depth(json, source, pointer, 0));
  take_trays(cluster);
  FT_TRY(
      resolve_torus(source, pointer + "/network/topology", cluster.accelerators, cluster.topology));
  FT_TRY(check_links(cluster, source, pointer));
  return cluster;
}

std::string device_names(const Cluster& cluster) {
  if (cluster.pools.empty()) return cluster.device.name;
  std::string out;
  for (const Cluster& pool : cluster.pools) {
    out += out.empty() ? "" : &pool == &cluster.pools.back() ? " and " : ", ";
    out += pool.device.name + " (" + std::to_string(pool.accelerators) + ")";
  }
  return out;
}

Json to_json(const Cluster& cluster) {
  if (!cluster.pools.empty()) {
    Json::Array pools;
    for (const Cluster& pool : cluster.pools) pools.push_back(to_json(pool));
    Json out{Json::Object{}};
    out.set("name", cluster.name);
    out.set("accelerators", cluster.accelerators);
    out.set("pools", std::move(pools));
    return out;
  }
  Json network{Json::Object{}};
  network.set("nics_per_node", cluster.nics_per_node);
  network.set("nic_gbit_per_s", cluster.nic_gbit_per_s);
  network.set("fabric", name_of(cluster.fabric));
  network.set("latency_us", cluster.network_latency_us);
  network.set("sharp", cluster.sharp);
  network.set("topology", to_json(cluster.topology));

  Json derived{Json::Object{}};
  derived.set("nodes", cluster.nodes());
  if (!cluster.topology.levels.empty()) {
    const std::int32_t per_leaf = cluster.topology.levels.front().nodes;
    derived.set("leaves", (cluster.nodes() + per_leaf - 1) / per_leaf);
  }
  derived.set("scale_up_domain", cluster.domain_size());
  derived.set("slowest_accelerator", cluster.device.slowest);
  derived.set("nic_ports_per_node", cluster.nic_ports_per_node());
  derived.set("nic_port_gb_per_s", cluster.nic_port_gb_per_s());
  derived.set("node_network_gb_per_s", cluster.node_network_gb_per_s());

  Json out{Json::Object{}};
  out.set("name", cluster.name);
  out.set("device", to_json(cluster.device));
  out.set("accelerators", cluster.accelerators);
  out.set("accelerators_per_node", cluster.accelerators_per_node);
  if (cluster.accelerators_per_tray > 0) {
    out.set("accelerators_per_tray", cluster.accelerators_per_tray);
  }
  out.set("scale_up", name_of(cluster.scale_up));
  if (!cluster.mesh_links.empty()) out.set("mesh_links", to_json(cluster.mesh_links));
  if (cluster.package.accelerators > 1) {
    out.set("accelerators_per_package", cluster.package.accelerators);
    out.set("package_gb_per_s", cluster.package.gb_per_s);
  }
  if (cluster.accelerators_per_pcie_switch > 1) {
    out.set("accelerators_per_pcie_switch", cluster.accelerators_per_pcie_switch);
  }
  out.set("cpu", name_of(cluster.cpu));
  out.set("host_speed", cluster.host_speed);
  out.set("host_memory_gb_per_s", cluster.host_memory_gb_per_s);
  if (cluster.host_memory_gib > 0) out.set("host_memory_gib", cluster.host_memory_gib);
  out.set("storage_gb_per_s", cluster.storage_gb_per_s);
  if (cluster.storage_write_gb_per_s > 0) {
    out.set("storage_write_gb_per_s", cluster.storage_write_gb_per_s);
  }
  if (cluster.storage_tb > 0) out.set("storage_tb", cluster.storage_tb);
  out.set("rate_spread", rate_spread_of(cluster));
  out.set("network", std::move(network));
  out.set("derived", std::move(derived));
  return out;
}

std::map<std::string, std::string> device_sources(const std::string& preset) {
  return preset_sources("devices", preset);
}

std::map<std::string, std::string> cluster_sources(const std::string& preset) {
  std::map<std::string, std::string> sources = preset_sources("clusters", preset);
  const Result<NamedJson> file = load_preset("clusters", preset, "", "");
  if (!file.ok()) return sources;
  const auto add = [&sources](const std::string& folder, const Json* name,
                              const std::string& under) {
    if (name == nullptr || name->string() == nullptr) return;
    for (auto& [pointer, text] : preset_sources(folder, *name->string())) {
      sources.try_emplace(under + pointer, text);
    }
  };
  add("devices", file.value().json.find("device"), "/device");
  for (const char* key : {"/network/nodes_per_leaf", "/network/oversubscription"}) {
    const auto found = sources.find(key);
    if (found == sources.end()) continue;
    std::string& text = sources["/network/topology"];
    text += (text.empty() ? "" : "; ") + found->second;
  }
  if (const Json* network = file.value().json.find("network")) {
    add("fabrics", network->find("topology"), "/network/topology");
    for (const char* key : {"dims", "wrap"}) {
      sources.try_emplace(std::string("/network/topology/") + key, "derived");
    }
  }
  return sources;
}

std::vector<std::string> cluster_preset_names() { return preset_names("clusters"); }
std::vector<std::string> device_preset_names() { return preset_names("devices"); }

}  // namespace foretrain
