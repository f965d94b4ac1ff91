#include "hardware/cluster.h"

#include <algorithm>

#include "hardware/presets.h"

namespace foretrain {
namespace {

using Names = std::vector<std::string>;

const Names& scale_up_names() {
  static const Names names = {"switch", "mesh", "pcie"};
  return names;
}
const Names& cpu_names() {
  static const Names names = {"intel", "amd", "arm"};
  return names;
}
const Names& fabric_names() {
  static const Names names = {"infiniband", "roce", "efa", "ethernet"};
  return names;
}

constexpr int kMaxPresetDepth = 8;  // a preset file may build on another, but not on itself

Status read_network(const Json& json, const std::string& source, const std::string& pointer,
                    Cluster& cluster) {
  JsonReader reader(json, source, pointer);
  reader.read("nics_per_node", cluster.nics_per_node, {1, 4096});
  reader.read("nic_gbit_per_s", cluster.nic_gbit_per_s, {1e-3, 1e6});
  reader.read_enum("fabric", cluster.fabric, fabric_names());
  reader.read("nodes_per_leaf", cluster.nodes_per_leaf, {1, 1 << 20});
  reader.read("oversubscription", cluster.oversubscription, {1, 1e4});
  reader.read("latency_us", cluster.network_latency_us, {0, 1e6});
  reader.read("sharp", cluster.sharp);
  return reader.finish();
}

Result<Cluster> read_at_depth(const Json& json, const std::string& source,
                              const std::string& pointer, int depth);

Result<Cluster> read_preset(const std::string& name, const std::string& source,
                            const std::string& pointer, int depth) {
  if (depth >= kMaxPresetDepth) {
    return input_error(source + ": " + pointer + ": presets build on each other without end at \"" +
                       name + "\"");
  }
  FT_ASSIGN(NamedJson preset, load_preset("clusters", name, source, pointer));
  FT_ASSIGN(Cluster cluster, read_at_depth(preset.json, preset.source, "", depth + 1));
  if (cluster.name.empty()) cluster.name = name;
  return cluster;
}

Status check_complete(const Cluster& cluster, const std::string& source,
                      const std::string& pointer) {
  const auto lacks = [&](std::string_view key) {
    return input_error(source + ": " + pointer + ": without a preset a cluster needs \"" +
                       std::string(key) + "\"");
  };
  if (cluster.device.sm_count == 0) return lacks("device");
  if (cluster.accelerators == 0) return lacks("accelerators");
  if (cluster.accelerators_per_node == 0) return lacks("accelerators_per_node");
  if (cluster.nodes() > 1 && (cluster.nics_per_node == 0 || cluster.nic_gbit_per_s <= 0)) {
    return lacks("network");
  }
  return ok_status();
}

Result<Cluster> read_at_depth(const Json& json, const std::string& source,
                              const std::string& pointer, int depth) {
  if (const std::string* name = json.string()) return read_preset(*name, source, pointer, depth);
  if (json.object() == nullptr) {
    return input_error(source + ": " + pointer + ": found " + describe(json) +
                       "; accepted: a cluster's name, a path, or an object");
  }
  JsonReader reader(json, source, pointer);
  Cluster cluster;
  if (reader.has("preset")) {
    std::string preset;
    reader.read("preset", preset);
    if (reader.failed()) return reader.finish().error();
    FT_ASSIGN(cluster, read_preset(preset, source, reader.pointer("preset"), depth));
  }
  reader.ignore("schema");
  reader.ignore("sources");
  reader.read("name", cluster.name);
  if (const Json* device = reader.take("device")) {
    FT_ASSIGN(cluster.device, read_device(*device, source, reader.pointer("device")));
  }
  reader.read("accelerators", cluster.accelerators, {1, 1 << 20});
  reader.read("accelerators_per_node", cluster.accelerators_per_node, {1, 1 << 16});
  reader.read_enum("scale_up", cluster.scale_up, scale_up_names());
  reader.read_enum("cpu", cluster.cpu, cpu_names());
  reader.read("host_memory_gb_per_s", cluster.host_memory_gb_per_s, {1e-3, 1e6});
  reader.read("storage_gb_per_s", cluster.storage_gb_per_s, {1e-3, 1e6});
  if (const Json* network = reader.take("network")) {
    FT_TRY(read_network(*network, source, reader.pointer("network"), cluster));
  }
  FT_TRY(reader.finish());
  FT_TRY(check_complete(cluster, source, pointer));
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

double Cluster::nic_port_gb_per_s() const { return node_network_gb_per_s() / nic_ports_per_node(); }

Result<Cluster> read_cluster(const Json& json, const std::string& source,
                             const std::string& pointer) {
  return read_at_depth(json, source, pointer, 0);
}

Json to_json(const Cluster& cluster) {
  Json network{Json::Object{}};
  network.set("nics_per_node", cluster.nics_per_node);
  network.set("nic_gbit_per_s", cluster.nic_gbit_per_s);
  network.set("fabric", name_of(cluster.fabric));
  network.set("nodes_per_leaf", cluster.nodes_per_leaf);
  network.set("oversubscription", cluster.oversubscription);
  network.set("latency_us", cluster.network_latency_us);
  network.set("sharp", cluster.sharp);

  Json derived{Json::Object{}};
  derived.set("nodes", cluster.nodes());
  derived.set("leaves", (cluster.nodes() + cluster.nodes_per_leaf - 1) / cluster.nodes_per_leaf);
  derived.set("nic_ports_per_node", cluster.nic_ports_per_node());
  derived.set("nic_port_gb_per_s", cluster.nic_port_gb_per_s());
  derived.set("node_network_gb_per_s", cluster.node_network_gb_per_s());

  Json out{Json::Object{}};
  out.set("name", cluster.name);
  out.set("device", to_json(cluster.device));
  out.set("accelerators", cluster.accelerators);
  out.set("accelerators_per_node", cluster.accelerators_per_node);
  out.set("scale_up", name_of(cluster.scale_up));
  out.set("cpu", name_of(cluster.cpu));
  out.set("host_memory_gb_per_s", cluster.host_memory_gb_per_s);
  out.set("storage_gb_per_s", cluster.storage_gb_per_s);
  out.set("network", std::move(network));
  out.set("derived", std::move(derived));
  return out;
}

std::vector<std::string> cluster_preset_names() { return preset_names("clusters"); }
std::vector<std::string> device_preset_names() { return preset_names("devices"); }

}  // namespace foretrain
