#include "hardware/hardware_cost_model.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <sstream>
#include <unordered_map>
#include <utility>

#include "hardware/collective_cost.h"
#include "hardware/kernel_constants.h"
#include "hardware/link_traffic.h"
#include "hardware/local_cost.h"

namespace foretrain {
namespace {

bool on_tensor_cores(const Work& work) {
  return std::holds_alternative<Gemm>(work) || std::holds_alternative<Attention>(work) ||
         std::holds_alternative<Convolution>(work) || std::holds_alternative<Scan>(work);
}

class HardwareCostModel final : public CostModel {
 public:
  HardwareCostModel(Cluster cluster, const PriceOptions& options)
      : x_cluster(std::move(cluster)), x_options(options) {
    DeviceSpec& device = x_cluster.device;
    for (double* peak :
         {&device.fp32_tflops, &device.tf32_tflops, &device.fp16_tflops, &device.bf16_tflops,
          &device.fp8_tflops, &device.fp4_tflops, &device.int8_tops}) {
      *peak *= options.compute_rate;
    }
    device.memory_gb_per_s *= options.memory_rate;
  }

  int sm_count() const override { return x_cluster.device.sm_count; }

  Result<PlacementId> place(std::span<const RankId> ranks) override {
    const std::optional<std::uint64_t> pair = pair_key(ranks);
    const auto known = pair ? x_pairs.find(*pair) : x_pairs.end();
    if (known != x_pairs.end()) return known->second;
    FT_ASSIGN(Placement placement, placement_of(x_cluster, ranks));
    if (x_options.far_messages && ranks.size() == 2) send_far(x_cluster, placement);
    const auto [found, fresh] = x_ids.try_emplace(placement, PlacementId(x_placements.size()));
    if (fresh) x_placements.push_back(placement);
    if (pair) x_pairs.emplace(*pair, found->second);
    return found->second;
  }

  Result<Cost> price(const Work& work, std::span<const PlacementId> placements) const override {
    return price_with(work, placements, nullptr);
  }

  std::string explain(const Work& work, std::span<const PlacementId> placements) const override {
    std::ostringstream steps;
    steps << text_of_kind(work) << " on " << x_cluster.device.name << "\n";
    const Result<Cost> cost = price_with(work, placements, &steps);
    if (!cost.ok()) return steps.str() + cost.error().message + "\n";
    steps << "duration " << cost.value().duration.us() << " us, " << cost.value().latency.us()
          << " of it latency, launch " << cost.value().launch.us() << " us, "
          << name_of(cost.value().provenance) << ", deviation " << 100 * cost.value().deviation
          << " %\n";
    return steps.str();
  }

  std::int32_t port_of(RankId rank, Port port) const override {
    if (port == Port::kHostOut || port == Port::kHostIn) return rank.value;
    if (port == Port::kScaleUpOut || port == Port::kScaleUpIn) {
      if (x_cluster.scale_up != ScaleUp::kPcie) return rank.value;
      const std::int32_t behind = x_cluster.accelerators_per_pcie_switch;
      const std::int32_t switches = (x_cluster.accelerators_per_node + behind - 1) / behind;
      return x_cluster.node_of(rank) * switches + x_cluster.local_of(rank) / behind;
    }
    return x_cluster.node_of(rank) * x_cluster.nic_ports_per_node() +
           x_cluster.nic_port_of_local(x_cluster.local_of(rank));
  }

 private:
  /// All that the placement of two ranks depends on where nodes are switched: their places within
  /// their nodes, and which levels of the network lie between them.
  std::optional<std::uint64_t> pair_key(std::span<const RankId> ranks) const {
    if (ranks.size() != 2 || x_cluster.topology.slice_size() > 0) return std::nullopt;
    const auto [first, second] = std::minmax(ranks[0], ranks[1]);
    if (first.value < 0 || first == second || second.value >= x_cluster.accelerators) {
      return std::nullopt;
    }
    const std::int32_t a = x_cluster.node_of(ranks[0]);
    const std::int32_t b = x_cluster.node_of(ranks[1]);
    std::uint64_t key = a == b ? 0 : 1;
    for (const auto& level : x_cluster.topology.levels) {
      key = 2 * key + (a / level.nodes == b / level.nodes ? 0 : 1);
    }
    const auto node = static_cast<std::uint64_t>(x_cluster.accelerators_per_node);
    key = key * node + static_cast<std::uint64_t>(x_cluster.local_of(ranks[0]));
    return key * node + static_cast<std::uint64_t>(x_cluster.local_of(ranks[1]));
  }

  static std::string_view text_of_kind(const Work& work) {
    constexpr std::array<std::string_view, 12> kNames = {
        "gemm",      "attention",  "kernel", "collective", "messages",    "copy",
        "host sync", "host delay", "pause",  "opaque",     "convolution", "scan"};
    static_assert(std::variant_size_v<Work> == kNames.size());
    return kNames.at(work.index());
  }

