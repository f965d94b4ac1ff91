// Do prices on tori, meshes and oversubscribed networks obey physics?
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "hardware/collective_cost.h"
#include "hardware/mesh_collectives.h"
#include "hardware/torus_collectives.h"

namespace foretrain {
namespace {

constexpr Bytes kLarge = Bytes{1} << 34;  // latencies vanish

Cluster cluster_of(const std::string& preset, int accelerators, const std::string& network = "") {
  const std::string text = R"({"preset": ")" + preset + R"(", "accelerators": )" +
                           std::to_string(accelerators) + R"(, "network": {)" + network + "}}";
  return read_cluster(parse_json(text, "test").value(), "test", "").value();
}

std::vector<RankId> ranks(int count, int stride) {
  std::vector<RankId> out;
  for (int i = 0; i < count; ++i) out.emplace_back(i * stride);
  return out;
}

Cost cost_of(const Cluster& cluster, const std::vector<RankId>& group, CollectiveKind kind,
             Bytes bytes = kLarge, const LinkRates& rates = {}) {
  Collective work;
  work.kind = kind;
  work.count = bytes / 2;
  const Placement at = placement_of(cluster, group).value();
  return collective_cost(cluster, rates, at, work, nullptr).value();
}

double seconds_of(const Cluster& cluster, int count, int stride, CollectiveKind kind) {
  return cost_of(cluster, ranks(count, stride), kind).duration.seconds();
}

constexpr auto kReduce = CollectiveKind::kAllReduce;
constexpr auto kGather = CollectiveKind::kAllGather;
constexpr auto kExchange = CollectiveKind::kAllToAll;

/// bytes over so many GB/s, at the efficiency of the torus.
double torus_seconds(double bytes, double gb_per_s) {
  return bytes / (gb_per_s * 1e9 * torus_law().efficiency);
}

void expect_near(double found, double expected) { EXPECT_NEAR(found, expected, 0.001 * expected); }

// t = 2 (n-1)/n bytes / (axes 2 link): TPU v5e, 50 GB/s a link.
TEST(Torus, AllReduceUsesBothDirectionsOfEveryAxis) {
  const Cluster pod = cluster_of("tpu-v5e", 256);
  const auto size = static_cast<double>(kLarge);
  expect_near(seconds_of(pod, 16, 1, kReduce), torus_seconds(2 * size * 15 / 16, 2 * 50));
  expect_near(seconds_of(pod, 16, 16, kReduce), torus_seconds(2 * size * 15 / 16, 2 * 50));
  expect_near(seconds_of(pod, 256, 1, kReduce), torus_seconds(2 * size * 255 / 256, 2 * 2 * 50));
  expect_near(seconds_of(pod, 256, 1, kGather), torus_seconds(size * 255 / 256, 2 * 2 * 50));
  const Cluster cube = cluster_of("tpu-v4", 64);
  expect_near(seconds_of(cube, 64, 1, kReduce), torus_seconds(2 * size * 63 / 64, 3 * 2 * 50));
}

// A slice of 8 x 8 has no ring on either axis.
TEST(Torus, WithoutWrapAnAxisIsHalfAsFast) {
  const auto size = static_cast<double>(kLarge);
  const Cluster open = cluster_of("tpu-v5e", 64);
  expect_near(seconds_of(open, 64, 1, kReduce), torus_seconds(2 * size * 63 / 64, 2 * 50));
  const Cluster closed =
      cluster_of("tpu-v5e", 64, R"("topology": {"dims": [8, 8], "wrap": [true, true]})");
  expect_near(seconds_of(open, 64, 1, kReduce), 2 * seconds_of(closed, 64, 1, kReduce));
}

// Every 4th of a row: four groups share each link. 15 of the row's 16 steps are as long as 3 of 4.
TEST(Torus, GroupsThatInterleaveShareTheLinks) {
  const Cluster pod = cluster_of("tpu-v5e", 256);
  const auto size = static_cast<double>(kLarge);
  expect_near(seconds_of(pod, 4, 4, kReduce), torus_seconds(2 * size * 3 / 4, 2 * 50 / 4.0));
}

// The cut across the longest axis: n bytes / 4 one way over (n / longest) 2 links.
TEST(Torus, AllToAllIsBoundByTheBisection) {
  const auto size = static_cast<double>(kLarge);
  const Cluster pod = cluster_of("tpu-v5e", 256);
  expect_near(seconds_of(pod, 256, 1, kExchange), torus_seconds(size * 256 / 4, 16 * 2 * 50));
  const Cluster half = cluster_of("tpu-v5e", 128);  // 8 chain x 16 ring
  expect_near(seconds_of(half, 128, 1, kExchange), torus_seconds(size * 128 / 4, 8 * 2 * 50));
}

// One hop is 1 us: a ring of 16 needs 8 each way round, twice for an all-reduce.
TEST(Torus, SmallMessagesCostHops) {
  const Cluster pod = cluster_of("tpu-v5e", 256);
  const double us = cost_of(pod, ranks(16, 1), kReduce, 2).duration.us();
  EXPECT_NEAR(us, torus_law().start_us + 2 * 8, 0.01);
}

TEST(Torus, BetweenSlicesTheHostsNicsDecide) {
  const Cluster two = cluster_of("tpu-v5e", 512);
  const auto size = static_cast<double>(kLarge);
  const double inside = torus_seconds(2 * size * 255 / 256, 2 * 2 * 50);
  const double outside = size / (64 * 12.5e9 * torus_law().network_efficiency);
  expect_near(seconds_of(two, 512, 1, kReduce), inside + outside);
}

TEST(Torus, MessagesTakeOneLinkAndShiftsShareIt) {
  const Cluster pod = cluster_of("tpu-v5e", 256);
  const auto seconds = [&pod](int stride) {
    P2PBatch work;
    work.messages = {Message{true, ChannelSlot(0), kLarge}};
    const std::vector at = {placement_of(pod, ranks(2, stride)).value()};
    return messages_cost(pod, {}, at, work, nullptr).value().duration.seconds();
  };
  const auto size = static_cast<double>(kLarge);
  expect_near(seconds(1), torus_seconds(size, 50));
  expect_near(seconds(16), torus_seconds(size, 50));
  expect_near(seconds(4), torus_seconds(size, 50 / 4.0));
}

// stas00/ml-engineering: busbw 47.7 GB/s on 2 GPUs, 312.9 on 8. docs/explanation/collectives.md
// states 3.5 %.
TEST(Mesh, Mi300xIsAsFastAsMeasured) {
  const Cluster platform = cluster_of("mi300x", 8);
  const auto busbw = [&platform](int n) {
    return 2.0 * (n - 1) / n * static_cast<double>(kLarge) / seconds_of(platform, n, 1, kReduce) /
           1e9;
  };
  EXPECT_NEAR(busbw(2), 47.7, 0.035 * 47.7);
  EXPECT_NEAR(busbw(8), 312.9, 0.035 * 312.9);
  EXPECT_NEAR(busbw(4) / busbw(2), 3, 0.01);  // one link for each pair
}

TEST(Mesh, APairHasOneLinkAndAPackageItsOwn) {
  const Cluster frontier = cluster_of("frontier", 8);
  const double near = seconds_of(frontier, 2, 1, kReduce);
  const double far = seconds_of(frontier, 2, 2, kReduce);
  expect_near(far, 4 * near);  // 200 and 50 GB/s
}

struct Spread {
  const char* preset;
  int accelerators, count, stride;
};
const std::vector<Spread>& spreads() {
  static const std::vector<Spread> all = {
      {"mi300x", 8, 8, 1},       {"mi300x", 64, 64, 1},      {"mi300x", 64, 8, 8},
      {"mi355x", 8, 4, 1},       {"frontier", 64, 64, 1},    {"frontier", 64, 16, 4},
      {"ascend-910b", 32, 8, 1}, {"ascend-910b", 64, 64, 1}, {"cloudmatrix-384", 768, 768, 1},
      {"tpu-v3", 64, 64, 1},     {"tpu-v4", 128, 32, 4},     {"tpu-v5e", 512, 512, 1},
      {"tpu-v5p", 64, 16, 4},    {"tpu-v6e", 256, 32, 8},    {"tpu-v7x", 128, 128, 1},
      {"host", 16, 16, 1},       {"host", 128, 128, 1},
  };
  return all;
}

const std::vector<CollectiveKind>& kinds_without_reduce() {
  static const std::vector<CollectiveKind> all = {
      CollectiveKind::kAllReduce, CollectiveKind::kAllGather, CollectiveKind::kReduceScatter,
      CollectiveKind::kBroadcast, CollectiveKind::kAllToAll};
  return all;
}

TEST(Fabrics, MoreIsNeverCheaperAndSharesAreInRange) {
  for (const Spread& spread : spreads()) {
    const Cluster cluster = cluster_of(spread.preset, spread.accelerators);
    const std::vector<RankId> group = ranks(spread.count, spread.stride);
    for (const CollectiveKind kind : kinds_without_reduce()) {
      Time before;
      for (Bytes bytes = 1024; bytes <= kLarge; bytes *= 4) {
        const Cost cost = cost_of(cluster, group, kind, bytes);
        EXPECT_GE(cost.duration, before) << spread.preset << " " << bytes;
        before = cost.duration;
        for (const std::int32_t share : cost.port_share) {
          EXPECT_GE(share, 0);
          EXPECT_LE(share, kWhole);
        }
        EXPECT_LE(cost.latency, cost.duration);
        EXPECT_LE(cost.memory_share, kWhole / 2);
        EXPECT_LT(cost.sms_held, cluster.device.sm_count);
      }
    }
  }
}

// Twice the rate of every link, half the time that is not latency.
TEST(Fabrics, ScalingAllRatesScalesAllTimes) {
  for (const Spread& spread : spreads()) {
    const Cluster cluster = cluster_of(spread.preset, spread.accelerators);
    const std::vector<RankId> group = ranks(spread.count, spread.stride);
    for (const CollectiveKind kind : kinds_without_reduce()) {
      const Cost one = cost_of(cluster, group, kind, kLarge);
      const Cost two = cost_of(cluster, group, kind, kLarge, {2, 2});
      expect_near((one.duration - one.latency).seconds(),
                  2 * (two.duration - two.latency).seconds());
    }
  }
}

// A group inside a leaf is never slower than the same group spread out, and equal on a full
// bisection.
TEST(Fabrics, SpreadingAGroupOverLeavesNeverHelps) {
  for (const char* preset : {"dgx-h100", "mi300x", "ascend-910b"}) {
    for (const char* network :
         {R"("nodes_per_leaf": 4, "oversubscription": 1, "topology": {"kind": "fat-tree"})",
          R"("topology": {"kind": "fat-tree", "levels": [{"nodes": 4, "oversubscription": 3}]})",
          R"("topology": {"kind": "rail-fat-tree", "levels": [{"nodes": 4},
              {"nodes": 16, "oversubscription": 7, "latency_us": 3}], "utilisation": 0.7})",
          R"("topology": {"kind": "dragonfly", "group_nodes": 4, "taper": 0.25})"}) {
      const Cluster cluster = cluster_of(preset, 512, network);
      for (const CollectiveKind kind : kinds_without_reduce()) {
        Time before;
        for (const int nodes_apart : {1, 2, 4, 16}) {
          const Time now = cost_of(cluster, ranks(4, 8 * nodes_apart), kind).duration;
          EXPECT_GE(now, before) << preset << " " << network << " " << nodes_apart;
          before = now;
        }
        if (cluster.topology.oversubscription_through(0) > 1) {
          EXPECT_GT(before, cost_of(cluster, ranks(4, 8), kind).duration) << preset << network;
        }
      }
    }
  }
}

