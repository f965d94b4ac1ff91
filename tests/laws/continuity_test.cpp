// Do prices of NCCL's collectives go on smoothly where it changes its algorithm: along the size and
// along the number of nodes, over all clusters of NVIDIA's?
#include <gtest/gtest.h>

#include <cmath>

#include "hardware/presets.h"
#include "tests/support/collectives.h"

namespace foretrain {
namespace {

constexpr double kMostTimes = 2;    // what half as many bytes more cost
constexpr double kLeastLeft = 0.6;  // of the dearest with fewer bytes or nodes

using Prices = std::vector<double>;  // us, by size

Prices prices_of(const Cluster& cluster, const std::vector<RankId>& ranks, CollectiveKind kind) {
  const Placement at = placement_of(cluster, ranks).value();
  Prices prices;
  for (Bytes bytes = 1024; bytes <= Bytes{1} << 34; bytes = bytes * 3 / 2) {
    const Collective work = collective_of(kind, bytes);
    prices.push_back(collective_cost(cluster, {}, at, work, nullptr).value().duration.us());
  }
  return prices;
}

void expect_smooth(const Prices& prices) {
  double most = prices.front();
  for (std::size_t i = 1; i < prices.size(); ++i) {
    EXPECT_LE(prices[i], kMostTimes * prices[i - 1]) << 1024 * std::pow(1.5, i) << " bytes";
    EXPECT_GE(prices[i], kLeastLeft * most) << 1024 * std::pow(1.5, i) << " bytes";
    most = std::max(most, prices[i]);
  }
}

void expect_close(const Prices& before, const Prices& now, double nodes) {
  for (std::size_t i = 0; i < now.size(); ++i) {
    EXPECT_LE(now[i], kMostTimes * nodes * before[i]) << 1024 * std::pow(1.5, i) << " bytes";
    EXPECT_GE(now[i], kLeastLeft * before[i]) << 1024 * std::pow(1.5, i) << " bytes";
  }
}

void expect_smooth_growth(const std::string& preset, std::int32_t each) {
  for (const CollectiveKind kind : all_collectives()) {
    Prices before;
    std::int32_t last = 0;
    for (const std::int32_t nodes : {1, 2, 3, 4, 5, 6, 7, 8, 12, 13, 16, 24, 32, 64, 128}) {
      if (nodes * each < 2) continue;
      SCOPED_TRACE(preset + " " + text_of(kind) + ", " + std::to_string(each) + " a node, " +
                   std::to_string(nodes) + " nodes");
      const Cluster cluster = nodes_of(preset, nodes);
      const std::vector<std::int32_t> members(static_cast<std::size_t>(nodes), each);
      const Prices now = prices_of(cluster, members_of(cluster, members), kind);
      expect_smooth(now);
      if (last > 1) expect_close(before, now, double{1} * nodes / last);
      before = now;
      last = nodes;
    }
  }
}

TEST(Continuity, AlongTheSizeAndTheNumberOfNodes) {
  for (const std::string& preset : cluster_preset_names()) {
    const Cluster cluster = read_cluster(Json(preset), "test", "").value();
    if (!is_nvidia(cluster.device.architecture)) continue;
    const std::int32_t node = cluster.accelerators_per_node;
    for (const std::int32_t each : std::set<std::int32_t>{1, 2, node / 2, node}) {
      if (each < 1 || each > node) continue;  // nodes of one
      expect_smooth_growth(preset, each);
    }
  }
}

// What a message costs beside its bytes: the excess over NCCL's own latency is that of its quickest
// algorithm, measured with small messages, and counts once whatever the ring that large ones take.
TEST(Continuity, ALongRingsStepsCountOnce) {
  const Cluster cluster = nodes_of("aws-p3dn", 16);
  const std::vector<RankId> all = members_of(cluster, std::vector<std::int32_t>(16, 8));
  const NcclGroup group = nccl_group_of(cluster, placement_of(cluster, all).value());
  const auto price = [&](NcclAlgorithm algorithm, Bytes bytes) {
    const NcclChoice choice{algorithm, NcclProtocol::kLl, 0};
    return nccl_cost(cluster, {}, placement_of(cluster, all).value(),
                     collective_of(CollectiveKind::kAllReduce, bytes), choice, nullptr)
        .latency.us();
  };
  const auto steps = [&](NcclAlgorithm algorithm) {
    return nccl_tuning(group, CollectiveKind::kAllReduce, algorithm, NcclProtocol::kLl).latency_us;
  };
  EXPECT_NEAR(price(NcclAlgorithm::kRing, 1 << 20) - price(NcclAlgorithm::kTree, 1 << 20),
              steps(NcclAlgorithm::kRing) - steps(NcclAlgorithm::kTree), 0.01);
}

// A network slower than those that were measured adds what it has beyond them at every node around
// a ring, twice for an all-reduce, and at every level of a tree.
TEST(Continuity, ASlowNetworkCountsAtEveryStep) {
  constexpr std::int32_t kNodes = 32;
  const std::vector<std::int32_t> each(kNodes, 8);
  const auto start_us = [&](double latency_us, CollectiveKind kind, NcclAlgorithm algorithm) {
    Cluster cluster = nodes_of("dgx-h100", kNodes);
    cluster.network_latency_us = latency_us;
    const Placement at = placement_of(cluster, members_of(cluster, each)).value();
    const NcclChoice choice{algorithm, NcclProtocol::kSimple, 0};
    return nccl_cost(cluster, {}, at, collective_of(kind, 1 << 30), choice, nullptr).latency.us();
  };
  const auto added = [&](CollectiveKind kind, NcclAlgorithm algorithm) {
    return (start_us(1003.6, kind, algorithm) - start_us(3.6, kind, algorithm)) / 1000;
  };
  EXPECT_NEAR(added(CollectiveKind::kReduceScatter, NcclAlgorithm::kRing), kNodes - 1, 0.001);
  EXPECT_NEAR(added(CollectiveKind::kAllReduce, NcclAlgorithm::kRing), 2 * (kNodes - 1), 0.001);
  EXPECT_NEAR(added(CollectiveKind::kAllReduce, NcclAlgorithm::kTree), 2 * 5, 0.001);
  // Below them nothing is counted but once.
  EXPECT_NEAR(start_us(3.6, CollectiveKind::kAllReduce, NcclAlgorithm::kRing) -
                  start_us(2.6, CollectiveKind::kAllReduce, NcclAlgorithm::kRing),
              1, 0.001);
}

// To fill the trees of many ranks takes no longer than the transfer itself.
TEST(Continuity, ASmallMessageFillsNoTrees) {
  const Cluster cluster = nodes_of("gb200-nvl72", 8);
  const auto price = [&](std::size_t nodes, Bytes bytes) {
    const std::vector<std::int32_t> each(nodes, 72);
    return price_among(cluster, members_of(cluster, each), CollectiveKind::kAllReduce, bytes)
        .duration.us();
  };
  EXPECT_NEAR(price(7, 1 << 16) / price(8, 1 << 16), 1, 0.2);
  EXPECT_GT(price(7, Bytes{1} << 31) - price(2, Bytes{1} << 31), 5 * 72 * 1.5);
}

}  // namespace
}  // namespace foretrain
