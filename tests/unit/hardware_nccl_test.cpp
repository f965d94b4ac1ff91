// Does our NCCL choose what NCCL chooses? L, A and the selection by size against an extract of the
// real library's own results (tests/data/nccl_selection.json).
#include <gtest/gtest.h>

#include <string>

#include "hardware/communicator_memory.h"
#include "hardware/nccl.h"

namespace foretrain {
namespace {

const Json& extract() {
  static const Json json =
      read_json_file(std::string(FORETRAIN_TEST_DATA) + "/nccl_selection.json").value();
  return json;
}

CollectiveKind kind_of(const std::string& name) {
  if (name == "all-reduce") return CollectiveKind::kAllReduce;
  return name == "all-gather" ? CollectiveKind::kAllGather : CollectiveKind::kReduceScatter;
}

std::int32_t integer(const Json& json) { return static_cast<std::int32_t>(json.number()); }

Cluster cluster_of(const Json& json) { return read_cluster(json, "test", "").value(); }

NcclGroup group_of(const Cluster& cluster, std::int32_t per_node, std::int32_t nodes) {
  const std::int32_t nics =
      std::max(1, per_node * cluster.nic_ports_per_node() / cluster.accelerators_per_node);
  return nccl_group(cluster, per_node * nodes, nodes, per_node, nics);
}

NcclGroup group_of_row(const Json& row) {
  const Json& cluster = *extract().find("clusters")->find(*row.find("system")->string());
  return group_of(cluster_of(cluster), integer(*row.find("ranks_per_node")),
                  integer(*row.find("nodes")));
}

std::string name_of_row(const Json& row) {
  return *row.find("system")->string() + " x" + dump_json(*row.find("nodes"), -1) + " " +
         *row.find("collective")->string() + " ";
}

std::string text(NcclAlgorithm a, NcclProtocol p) {
  return std::string(name_of(a)) + "/" + std::string(name_of(p));
}

// Every pair that the library offers, and no other.
TEST(Nccl, LatencyAndBandwidthEqualTheLibrarys) {
  int compared = 0, offered = 0;
  for (const Json& row : *extract().find("systems")->array()) {
    const NcclGroup group = group_of_row(row);
    const CollectiveKind kind = kind_of(*row.find("collective")->string());
    for (int a = 0; a < kNcclAlgorithms; ++a) {
      for (int p = 0; p < kNcclProtocols; ++p) {
        const auto algorithm = static_cast<NcclAlgorithm>(a);
        const auto protocol = static_cast<NcclProtocol>(p);
        const NcclTuning tuning = nccl_tuning(group, kind, algorithm, protocol);
        if (tuning.gb_per_s > 0) ++offered;
        for (const Json& entry : *row.find("tuning")->array()) {
          const Json::Array& library = *entry.array();
          if (text(algorithm, protocol) != *library[0].string()) continue;
          SCOPED_TRACE(name_of_row(row) + *library[0].string());
          EXPECT_NEAR(tuning.latency_us, library[1].number(), 0.051);
          EXPECT_NEAR(tuning.gb_per_s, library[2].number(), 0.0051);
          ++compared;
        }
      }
    }
    const Json::Array& channels = *row.find("channels")->array();
    EXPECT_EQ(group.channels, integer(channels[0])) << name_of_row(row);
    EXPECT_EQ(group.nvls_channels, integer(channels[1])) << name_of_row(row);
  }
  EXPECT_EQ(compared, 1003);
  EXPECT_EQ(offered, compared);
}

TEST(Nccl, SelectionBySizeEqualsTheLibrarys) {
  int sizes = 0, rows = 0;
  for (const Json& row : *extract().find("systems")->array()) {
    const NcclGroup group = group_of_row(row);
    const CollectiveKind kind = kind_of(*row.find("collective")->string());
    const Json::Array& choices = *row.find("choices")->array();
    std::size_t at = 0;
    for (std::int64_t bytes = 1024; bytes <= std::int64_t{1} << 34; bytes *= 2) {
      while (at + 1 < choices.size() &&
             (*choices[at + 1].array())[0].number() <= static_cast<double>(bytes)) {
        ++at;
      }
      const NcclChoice choice = choose_nccl(group, kind, bytes);
      EXPECT_EQ(text(choice.algorithm, choice.protocol), *(*choices[at].array())[1].string())
          << name_of_row(row) << bytes;
      ++sizes;
    }
    ++rows;
  }
  EXPECT_EQ(rows, 83 * 3);
  EXPECT_EQ(sizes, 83 * 3 * 25);
}

// src/enqueue.cc: sums of 8 bits along a long ring lose precision.
TEST(Nccl, SumsInEightBitsTakeARingOnlyWhereNothingElseAdds) {
  const Cluster cluster = cluster_of(Json("dgx-a100-80gb"));
  const auto ring = [](const NcclGroup& group, CollectiveKind kind, DType dtype) {
    return choose_nccl(group, kind, Bytes{1} << 32, dtype).algorithm == NcclAlgorithm::kRing;
  };
  const NcclGroup two = group_of(cluster, 8, 4), one = group_of(cluster, 8, 1);
  EXPECT_TRUE(ring(two, CollectiveKind::kAllReduce, DType::kBf16));
  EXPECT_FALSE(ring(two, CollectiveKind::kAllReduce, DType::kFp8));
  EXPECT_TRUE(ring(one, CollectiveKind::kAllReduce, DType::kFp8));
  EXPECT_TRUE(ring(two, CollectiveKind::kAllGather, DType::kFp8));      // adds nothing
  EXPECT_TRUE(ring(two, CollectiveKind::kReduceScatter, DType::kFp8));  // has nothing else
}

// No search with SHARP was at hand; these are the formulas of src/graph/tuning.cc by hand.
TEST(Nccl, SharpOffersCollNetAndNvlsAcrossNodes) {
  Cluster cluster = cluster_of(Json("dgx-h100"));
  EXPECT_EQ(nccl_tuning(group_of(cluster, 8, 8), CollectiveKind::kAllReduce, NcclAlgorithm::kNvls,
                        NcclProtocol::kSimple)
                .gb_per_s,
            0);
  cluster.sharp = true;
  const NcclGroup group = group_of(cluster, 8, 8);
  const auto of = [&](NcclAlgorithm algorithm) {
    return nccl_tuning(group, CollectiveKind::kAllReduce, algorithm, NcclProtocol::kSimple);
  };
  EXPECT_NEAR(of(NcclAlgorithm::kNvls).gb_per_s, 8 * 48 * 64 / 126.0, 1e-9);
  EXPECT_NEAR(of(NcclAlgorithm::kNvls).latency_us, 25 + 18, 1e-9);
  EXPECT_NEAR(of(NcclAlgorithm::kCollNetDirect).gb_per_s, 8 * 40 * 0.85 / 2, 1e-9);
  EXPECT_NEAR(of(NcclAlgorithm::kCollNetDirect).latency_us, 2 * (3.7 + 0.4 * 7) + 31, 1e-9);
  EXPECT_NEAR(of(NcclAlgorithm::kCollNetChain).gb_per_s, 8 * 40 / 2.0, 1e-9);
  EXPECT_NEAR(of(NcclAlgorithm::kCollNetChain).latency_us, 2 * 7 * 2.8 + 30, 1e-9);
  EXPECT_EQ(choose_nccl(group, CollectiveKind::kAllReduce, Bytes{1} << 30).algorithm,
            NcclAlgorithm::kNvls);
  const NcclGroup inside = group_of(cluster, 8, 1);
  EXPECT_EQ(nccl_tuning(inside, CollectiveKind::kAllReduce, NcclAlgorithm::kCollNetDirect,
                        NcclProtocol::kSimple)
                .gb_per_s,
            0);
}

// Channels: all at full size; one when a channel would move less than threads * 64 B or 16 KiB.
TEST(Nccl, ChannelsShrinkWithTheMessage) {
  const NcclGroup a100 = group_of(cluster_of(Json("dgx-a100-80gb")), 8, 1);
  const NcclChoice simple{NcclAlgorithm::kRing, NcclProtocol::kSimple, 0};
  const CollectiveKind gather = CollectiveKind::kAllGather;
  EXPECT_EQ(nccl_channels(a100, simple, gather, Bytes{1} << 30), 24);
  EXPECT_EQ(nccl_channels(a100, simple, gather, 512 * 64), 1);
  EXPECT_EQ(nccl_channels(a100, simple, gather, 512 * 64 + 1), 2);
  const NcclChoice tree{NcclAlgorithm::kTree, NcclProtocol::kLl, 0};
  EXPECT_EQ(nccl_channels(a100, tree, CollectiveKind::kAllReduce, 8 * 8192), 8);
  const Cluster h100 = cluster_of(Json("dgx-h100"));
  EXPECT_EQ(nccl_channels(group_of(h100, 8, 1), {NcclAlgorithm::kNvls, NcclProtocol::kSimple, 0},
                          CollectiveKind::kAllReduce, 1024),
            16);
  EXPECT_EQ(nccl_channels(group_of(h100, 8, 16), simple, gather, Bytes{1} << 30), 16);
}

// "16 coll channels, 16 nvls channels, 16 p2p channels, 2 p2p channels per peer" (log of 4 nodes
// of H800); 32 of each within a node of H100, whose 24 channels are rounded up.
TEST(Nccl, TransfersHoldTwoChannelsAPeerAcrossNodes) {
  const NcclGroup far = group_of(cluster_of(Json("hgx-h800")), 8, 4);
  EXPECT_EQ(nccl_p2p_channels(far, 1, Bytes{1} << 26), 2);
  EXPECT_EQ(nccl_p2p_channels(far, 1, 1024), 1);
  EXPECT_EQ(nccl_p2p_channels(far, 31, Bytes{1} << 26), 16);
  const NcclGroup near = group_of(cluster_of(Json("dgx-h100")), 8, 1);
  EXPECT_EQ(nccl_p2p_channels(near, 1, Bytes{1} << 16), 1);
  EXPECT_EQ(nccl_p2p_channels(near, 1, Bytes{1} << 20), 4);  // 8 ranks share 32
  EXPECT_EQ(nccl_p2p_channels(near, 1, Bytes{1} << 28), 16);
  EXPECT_EQ(nccl_p2p_channels(near, 7, Bytes{1} << 20), 28);
}

// The rule for shapes that the table lacks finds what the search found: rings of all systems whose
// nodes have NVLink, NVLS heads and speeds of all.
TEST(Nccl, RuleForOtherShapesAgreesWithTheSearch) {
  for (const Json& row : *extract().find("systems")->array()) {
    const Json& json = *extract().find("clusters")->find(*row.find("system")->string());
    const Cluster cluster = cluster_of(json);
    if (cluster.scale_up == ScaleUp::kPcie) continue;
    const NcclGroup found = group_of_row(row);
    const NcclGroup rule = nccl_group_by_rule(cluster, found.ranks, found.nodes,
                                              found.ranks_per_node, found.nics_per_node);
    SCOPED_TRACE(name_of_row(row));
    EXPECT_NEAR(rule.ring.channels * rule.ring.intra, found.ring.channels * found.ring.intra,
                1e-6 * found.ring.channels * found.ring.intra);
    EXPECT_EQ(rule.nvls.channels, found.nvls.channels);
    EXPECT_EQ(rule.nvls.intra, found.nvls.intra);
    EXPECT_EQ(rule.nvls.inter, found.nvls.inter);
    EXPECT_EQ(rule.channels, found.channels);
    EXPECT_EQ(rule.nvls_channels, found.nvls_channels);
  }
}

// NVIDIA/nccl issue 964 saw 544 MB for two A100 of a node and 688 MB for more of them.
TEST(Nccl, CommunicatorsOfANodeTakeWhatTheirConnectionsDo) {
  const CommunicatorBuffers buffers{static_cast<Bytes>(9.19 * (1 << 20)), Bytes{2} << 20,
                                    Bytes{64} << 20};
  Cluster cluster = cluster_of(Json("dgx-a100-80gb"));
  cluster.accelerators = 8;
  const auto mib = [&](std::int32_t ranks) {
    std::vector<RankId> members;
    for (std::int32_t r = 0; r < ranks; ++r) members.emplace_back(r);
    const Placement at = placement_of(cluster, members).value();
    return static_cast<double>(communicator_bytes(cluster, at, buffers)) / (1 << 20);
  };
  EXPECT_EQ(mib(1), 0);
  EXPECT_NEAR(mib(2), 24 * 2 * 9.19, 0.1);
  EXPECT_NEAR(mib(4), 24 * 3 * 9.19, 0.1);
  EXPECT_NEAR(mib(2), 544, 0.2 * 544);
  EXPECT_NEAR(mib(4), 688, 0.05 * 688);
}

// By hand: eight A100 on each of four nodes have 8 NICs and so 16 channels (search), of a ring and
// a tree inside, and an eighth of a node's eight edges; a V100's mesh and a switch have no NVLS,
// eight H100 16 channels of 8 heads; messages share one pool; tori have nothing of it.
TEST(Nccl, CommunicatorsOfNodes) {
  const CommunicatorBuffers buffers{10, 1000, 7};
  const auto bytes = [&](const char* preset, std::int32_t ranks) {
    Cluster cluster = cluster_of(Json(preset));
    cluster.accelerators = ranks;
    std::vector<RankId> members;
    for (std::int32_t r = 0; r < ranks; ++r) members.emplace_back(r);
    return communicator_bytes(cluster, placement_of(cluster, members).value(), buffers);
  };
  Cluster many = cluster_of(Json("dgx-a100-80gb"));
  many.accelerators = 32;
  const std::int64_t channels = nccl_group(many, 32, 4, 8, 8).channels;
  EXPECT_EQ(bytes("dgx-a100-80gb", 32), 10 * (3 * channels + channels));
  const NcclGroup hopper = nccl_group(cluster_of(Json("dgx-h100")), 8, 1, 8, 0);
  EXPECT_EQ(hopper.nvls_channels * hopper.nvls.channels, 16 * 8);  // 256 MiB of 2 each
  EXPECT_EQ(bytes("dgx-h100", 8), 10 * 3 * hopper.channels + 1000 * 16 * 8);
  EXPECT_EQ(bytes("tpu-v4", 8), 0);
  const auto messages = [&](std::vector<RankId> peers) {
    return message_bytes(many, RankId(std::int32_t{0}), peers, buffers);
  };
  EXPECT_EQ(messages({}), 0);
  EXPECT_EQ(messages({RankId(std::int32_t{8}), RankId(std::int32_t{16})}), 7);
  EXPECT_EQ(messages({RankId(std::int32_t{1}), RankId(std::int32_t{8})}), 2 * 10 + 7);
}

TEST(Nccl, RuleFollowsTheNics) {
  Cluster cluster = cluster_of(Json("dgx-a100-80gb"));
  cluster.nic_gbit_per_s = 100;  // 8 NICs of 12.5 GB/s: a channel of 12 GB/s on each
  EXPECT_EQ(nccl_group(cluster, 32, 4, 8, 8).ring, (NcclGraph{4, 8, 12, 12}));
  cluster = cluster_of(Json("dgx-h100"));  // one NIC each, doubled and halved
  EXPECT_EQ(nccl_group(cluster, 8, 4, 2, 2).ring, (NcclGraph{4, 4, 24, 24}));
}

}  // namespace
}  // namespace foretrain
