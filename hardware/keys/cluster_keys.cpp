#include "hardware/keys/cluster_keys.h"

#include <string>
#include <utility>

namespace foretrain {
namespace {

ClusterKey count_of(const std::string& path, std::int32_t Cluster::*member, double low,
                    double high) {
  return ClusterKey::count(
             path,
             [member](Cluster& c, std::int64_t v) { c.*member = static_cast<std::int32_t>(v); })
      .range(low, high);
}

ClusterKey number_of(const std::string& path, double Cluster::*member, double low, double high) {
  return ClusterKey::number(path, [member](Cluster& c, double v) { c.*member = v; })
      .range(low, high);
}

ClusterKey idle_below_leaves(ClusterKey key) {
  return std::move(key).idle_if([](const Cluster& c) { return !c.uses_network(); },
                                "the job has one node");
}

ClusterKey idle_on_one_node(ClusterKey key) {
  return std::move(key)
      .idle_if([](const Cluster& c) { return !c.uses_network() && c.topology.slice_size() > 0; },
               "the job is one slice", {"cluster.preset=tpu-v5p"})
      .idle_if([](const Cluster& c) { return !c.uses_network(); }, "the job has one node");
}

/// Without a switch in the node messages between rails cross the leaves wherever they go.
bool lies_below_one_leaf(const Cluster& c) {
  const std::vector<NetworkLevel>& levels = c.topology.levels;
  const bool to_rails =
      c.topology.kind == TopologyKind::kRailFatTree && c.scale_up != ScaleUp::kSwitch;
  return !levels.empty() && c.nodes() <= levels.front().nodes && !to_rails;
}

ClusterKeys keys_of_devices() {
  return {
      ClusterKey::elsewhere("cluster.preset", KeyType::kText)
          .says("A cluster preset or a path, whose fields the other keys override."),
      ClusterKey::text("cluster.name", [](Cluster& c, const std::string& v) { c.name = v; })
          .says("A name for reports."),
      ClusterKey::elsewhere("cluster.pools")
          .says("Two or more clusters in place of one: nodes of several kinds. Ranks of the first "
                "come first."),
      ClusterKey::elsewhere("cluster.device")
          .says("A device preset, a path, or an object of fields that it overrides."),
      ClusterKey::elsewhere("cluster.device.clock_mhz", KeyType::kNumber)
          .says("The device's clock, which is told and priced by no one.")
          .probe("1000")
          .idle_if([](const Cluster&) { return true; },
                   "prices rest on rates that were reached, whatever the clock was: peaks and "
                   "bandwidth move them"),
      count_of("cluster.accelerators", &Cluster::accelerators, 1, 1 << 20)
          .says("Accelerators of the job.")
          .alias({"gpus", "n_nodes", "nnodes", "nodes", "num_gpus", "num_nodes", "world_size"},
                 ", of all nodes together")
          .probe("16"),
      count_of("cluster.accelerators_per_node", &Cluster::accelerators_per_node, 1, 1 << 16)
          .says("Accelerators of a node.")
          .alias({"gpus_per_node", "num_gpus_per_node"})
          .probe("4"),
      count_of("cluster.accelerators_per_tray", &Cluster::accelerators_per_tray, 1, 1 << 16)
          .says("A rack gives jobs so many at a time."),
  };
}

ClusterKeys keys_of_nodes() {
  return {
      ClusterKey::choice<ScaleUp>("cluster.scale_up", scale_up_names(),
                                  [](Cluster& c, ScaleUp v) { c.scale_up = v; })
          .says("What connects the accelerators of a node."),
      ClusterKey::elsewhere("cluster.mesh_links")
          .says("Of a mesh: a row for each accelerator of a node, its links to each."),
      ClusterKey::count(
          "cluster.accelerators_per_package",
          [](Cluster& c, std::int64_t v) { c.package.accelerators = static_cast<std::int32_t>(v); })
          .range(1, 4096)
          .says("Accelerators of a package with faster links of its own."),
      ClusterKey::number("cluster.package_gb_per_s",
                         [](Cluster& c, double v) { c.package.gb_per_s = v; })
          .range(1e-3, 1e7)
          .says("Rate of those."),
      count_of("cluster.accelerators_per_pcie_switch", &Cluster::accelerators_per_pcie_switch, 1,
               4096)
          .says("Accelerators that share one uplink to host and peers."),
      ClusterKey::choice<Cpu>("cluster.cpu", cpu_names(), [](Cluster& c, Cpu v) { c.cpu = v; })
          .says("The maker of the host's processor, for NCCL's tuning."),
      number_of("cluster.host_speed", &Cluster::host_speed, 1e-2, 1e2)
          .says("Speed of one host thread, relative to an EPYC 7003."),
      number_of("cluster.host_memory_gb_per_s", &Cluster::host_memory_gb_per_s, 1e-3, 1e6)
          .says("Bandwidth of a node's host memory."),
      number_of("cluster.host_memory_gib", &Cluster::host_memory_gib, 1e-3, 1e9)
          .says("Host memory of a node; without it there is room for anything.")
          .probe("64",
                 {"sharding.level=parameters", "parallel.pipeline=1", "offload.optimizer=cpu"}),
      number_of("cluster.storage_gb_per_s", &Cluster::storage_gb_per_s, 1e-3, 1e6)
          .says("Rate of storage for each accelerator.")
          .probe("3", {"offload.optimizer=nvme"}),
      number_of("cluster.storage_write_gb_per_s", &Cluster::storage_write_gb_per_s, 1e-3, 1e6)
          .says("Rate of its writes, where it is another.")
          .probe("3",
                 {"sharding.level=parameters", "parallel.pipeline=1", "offload.optimizer=nvme"}),
      number_of("cluster.storage_tb", &Cluster::storage_tb, 1e-3, 1e9)
          .says("Storage of a node; without it there is room for anything."),
      ClusterKey::elsewhere("cluster.network").says("Keys of section cluster.network."),
      ClusterKey::number("cluster.rate_spread", [](Cluster& c, double v) { c.rate_spread = v; })
          .range(0, 0.1)
          .else_("of the device's architecture")
          .says("Standard deviation of tensor-core rates among accelerators, of their mean.")
          .probe("0.05"),
  };
}

ClusterKeys keys_of_network() {
  const Sets two_nodes = {"cluster.accelerators=16"};
  const Sets four_nodes = {"cluster.accelerators=32"};
  const auto leaf = [](Cluster& c, auto set) {
    if (!c.topology.levels.empty()) set(c.topology.levels.front());
  };
  return {
      ClusterKey::elsewhere("cluster.network.topology")
          .says("A preset of fabrics/, a path, or an object: what joins the nodes.")
          .probe("slingshot-dragonfly", four_nodes)
          .idle_if(
              [](const Cluster& c) { return c.scale_up != ScaleUp::kTorus && !c.uses_network(); },
              "the job has one node"),
      idle_on_one_node(count_of("cluster.network.nics_per_node", &Cluster::nics_per_node, 1, 4096)
                           .says("Network ports of a node.")
                           .probe("1", two_nodes)),
      idle_on_one_node(
          number_of("cluster.network.nic_gbit_per_s", &Cluster::nic_gbit_per_s, 1e-3, 1e6)
              .says("Rate of a port.")
              .probe("50", two_nodes)),
      idle_on_one_node(ClusterKey::choice<Fabric>("cluster.network.fabric", fabric_names(),
                                                  [](Cluster& c, Fabric v) { c.fabric = v; })
                           .says("The kind of the network.")
                           .probe("efa", two_nodes)),
      idle_below_leaves(ClusterKey::count("cluster.network.nodes_per_leaf",
                                          [leaf](Cluster& c, std::int64_t v) {
                                            leaf(c, [v](NetworkLevel& l) {
                                              l.nodes = static_cast<decltype(l.nodes)>(v);
                                            });
                                          })
                            .range(1, 1 << 20)
                            .says("Nodes below one switch of the first level.")
                            .probe("1", four_nodes)),
      idle_below_leaves(
          ClusterKey::number("cluster.network.oversubscription",
                             [leaf](Cluster& c, double v) {
                               leaf(c, [v](NetworkLevel& l) { l.oversubscription = v; });
                             })
              .range(1, 1e4)
              .says("By how much the first level's uplinks are fewer.")
              .probe("4", {"cluster.accelerators=32", "cluster.network.nodes_per_leaf=2"}))
          .idle_if(lies_below_one_leaf, "all nodes of the job lie below one leaf", four_nodes),
      idle_on_one_node(number_of("cluster.network.latency_us", &Cluster::network_latency_us, 0, 1e6)
                           .says("Latency of a message, one way below one leaf.")
                           .probe("50", two_nodes)),
      idle_on_one_node(
          ClusterKey::flag("cluster.network.sharp", [](Cluster& c, bool v) { c.sharp = v; })
              .says("InfiniBand's switches may reduce for NCCL.")
              .probe("true",
                     {"cluster.preset=dgx-h100", "cluster.accelerators=256", "batch.global=256"}))
          .idle_if([](const Cluster& c) { return !is_nvidia(c.device.architecture); },
                   "it is NCCL's to use", {"cluster.preset=mi300x", "cluster.accelerators=32"})
          .idle_if([](const Cluster& c) { return c.fabric != Fabric::kInfiniBand; },
                   "SHARP is InfiniBand's",
                   {"cluster.accelerators=32", "cluster.network.fabric=ethernet"}),
  };
}

}  // namespace

const std::vector<std::string>& scale_up_names() {
  static const std::vector<std::string> names = {"switch", "mesh", "pcie", "full-mesh", "torus"};
  return names;
}

const std::vector<std::string>& cpu_names() {
  static const std::vector<std::string> names = {"intel", "amd", "arm"};
  return names;
}

const std::vector<std::string>& fabric_names() {
  static const std::vector<std::string> names = {"infiniband", "roce", "efa", "ethernet"};
  return names;
}

const ClusterKeys& cluster_keys() {
  static const ClusterKeys all = [] {
    ClusterKeys out = keys_of_devices();
    for (ClusterKey& key : keys_of_nodes()) out.push_back(std::move(key));
    for (ClusterKey& key : keys_of_network()) out.push_back(std::move(key));
    return out;
  }();
  return all;
}

void read_cluster_keys(JsonReader& reader, const std::string& section, Cluster& out) {
  for (const ClusterKey& key : cluster_keys()) {
    if (key.section == section) key.read(reader, out);
  }
}

}  // namespace foretrain
