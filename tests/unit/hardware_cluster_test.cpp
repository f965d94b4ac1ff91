// Is each cluster what its file says, and is bad input refused with a message that helps?
#include <gtest/gtest.h>

#include "hardware/cluster.h"
#include "hardware/placement.h"
#include "tests/unit/rank_list.h"

namespace foretrain {
namespace {

Result<Cluster> read(const std::string& text) {
  return read_cluster(parse_json(text, "run.json").value(), "run.json", "/cluster");
}

std::string message(const std::string& text) {
  const Result<Cluster> cluster = read(text);
  return cluster.ok() ? "" : cluster.error().message;
}

TEST(Cluster, EveryPresetReads) {
  ASSERT_GE(cluster_preset_names().size(), 15U);
  for (const std::string& name : cluster_preset_names()) {
    const Result<Cluster> cluster = read_cluster(Json(name), "test", "");
    ASSERT_TRUE(cluster.ok()) << cluster.error().message;
    EXPECT_EQ(cluster.value().name, name);
    EXPECT_EQ(cluster.value().nodes(), 1);
  }
  for (const std::string& name : device_preset_names()) {
    const Result<DeviceSpec> device = read_device(Json(name), "test", "");
    ASSERT_TRUE(device.ok()) << device.error().message;
    EXPECT_EQ(device.value().name, name);
  }
}

TEST(Cluster, OverridesReplaceThePresetsFields) {
  const Cluster cluster = read(R"({"preset": "dgx-h100", "accelerators": 16384,
      "network": {"nics_per_node": 4, "nic_gbit_per_s": 200, "oversubscription": 2}})")
                              .value();
  EXPECT_EQ(cluster.nodes(), 2048);
  EXPECT_EQ(cluster.device.sm_count, 132);
  EXPECT_EQ(cluster.nic_ports_per_node(), 4);
  EXPECT_DOUBLE_EQ(cluster.nic_port_gb_per_s(), 25);
  EXPECT_EQ(cluster.nic_port_of_local(0), cluster.nic_port_of_local(1));
  EXPECT_NE(cluster.nic_port_of_local(1), cluster.nic_port_of_local(2));
  EXPECT_EQ(cluster, cluster);
  EXPECT_EQ(to_json(cluster).find("derived")->find("nodes")->number(), 2048);
}

// What a profile measured says nothing of a device with other rates; of one with less memory it
// does.
TEST(Cluster, FieldsOfThePresetsDeviceCanBeSet) {
  const DeviceSpec preset = read_cluster(Json("dgx-h100"), "test", "").value().device;
  DeviceSpec smaller =
      read(R"({"preset": "dgx-h100", "device": {"memory_gib": 40}})").value().device;
  EXPECT_EQ(smaller.memory_gib, 40);
  smaller.memory_gib = preset.memory_gib;
  EXPECT_EQ(smaller, preset);
  const DeviceSpec slower =
      read(R"({"preset": "dgx-h100", "device": {"preset": "h200-sxm-141gb", "clock_mhz": 1000}})")
          .value()
          .device;
  EXPECT_EQ(slower.name, "h200-sxm-141gb changed");
  EXPECT_EQ(slower.clock_mhz, 1000);
  EXPECT_EQ(slower.memory_gib, read_device(Json("h200-sxm-141gb"), "test", "").value().memory_gib);
  EXPECT_NE(message(R"({"preset": "dgx-h100", "device": {"memory_gb": 40}})").find("memory_gib"),
            std::string::npos);
  EXPECT_NE(message(R"({"preset": "dgx-h100", "device": {"preset": 3}})").find("/device/preset"),
            std::string::npos);
}

// 32 NICs of 100 Gbit/s for 8 accelerators: each drives four as one port of 50 GB/s.
// One number for products of all types, or by type over what the preset says.
TEST(Cluster, RelativeRatesAreOfAllTypesOrOfEach) {
  const auto device = [](const std::string& fields) {
    return read_device(parse_json(fields, "run.json").value(), "run.json", "/device");
  };
  const DeviceSpec all = device(R"({"preset": "b300-sxm-288gb", "relative_rate": 0.9})").value();
  EXPECT_EQ(all.relative_rate, RelativeRates(0.9));
  const DeviceSpec one =
      device(R"({"preset": "b300-sxm-288gb", "relative_rate": {"fp8": 0.5}})").value();
  const DeviceSpec preset = device(R"("b300-sxm-288gb")").value();
  EXPECT_EQ(one.relative_rate.of(DType::kFp8), 0.5);
  EXPECT_EQ(one.relative_rate.of(DType::kBf16), preset.relative_rate.of(DType::kBf16));
  const DeviceSpec over =
      device(R"({"preset": "h100-pcie-80gb", "relative_rate": {"fp8": 1}})").value();
  EXPECT_NE(device(R"({"preset": "b300-sxm-288gb", "relative_rate": true})")
                .error()
                .message.find("a number from 0.01 to 2, or an object"),
            std::string::npos);
  for (const DeviceSpec& x : {all, one, preset, over}) {
    EXPECT_EQ(read_device(to_json(x), "test", "").value().relative_rate, x.relative_rate);
  }
  EXPECT_NE(device(R"({"preset": "b300-sxm-288gb", "relative_rate": {"fp9": 1}})")
                .error()
                .message.find("/device/relative_rate"),
            std::string::npos);
  EXPECT_FALSE(device(R"({"preset": "b300-sxm-288gb", "relative_rate": {"fp8": 0}})").ok());
  EXPECT_FALSE(device(R"({"preset": "b300-sxm-288gb", "relative_rate": "fast"})").ok());
}

TEST(Cluster, SeveralNicsOfOneAcceleratorAreOnePort) {
  const Cluster cluster = read_cluster(Json("aws-p5"), "test", "").value();
  EXPECT_EQ(cluster.nic_ports_per_node(), 8);
  EXPECT_DOUBLE_EQ(cluster.nic_port_gb_per_s(), 50);
}

TEST(Cluster, MistakesAreNamed) {
  EXPECT_NE(message(R"("dgx-h10")").find("dgx-h100"), std::string::npos);
  EXPECT_NE(message(R"({"preset": "dgx-h100", "acelerators": 8})").find("accelerators"),
            std::string::npos);
  EXPECT_NE(message(R"({"preset": "dgx-h100", "accelerators": 99999999999})")
                .find("/cluster/accelerators"),
            std::string::npos);
  EXPECT_NE(message(R"({"preset": "dgx-h100", "network": {"nic_gbit_per_s": -1}})")
                .find("/cluster/network/nic_gbit_per_s"),
            std::string::npos);
  EXPECT_NE(message(R"({"accelerators": 8})").find("device"), std::string::npos);
  EXPECT_NE(message("8").find("/cluster"), std::string::npos);
}

TEST(Cluster, AnInlineObjectNeedsNoPreset) {
  const Result<Cluster> cluster = read(R"({"device": "a100-sxm-80gb", "accelerators": 16,
      "accelerators_per_node": 4, "network": {"nics_per_node": 4, "nic_gbit_per_s": 200}})");
  ASSERT_TRUE(cluster.ok()) << cluster.error().message;
  EXPECT_EQ(cluster.value().nodes(), 4);
}

