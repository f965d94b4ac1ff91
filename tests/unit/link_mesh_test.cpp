// Does a mesh have the ways and rings that NCCL finds on it, and is a bad one refused?
#include "hardware/link_mesh.h"

#include <gtest/gtest.h>

#include "hardware/placement.h"

namespace foretrain {
namespace {

Result<Cluster> read_mesh_cluster(const std::string& text) {
  return read_cluster(parse_json(text, "run.json").value(), "run.json", "/cluster");
}

const Cluster& cube() {
  static const Cluster cluster = read_cluster(Json("dgx-1v"), "test", "").value();
  return cluster;
}

MeshUse use_of(const std::vector<std::int32_t>& members) {
  return mesh_use(cube().mesh_links, members);
}

/// A node of V100 with so many links, given as JSON.
std::string mesh_message(const std::string& rows, std::int32_t accelerators = 2) {
  const Result<Cluster> cluster =
      read_mesh_cluster(R"({"device": "v100-sxm2-16gb", "scale_up": "mesh", "accelerators": )" +
                        std::to_string(accelerators) + R"(, "accelerators_per_node": )" +
                        std::to_string(accelerators) + R"(, "mesh_links": )" + rows + "}");
  return cluster.ok() ? "" : cluster.error().message;
}

// vTrain's tables: 22.6, 45, 85, 37, 46, 87 and 135 GB/s, 22 a ring, but 18.6 where one is relayed.
TEST(LinkMesh, TheFirstOfACubeHaveTheRingsThatWereMeasured) {
  const std::vector<std::int32_t> rings = {1, 2, 4, 2, 2, 4, 6};
  for (std::int32_t members = 2; members <= 8; ++members) {
    const MeshUse use = mesh_use(cube().mesh_links, members);
    EXPECT_EQ(use.rings, rings.at(static_cast<std::size_t>(members) - 2)) << members;
    EXPECT_EQ(use.relayed, members == 5) << members;
  }
}

TEST(LinkMesh, OtherGroupsHaveTheirOwnRings) {
  EXPECT_EQ(use_of({0, 3}).rings, 2);
  EXPECT_EQ(use_of({4, 5, 6, 7}).rings, 4);
  EXPECT_EQ(use_of({0, 1, 4, 5}).rings, 2);  // 0-1 and 4-5 have one link each
  EXPECT_EQ(use_of({0, 5}).rings, 0);        // nobody among them passes anything on
  EXPECT_EQ(use_of({0, 4, 5}).rings, 1);     // 0 reaches 5 over 4
  EXPECT_TRUE(use_of({0, 4, 5}).relayed);
  EXPECT_EQ(use_of({3}), MeshUse{});
}

TEST(LinkMesh, APairHasTheLinksOfItsWay) {
  EXPECT_EQ(use_of({0, 1}).pair_links, 1);
  EXPECT_EQ(use_of({0, 3}).pair_links, 2);
  EXPECT_EQ(use_of({0, 7}).pair_links, 2);  // over 4, not over 3
  EXPECT_EQ(use_of({1, 4}).pair_links, 1);
  EXPECT_EQ(use_of({0, 1, 2}).pair_links, 0);
}

TEST(LinkMesh, AnExchangeCountsWhatLinksPassOn) {
  EXPECT_EQ(use_of({0, 3}).exchanged, kExchangeUnit / 2);
  EXPECT_EQ(use_of({0, 1, 2, 3}).exchanged, kExchangeUnit);
  EXPECT_GT(mesh_use(cube().mesh_links, 8).exchanged, 2 * kExchangeUnit);
  EXPECT_EQ(use_of({0, 5}).through_host, 1);
  EXPECT_EQ(mesh_use(cube().mesh_links, 8).through_host, 0);
}

// On several nodes the one with the fewest rings counts.
TEST(LinkMesh, GroupsOnSeveralNodesAreAsTheirSlowest) {
  const Cluster many = read_mesh_cluster(R"({"preset": "dgx-1v", "accelerators": 16})").value();
  const auto at = [&many](const std::vector<std::int32_t>& ranks) {
    std::vector<RankId> all;
    for (const std::int32_t rank : ranks) all.emplace_back(rank);
    return placement_of(many, all).value().mesh;
  };
  EXPECT_EQ(at({0, 3, 8, 11}).rings, 2);
  EXPECT_EQ(at({0, 3, 8, 9}).rings, 1);
  EXPECT_EQ(at({0, 3, 8, 13}).rings, 0);
  EXPECT_EQ(at({0, 8}), MeshUse{});
}

TEST(LinkMesh, ASmallerNodeHasTheFirstOfThem) {
  const Cluster four =
      read_mesh_cluster(R"({"preset": "dgx-1v", "accelerators": 4, "accelerators_per_node": 4})")
          .value();
  EXPECT_EQ(four.mesh_links.size(), 4U);
  EXPECT_EQ(mesh_use(four.mesh_links, 4).rings, 4);
  EXPECT_EQ(
      read_mesh_cluster(R"({"preset": "dgx-1v", "scale_up": "switch"})").value().mesh_links.size(),
      0U);
}

TEST(LinkMesh, MistakesAreNamed) {
  EXPECT_EQ(mesh_message("[[0, 2], [2, 0]]"), "");
  const auto names = [](const std::string& rows, const std::string& part) {
    const std::string found = mesh_message(rows);
    EXPECT_NE(found.find("/cluster/mesh_links"), std::string::npos) << rows << ": " << found;
    EXPECT_NE(found.find(part), std::string::npos) << rows << ": " << found;
    EXPECT_NE(found.find("accepted"), std::string::npos) << found;
  };
  names("7", "found 7");
  names("[[0, 2]]", "found 1 rows");
  names("[[0, 2], [2]]", "found 1 numbers in one of 2 rows");
  names("[[0, 2], [1, 0]]", "accelerator 0 has 2 links to 1, and 1 has 1 to 0");
  names("[[1, 2], [2, 0]]", "accelerator 0 has links to itself");
  names("[[0, 1.5], [1.5, 0]]", "found 1.5");
  names("[[0, -1], [-1, 0]]", "found -1");
  names("[[0, 7], [7, 0]]", "found 7");
  names("[[0, 4, 4], [4, 0, 1], [4, 1, 0]]", "accelerator 0 has 8 links");
  const Result<Cluster> none = read_mesh_cluster(R"({"device": "v100-sxm2-16gb", "scale_up": "mesh",
      "accelerators": 8, "accelerators_per_node": 8})");
  ASSERT_FALSE(none.ok());
  EXPECT_NE(none.error().message.find("needs \"mesh_links\""), std::string::npos);
  const Result<Cluster> other = read_mesh_cluster(R"({"preset": "dgx-h100", "mesh_links": [[0]]})");
  ASSERT_FALSE(other.ok());
  EXPECT_NE(other.error().message.find("are of scale_up \"mesh\""), std::string::npos);
}

}  // namespace
}  // namespace foretrain
