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
  MeasuredCostModel(std::unique_ptr<CostModel> base, std::unique_ptr<CostModel> nominal,
                    const Profile& profile, const MeasuredPricesOptions& options)
      : x_base(std::move(base)),
        x_nominal(std::move(nominal)),
        x_table(profile, options.what, &model()),
        x_ranks(options.ranks_at_once),
        x_memory_gb_per_s(options.memory_gb_per_s),
        x_on_device(profile.of_device()) {
    if (options.what != PricesFor::kExecution) return;
    x_dispatch = x_table.overhead_seconds(kDispatchSample, x_ranks);
    x_event = x_table.overhead_seconds(kEventSample, x_ranks);
    const auto launch_of = [this](const char* op) {
      return Time::from_seconds(x_table.overhead_seconds(op, x_ranks));
    };
    x_launch = launch_of(kLaunchSample);
    if (!options.graphs || !x_on_device) return;
    x_launch = launch_of(kGraphLaunchSample);
    const double gap = x_table.overhead_seconds(kGraphDispatchSample, x_ranks);
    if (gap > 0) x_dispatch = gap;
  }

  int sm_count() const override { return x_base->sm_count(); }

  /// Whether the group lies as ranks 0, 1, ... do is found here: later models only price.
  Result<PlacementId> place(std::span<const RankId> ranks) override {
    FT_ASSIGN(const PlacementId id, x_base->place(ranks));
    if (x_placed.size() > id.index() && x_placed[id.index()].size > 0) return id;
    Placed placed{static_cast<std::int64_t>(ranks.size()), id, false};
    std::vector<RankId> first;
    for (std::size_t r = 0; r < ranks.size(); ++r) first.emplace_back(r);
    const Result<PlacementId> as_first = x_base->place(first);
    placed.as_first = as_first.ok() && as_first.value() == id;
    if (x_nominal != nullptr) {
      FT_ASSIGN(placed.nominal, x_nominal->place(ranks));
    }
    if (x_placed.size() <= id.index()) x_placed.resize(id.index() + 1);
    x_placed[id.index()] = placed;
    return id;
  }

  Result<Cost> price(const Work& work, std::span<const PlacementId> placements) const override {
    if (is_free(work)) {
      return x_base->price(work, placements);
    }
    const Result<Cost> modelled = x_base->price(work, placements);
    FT_ASSIGN(const Found found, find(work, placements, modelled));
    if (!found.known) {
      return modelled.ok() ? Result<Cost>(with_slowdowns(modelled.value(), work)) : modelled;
    }
    if (x_on_device) return on_device(work, modelled, found.price);
    return on_host(work, found.price);
  }

  std::string explain(const Work& work, std::span<const PlacementId> placements) const override {
    if (is_free(work)) {
      return x_base->explain(work, placements);
    }
    std::ostringstream steps;
    const Result<Cost> modelled = x_base->price(work, placements);
    const auto found = find(work, placements, modelled);
    if (!found.ok()) return found.error().message + "\n";
    if (found.value().known) {
      const MeasuredPrice& price = found.value().price;
      steps << "profile: " << price.seconds * 1e6 << " us, " << name_of(price.provenance) << ", "
            << price.from << "\n"
            << "dispatch " << x_dispatch * 1e6 << " us, event " << x_event * 1e6 << " us, launch ";
      if (x_launch.ps == 0) {
        steps << "as modelled\n";
      } else {
        steps << x_launch.us() << " us\n";
      }
    } else {
      steps << "profile: no sample for this; as modelled\n";
    }
    if (!found.value().known || found.value().price.provenance != Provenance::kMeasured) {
      steps << x_base->explain(work, placements);
    }
    if (x_on_device && yields(work)) explain_beside(work, steps);
    return steps.str();
  }

  std::int32_t port_of(RankId rank, Port port) const override {
    return x_base->port_of(rank, port);
  }

 private:
  struct Found {
    bool known = false;  ///< some sample tells
    MeasuredPrice price;
  };

  CostModel& model() const { return x_nominal == nullptr ? *x_base : *x_nominal; }

  struct Placed {
    std::int64_t size = 0;  ///< 0: not placed yet
    PlacementId nominal;    ///< that of `x_nominal`
    bool as_first = false;  ///< as ranks 0, 1, ...
  };

  const Placed& placed(PlacementId id) const {
    FT_CHECK(id.index() < x_placed.size(), "a placement of another model");
    return x_placed[id.index()];
  }

  /// Whether a collective's group, or the pairs of messages, lie as those of samples do.
  bool lies_as_measured(std::span<const PlacementId> placements) const {
    return !x_on_device || std::all_of(placements.begin(), placements.end(),
                                       [this](PlacementId id) { return placed(id).as_first; });
  }

  /// The price of the model without changed rates.
  Result<Cost> unchanged(const Work& work, std::span<const PlacementId> placements) const {
    std::vector<PlacementId> same;
    for (const PlacementId id : placements) same.push_back(placed(id).nominal);
    return x_nominal->price(work, same);
  }

  /// What the profile says, at the rates of `x_base`; `modelled`: by these.
  Result<Found> find(const Work& work, std::span<const PlacementId> placements,
                     const Result<Cost>& modelled) const {
    const std::int64_t ranks = ranks_of(work, placements);
    Found out;
    double faster = 1;  // for a change of rates
    Cost nominal = modelled.ok() ? modelled.value() : Cost{};
    if (x_nominal != nullptr && modelled.ok()) {
      const double changed = nominal.duration.seconds();
      FT_ASSIGN(nominal, unchanged(work, placements));
      if (nominal.duration.ps > 0) faster = changed / nominal.duration.seconds();
    }
    if (sample_key(work, ranks).op.empty() || !lies_as_measured(placements)) return out;
    const auto own = x_table.own(work, ranks);
    if (own) {
      FT_ASSIGN(const double share, share_of_alone(work, modelled));
      out = {true, *own};
      out.price.seconds *= share;
      if (share != 1) out.price.provenance = Provenance::kInterpolated;
    } else if (!modelled.ok()) {
      return out;
    } else {
      out.price = x_table.corrected(work, ranks, nominal);
      out.known = out.price.explained > 0;
    }
    out.price.seconds *= faster;
    return out;
  }

  /// What a product that others fill up takes, as `base` says, of what was measured of it alone.
  Result<double> share_of_alone(const Work& work, const Result<Cost>& cost) const {
    const auto* gemm = std::get_if<Gemm>(&work);
    if (gemm == nullptr || gemm->beside == 1 || !cost.ok()) return 1.0;
    FT_ASSIGN(const Cost one, x_base->price(Work{alone(*gemm)}, {}));
    return one.duration.ps > 0 ? cost.value().duration.seconds() / one.duration.seconds() : 1.0;
  }

  Cost on_host(const Work& work, const MeasuredPrice& price) const {
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

  /// What shares a device shares it as `base` says; a work that `base` refuses shares nothing.
  Cost on_device(const Work& work, const Result<Cost>& modelled, const MeasuredPrice& price) const {
    Cost cost = modelled.ok() ? modelled.value() : Cost{};
    const Time measured = Time::from_seconds(price.seconds + x_dispatch);
    if (cost.duration.ps > 0) {
      const double scale = measured.seconds() / cost.duration.seconds();
      for (Time* part : {&cost.latency, &cost.tile, &cost.compute, &cost.memory}) {
        *part = Time::from_seconds(part->seconds() * scale);
      }
      for (std::int32_t& port : cost.port_share) {
        port = static_cast<std::int32_t>(std::min(port / scale, double{kWhole}));
      }
    } else if (yields(work)) {
      cost.compute = measured;
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
      const auto share_of = [](double share) {
        constexpr double kMost = 1e4;
        return static_cast<std::int32_t>(std::llround(std::min(share, kMost) * kWhole));
      };
      const double copied = x_memory_gb_per_s > 0 ? one.gb_per_s / x_memory_gb_per_s : 0;
      cost.slowdowns[at++] = {one.sms, share_of(one.slowdown), share_of(one.spin),
                              share_of(std::min(copied, 1.0))};
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
            << one.sms << " SMs (" << one.samples << (one.samples == 1 ? " sample" : " samples");
      if (one.spin > 0) steps << ", " << one.spin << " times where they copy nothing";
      if (one.gb_per_s > 0) steps << ", copying " << one.gb_per_s << " GB/s";
      steps << ")";
    }
    steps << "\n";
  }

  std::int64_t ranks_of(const Work& work, std::span<const PlacementId> placements) const {
    if (!std::holds_alternative<Collective>(work)) return x_ranks;
    FT_CHECK(placements.size() == 1, "a collective has one placement");
    return placed(placements[0]).size;
  }

  std::unique_ptr<CostModel> x_base, x_nominal;
  ProfileTable x_table;
  std::int64_t x_ranks;
  double x_memory_gb_per_s;
  double x_dispatch = 0, x_event = 0;
  bool x_on_device = false;
  Time x_launch;                 ///< of devices; 0: as `base` says
  std::vector<Placed> x_placed;  ///< by PlacementId
};

}  // namespace

std::unique_ptr<CostModel> make_measured_cost_model(std::unique_ptr<CostModel> base,
                                                    const Profile& profile,
                                                    const MeasuredPricesOptions& options,
                                                    std::unique_ptr<CostModel> nominal) {
  return std::make_unique<MeasuredCostModel>(std::move(base), std::move(nominal), profile, options);
}

}  // namespace foretrain
