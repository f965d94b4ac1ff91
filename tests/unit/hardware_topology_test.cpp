// Is each network the graph that its few numbers say, and is what cannot be refused with a reason?
#include <gtest/gtest.h>

#include "hardware/hardware_cost_model.h"
#include "hardware/placement.h"
#include "tests/unit/rank_list.h"

namespace foretrain {
namespace {

Result<Cluster> read(const std::string& preset, int accelerators, const std::string& network = "") {
  const std::string text = R"({"preset": ")" + preset + R"(", "accelerators": )" +
                           std::to_string(accelerators) + R"(, "network": {)" + network + "}}";
  return read_cluster(parse_json(text, "run.json").value(), "run.json", "/cluster");
}

std::string message(const std::string& preset, int accelerators, const std::string& network) {
  const Result<Cluster> cluster = read(preset, accelerators, network);
  return cluster.ok() ? "" : cluster.error().message;
}

bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Topology, MistakesAreNamed) {
  const auto refused = [](const std::string& topology) {
    return message("dgx-h100", 64, R"("topology": )" + topology);
  };
  EXPECT_TRUE(holds(refused(R"("meta-roce-24")"), "meta-roce-24k"));
  EXPECT_TRUE(holds(refused(R"({"kind": "hypercube"})"), "/cluster/network/topology/kind"));
  EXPECT_TRUE(holds(refused(R"({"kind": "fat-tree", "dims": [8]})"), "dims"));
  EXPECT_TRUE(holds(refused(R"({"kind": "fat-tree", "levels": []})"), "/levels"));
  EXPECT_TRUE(holds(refused(R"({"levels": [{"nodes": 4}, {"nodes": 6}]})"), "a multiple"));
  EXPECT_TRUE(holds(refused(R"({"levels": [{"oversubscription": 2}]})"), "/levels/0/nodes"));
  EXPECT_TRUE(holds(refused(R"({"kind": "dragonfly", "taper": 2})"), "taper"));
  EXPECT_TRUE(holds(refused(R"({"kind": "torus", "dims": [8]})"), "\"torus\" for both"));
  EXPECT_TRUE(holds(refused("8"), "/cluster/network/topology"));
}

TEST(Topology, ATorusMustHoldTheAccelerators) {
  const auto refused = [](int accelerators, const std::string& topology) {
    return message("tpu-v5e", accelerators, R"("topology": )" + topology);
  };
  EXPECT_TRUE(holds(refused(48, R"({"dims": [4, 8]})"), "4x8 is 32"));
  EXPECT_TRUE(holds(refused(64, R"({"dims": [2, 32]})"), "a slice of the pod, 16x16"));
  EXPECT_TRUE(holds(refused(16, R"({"dims": [4, 4], "wrap": [true]})"), "one for each axis"));
  EXPECT_TRUE(holds(refused(16, R"({"dims": [4, 0]})"), "/dims"));
  EXPECT_TRUE(holds(refused(16, R"({"dims": [4, 4, 4, 4]})"), "1 to 3 extents"));
  EXPECT_TRUE(holds(refused(34, "{}"), "no slice"));
  EXPECT_TRUE(holds(refused(272, "{}"), "whole pods"));
  EXPECT_TRUE(holds(message("tpu-v5e", 16, R"("oversubscription": 2)"), "oversubscription"));
}

TEST(Topology, DevicesMustHaveTheLinks) {
  const std::string two = R"({"preset": "mi300x", "accelerators_per_node": 16})";
  const Result<Cluster> wide = read_cluster(parse_json(two, "t").value(), "run.json", "/cluster");
  ASSERT_FALSE(wide.ok());
  EXPECT_TRUE(holds(wide.error().message, "needs 15 links"));
  EXPECT_TRUE(holds(message("tpu-v5e", 8, R"("topology": {"pod": [4, 4, 4], "dims": [2, 2, 2]})"),
                    "needs 6 links"));
}

using Dims = std::vector<std::int32_t>;
using Wrap = std::vector<bool>;

TEST(Topology, SlicesAreAsCubicAsThePodAllows) {
  const auto slice = [](const std::string& preset, int accelerators) {
    return read(preset, accelerators).value().topology;
  };
  EXPECT_EQ(slice("tpu-v5e", 8).dims, (Dims{2, 4}));
  EXPECT_EQ(slice("tpu-v5e", 128).dims, (Dims{8, 16}));
  EXPECT_EQ(slice("tpu-v5e", 128).wrap, (Wrap{false, true}));
  EXPECT_EQ(slice("tpu-v5e", 1024).dims, (Dims{16, 16}));
  EXPECT_EQ(slice("tpu-v5e", 1024).wrap, (Wrap{true, true}));
  EXPECT_EQ(slice("tpu-v4", 64).dims, (Dims{4, 4, 4}));
  EXPECT_EQ(slice("tpu-v4", 64).wrap, (Wrap{true, true, true}));
  EXPECT_EQ(slice("tpu-v4", 16).wrap, (Wrap{false, false, false}));
  EXPECT_EQ(slice("tpu-v5p", 6144).dims, (Dims{16, 16, 24}));
}

// A 16 x 16 torus: ranks 0..15 are a ring; every 16th is the other ring; 4 neighbours are a chain;
// every 4th of a row is a ring whose links four groups share.
TEST(Topology, GroupsAreAxesOfTheTorus) {
  const Cluster pod = read("tpu-v5e", 256).value();
  const auto axes = [&pod](int first, int count, int stride) {
    return placement_of(pod, ranks(first, count, stride)).value().axes;
  };
  EXPECT_EQ(axes(16, 16, 1)[1], (TorusAxis{16, 1, true}));
  EXPECT_EQ(axes(3, 16, 16)[0], (TorusAxis{16, 1, true}));
  EXPECT_EQ(axes(4, 4, 1)[1], (TorusAxis{4, 1, false}));
  EXPECT_EQ(axes(0, 64, 4)[1], (TorusAxis{4, 4, true}));
  EXPECT_EQ(axes(0, 64, 4)[0], (TorusAxis{16, 1, true}));
  EXPECT_EQ(axes(0, 2, 15)[1], (TorusAxis{2, 1, false}));  // neighbours around the ring
  EXPECT_EQ(axes(0, 4, 1), axes(128, 4, 1));
}

TEST(Topology, SlicesOfATorusAreItsDomains) {
  const Cluster two = read("tpu-v5e", 512).value();
  const Placement all = placement_of(two, ranks(0, 512, 1)).value();
  EXPECT_EQ(all.nodes, 2);
  EXPECT_EQ(all.per_node_max, 256);
  EXPECT_EQ(all.fewest_nics(), 32 * 2);
  EXPECT_EQ(all.ranks_per_nic, 4);
  EXPECT_EQ(placement_of(two, ranks(0, 2, 256)).value().nodes, 2);
}

TEST(Topology, LevelsMultiplyAndUtilisationDivides) {
  const Topology topology = read("dgx-h100", 64, R"("topology": {"kind": "fat-tree", "levels":
      [{"nodes": 2, "oversubscription": 2}, {"nodes": 4, "oversubscription": 3}],
      "utilisation": 0.5})")
                                .value()
                                .topology;
  EXPECT_DOUBLE_EQ(topology.oversubscription_through(0), 4);
  EXPECT_DOUBLE_EQ(topology.oversubscription_through(1), 12);
  const Topology dragonfly =
      read("frontier", 64, R"("topology": {"taper": 0.25})").value().topology;
  EXPECT_DOUBLE_EQ(dragonfly.oversubscription_through(0), 4);
}

