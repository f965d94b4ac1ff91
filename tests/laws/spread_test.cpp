// Is a group inside a node ever slower than the same group spread over several?
#include <gtest/gtest.h>

#include "hardware/presets.h"
#include "tests/support/collectives.h"

namespace foretrain {
namespace {

/// By how much the spread group may be faster, and why that is so.
struct Exception {
  const char* preset;
  double times;
  const char* reason;
};
const std::vector<Exception>& exceptions() {
  static const char* const kPcie =
      "the ring inside crosses the bridge between PCIe switches: NCCL's search finds 10 of 24 GB/s "
      "(A100), 15 of 24 (L40S) and 22 of 48 (H100), and the lanes' whole rate to a NIC beside";
  static const std::vector<Exception> all = {
      {"pcie-a100", 2.5, kPcie},
      {"pcie-h100", 2.1, kPcie},
      {"l40s", 1.8, kPcie},
      {"a40", 1.2, kPcie},
      {"rtx-a6000", 1.2, kPcie},
      {"aws-g5", 1.25, kPcie},
      {"v100s-pcie", 1.6, kPcie},
      {"hgx-h800", 1.25, "a rank sends 200 GB/s by NVLink and 50 by its NIC at once"},
      {"gb300-nvl72", 1.25, "NCCL takes NVLS for gathers in a rack where its rings carry more"},
      {"ascend-910b", 1.02, "a pair's one link is as fast as a NIC; efficiencies from memory"},
      {"ascend-910a", 2.4, "PCIe joins the two groups of HCCS, each accelerator has a NIC"},
  };
  return all;
}

double allowed(const std::string& preset) {
  for (const Exception& exception : exceptions()) {
    if (preset == exception.preset) return exception.times;
  }
  return 1;
}

/// The most by which spreading 2 to 16 members evenly over nodes makes any collective faster.
double gain_of_spreading(const std::string& preset) {
  constexpr std::int32_t kNodes = 8;
  const Cluster cluster = nodes_of(preset, kNodes);
  double most = 0;
  for (std::int32_t count = 2; count <= std::min(16, cluster.domain_size()); ++count) {
    for (std::int32_t each = 1; each < count; ++each) {
      if (count % each != 0 || count / each > kNodes) continue;
      const auto nodes = static_cast<std::size_t>(count / each);
      const std::vector<RankId> inside = members_of(cluster, {count});
      const std::vector<RankId> spread =
          members_of(cluster, std::vector<std::int32_t>(nodes, each));
      for (const CollectiveKind kind : all_collectives()) {
        for (Bytes bytes = 1024; bytes <= Bytes{1} << 34; bytes *= 2) {
          const double near = price_among(cluster, inside, kind, bytes).duration.seconds();
          const double far = price_among(cluster, spread, kind, bytes).duration.seconds();
          most = std::max(most, near / far);
          EXPECT_LE(near, far * allowed(preset) * 1.000001)
              << preset << " " << text_of(kind) << " of " << count << ", " << each << " a node, "
              << bytes << " bytes";
        }
      }
    }
  }
  return most;
}

TEST(Spread, AGroupInsideANodeIsNeverSlower) {
  for (const std::string& preset : cluster_preset_names()) {
    const double gain = gain_of_spreading(preset);
    // An exception that is not needed is none.
    if (allowed(preset) > 1) {
      EXPECT_GT(gain, 1) << preset;
    }
  }
}

}  // namespace
}  // namespace foretrain
