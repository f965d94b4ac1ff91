// Does any price of a collective beat what its links can carry, over all clusters, kinds and
// groups, with equal and with unequal numbers of members a node?
#include <gtest/gtest.h>

#include "hardware/presets.h"
#include "tests/support/collectives.h"

namespace foretrain {
namespace {

/// What must enter (or, for a reduction, leave) `members` of n ranks, for each byte of the array.
double must_cross(CollectiveKind kind, double members, double n) {
  switch (kind) {
    case CollectiveKind::kAllGather:
    case CollectiveKind::kReduceScatter:
      return (n - members) / n;  // every part that the others hold
    case CollectiveKind::kAllToAll:
      return members * (n - members) / n;
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kReduce:
      return 1;  // its own sum goes out, the others' comes in
  }
  return 0;
}

/// GB/s into one accelerator over all of its links.
double links_gb_per_s(const Cluster& cluster, bool inside, bool outside) {
  // What a NIC brings to a device of PCIe passes the same lanes; a package has links of its own.
  if (cluster.scale_up == ScaleUp::kPcie) {
    const bool package = inside && cluster.package.accelerators > 1;
    return std::max(cluster.device.pcie_gb_per_s, package ? cluster.device.scale_up_gb_per_s : 0);
  }
  const DeviceSpec& device = cluster.device;
  const double own = std::max(device.scale_up_gb_per_s, cluster.package.gb_per_s);
  return (inside ? own : 0) + (outside ? cluster.nic_port_gb_per_s() : 0);
}

struct Domain {
  double members = 0;
  std::set<std::int32_t> nics;
};

bool switches_add(const Cluster& cluster) {  // NVLS in a node
  return cluster.scale_up == ScaleUp::kSwitch &&
         (cluster.device.architecture == Architecture::kHopper ||
          cluster.device.architecture == Architecture::kBlackwell);
}

/// Seconds a byte that no algorithm can do without: those of a rank's links, of a node's NICs, and
/// for an all-reduce without switches that add of all links, over which every rank (node) but one
/// sends each byte and gets its sum.
double least_seconds(const Cluster& cluster, const std::vector<RankId>& ranks,
                     CollectiveKind kind) {
  std::map<std::int32_t, Domain> domains;
  for (const RankId rank : ranks) {
    Domain& domain = domains[cluster.domain_of(rank)];
    ++domain.members;
    domain.nics.insert(cluster.node_of(rank) * cluster.nic_ports_per_node() +
                       cluster.nic_port_of_local(cluster.local_of(rank)));
  }
  const auto n = static_cast<double>(ranks.size());
  const bool far = domains.size() > 1;
  double least = 0, nics = 0, all_links = 0;
  for (const auto& [id, domain] : domains) {
    const double links = links_gb_per_s(cluster, domain.members > 1, far);
    least = std::max(least, must_cross(kind, 1, n) / links);
    all_links += domain.members * links;
    if (!far) continue;
    const double rate = static_cast<double>(domain.nics.size()) * cluster.nic_port_gb_per_s();
    least = std::max(least, must_cross(kind, domain.members, n) / rate);
    nics += rate;
  }
  if (far && kind == CollectiveKind::kAllReduce && !cluster.switches_reduce()) {
    least = std::max(least, 2 * (static_cast<double>(domains.size()) - 1) / nics);
  }
  if (kind == CollectiveKind::kAllReduce && !switches_add(cluster) && !cluster.switches_reduce()) {
    least = std::max(least, 2 * (n - 1) / all_links);
  }
  return least / 1e9;
}

std::vector<std::vector<RankId>> groups_of(const Cluster& cluster) {
  constexpr std::int32_t kMost = 16;
  const std::int32_t node = std::min(kMost, cluster.domain_size());
  std::vector<std::vector<RankId>> groups;
  for (std::int32_t i = 2; i <= node; ++i) groups.push_back(members_of(cluster, {i}));
  for (std::int32_t i = 1; i <= node; ++i) {
    groups.push_back(members_of(cluster, {node, i}));
    groups.push_back(members_of(cluster, {i, node, i, node}));
    groups.push_back(members_of(cluster, {i, i, i}));
    groups.push_back(members_of(cluster, {1, i, 2 < i ? 2 : i}));
    groups.push_back(members_of(cluster, {node, node, node, node, node, i}));
  }
  for (const std::int32_t stride : {2, 3, 4, 8}) {
    for (const std::int32_t count : {2, 3, 7, 12}) {
      if ((count - 1) * stride < cluster.accelerators) groups.push_back(strided(count, stride));
    }
  }
  return groups;
}

void expect_no_wire_beaten(const Cluster& cluster) {
  for (const std::vector<RankId>& ranks : groups_of(cluster)) {
    for (const CollectiveKind kind : all_collectives()) {
      const double wire = least_seconds(cluster, ranks, kind);
      for (Bytes bytes = 1024; bytes <= Bytes{1} << 34; bytes *= 64) {
        const Cost cost = price_among(cluster, ranks, kind, bytes);
        const Placement at = placement_of(cluster, ranks).value();
        EXPECT_GE(cost.duration.seconds() * 1.000001, static_cast<double>(bytes) * wire)
            << cluster.name << " " << text_of(kind) << " of " << ranks.size() << " ranks on "
            << at.nodes << " nodes, " << at.per_node_min << " to " << at.per_node_max << " a node, "
            << bytes << " bytes";
      }
    }
  }
}

TEST(Wire, NoPriceBeatsIt) {
  for (const std::string& preset : cluster_preset_names()) {
    expect_no_wire_beaten(nodes_of(preset, 6));
  }
}

TEST(Wire, NorWithSwitchesThatReduce) {
  for (const char* preset : {"dgx-a100-80gb", "dgx-h100", "gb200-nvl72"}) {
    Cluster cluster = nodes_of(preset, 6);
    cluster.sharp = true;
    expect_no_wire_beaten(cluster);
  }
}

/// An exchange of rows with 8 destinations each, sent once to a node.
Time exchange(const Cluster& cluster, const std::vector<std::int32_t>& each) {
  Collective work = collective_of(CollectiveKind::kAllToAll, Bytes{1} << 30);
  work.fan_out = {8, 240, 1, 1};
  const Placement at = placement_of(cluster, members_of(cluster, each)).value();
  return collective_cost(cluster, {}, at, work, nullptr).value().duration;
}

// Rows that cross once a node: as many ranks take longer where one node holds few of them, whose
// NICs get the rows of all others, and a lone member gets every row that it would without.
TEST(Wire, RowsThatCrossOnceStillReachTheEmptiestNode) {
  const Cluster cluster = nodes_of("dgx-h100", 4);
  EXPECT_GT(exchange(cluster, {8, 4}), exchange(cluster, {6, 6}));
  EXPECT_GT(exchange(cluster, {8, 2}), exchange(cluster, {5, 5}));
  const std::vector<RankId> lone = members_of(cluster, {8, 1});
  EXPECT_GE(exchange(cluster, {8, 1}).seconds(),
            least_seconds(cluster, lone, CollectiveKind::kAllToAll) * (Bytes{1} << 30));
}

// In a full mesh two members have one link, eight have seven: those two take as long to bring their
// halves together as they would alone.
TEST(Wire, TheLinksOfTheEmptiestNodeCountToo) {
  for (const char* preset : {"mi300x", "mi355x", "ascend-910b"}) {
    const Cluster cluster = nodes_of(preset, 2);
    for (const CollectiveKind kind : {CollectiveKind::kAllReduce, CollectiveKind::kAllGather}) {
      EXPECT_GE(price_among(cluster, members_of(cluster, {8, 2}), kind, Bytes{1} << 34).duration,
                price_among(cluster, members_of(cluster, {2}), kind, Bytes{1} << 34).duration)
          << preset << " " << text_of(kind);
    }
  }
}

// Where nodes have unequal numbers the slowest sets the time, whichever it is.
TEST(Wire, TheOrderOfUnequalNodesDoesNotMatter) {
  for (const char* preset : {"dgx-h100", "mi300x", "frontier", "ascend-910b"}) {
    const Cluster cluster = nodes_of(preset, 3);
    for (const CollectiveKind kind : all_collectives()) {
      EXPECT_EQ(price_among(cluster, members_of(cluster, {8, 3, 1}), kind, 1 << 28).duration,
                price_among(cluster, members_of(cluster, {1, 8, 3}), kind, 1 << 28).duration)
          << preset << " " << text_of(kind);
    }
  }
}

}  // namespace
}  // namespace foretrain