// PXN relays between rails over NVSwitch; without a switch the message crosses the leaves.
TEST(Topology, MessagesBetweenRailsCrossLeavesWithoutASwitch) {
  const std::string network = R"("topology": {"kind": "rail-fat-tree", "levels":
      [{"nodes": 32, "oversubscription": 2}]})";
  const auto crossing = [&](const std::string& preset, int stride) {
    return placement_of(read(preset, 64, network).value(), ranks(0, 2, stride))
        .value()
        .crossings[0];
  };
  EXPECT_EQ(crossing("dgx-h100", 9), 0);
  EXPECT_EQ(crossing("mi300x", 8), 0);
  EXPECT_EQ(crossing("mi300x", 9), 1024);
}

TEST(Topology, PackagesAndPcieSwitchesAreShared) {
  const Cluster frontier = read("frontier", 16).value();
  EXPECT_TRUE(placement_of(frontier, ranks(2, 2, 1)).value().one_package);
  EXPECT_FALSE(placement_of(frontier, ranks(1, 2, 1)).value().one_package);
  const auto model = make_cost_model(read("pcie-a100", 16).value(), {});
  EXPECT_EQ(model->port_of(RankId(2), Port::kScaleUpOut),
            model->port_of(RankId(3), Port::kScaleUpOut));
  EXPECT_NE(model->port_of(RankId(3), Port::kScaleUpOut),
            model->port_of(RankId(4), Port::kScaleUpOut));
  EXPECT_NE(model->port_of(RankId(0), Port::kScaleUpOut),
            model->port_of(RankId(8), Port::kScaleUpOut));
}

}  // namespace
}  // namespace foretrain
