// The graphs NCCL's topology search would find: from the table of real search results, else by the
// search's own rule (src/graph/search.cc): try channel speeds from a fixed descending list
// (configs/nccl.json, `search`) and keep the speed and count with the largest product that the
// links carry.
#include <algorithm>
#include <cmath>
#include <span>

#include "hardware/nccl_constants.h"

namespace foretrain {
namespace {

const NcclSearch& search_bounds() { return nccl_constants().search; }

/// Of devices that NCCL does not know (their libraries are taken to search as it does) the oldest.
std::size_t speeds_row(Architecture a) { return is_nvidia(a) ? nccl_row(a) : 0; }

std::span<const double> intra_speeds(Architecture a) {
  return search_bounds().intra.at(speeds_row(a));
}
std::span<const double> inter_speeds(Architecture a) {
  return search_bounds().inter.at(speeds_row(a));
}

bool near(double a, double b) { return std::abs(a - b) <= 0.03 * std::max(a, b); }

/// Wide channels are doubled and halved in width.
void duplicate(NcclGraph& graph, Architecture architecture, double speed) {
  const bool newer =
      architecture == Architecture::kHopper || architecture == Architecture::kBlackwell;
  const NcclSearch& bounds = search_bounds();
  if (speed < bounds.doubled_from) return;
  if (newer && speed < bounds.doubled_from_newer && graph.channels > bounds.doubled_up_to) return;
  graph.channels *= 2;
  graph.intra /= 2;
  graph.inter /= 2;
}

NcclGraph ring_in_node(Architecture architecture, double links) {
  NcclGraph best{4, 1, links, links};
  double best_rate = 0;
  for (const double speed : intra_speeds(architecture)) {
    const auto count = std::min(search_bounds().rings,
                                static_cast<std::int32_t>(std::floor(links / speed + 1e-9)));
    if (count * speed > best_rate) {
      best_rate = count * speed;
      best = NcclGraph{4, count, speed, speed};
    }
  }
  duplicate(best, architecture, best.intra);
  return best;
}

/// One channel a NIC, as fast as the NIC and the links behind it allow; where nodes have more NICs
/// than that many channels (NVL72), the speed and count that carry most. Of a node's members one
/// sends each channel to the NIC and not over its links, unless PCIe carries both.
NcclGraph ring_across(const NcclGroup& group, double links, double nic_rate) {
  const std::int32_t most_rings = search_bounds().rings;
  const Architecture architecture = group.architecture;
  const std::int32_t ranks_per_node = group.ranks_per_node, nics = group.nics_per_node;
  double inside =
      ranks_per_node > 1 ? links * ranks_per_node / (ranks_per_node - 1) : nic_rate * nics;
  if (group.scale_up == ScaleUp::kPcie) inside = links;
  NcclGraph graph{4, 0, 0, 0};
  for (const double speed : inter_speeds(architecture)) {
    if (speed > nic_rate * (1 + 1e-9)) continue;
    const auto most = static_cast<std::int32_t>(
        std::min<double>(search_bounds().channels, inside / speed + 1e-9));
    const std::int32_t count = nics > most_rings ? std::min(most_rings, most) : nics;
    if (count > most || count * speed <= graph.channels * graph.intra) continue;
    graph = NcclGraph{4, count, speed, speed};
  }
  if (graph.channels == 0) {
    const double least = std::min({nic_rate, inside / nics, inter_speeds(architecture).back()});
    graph = NcclGraph{4, nics, least, least};
  }
  duplicate(graph, architecture, graph.intra);
  return graph;
}

double fastest(std::span<const double> speeds, double limit) {
  for (const double speed : speeds) {
    if (speed <= limit * (1 + 1e-9)) return speed;
  }
  return std::min(limit, speeds.back());
}

/// A head carries one share more than the others; what crosses the node passes it half as often.
NcclGraph nvls_graph(Architecture architecture, double links, std::int32_t heads, double nic_rate) {
  if (nic_rate <= 0) {
    const std::span<const double> speeds = intra_speeds(architecture);
    return {5, heads, fastest(speeds, links / (heads + 1)),
            fastest(speeds, 2 * links / (heads + 1))};
  }
  const std::span<const double> speeds = inter_speeds(architecture);
  return {5, heads, fastest(speeds, std::min(nic_rate, links / (heads + 1))),
          fastest(speeds, std::min(nic_rate, 2 * links / heads))};
}

/// CollNet: a channel for each NIC, as wide within the node as its links carry for all channels.
NcclGraph collnet_graph(Architecture architecture, double links, std::int32_t nics,
                        double nic_rate) {
  NcclGraph graph = nvls_graph(architecture, links, nics, nic_rate);
  graph.pattern = 6;
  graph.intra = std::min(graph.intra, graph.inter);
  return graph;
}

bool has_nvls(const Cluster& cluster) {
  return cluster.scale_up == ScaleUp::kSwitch &&
         (cluster.device.architecture == Architecture::kHopper ||
          cluster.device.architecture == Architecture::kBlackwell);
}

std::int32_t doubled_channels(const NcclGroup& group) {
  return std::clamp(2 * group.ring.channels, 1, search_bounds().channels);
}

/// What a member's links carry in rings, GB/s.
double links_of(const NcclGroup& group, const Cluster& cluster) {
  const DeviceSpec& device = cluster.device;
  if (cluster.scale_up != ScaleUp::kMesh || group.ranks_per_node == 1) {
    return device.nccl_scale_up_gb_per_s;
  }
  if (group.mesh.rings == 0) return nccl_constants().mesh_host;
  return group.mesh.rings * device.nccl_scale_up_gb_per_s / std::max(1, device.scale_up_links);
}

void apply_rule(NcclGroup& group, const Cluster& cluster, double nic_rate) {
  const Architecture a = cluster.device.architecture;
  const double links = links_of(group, cluster);
  const bool blackwell = a == Architecture::kBlackwell;
  if (group.nodes == 1) {
    group.ring = ring_in_node(
        a, cluster.scale_up == ScaleUp::kPcie ? search_bounds().pcie_share * links : links);
    group.tree = group.ring;
    group.tree.pattern = 1;
    if (has_nvls(cluster) && group.ranks_per_node > 1) {
      group.nvls = nvls_graph(a, links, std::min(group.ranks_per_node, search_bounds().heads), 0);
    }
  } else {
    group.ring = ring_across(group, links, nic_rate);
    group.tree = group.ring;
    group.tree.pattern = a == Architecture::kHopper || blackwell ? 3 : 1;
    if (has_nvls(cluster) && group.ranks_per_node > 1 && group.nics_per_node > 1) {
      group.nvls =
          nvls_graph(a, links, std::min(group.nics_per_node, search_bounds().heads), nic_rate);
    }
  }
  group.equal_channels =
      group.ranks_per_node == 1 || (group.nodes == 1 && cluster.scale_up != ScaleUp::kMesh &&
                                    group.ranks_per_node <= search_bounds().equal_rings);
  group.channels = doubled_channels(group);
  if (group.nvls.channels > 0) {
    group.nvls_channels = !blackwell         ? search_bounds().nvls_hopper
                          : group.nodes == 1 ? search_bounds().nvls_one_node
                                             : search_bounds().nvls_many_nodes;
  }
}

}  // namespace

namespace {

NcclGroup described(const Cluster& cluster, std::int32_t ranks, std::int32_t nodes,
                    std::int32_t ranks_per_node, std::int32_t nics_per_node, const MeshUse* mesh) {
  NcclGroup group;
  group.ranks = ranks;
  group.nodes = nodes;
  group.ranks_per_node = ranks_per_node;
  group.nics_per_node = std::max(1, nics_per_node);
  group.architecture = cluster.device.architecture;
  group.cpu = cluster.cpu;
  group.scale_up = cluster.scale_up;
  if (cluster.scale_up == ScaleUp::kMesh && ranks_per_node > 1) {
    group.mesh = mesh != nullptr ? *mesh : mesh_use(cluster.mesh_links, ranks_per_node);
    if (group.mesh.rings == 0) group.scale_up = ScaleUp::kPcie;
  }
  group.sharp = cluster.switches_reduce();
  if (group.sharp && nodes > 1) {
    group.collnet = collnet_graph(group.architecture, cluster.device.nccl_scale_up_gb_per_s,
                                  group.nics_per_node, cluster.nic_port_gb_per_s());
  }
  return group;
}

}  // namespace

NcclGroup nccl_group_by_rule(const Cluster& cluster, std::int32_t ranks, std::int32_t nodes,
                             std::int32_t ranks_per_node, std::int32_t nics_per_node) {
  NcclGroup group = described(cluster, ranks, nodes, ranks_per_node, nics_per_node, nullptr);
  apply_rule(group, cluster, cluster.nic_port_gb_per_s());
  return group;
}

NcclGroup nccl_group(const Cluster& cluster, std::int32_t ranks, std::int32_t nodes,
                     std::int32_t ranks_per_node, std::int32_t nics_per_node, const MeshUse* mesh) {
  NcclGroup group = described(cluster, ranks, nodes, ranks_per_node, nics_per_node, mesh);
  const double nic_rate = cluster.nic_port_gb_per_s();
  for (const NcclGraphRow& row : nccl_constants().graphs) {
    if (row.architecture != group.architecture || row.scale_up != group.scale_up ||
        row.ranks_per_node != ranks_per_node || row.many_nodes != (nodes > 1) ||
        !near(row.scale_up_gb_per_s, cluster.device.nccl_scale_up_gb_per_s)) {
      continue;
    }
    // A row of a mesh is of that mesh.
    if (group.scale_up == ScaleUp::kMesh && !row.many_nodes &&
        row.ring.channels != group.mesh.rings) {
      continue;
    }
    if (row.many_nodes &&
        (row.nics_per_node != group.nics_per_node || !near(row.nic_gb_per_s, nic_rate))) {
      continue;
    }
    group.ring = row.ring;
    group.tree = row.tree;
    group.nvls = row.nvls;
    group.channels = row.channels;
    group.nvls_channels = row.nvls_channels;
    group.equal_channels = row.equal_channels;
    return group;
  }
  apply_rule(group, cluster, nic_rate);
  return group;
}

}  // namespace foretrain
