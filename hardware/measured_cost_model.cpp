#include <algorithm>
#include <cmath>
#include <sstream>
#include <utility>

#include "hardware/local_cost.h"
#include "hardware/profile.h"

namespace foretrain {
namespace {

/// Work whose time the RUN states: nothing to measure.
bool is_free(const Work& work) {
  return std::holds_alternative<HostDelay>(work) || std::holds_alternative<HostSync>(work) ||
         std::holds_alternative<Pause>(work);
}

/// Work that communication slows.
bool yields(const Work& work) {
  return std::holds_alternative<Gemm>(work) || std::holds_alternative<Attention>(work) ||
         std::holds_alternative<Kernel>(work);
}

class MeasuredCostModel final : public CostModel {
 public:
  MeasuredCostModel(std::unique_ptr<CostModel> base, const Profile& profile,
                    std::int64_t ranks_at_once, bool graphs)
      : x_base(std::move(base)), x_table(profile), x_ranks(ranks_at_once) {
    x_dispatch = x_table.overhead_seconds(kDispatchSample, x_ranks);
    x_event = x_table.overhead_seconds(kEventSample, x_ranks);
    const auto launch_of = [this](const char* op) {
      return Time::from_seconds(x_table.overhead_seconds(op, x_ranks));
    };
    x_launch = launch_of(kLaunchSample);
    x_on_device = x_launch.ps > 0;
    if (!graphs || !x_on_device) return;
    x_launch = launch_of(kGraphLaunchSample);
    const double gap = x_table.overhead_seconds(kGraphDispatchSample, x_ranks);
    if (gap > 0) x_dispatch = gap;
  }

  int sm_count() const override { return x_base->sm_count(); }

  Result<PlacementId> place(std::span<const RankId> ranks) override {
    FT_ASSIGN(const PlacementId id, x_base->place(ranks));
    if (x_sizes.size() <= id.index()) x_sizes.resize(id.index() + 1);
    x_sizes[id.index()] = static_cast<std::int64_t>(ranks.size());
    return id;
  }

  Result<Cost> price(const Work& work, std::span<const PlacementId> placements) const override {
    if (is_free(work)) {
      return x_base->price(work, placements);
    }
    const Result<MeasuredPrice> found = x_table.price(work, ranks_of(work, placements));
    if (!found.ok()) {
      FT_ASSIGN(Cost modelled, x_base->price(work, placements));
      return x_on_device ? with_slowdowns(modelled, work) : modelled;
    }
    const MeasuredPrice& price = found.value();
    if (x_on_device) return on_device(work, placements, price);
    Cost cost;
    double seconds = price.seconds + x_dispatch;
    const bool talks =
        std::holds_alternative<Collective>(work) || std::holds_alternative<P2PBatch>(work);
    // Other streams hand over to a communication stream, and it to them.
    if (talks) seconds += 2 * x_event;
    cost.duration = Time::from_seconds(seconds);
    if (!talks) cost.memory = cost.duration;
    // One core: what a collective does, kernels do not. A message mostly waits.
    if (std::holds_alternative<Collective>(work)) {
      cost.memory_share = kWhole;
      cost.waits_idle = true;
    }
    cost.provenance = price.provenance;
    cost.deviation = static_cast<float>(price.deviation);
    return cost;
  }

  std::string explain(const Work& work, std::span<const PlacementId> placements) const override {
    if (is_free(work)) {
      return x_base->explain(work, placements);
    }
    std::ostringstream steps;
    const auto price = x_table.price(work, ranks_of(work, placements));
    if (!price.ok()) {
      steps << price.error().message << "\n" << x_base->explain(work, placements);
      if (x_on_device && yields(work)) explain_beside(work, steps);
      return steps.str();
    }
    steps << "profile: " << price.value().seconds * 1e6 << " us, "
          << name_of(price.value().provenance) << " from " << price.value().from << "\n"
          << "dispatch " << x_dispatch * 1e6 << " us, event " << x_event * 1e6 << " us, launch ";
    if (x_on_device && x_launch.ps == 0) {
      steps << "in graphs as modelled, the profile has none\n";
    } else {
      steps << x_launch.us() << " us\n";
    }
    if (x_on_device && yields(work)) explain_beside(work, steps);
    return steps.str();
  }

