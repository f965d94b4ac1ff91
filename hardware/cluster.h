// A cluster: equal nodes of equal accelerators on a leaf-and-spine network.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hardware/device.h"
#include "sim/base/json.h"
#include "sim/base/result.h"
#include "sim/program/program.h"

namespace foretrain {

/// How the accelerators of a node reach each other.
enum class ScaleUp : std::uint8_t {
  kSwitch,  ///< NVSwitch: every pair at full rate
  kMesh,    ///< hybrid cube mesh of V100: the rate depends on how many take part
  kPcie,    ///< PCIe switches and sockets
};
enum class Cpu : std::uint8_t { kIntel, kAmd, kArm };
enum class Fabric : std::uint8_t { kInfiniBand, kRoce, kEfa, kEthernet };
std::string_view name_of(ScaleUp scale_up);
std::string_view name_of(Cpu cpu);
std::string_view name_of(Fabric fabric);

/// Rank r is on node r / accelerators_per_node with local index r % accelerators_per_node.
/// NICs are shared evenly: with fewer NICs than accelerators, neighbours share one; with more, each
/// accelerator drives several. Rates are decimal, one direction.
/// Left out: unequal nodes, more than two switch levels, rail-only fabrics (PXN is assumed).
struct Cluster {
  std::string name;
  DeviceSpec device;
  std::int32_t accelerators = 0;
  std::int32_t accelerators_per_node = 0;
  ScaleUp scale_up = ScaleUp::kSwitch;
  Cpu cpu = Cpu::kIntel;
  std::int32_t nics_per_node = 0;
  double nic_gbit_per_s = 0;
  Fabric fabric = Fabric::kInfiniBand;
  std::int32_t nodes_per_leaf = 32;
  double oversubscription = 1;      ///< of a leaf's uplinks: downlink rate / uplink rate
  double network_latency_us = 2.8;  ///< one way
  bool sharp = false;               ///< switches reduce (SHARP), and the job may use it
  double host_memory_gb_per_s = 200;
  double storage_gb_per_s = 6;  ///< for each accelerator
  bool operator==(const Cluster&) const = default;

  std::int32_t nodes() const {
    return (accelerators + accelerators_per_node - 1) / accelerators_per_node;
  }
  std::int32_t node_of(RankId rank) const { return rank.value / accelerators_per_node; }
  std::int32_t local_of(RankId rank) const { return rank.value % accelerators_per_node; }
  std::int32_t leaf_of_node(std::int32_t node) const { return node / nodes_per_leaf; }

  /// NIC ports as ranks see them: several NICs driven by one accelerator count as one port.
  std::int32_t nic_ports_per_node() const;
  std::int32_t nic_port_of_local(std::int32_t local) const;
  double nic_gb_per_s() const { return nic_gbit_per_s / 8; }
  double nic_port_gb_per_s() const;
  double node_network_gb_per_s() const { return nics_per_node * nic_gb_per_s(); }
};

/// Reads the `cluster` of a RUN: a preset's name or path, {"preset": ..., overrides}, or an object
/// with every field. Unknown keys, wrong types and numbers out of range are errors.
Result<Cluster> read_cluster(const Json& json, const std::string& source,
                             const std::string& pointer);

/// Every resolved field and the derived figures, for `show`.
Json to_json(const Cluster& cluster);

std::vector<std::string> cluster_preset_names();
std::vector<std::string> device_preset_names();

}  // namespace foretrain
