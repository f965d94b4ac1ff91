// Does our NCCL choose what NCCL chooses? L, A and the selection by size against an extract of the
// real library's own results (tests/data/nccl_selection.json).
#include <gtest/gtest.h>

#include <string>

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

NcclGroup group_of(const std::string& preset, std::int32_t per_node, std::int32_t nodes) {
  const Cluster cluster = read_cluster(Json(preset), "test", "").value();
  const std::int32_t nics =
      std::max(1, per_node * cluster.nics_per_node / cluster.accelerators_per_node);
  return nccl_group(cluster, per_node * nodes, nodes, per_node, nics);
}

std::string text(NcclAlgorithm a, NcclProtocol p) {
  return std::string(name_of(a)) + "/" + std::string(name_of(p));
}

TEST(Nccl, LatencyAndBandwidthEqualTheLibrarys) {
  int compared = 0;
  for (const Json& json : *extract().find("tuning")->array()) {
    const Json::Array& row = *json.array();
    const NcclGroup group = group_of(*row[0].string(), integer(row[1]), integer(row[2]));
    for (int a = 0; a < kNcclAlgorithms; ++a) {
      for (int p = 0; p < kNcclProtocols; ++p) {
        const auto algorithm = static_cast<NcclAlgorithm>(a);
        const auto protocol = static_cast<NcclProtocol>(p);
        if (text(algorithm, protocol) != *row[4].string()) continue;
        const NcclTuning tuning =
            nccl_tuning(group, kind_of(*row[3].string()), algorithm, protocol);
        SCOPED_TRACE(dump_json(json, -1));
        EXPECT_NEAR(tuning.latency_us, row[5].number(), 0.11);
        EXPECT_NEAR(tuning.gb_per_s, row[6].number(), 0.006 * row[6].number());
        ++compared;
      }
    }
  }
  EXPECT_GT(compared, 400);
}

TEST(Nccl, SelectionBySizeEqualsTheLibrarys) {
  int sizes = 0;
  for (const Json& row : *extract().find("selection")->array()) {
    const NcclGroup group =
        group_of(*row.find("cluster")->string(), integer(*row.find("ranks_per_node")),
                 integer(*row.find("nodes")));
    const Json::Array& choices = *row.find("choices")->array();
    std::size_t at = 0;
    for (std::int64_t bytes = 1024; bytes <= std::int64_t{1} << 34; bytes *= 2) {
      while (at + 1 < choices.size() &&
             choices[at + 1].find("from_bytes")->number() <= static_cast<double>(bytes)) {
        ++at;
      }
      const NcclChoice choice =
          choose_nccl(group, kind_of(*row.find("collective")->string()), bytes);
      SCOPED_TRACE(*row.find("cluster")->string() + " x" + dump_json(*row.find("nodes"), -1) + " " +
                   *row.find("collective")->string() + " " + std::to_string(bytes));
      EXPECT_EQ(text(choice.algorithm, choice.protocol), *choices[at].find("choice")->string());
      ++sizes;
    }
  }
  EXPECT_GT(sizes, 3000);
}

// Channels: all at full size; one when a channel would move less than threads * 64 B.
TEST(Nccl, ChannelsShrinkWithTheMessage) {
  const NcclGroup a100 = group_of("dgx-a100-80gb", 8, 1);
  const NcclChoice simple{NcclAlgorithm::kRing, NcclProtocol::kSimple, 0};
  EXPECT_EQ(nccl_channels(a100, simple, Bytes{1} << 30), 24);
  EXPECT_EQ(nccl_channels(a100, simple, 512 * 64), 1);
  EXPECT_EQ(nccl_channels(a100, simple, 512 * 64 + 1), 2);
  const NcclGroup h100 = group_of("dgx-h100", 8, 1);
  EXPECT_EQ(nccl_channels(h100, {NcclAlgorithm::kNvls, NcclProtocol::kSimple, 0}, 1024), 16);
  EXPECT_EQ(nccl_channels(group_of("dgx-h100", 8, 16), simple, Bytes{1} << 30), 16);
}

// Where the table of search results has a shape, the search's rule must find the same rings.
TEST(Nccl, RuleForOtherShapesAgreesWithTheSearch) {
  Cluster cluster = read_cluster(Json("dgx-a100-80gb"), "test", "").value();
  cluster.nic_gbit_per_s = 100;  // 8 NICs of 12.5 GB/s: a channel of 12 GB/s on each
  const NcclGroup slow = nccl_group(cluster, 32, 4, 8, 8);
  EXPECT_EQ(slow.ring, (NcclGraph{4, 8, 12, 12}));
  cluster = read_cluster(Json("dgx-h100"), "test", "").value();
  const NcclGroup pair = nccl_group(cluster, 8, 4, 2, 2);  // one NIC each, doubled and halved
  EXPECT_EQ(pair.ring, (NcclGraph{4, 4, 24, 24}));
}

}  // namespace
}  // namespace foretrain