  /// Of a copy, by bytes over duration and line rate: the accelerator's lanes to the host, and with
  /// peers on PCIe the uplink that those behind one switch share.
  void add_lanes(const Copy& copy, Cost& cost) const {
    const bool out = copy.from == Memory::kDevice;
    if (out == (copy.to == Memory::kDevice)) return;  // on the device, or not there
    const auto bytes = static_cast<double>(copy.bytes);
    add_host_link(x_cluster, out ? bytes : 0, out ? 0 : bytes, cost);
    if (x_cluster.scale_up != ScaleUp::kPcie) return;
    cost.port_share.at(static_cast<std::size_t>(out ? Port::kScaleUpOut : Port::kScaleUpIn)) =
        cost.port_share.at(static_cast<std::size_t>(out ? Port::kHostOut : Port::kHostIn));
  }

  Result<Placement> placement(PlacementId id) const {
    FT_CHECK(id.valid() && id.index() < x_placements.size(), "a placement of another cost model");
    return x_placements[id.index()];
  }

  Result<Cost> price_messages(const P2PBatch& work, std::span<const PlacementId> placements,
                              std::ostream* steps) const {
    std::vector<Placement> each;
    each.reserve(placements.size());
    for (const PlacementId id : placements) {
      FT_ASSIGN(const Placement one, placement(id));
      each.push_back(one);
    }
    return messages_cost(x_cluster, link_rates(), each, work, steps);
  }

  Result<Cost> price_device(const Work& work, std::span<const PlacementId> placements,
                            std::ostream* steps) const {
    const DeviceSpec& device = x_cluster.device;
    if (const auto* gemm = std::get_if<Gemm>(&work)) return gemm_cost(device, *gemm, steps);
    if (const auto* c = std::get_if<Convolution>(&work)) return convolution_cost(device, *c, steps);
    if (const auto* a = std::get_if<Attention>(&work)) return attention_cost(device, *a, steps);
    if (const auto* scan = std::get_if<Scan>(&work)) return scan_cost(device, *scan, steps);
    if (const auto* kernel = std::get_if<Kernel>(&work)) return kernel_cost(device, *kernel, steps);
    if (const auto* opaque = std::get_if<Opaque>(&work)) {
      if (opaque->where == Memory::kDevice) return opaque_cost(device, *opaque, steps);
      return host_work_cost(x_cluster, x_options.host_rate, *opaque, steps);
    }
    if (const auto* copy = std::get_if<Copy>(&work)) {
      return copy_cost(x_cluster, x_options.host_rate, *copy, steps);
    }
    if (const auto* batch = std::get_if<P2PBatch>(&work)) {
      return price_messages(*batch, placements, steps);
    }
    const auto* collective = std::get_if<Collective>(&work);
    FT_CHECK(collective != nullptr, "a work of a kind that no pricer knows");
    FT_CHECK(placements.size() == 1, "a collective has one placement");
    FT_ASSIGN(const Placement at, placement(placements.front()));
    return collective_cost(x_cluster, link_rates(), at, *collective, steps);
  }

  Result<Cost> price_with(const Work& work, std::span<const PlacementId> placements,
                          std::ostream* steps) const {
    Cost cost;
    if (const auto* delay = std::get_if<HostDelay>(&work)) {
      cost.launch = cost.captured = delay->time;
      return cost;
    }
    if (std::holds_alternative<HostSync>(work)) return cost;
    if (const auto* pause = std::get_if<Pause>(&work)) {
      cost.duration = pause->time;
      return cost;
    }
    FT_ASSIGN(cost, price_device(work, placements, steps));
    if (const auto* copy = std::get_if<Copy>(&work)) add_lanes(*copy, cost);
    if (on_tensor_cores(work)) {
      const double loss = kernel_constants(x_cluster.device.architecture).clock_loss_beside;
      cost.clock_loss = static_cast<std::int32_t>(std::lround(loss * kWhole));
    }
    if (cost.duration.seconds() > kLongestSeconds) {
      return input_error(std::string(text_of_kind(work)) + " takes more than 11 days on " +
                         x_cluster.device.name + "; found a size or a rate out of proportion");
    }
    const double dispatch_s = x_options.dispatch_per_kernel.seconds() / x_cluster.host_speed;
    cost.launch = bounded(dispatch_s * operations_of(work, x_options.host_operations));
    cost.captured = bounded(x_options.captured_dispatch.seconds() * operations_of(work, {}));
    return cost;
  }

  LinkRates link_rates() const { return {x_options.scale_up_rate, x_options.network_rate}; }

  Cluster x_cluster;
  PriceOptions x_options;
  std::vector<Placement> x_placements;
  std::map<Placement, PlacementId> x_ids;
  std::unordered_map<std::uint64_t, PlacementId> x_pairs;  ///< by `pair_key`
};

}  // namespace

std::unique_ptr<CostModel> make_cost_model(const Cluster& cluster, const PriceOptions& options) {
  return std::make_unique<HardwareCostModel>(cluster, options);
}

}  // namespace foretrain