TEST(Placement, IsTheSameWhereverTheGroupStarts) {
  const Cluster cluster = read(R"({"preset": "dgx-h100", "accelerators": 1024})").value();
  const Placement first = placement_of(cluster, ranks(0, 8, 1)).value();
  EXPECT_EQ(first, placement_of(cluster, ranks(1016, 8, 1)).value());
  EXPECT_EQ(first.nodes, 1);
  const Placement data = placement_of(cluster, ranks(3, 16, 8)).value();
  EXPECT_EQ(data, placement_of(cluster, ranks(5, 16, 8)).value());
  EXPECT_EQ(data.nodes, 16);
  EXPECT_EQ(data.per_node_max, 1);
  EXPECT_EQ(data.fewest_nics(), 1);
}

TEST(Placement, CountsUnevenGroups) {
  const Cluster cluster = read(R"({"preset": "dgx-h100", "accelerators": 16})").value();
  const Placement uneven = placement_of(cluster, ranks(6, 6, 1)).value();
  EXPECT_EQ(uneven.per_node_max, 4);
  EXPECT_EQ(uneven.per_node_min, 2);
  EXPECT_EQ(uneven.shapes, (std::vector<NodeShape>{{2, 2}, {4, 4}}));
  EXPECT_EQ(uneven.fewest_nics(), 2);
}

TEST(Placement, RefusesRanksThatDoNotFit) {
  const Cluster cluster = read(R"({"preset": "dgx-h100", "accelerators": 8})").value();
  EXPECT_FALSE(placement_of(cluster, ranks(0, 9, 1)).ok());
  EXPECT_FALSE(placement_of(cluster, {}).ok());
  EXPECT_FALSE(placement_of(cluster, ranks(0, 2, 0)).ok());
}

// Leaves of 2 nodes: a ring over 4 neighbouring nodes crosses leaves on 2 of its 4 hops.
TEST(Placement, CountsHopsAcrossOversubscribedLeaves) {
  const auto crossings = [](const std::string& network, int stride) {
    const Cluster cluster =
        read(R"({"preset": "dgx-h100", "accelerators": 64, "network": {)" + network + "}}").value();
    return placement_of(cluster, ranks(0, 4, stride)).value().crossings;
  };
  using Levels = std::array<std::int32_t, kMaxLevels>;
  // A level that costs nothing is not told apart, one that costs time is.
  EXPECT_EQ(crossings(R"("topology": {"kind": "fat-tree", "levels": [{"nodes": 2}]})", 8),
            (Levels{0, 0, 0}));
  EXPECT_EQ(crossings(R"("nodes_per_leaf": 2)", 8), (Levels{512, 0, 0}));
  EXPECT_EQ(crossings(R"("nodes_per_leaf": 2, "oversubscription": 4)", 8), (Levels{512, 0, 0}));
  EXPECT_EQ(crossings(R"("nodes_per_leaf": 2, "oversubscription": 4)", 16), (Levels{1024, 0, 0}));
  // Pairs: each of 4 nodes in leaves of 2 has one neighbour below its leaf and two beyond.
  const Cluster thin = read(R"({"preset": "dgx-h100", "accelerators": 64,
      "network": {"nodes_per_leaf": 2, "oversubscription": 4}})")
                           .value();
  EXPECT_EQ(placement_of(thin, ranks(0, 4, 8)).value().pair_crossings, (Levels{683, 0, 0}));
  EXPECT_EQ(placement_of(thin, ranks(0, 32, 1)).value().pair_crossings, (Levels{683, 0, 0}));
  const std::string two = R"("topology": {"kind": "fat-tree",
      "levels": [{"nodes": 1}, {"nodes": 2, "oversubscription": 3}]})";
  EXPECT_EQ(crossings(two, 8), (Levels{0, 512, 0}));
}

}  // namespace
}  // namespace foretrain