  std::int32_t port_of(RankId rank, Port port) const override {
    return x_base->port_of(rank, port);
  }

 private:
  /// What a product that others fill up takes, as `base` says, of what was measured of it alone.
  Result<double> share_of_alone(const Work& work, const Cost& cost) const {
    const auto* gemm = std::get_if<Gemm>(&work);
    if (gemm == nullptr || gemm->beside == 1) return 1.0;
    FT_ASSIGN(const Cost one, x_base->price(Work{alone(*gemm)}, {}));
    return one.duration.ps > 0 ? cost.duration.seconds() / one.duration.seconds() : 1.0;
  }

  /// What shares a device shares it as `base` says.
  Result<Cost> on_device(const Work& work, std::span<const PlacementId> placements,
                         const MeasuredPrice& price) const {
    FT_ASSIGN(Cost cost, x_base->price(work, placements));
    FT_ASSIGN(const double share, share_of_alone(work, cost));
    const Time measured = Time::from_seconds((price.seconds + x_dispatch) * share);
    if (cost.duration.ps > 0) {
      const double scale = measured.seconds() / cost.duration.seconds();
      for (Time* part : {&cost.latency, &cost.tile, &cost.compute, &cost.memory}) {
        *part = Time::from_seconds(part->seconds() * scale);
      }
      for (std::int32_t& port : cost.port_share) {
        port = static_cast<std::int32_t>(std::min(port / scale, double{kWhole}));
      }
    }
    cost.duration = measured;
    if (x_launch.ps > 0) cost.launch = x_launch;
    cost.provenance = price.provenance;
    cost.deviation = static_cast<float>(price.deviation);
    return with_slowdowns(cost, work);
  }

  /// Those of the work's family.
  Cost with_slowdowns(Cost cost, const Work& work) const {
    if (!yields(work)) return cost;
    std::size_t at = 0;
    for (const ProfileTable::Beside& one : x_table.beside(work)) {
      constexpr double kMost = 1e4;
      const long long factor = std::llround(std::min(one.slowdown, kMost) * kWhole);
      cost.slowdowns[at++] = {one.sms, static_cast<std::int32_t>(factor)};
    }
    return cost;
  }

  void explain_beside(const Work& work, std::ostream& steps) const {
    const auto& measured = x_table.beside(work);
    if (measured.empty()) {
      steps << "beside communication: as modelled, the profile has no sample beside held SMs\n";
      return;
    }
    steps << "beside communication, measured:";
    for (const ProfileTable::Beside& one : measured) {
      steps << (&one == &measured.front() ? " " : ", ") << one.slowdown << " times beside "
            << one.sms << " SMs (" << one.samples << (one.samples == 1 ? " sample)" : " samples)");
    }
    steps << "\n";
  }

  std::int64_t ranks_of(const Work& work, std::span<const PlacementId> placements) const {
    if (!std::holds_alternative<Collective>(work)) return x_ranks;
    FT_CHECK(placements.size() == 1 && placements[0].index() < x_sizes.size(),
             "a collective has one placement");
    return x_sizes[placements[0].index()];
  }

  std::unique_ptr<CostModel> x_base;
  ProfileTable x_table;
  std::int64_t x_ranks;
  double x_dispatch = 0, x_event = 0;
  bool x_on_device = false;
  Time x_launch;                      ///< of devices; 0: as `base` says
  std::vector<std::int64_t> x_sizes;  ///< by PlacementId
};

}  // namespace

std::unique_ptr<CostModel> make_measured_cost_model(std::unique_ptr<CostModel> base,
                                                    const Profile& profile,
                                                    std::int64_t ranks_at_once, bool graphs) {
  return std::make_unique<MeasuredCostModel>(std::move(base), profile, ranks_at_once, graphs);
}

}  // namespace foretrain
