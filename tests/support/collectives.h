// Groups of ranks, and prices of collectives among them, for tests.
#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "hardware/collective_cost.h"

namespace foretrain {

inline const std::vector<CollectiveKind>& all_collectives() {
  static const std::vector<CollectiveKind> all = {
      CollectiveKind::kAllReduce, CollectiveKind::kAllGather, CollectiveKind::kReduceScatter,
      CollectiveKind::kBroadcast, CollectiveKind::kReduce,    CollectiveKind::kAllToAll};
  return all;
}

inline const char* text_of(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return "all-reduce";
    case CollectiveKind::kAllGather:
      return "all-gather";
    case CollectiveKind::kReduceScatter:
      return "reduce-scatter";
    case CollectiveKind::kBroadcast:
      return "broadcast";
    case CollectiveKind::kReduce:
      return "reduce";
    case CollectiveKind::kAllToAll:
      return "all-to-all";
  }
  return "";
}

inline Collective collective_of(CollectiveKind kind, Bytes bytes) {
  Collective work;
  work.kind = kind;
  work.dtype = DType::kUint8;
  work.count = bytes;
  return work;
}

/// Of a preset, so many nodes; of a torus, so many slices of 4 hosts.
inline Cluster nodes_of(const std::string& preset, std::int32_t nodes) {
  Cluster one = read_cluster(Json(preset), "test", "").value();
  const std::int32_t node = one.accelerators_per_node;
  if (one.scale_up != ScaleUp::kTorus) {
    one.accelerators = nodes * node;
    return one;
  }
  const std::string dims =
      std::to_string(node) + ", 4" + (one.topology.pod.size() > 2 ? ", 1" : "");
  const std::string text = R"({"preset": ")" + preset + R"(", "accelerators": )" +
                           std::to_string(4 * node * nodes) +
                           R"(, "network": {"topology": {"dims": [)" + dims + "]}}}";
  return read_cluster(parse_json(text, "test").value(), "test", "").value();
}

/// So many members on each scale-up domain, the first of each.
inline std::vector<RankId> members_of(const Cluster& cluster,
                                      const std::vector<std::int32_t>& each) {
  std::vector<RankId> ranks;
  for (std::size_t domain = 0; domain < each.size(); ++domain) {
    const std::int32_t first = static_cast<std::int32_t>(domain) * cluster.domain_size();
    for (std::int32_t i = 0; i < each[domain]; ++i) ranks.emplace_back(first + i);
  }
  return ranks;
}

inline std::vector<RankId> strided(std::int32_t count, std::int32_t stride) {
  std::vector<RankId> ranks;
  for (std::int32_t i = 0; i < count; ++i) ranks.emplace_back(i * stride);
  return ranks;
}

inline Cost price_among(const Cluster& cluster, const std::vector<RankId>& ranks,
                        CollectiveKind kind, Bytes bytes) {
  const Placement at = placement_of(cluster, ranks).value();
  return collective_cost(cluster, {}, at, collective_of(kind, bytes), nullptr).value();
}

}  // namespace foretrain
