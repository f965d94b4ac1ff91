// What crosses an accelerator's lanes to the host?
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "hardware/hardware_cost_model.h"

namespace foretrain {
namespace {

std::int32_t share_at(const Cost& cost, Port port) {
  return cost.port_share.at(static_cast<std::size_t>(port));
}

// What crosses the lanes to the host is what goes over the NIC, however slow the network is: a ring
// over 4 nodes of 8 sends 31/32 of the array, an eighth of it through each NIC.
TEST(HostLink, CarriesWhatItsNicDoes) {
  for (const double oversubscription : {1.0, 2.0, 8.0}) {
    for (const double rate : {1.0, 1.1}) {
      const std::string text = R"({"preset": "dgx-h100", "accelerators": 32, "network":
          {"nodes_per_leaf": 1, "oversubscription": )" +
                               std::to_string(oversubscription) + "}}";
      const Cluster cluster = read_cluster(parse_json(text, "t").value(), "t", "").value();
      PriceOptions options;
      options.network_rate = rate;
      const auto model = make_cost_model(cluster, options);
      std::vector<RankId> ranks;
      for (std::int32_t r = 0; r < 32; ++r) ranks.emplace_back(r);
      const std::vector<PlacementId> at = {model->place(ranks).value()};
      const Collective work{CollectiveKind::kAllGather, GroupSlot(0), 1 << 29, DType::kBf16, false};
      const Cost cost = model->price(Work{work}, at).value();
      const double carried =
          63e9 * cost.duration.seconds() * share_at(cost, Port::kHostOut) / kWhole;
      EXPECT_NEAR(carried / (31.0 / 32 * (1 << 30) / 8), 1, 0.01)
          << oversubscription << " " << rate;
    }
  }
}

// Where peers are on PCIe copies, peers and NICs meet on an accelerator's lanes, and copies take
// the uplink of its switch besides.
TEST(HostLink, OfPcieIsEverybodys) {
  const std::string text = R"({"preset": "pcie-h100", "accelerators": 16})";
  const Cluster cluster = read_cluster(parse_json(text, "t").value(), "t", "").value();
  const auto model = make_cost_model(cluster, {});
  const auto gather = [&model](const std::vector<RankId>& ranks) {
    const std::vector<PlacementId> at = {model->place(ranks).value()};
    const Collective work{CollectiveKind::kAllGather, GroupSlot(0), 1 << 28, DType::kBf16, false};
    return model->price(Work{work}, at).value();
  };
  EXPECT_GT(share_at(gather({RankId(0), RankId(8)}), Port::kHostOut), kWhole / 4);
  EXPECT_GT(share_at(gather({RankId(0), RankId(1)}), Port::kHostIn), kWhole / 4);
  const Cost copy = model->price(Work{Copy{Memory::kDevice, Memory::kHost, 1 << 28}}, {}).value();
  EXPECT_GT(share_at(copy, Port::kHostOut), kWhole / 4);
  EXPECT_EQ(share_at(copy, Port::kScaleUpOut), share_at(copy, Port::kHostOut));
  EXPECT_EQ(share_at(copy, Port::kHostIn), 0);
}

}  // namespace
}  // namespace foretrain
