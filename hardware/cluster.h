// A cluster: equal nodes of equal accelerators on a network, or pools of such nodes.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "hardware/device.h"
#include "hardware/link_mesh.h"
#include "hardware/topology.h"
#include "sim/base/json.h"
#include "sim/base/result.h"
#include "sim/program/program.h"

namespace foretrain {

/// How the accelerators of a node reach each other.
enum class ScaleUp : std::uint8_t {
  kSwitch,    ///< NVSwitch, Unified Bus: every pair at full rate
  kMesh,      ///< unequal numbers of links a pair: hybrid cube mesh of V100
  kPcie,      ///< PCIe switches and sockets
  kFullMesh,  ///< one link for each pair: Infinity Fabric of MI300X, HCCS
  kTorus,     ///< links to the neighbours on 1 to 3 axes: ICI of TPUs
};
enum class Cpu : std::uint8_t { kIntel, kAmd, kArm };
enum class Fabric : std::uint8_t { kInfiniBand, kRoce, kEfa, kEthernet };
std::string_view name_of(ScaleUp scale_up);
std::string_view name_of(Cpu cpu);
std::string_view name_of(Fabric fabric);

/// Neighbouring accelerators whose links are faster than those of their node.
struct Package {
  std::int32_t accelerators = 1;
  double gb_per_s = 0;  ///< between two of them; 0 where they have no links of their own
  bool operator==(const Package&) const = default;
};

/// Rank r is on node r / accelerators_per_node with local index r % accelerators_per_node.
/// NICs are shared evenly: with fewer NICs than accelerators, neighbours share one; with more, each
/// accelerator drives several. Rates are decimal, one direction.
/// A scale-up domain is a node, or for a torus a slice of many nodes (hosts); it may hold packages
/// of neighbouring accelerators whose own links are faster (two levels of scale-up).
/// A cluster of pools has nodes of several kinds: ranks of the first pool come first. Its own
/// fields are then those of the first pool, but for the number of accelerators
/// (hardware/pools/pools.h). Left out: on a rail network messages between rails are relayed over
/// the scale-up switch (PXN) where there is one, else they cross the leaves.
struct Cluster {
  std::string name;
  DeviceSpec device;
  std::int32_t accelerators = 0;
  std::int32_t accelerators_per_node = 0;
  std::int32_t accelerators_per_tray = 0;  ///< of a rack that jobs get tray by tray; 0: whole nodes
  ScaleUp scale_up = ScaleUp::kSwitch;
  LinkMatrix mesh_links;  ///< of a mesh; else empty
  Cpu cpu = Cpu::kIntel;
  std::int32_t nics_per_node = 0;
  double nic_gbit_per_s = 0;
  Fabric fabric = Fabric::kInfiniBand;
  Topology topology;
  double network_latency_us = 2.8;  ///< one way, below one leaf
  Package package;
  std::int32_t accelerators_per_pcie_switch = 1;  ///< that share one uplink to host and peers
  bool sharp = false;     ///< switches may reduce (SHARP), where the fabric has that
  double host_speed = 1;  ///< of one thread, relative to an EPYC 7003: scales launches
  double host_memory_gb_per_s = 200;
  double host_memory_gib = 0;         ///< of a node; 0: not known
  double storage_gb_per_s = 6;        ///< for each accelerator: reads, and writes where
  double storage_write_gb_per_s = 0;  ///< these have no rate of their own: 0
  double storage_tb = 0;              ///< of a node; 0: not known
  /// Among accelerators: standard deviation of tensor-core rates, of the mean; without it what is
  /// known of their architecture (`KernelConstants`).
  std::optional<double> rate_spread;
  std::vector<Cluster> pools;  ///< two or more kinds of nodes; else empty
  bool operator==(const Cluster&) const = default;

  std::int32_t nodes() const {
    return (accelerators + accelerators_per_node - 1) / accelerators_per_node;
  }
  std::int32_t node_of(RankId rank) const { return rank.value / accelerators_per_node; }
  std::int32_t local_of(RankId rank) const { return rank.value % accelerators_per_node; }
  /// Accelerators of a scale-up domain, and which one a rank belongs to.
  std::int32_t domain_size() const {
    const std::int32_t slice = topology.slice_size();
    return slice > 0 ? slice : accelerators_per_node;
  }
  std::int32_t domain_of(RankId rank) const { return rank.value / domain_size(); }
  /// Of the device with most.
  double most_memory_gib() const;
  /// Of the devices together, in watts; 0 where that of one is not known.
  double power_w() const;
  /// Peak of the mean device.
  double mean_tflops(DType type) const;
  bool uses_network() const { return accelerators > domain_size(); }
  bool switches_reduce() const { return sharp && fabric == Fabric::kInfiniBand; }

  /// NIC ports as ranks see them: several NICs driven by one accelerator count as one port.
  std::int32_t nic_ports_per_node() const;
  std::int32_t nic_port_of_local(std::int32_t local) const;
  double nic_gb_per_s() const { return nic_gbit_per_s / 8; }
  double nic_port_gb_per_s() const;
  double storage_writes() const {  ///< GB/s
    return storage_write_gb_per_s > 0 ? storage_write_gb_per_s : storage_gb_per_s;
  }
  double node_network_gb_per_s() const { return nics_per_node * nic_gb_per_s(); }
};

/// Reads the `cluster` of a RUN: a preset's name or path, {"preset": ..., overrides}, or an object
/// with every field. Unknown keys, wrong types and numbers out of range are errors.
Result<Cluster> read_cluster(const Json& json, const std::string& source,
                             const std::string& pointer);

/// "h100-sxm-80gb"; of pools "h100-sxm-80gb (8) and a100-sxm-80gb (16)".
std::string device_names(const Cluster& cluster);

/// Every resolved field and the derived figures, for `show`.
Json to_json(const Cluster& cluster);

std::vector<std::string> cluster_preset_names();
std::vector<std::string> device_preset_names();

/// Where each field of a shipped cluster comes from, by JSON pointer ("/network/fabric",
/// "/device/sm_count").
std::map<std::string, std::string> cluster_sources(const std::string& preset);
std::map<std::string, std::string> device_sources(const std::string& preset);

}  // namespace foretrain
