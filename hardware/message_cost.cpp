// Prices of point-to-point messages; the equation stands in hardware/collective_cost.h.
#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <utility>

#include "hardware/collective_cost.h"
#include "hardware/direct_messages.h"
#include "hardware/local_cost.h"
#include "hardware/nccl_constants.h"

namespace foretrain {
namespace {

constexpr Bytes kMostBytes = Bytes{1} << 56;

/// What the channels of a batch depend on. NCCL's rounds pair the send to rank + i with the receive
/// from rank - i on the same channels, so that a batch needs those of its sends or of its receives,
/// whichever are more.
struct Transfers {
  std::int32_t sends = 0, receives = 0;
  Bytes largest = 0;
  const Placement* widest = nullptr;  ///< decides whether the batch is one across nodes

  void add(const Placement& at, const Message& message) {
    ++(message.send ? sends : receives);
    largest = std::max(largest, message.bytes);
    if (widest == nullptr || at.nodes > widest->nodes) widest = &at;
  }

  /// The communicator is not known: across nodes that of the pair, within a node one of the whole
  /// node, as of a pipeline with a stage on every device.
  std::int32_t channels(const Cluster& cluster) const {
    if (widest == nullptr) return 0;  // copy engines move them all
    const std::int32_t node = cluster.accelerators_per_node;
    const NcclGroup group =
        widest->nodes > 1 ? nccl_group_of(cluster, *widest) : nccl_group(cluster, node, 1, node, 0);
    return nccl_p2p_channels(group, std::max(sends, receives), largest);
  }
};

Status check(std::span<const Placement> placements, const P2PBatch& work) {
  if (placements.size() != work.messages.size()) {
    return input_error("a batch of messages needs the placement of each");
  }
  for (const Message& message : work.messages) {
    if (message.bytes < 0 || message.bytes > kMostBytes) {
      return input_error("a message of " + std::to_string(message.bytes) + " bytes");
    }
  }
  return ok_status();
}

/// What a port reaches of its line rate.
double share_inside(const Cluster& cluster) {
  const NcclConstants& c = nccl_constants();
  return cluster.scale_up == ScaleUp::kPcie
             ? c.message_pcie
             : c.message_scale_up.at(nccl_row(cluster.device.architecture));
}

/// GB/s of a pair of a mesh, by the links of its way (hardware/link_mesh.h).
double mesh_pair(const Cluster& cluster, const LinkRates& rates, const Placement& at) {
  const NcclConstants& c = nccl_constants();
  if (at.mesh.pair_links == 0) return c.message_pcie * c.mesh_host * rates.scale_up;
  const double link = scale_up_rate(cluster, rates) / std::max(1, cluster.device.scale_up_links);
  return share_inside(cluster) * at.mesh.pair_links * link;
}

}  // namespace

Result<Cost> messages_cost(const Cluster& cluster, const LinkRates& rates,
                           std::span<const Placement> placements, const P2PBatch& work,
                           std::ostream* steps) {
  FT_TRY(check(placements, work));
  if (!is_nvidia(cluster.device.architecture)) {
    return direct_messages_cost(cluster, rates, placements, work, steps);
  }
  const NcclConstants& c = nccl_constants();
  const DeviceSpec& device = cluster.device;
  const double inside_rate = scale_up_rate(cluster, rates);
  const double inside_share = share_inside(cluster);
  const double nic = cluster.nic_port_gb_per_s() * rates.network;

  std::array<double, kPortCount> port_bytes{};
  std::array<double, kPortCount> port_seconds{};
  std::array<double, 2> lanes{};  // of the link to the host, out and in
  std::map<std::pair<std::int32_t, bool>, double> pair_seconds;  // of a mesh, by channel
  double start = 0, moved = 0, busiest_pair = 0;
  const bool behind_switches =
      cluster.scale_up == ScaleUp::kPcie && cluster.accelerators_per_pcie_switch > 1;
  Transfers transfers;
  for (std::size_t i = 0; i < work.messages.size(); ++i) {
    const Message& message = work.messages[i];
    const bool across = placements[i].nodes > 1;
    const Port port = across ? (message.send ? Port::kNicOut : Port::kNicIn)
                             : (message.send ? Port::kScaleUpOut : Port::kScaleUpIn);
    const auto index = static_cast<std::size_t>(port);
    if (!message.copied || across) transfers.add(placements[i], message);
    const double rate =
        across ? c.message_network * nic / network_slowdown(cluster.topology, placements[i])
               : inside_share * inside_rate;
    if (across || !behind_switches || placements[i].across_switches) {
      port_bytes.at(index) += static_cast<double>(message.bytes);
    }
    moved += static_cast<double>(message.bytes);
    if (across || cluster.scale_up == ScaleUp::kPcie) {
      lanes.at(message.send ? 0 : 1) += static_cast<double>(message.bytes);
    }
    port_seconds.at(index) += static_cast<double>(message.bytes) / (rate * 1e9);
    if (!across && cluster.scale_up == ScaleUp::kMesh) {
      double& pair = pair_seconds[{message.channel.value, message.send}];
      const double pair_rate = mesh_pair(cluster, rates, placements[i]);
      pair += static_cast<double>(message.bytes) / (pair_rate * 1e9);
      busiest_pair = std::max(busiest_pair, pair);
    }
    start =
        std::max(start, across ? c.message_network_us + network_latency_us(cluster, placements[i])
                               : c.message_scale_up_us);
  }
  if (work.messages.empty()) return Cost{};
  const double busiest =
      std::max(busiest_pair, *std::max_element(port_seconds.begin(), port_seconds.end()));
  Cost cost;
  cost.latency = Time::from_us(start);
  cost.duration = cost.latency + bounded(busiest);
  const double seconds = cost.duration.seconds();
  for (std::size_t i = 0; i < port_bytes.size(); ++i) {
    const bool network = i >= static_cast<std::size_t>(Port::kNicOut);
    cost.port_share.at(i) = share_of(port_bytes.at(i), network ? nic : inside_rate, seconds, 1);
  }
  add_host_link(cluster, lanes[0], lanes[1], cost);
  cost.memory_share = static_cast<std::int32_t>(
      std::min(0.5, moved / seconds / (device.memory_gb_per_s * 1e9)) * kWhole);
  cost.sms_held = transfers.channels(cluster);
  cost.deviation = static_cast<float>(c.message_deviation);
  if (steps != nullptr) {
    *steps << work.messages.size() << " messages: start " << start << " us, busiest port "
           << busiest * 1e6 << " us; SMs held " << cost.sms_held << "\n";
  }
  return cost;
}

}  // namespace foretrain
