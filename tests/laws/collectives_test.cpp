// Do prices of collectives obey physics, over clusters, kinds, groups and sizes?
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "tests/support/collectives.h"

namespace foretrain {
namespace {

constexpr Bytes kSmallest = 1024, kLargest = Bytes{1} << 34;

struct Layout {
  const char* preset;
  std::int32_t accelerators, count, stride;
};

// Inside a node, across nodes, strided (one member a node, or some), less than a node.
const std::vector<Layout>& layouts() {
  static const std::vector<Layout> all = {
      {"dgx-a100-80gb", 8, 8, 1},   {"dgx-a100-80gb", 8, 3, 1},   {"dgx-a100-80gb", 128, 16, 8},
      {"dgx-a100-80gb", 64, 32, 2}, {"dgx-a100-80gb", 64, 12, 1}, {"dgx-a100-80gb", 512, 512, 1},
      {"dgx-h100", 8, 2, 1},        {"dgx-h100", 8, 8, 1},        {"dgx-h100", 128, 16, 8},
      {"dgx-h100", 1024, 256, 4},   {"dgx-h100", 1024, 1024, 1},  {"hgx-h800", 64, 64, 1},
      {"dgx-b200", 64, 32, 2},      {"gb200-nvl72", 144, 72, 1},  {"gb200-nvl72", 144, 144, 1},
      {"aws-p4d", 64, 8, 8},        {"aws-p5", 64, 64, 1},        {"l40s", 16, 16, 1},
      {"dgx-1v", 32, 4, 1},         {"dgx-1v", 64, 64, 1},        {"dgx-2", 32, 32, 1},
  };
  return all;
}

Cluster cluster_of(const Layout& layout, bool sharp = false) {
  Cluster cluster = read_cluster(Json(layout.preset), "test", "").value();
  cluster.accelerators = layout.accelerators;
  cluster.sharp = sharp;
  return cluster;
}

Placement placed(const Cluster& cluster, std::int32_t count, std::int32_t stride) {
  return placement_of(cluster, strided(count, stride)).value();
}

Cost price(const Cluster& cluster, const Placement& at, CollectiveKind kind, Bytes bytes,
           const LinkRates& rates = {}) {
  return collective_cost(cluster, rates, at, collective_of(kind, bytes), nullptr).value();
}

template <typename Body>
void for_each_price(Body body) {
  for (const bool sharp : {false, true}) {
    for (const Layout& layout : layouts()) {
      const Cluster cluster = cluster_of(layout, sharp);
      const Placement at = placed(cluster, layout.count, layout.stride);
      for (const CollectiveKind kind : all_collectives()) {
        SCOPED_TRACE(std::string(layout.preset) + " " + std::to_string(layout.count) + "/" +
                     std::to_string(layout.stride) + " kind " +
                     std::to_string(static_cast<int>(kind)) + (sharp ? " SHARP" : ""));
        body(cluster, at, kind);
      }
    }
  }
}

TEST(CollectiveLaws, MoreBytesAreNeverCheaperWithinAChoice) {
  for_each_price([](const Cluster& cluster, const Placement& at, CollectiveKind kind) {
    std::map<std::pair<NcclAlgorithm, NcclProtocol>, Time> last;
    for (Bytes bytes = kSmallest; bytes <= kLargest; bytes = bytes * 5 / 4) {
      NcclChoice choice;
      if (kind != CollectiveKind::kAllToAll) {
        choice = choose_nccl(nccl_group_of(cluster, at), kind, bytes);
      }
      Time& before = last[{choice.algorithm, choice.protocol}];
      const Time now = price(cluster, at, kind, bytes).duration;
      EXPECT_GE(now, before) << bytes;
      before = now;
    }
  });
}

// Where NICs have more than NCCL counts on, faster ones gain nothing and faster links of a node do;
// where they have not, the other way round. Latencies stay.
TEST(CollectiveLaws, GainFromWhatLimitsThem) {
  for (const double gb_per_s : {12.5, 50.0, 400.0}) {
    Cluster cluster = cluster_of({"dgx-h100", 64, 64, 1});
    cluster.nic_gbit_per_s = 8 * gb_per_s;
    const Placement at = placed(cluster, 64, 1);
    const auto time = [&](const LinkRates& rates) {
      return price(cluster, at, CollectiveKind::kAllGather, kLargest, rates).duration.seconds();
    };
    const double plain = time({});
    const bool of_nics = gb_per_s < 100;
    EXPECT_NEAR(time({1, 1.1}) / plain, of_nics ? 1 / 1.1 : 1, 5e-3) << gb_per_s;
    EXPECT_NEAR(time({1.1, 1}) / plain, of_nics ? 1 : 1 / 1.1, 5e-3) << gb_per_s;
    EXPECT_NEAR(time({1.1, 1.1}) / plain, 1 / 1.1, 5e-3) << gb_per_s;
  }
}

// Kernels made for the exchange of tokens carry what the links do from so many SMs on, and with
// fewer their part of it.
TEST(CollectiveLaws, FewerSmsCarryLess) {
  for (const std::int32_t ranks : {8, 64}) {
    const Cluster cluster = cluster_of({"dgx-h100", ranks, ranks, 1});
    const Placement at = placed(cluster, ranks, 1);
    const auto seconds = [&](std::int32_t sms) {
      Collective work{CollectiveKind::kAllToAll, GroupSlot(), kLargest / 2, DType::kBf16, false};
      work.fan_out = {8, 256, 1, 1, sms, 20};
      return collective_cost(cluster, {}, at, work, nullptr).value().duration.seconds();
    };
    EXPECT_EQ(seconds(20), seconds(132));
    EXPECT_NEAR(seconds(10) / seconds(20), 2, 0.02);
    EXPECT_NEAR(seconds(4) / seconds(20), 5, 0.05);
  }
}

// A change of algorithm may make more bytes cheaper, as on real machines, but never by much.
TEST(CollectiveLaws, MoreBytesAreHardlyCheaperAcrossChoices) {
  for_each_price([](const Cluster& cluster, const Placement& at, CollectiveKind kind) {
    Time most;
    for (Bytes bytes = kSmallest; bytes <= kLargest; bytes = bytes * 5 / 4) {
      const Time now = price(cluster, at, kind, bytes).duration;
      EXPECT_GE(now.us(), 0.5 * most.us()) << bytes;
      most = max(most, now);
    }
  });
}

TEST(CollectiveLaws, WhatAPriceHoldsIsInRange) {
  for_each_price([](const Cluster& cluster, const Placement& at, CollectiveKind kind) {
    for (Bytes bytes = kSmallest; bytes <= kLargest; bytes *= 4) {
      const Cost cost = price(cluster, at, kind, bytes);
      for (const std::int32_t share : cost.port_share) {
        EXPECT_GE(share, 0);
        EXPECT_LE(share, kWhole);
      }
      EXPECT_LE(cost.latency, cost.duration);
      EXPECT_LE(cost.memory_share, kWhole / 2);
      EXPECT_GT(cost.sms_held, 0);
      EXPECT_LT(cost.sms_held, cluster.device.sm_count);
    }
  });
}

// Twice the rates: never slower, and never more than twice as fast.
TEST(CollectiveLaws, DoublingTheLinksAtMostHalvesAPrice) {
  for_each_price([](const Cluster& cluster, const Placement& at, CollectiveKind kind) {
    for (Bytes bytes = kSmallest; bytes <= kLargest; bytes *= 8) {
      const double slow = price(cluster, at, kind, bytes).duration.us();
      const double fast = price(cluster, at, kind, bytes, {2, 2}).duration.us();
      EXPECT_LE(fast, slow) << bytes;
      EXPECT_GE(fast * 2.000001, slow) << bytes;
      EXPECT_LE(price(cluster, at, kind, bytes, {2, 1}).duration.us(), slow) << bytes;
      EXPECT_LE(price(cluster, at, kind, bytes, {1, 2}).duration.us(), slow) << bytes;
    }
  });
}

// With no latency left a price is proportional to the bytes over the rate: twice the bytes on twice
// the links take as long.
TEST(CollectiveLaws, LargePricesScaleWithBytesOverRate) {
  for_each_price([](const Cluster& cluster, const Placement& at, CollectiveKind kind) {
    NcclChoice choice{NcclAlgorithm::kRing, NcclProtocol::kSimple, 0};
    if (kind == CollectiveKind::kAllToAll) return;
    const Bytes bytes = kLargest;
    const Cost once = nccl_cost(cluster, {}, at, collective_of(kind, bytes), choice, nullptr);
    const Cost twice =
        nccl_cost(cluster, {2, 2}, at, collective_of(kind, 2 * bytes), choice, nullptr);
    EXPECT_NEAR(twice.duration.us(), once.duration.us(), 1e-6 * once.duration.us());
  });
}

// More channels of the same width: no algorithm gets less bandwidth or more latency.
TEST(CollectiveLaws, MoreChannelsNeverSlowALoneCollective) {
  for_each_price([](const Cluster& cluster, const Placement& at, CollectiveKind kind) {
    if (kind == CollectiveKind::kAllToAll) return;
    const NcclGroup group = nccl_group_of(cluster, at);
    NcclGroup wider = group;
    for (NcclGraph* graph : {&wider.ring, &wider.tree, &wider.nvls, &wider.collnet}) {
      if (graph->channels > 0) ++graph->channels;
    }
    ++wider.channels;
    for (int a = 0; a < kNcclAlgorithms; ++a) {
      for (int p = 0; p < kNcclProtocols; ++p) {
        const auto algorithm = static_cast<NcclAlgorithm>(a);
        const auto protocol = static_cast<NcclProtocol>(p);
        const NcclTuning before = nccl_tuning(group, kind, algorithm, protocol);
        const NcclTuning after = nccl_tuning(wider, kind, algorithm, protocol);
        EXPECT_GE(after.gb_per_s, before.gb_per_s);
        EXPECT_EQ(after.latency_us, before.latency_us);
      }
    }
    for (Bytes bytes = kSmallest; bytes <= kLargest; bytes *= 4) {
      EXPECT_LE(choose_nccl(wider, kind, bytes).time_us, choose_nccl(group, kind, bytes).time_us);
    }
  });
}

/// The price with twice the NICs, or twice the links in the node, over the price without.
double wider_over(const Cluster& cluster, const std::vector<RankId>& ranks, CollectiveKind kind,
                  Bytes bytes, bool nics, const NcclChoice* choice) {
  Cluster wider = cluster;
  if (nics) wider.nics_per_node *= 2;
  if (!nics) {
    wider.device.scale_up_gb_per_s *= 2;
    wider.device.nccl_scale_up_gb_per_s *= 2;
  }
  const auto time = [&](const Cluster& c) {
    if (choice == nullptr) return price_among(c, ranks, kind, bytes).duration.seconds();
    const Placement at = placement_of(c, ranks).value();
    return nccl_cost(c, {}, at, collective_of(kind, bytes), *choice, nullptr).duration.seconds();
  };
  return time(wider) / time(cluster);
}

// With a given algorithm never; where NCCL then chooses another, by no more than a tenth. (Twice
// the links in a node make a shape that no search was at hand for, so that choices cannot be
// compared.)
TEST(CollectiveLaws, MoreNicsAndLinksNeverRaiseAPrice) {
  const NcclChoice ring{NcclAlgorithm::kRing, NcclProtocol::kSimple, 0};
  const std::vector<std::vector<std::int32_t>> members = {
      {8}, {8, 8}, {8, 8, 8, 8, 8, 8, 8, 8}, {4, 4, 4}, {8, 3}};
  for (const char* preset : {"dgx-1v", "aws-p4d", "dgx-a100-80gb", "dgx-h100", "hgx-h800", "aws-p5",
                             "dgx-b200", "aws-p6-b200", "gcp-a3-high"}) {
    const Cluster cluster = nodes_of(preset, 8);
    for (const std::vector<std::int32_t>& each : members) {
      const std::vector<RankId> ranks = members_of(cluster, each);
      for (const CollectiveKind kind : all_collectives()) {
        const NcclChoice* given = kind == CollectiveKind::kAllToAll ? nullptr : &ring;
        for (Bytes bytes = kSmallest; bytes <= kLargest; bytes *= 4) {
          SCOPED_TRACE(std::string(preset) + " " + text_of(kind) + " " + std::to_string(bytes));
          EXPECT_LE(wider_over(cluster, ranks, kind, bytes, true, given), 1.000001);
          EXPECT_LE(wider_over(cluster, ranks, kind, bytes, false, given), 1.000001);
          EXPECT_LE(wider_over(cluster, ranks, kind, bytes, true, nullptr), 1.1);
        }
      }
    }
  }
}

// A reduction in the switches moves half of what a ring does: large all-reduces gain.
TEST(CollectiveLaws, SharpSpeedsUpLargeAllReduces) {
  for (const char* preset : {"dgx-a100-80gb", "dgx-h100"}) {
    Cluster cluster = read_cluster(Json(preset), "test", "").value();
    cluster.accelerators = 64;
    const Placement at = placed(cluster, 64, 1);
    const Time plain = price(cluster, at, CollectiveKind::kAllReduce, Bytes{1} << 32).duration;
    cluster.sharp = true;
    EXPECT_LT(price(cluster, at, CollectiveKind::kAllReduce, Bytes{1} << 32).duration, plain);
  }
}

}  // namespace
}  // namespace foretrain