// All-to-all of 4 nodes in leaves of 2 sends two thirds across leaves; its ring would half.
TEST(Fabrics, AllToAllCrossesByPairs) {
  for (const char* preset : {"dgx-h100", "mi300x"}) {
    const std::string levels = R"("topology": {"kind": "fat-tree", "levels": [{"nodes": 2,
        "oversubscription": )";
    const Cluster full = cluster_of(preset, 64, levels + "1}]}");
    const Cluster thin = cluster_of(preset, 64, levels + "6}]}");
    const Cost fast = cost_of(full, ranks(4, 8), kExchange);
    const Cost slow = cost_of(thin, ranks(4, 8), kExchange);
    EXPECT_NEAR((slow.duration - slow.latency).seconds(),
                4 * (fast.duration - fast.latency).seconds(), 0.01 * slow.duration.seconds())
        << preset;
  }
}

// 1:4 leaves, every hop across: the wire part takes four times as long.
TEST(Fabrics, OversubscriptionStretchesWhatCrosses) {
  const std::string levels = R"("topology": {"kind": "fat-tree", "levels": [{"nodes": 1,
      "oversubscription": )";
  const Cluster full = cluster_of("mi300x", 64, levels + "1}]}");
  const Cluster thin = cluster_of("mi300x", 64, levels + "4}]}");
  const Cost fast = cost_of(full, ranks(8, 8), kReduce), slow = cost_of(thin, ranks(8, 8), kReduce);
  expect_near((slow.duration - slow.latency).seconds(),
              4 * (fast.duration - fast.latency).seconds());
}

}  // namespace
}  // namespace foretrain
