// A cost model made of a few integers, so that tests can work out its prices by hand.
#pragma once

#include <map>
#include <vector>

#include "sim/base/rng.h"
#include "sim/cost/cost_model.h"

namespace foretrain {

/// Prices in ps. What is 0 costs nothing.
struct Rates {
  Time launch;                               ///< host time of every op
  Time latency;                              ///< of every kernel, copy and communication
  std::int64_t kiloflop = 0;                 ///< per 1000 FLOPs of a GEMM or attention
  std::int64_t kilobyte = 0;                 ///< per 1000 bytes of a memory-bound kernel
  std::int64_t copies = 1;                   ///< so many times as long a byte
  std::int64_t storage = 1;                  ///< and as many more to storage and from it
  std::int64_t link_kilobyte = 0;            ///< per 1000 bytes inside a node
  std::int64_t nic_kilobyte = 0;             ///< per 1000 bytes between nodes
  Time attention_forward;                    ///< if set, an attention costs this and no more
  Time attention_backward;                   ///< likewise
  bool tiles = false;                        ///< GEMMs in tiles of 64 x 64
  std::int32_t sms_held = 0;                 ///< by communication
  std::int32_t memory_share = 0;             ///< by communication, in 1/65536
  std::int32_t port_share = 0;               ///< by communication, in 1/65536
  std::int32_t node = 8, ranks_per_nic = 1;  ///< ranks of a node; ranks that share a NIC
};

class TestPrices : public CostModel {
 public:
  explicit TestPrices(Rates rates) : x_rates(rates) {}

  int sm_count() const override { return 16; }
  Result<PlacementId> place(std::span<const RankId> ranks) override;
  Result<Cost> price(const Work& work, std::span<const PlacementId> placements) const override;
  std::string explain(const Work&, std::span<const PlacementId>) const override { return "test"; }
  std::int32_t port_of(RankId rank, Port port) const override;

  Rates& rates() { return x_rates; }

 private:
  /// How a group lies: its ranks by node, in order.
  using Shape = std::vector<std::int32_t>;
  void price_transfer(Cost& cost, PlacementId place, std::int64_t moved) const;

  Rates x_rates;
  std::map<Shape, PlacementId> x_known;
  std::vector<Shape> x_shapes;
};

/// The prices of another model for other rank numbers and times: rank r here is rank `original[r]`
/// there, and every time is `factor` times as long.
class DerivedPrices : public CostModel {
 public:
  DerivedPrices(CostModel& base, std::vector<RankId> original, std::int64_t factor)
      : x_base(base), x_original(std::move(original)), x_factor(factor) {}

  int sm_count() const override { return x_base.sm_count(); }
  Result<PlacementId> place(std::span<const RankId> ranks) override;
  Result<Cost> price(const Work& work, std::span<const PlacementId> placements) const override;
  std::string explain(const Work&, std::span<const PlacementId>) const override { return "test"; }
  std::int32_t port_of(RankId rank, Port port) const override {
    return x_base.port_of(x_original[rank.index()], port);
  }

 private:
  CostModel& x_base;
  std::vector<RankId> x_original;
  std::int64_t x_factor;
};

/// Everything costs something, nothing shares.
Rates plain_rates();
/// Communication holds SMs and memory bandwidth.
Rates holding_rates();
/// Transfers meet on ports: two ranks a NIC, every transfer wants more than half of it.
Rates sharing_rates();
/// Drawn; communication holds SMs and memory bandwidth, transfers meet on ports.
Rates draw_rates(Rng& rng, bool holds, bool ports);

}  // namespace foretrain
