// What lies between nodes: levels of switches, or the torus that the accelerators themselves form.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/json.h"
#include "sim/base/result.h"

namespace foretrain {

enum class TopologyKind : std::uint8_t {
  kFatTree,      ///< all NICs of a node on one leaf
  kRailFatTree,  ///< NIC i of every node of a rail group on leaf i
  kDragonfly,    ///< groups that are full inside and joined all to all by tapered global links
  kTorus,        ///< accelerators joined to their neighbours; slices joined by NICs
};
std::string_view name_of(TopologyKind kind);

inline constexpr std::size_t kMaxLevels = 3;
inline constexpr std::size_t kMaxAxes = 3;

/// A switch level: `nodes` neighbouring nodes below one domain of it.
struct NetworkLevel {
  std::int32_t nodes = 32;
  double oversubscription = 1;  ///< rate into the domain's switches from below / rate out of them
  double latency_us = 0;        ///< one way, added by leaving the domain
  bool operator==(const NetworkLevel&) const = default;
};

/// Traffic of a group of which a share f of the hops leaves domains of level l is slowed by
///     max over l of max(1, f_l * R_l / utilisation),   R_l = product of oversubscription, 0 to l
/// since what leaves level l has passed every level below; for all-to-all f counts pairs of members
/// on different nodes instead of hops in member order. Other groups are assumed to lie alike.
/// A dragonfly is one level: its group, with oversubscription 1 / taper.
/// Left out: single switches and ports, adaptive detours (a dragonfly's take two global links),
/// transients, unequal domains; the network between the slices of a torus is non-blocking.
struct Topology {
  TopologyKind kind = TopologyKind::kRailFatTree;
  std::vector<NetworkLevel> levels =
      std::vector<NetworkLevel>(1);  ///< innermost first; empty for a torus
  double utilisation = 1;  ///< of a level's links that load balancing reaches: ECMP 0.5 to 0.8

  // A torus. `dims` and `wrap` describe a slice; where the file is silent `resolve_torus` fills
  // them in.
  std::vector<std::int32_t> pod;   ///< the largest slice
  std::int32_t cube = 0;           ///< optically switched: slices of whole cubes wrap on every axis
  std::vector<std::int32_t> dims;  ///< of a slice; the last axis is the fastest in rank order
  std::vector<bool> wrap;          ///< whether the axis closes to a ring
  double hop_latency_us = 1;
  bool operator==(const Topology&) const = default;

  /// Accelerators of a slice; 0 before `resolve_torus` and for other kinds.
  std::int32_t slice_size() const;
  /// Of level `level` and all below it, over the utilisation.
  double oversubscription_through(std::size_t level) const;
};

/// Reads `network/topology`: a fabric preset's name or path, or an object (`preset` and overrides,
/// or `kind` and its keys). `latency_us` is set where the fabric names one.
Status read_topology(const Json& json, const std::string& source, const std::string& pointer,
                     Topology& topology, double& latency_us);

/// Chooses the slice of a torus for so many accelerators: `dims` as given, else the most cubic
/// shape that fits in the pod (whole cubes where it can), else whole pods. An axis wraps where it
/// spans the pod, or where every axis is whole cubes.
Status resolve_torus(const std::string& source, const std::string& pointer,
                     std::int32_t accelerators, Topology& topology);

Json to_json(const Topology& topology);

std::vector<std::string> fabric_preset_names();
/// Where each field of a shipped fabric comes from, by JSON pointer.
std::map<std::string, std::string> fabric_sources(const std::string& preset);

}  // namespace foretrain
