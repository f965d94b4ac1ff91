#include "hardware/nccl_constants.h"

#include <algorithm>
#include <cmath>

#include "hardware/presets.h"

namespace foretrain {
namespace {

constexpr std::array<std::string_view, 4> kRows = {"volta", "ampere", "hopper", "blackwell"};

template <std::size_t N>
std::array<double, N> array_of(const Json& json) {
  const Json::Array* items = json.array();
  FT_CHECK(items != nullptr && items->size() == N, "nccl.json: an array has the wrong size");
  std::array<double, N> out{};
  for (std::size_t i = 0; i < N; ++i) out.at(i) = (*items)[i].number();
  return out;
}

std::array<NcclConstants::PerProtocol, kNcclAlgorithms> by_algorithm(const Json& json) {
  std::array<NcclConstants::PerProtocol, kNcclAlgorithms> out{};
  for (std::size_t i = 0; i < out.size(); ++i) {
    out.at(i) = array_of<3>(member(json, name_of(static_cast<NcclAlgorithm>(i))));
  }
  return out;
}

NcclCeiling ceiling(const Json& root, std::string_view key) {
  const Json::Array* rows = member(root, key).array();
  FT_CHECK(rows != nullptr && rows->size() == 4, "nccl.json: a table needs four rows");
  NcclCeiling out{};
  for (std::size_t i = 0; i < 4; ++i) out.at(i) = array_of<3>((*rows)[i]);
  return out;
}

NcclGraph graph_of(const Json& row, std::string_view key) {
  NcclGraph graph;
  if (row.find(key) == nullptr) return graph;
  const std::array<double, 4> v = array_of<4>(*row.find(key));
  graph.pattern = static_cast<std::int32_t>(v[0]);
  graph.channels = static_cast<std::int32_t>(v[1]);
  graph.intra = v[2];
  graph.inter = v[3];
  return graph;
}

std::vector<NcclGraphRow> graph_rows(const Json& json) {
  std::vector<NcclGraphRow> rows;
  for (const Json& item : *json.array()) {
    NcclGraphRow row;
    const std::string& architecture = *member(item, "architecture").string();
    for (const Architecture a : {Architecture::kVolta, Architecture::kAmpere, Architecture::kAda,
                                 Architecture::kHopper, Architecture::kBlackwell}) {
      if (name_of(a) == architecture) row.architecture = a;
    }
    const std::string& scale_up = *member(item, "scale_up").string();
    for (const ScaleUp s : {ScaleUp::kSwitch, ScaleUp::kMesh, ScaleUp::kPcie}) {
      if (name_of(s) == scale_up) row.scale_up = s;
    }
    row.scale_up_gb_per_s = number_at(item, "scale_up_gb_per_s");
    row.ranks_per_node = count_at(item, "ranks_per_node");
    row.many_nodes = *member(item, "nodes").string() == "many";
    if (row.many_nodes) {
      row.nics_per_node = count_at(item, "nics_per_node");
      row.nic_gb_per_s = number_at(item, "nic_gb_per_s");
    }
    row.ring = graph_of(item, "ring");
    row.tree = graph_of(item, "tree");
    row.nvls = graph_of(item, "nvls");
    row.channels = count_at(item, "channels");
    row.nvls_channels = count_at(item, "nvls_channels");
    row.equal_channels = std::get<bool>(member(item, "equal_channels").value);
    rows.push_back(row);
  }
  return rows;
}

std::array<TimeLaw, 4> laws_of(const Json& json) {
  std::array<TimeLaw, 4> laws{};
  for (std::size_t i = 0; i < laws.size(); ++i) {
    const Json& law = member(json, kRows.at(i));
    laws.at(i) = TimeLaw{number_at(law, "latency_factor"),  number_at(law, "power"),
                         number_at(law, "per_rank_us"),     number_at(law, "efficiency"),
                         number_at(law, "nvls_efficiency"), number_at(law, "nvls_power"),
                         number_at(law, "deviation")};
  }
  return laws;
}

NcclTuningRules tuning_of(const Json& json) {
  NcclTuningRules out;
  out.ring_ll = number_at(json, "ring_ll");
  out.ll128 = number_at(json, "ll128");
  out.tree = number_at(json, "tree");
  out.tree_ll_divisor = number_at(json, "tree_ll_divisor");
  out.tree_ll128_one_node = number_at(member(json, "tree_ll128"), "one_node");
  out.tree_ll128_many_nodes = number_at(member(json, "tree_ll128"), "many_nodes");
  out.plain_tree = number_at(json, "plain_tree");
  const Json& pat = member(json, "pat");
  out.pat = number_at(pat, "share");
  out.pat_depth_divisor = number_at(pat, "depth_divisor");
  out.pat_rank_us = number_at(pat, "rank_us");
  out.nvls_gather_ranks = count_at(json, "nvls_gather_ranks");
  const Json& collnet = member(json, "collnet");
  out.collnet_ranks = count_at(collnet, "ranks");
  out.collnet_newer = number_at(collnet, "newer");
  out.collnet_gather = number_at(collnet, "gather");
  out.collnet_rank_us = number_at(collnet, "rank_us");
  return out;
}

std::array<std::vector<double>, 4> speeds_of(const Json& json) {
  const std::vector<double> older = numbers_at(json, "older");
  return {older, older, numbers_at(json, "hopper"), numbers_at(json, "blackwell")};
}

NcclSearch search_of(const Json& json) {
  NcclSearch out;
  out.intra = speeds_of(member(json, "intra_gb_per_s"));
  out.inter = speeds_of(member(json, "inter_gb_per_s"));
  out.rings = count_at(json, "rings");
  out.channels = count_at(json, "channels");
  out.heads = count_at(json, "heads");
  out.doubled_from = number_at(json, "doubled_from_gb_per_s");
  out.doubled_from_newer = number_at(json, "doubled_from_newer_gb_per_s");
  out.doubled_up_to = count_at(json, "doubled_up_to");
  const Json& nvls = member(json, "nvls_channels");
  out.nvls_hopper = count_at(nvls, "hopper");
  out.nvls_one_node = count_at(nvls, "one_node");
  out.nvls_many_nodes = count_at(nvls, "many_nodes");
  out.pcie_share = number_at(json, "pcie_share");
  out.equal_rings = count_at(json, "equal_rings");
  out.speed_step = number_at(json, "speed_step");
  return out;
}

std::array<double, kNcclProtocols> by_protocol(const Json& json) {
  std::array<double, kNcclProtocols> out{};
  for (std::size_t i = 0; i < out.size(); ++i) {
    out.at(i) = number_at(json, name_of(static_cast<NcclProtocol>(i)));
  }
  return out;
}

NcclEnqueue enqueue_of(const Json& json) {
  NcclEnqueue out;
  out.narrow = number_at(json, "narrow_gb_per_s");
  out.narrow_threads = number_at(json, "narrow_threads");
  out.threads = by_protocol(member(json, "threads"));
  out.thread_bytes = by_protocol(member(json, "thread_bytes"));
  out.channel_bytes = number_at(json, "channel_bytes");
  out.fp8_ring_ranks = count_at(json, "fp8_ring_ranks");
  out.fp8_ring_factor = number_at(json, "fp8_ring_factor");
  return out;
}

NcclPointToPoint point_to_point_of(const Json& json) {
  NcclPointToPoint out;
  out.channels = count_at(json, "channels");
  out.channels_without_switch = count_at(json, "channels_without_switch");
  const Json& chunk = member(json, "chunk_bytes");
  out.nvlink_chunk = static_cast<Bytes>(number_at(chunk, "nvlink"));
  out.other_chunk = static_cast<Bytes>(number_at(chunk, "others"));
  out.least_one_node = number_at(member(json, "least_chunks"), "one_node");
  out.least_many_nodes = number_at(member(json, "least_chunks"), "many_nodes");
  out.most_one_node = number_at(member(json, "most_chunks"), "one_node");
  out.most_many_nodes = number_at(member(json, "most_chunks"), "many_nodes");
  return out;
}

void read_mesh(const Json& json, NcclConstants& c) {
  for (const Json& item : *member(json, "busbw").array()) {
    c.mesh_busbw.push_back({count_at(item, "ranks"), count_at(item, "rings"),
                            member(item, "relayed") == Json(true), number_at(item, "gb_per_s")});
  }
  const auto ring_of = [&c](bool relayed) {  // geometric mean
    double logarithms = 0;
    int rows = 0;
    for (const NcclConstants::MeshBusbw& row : c.mesh_busbw) {
      if (row.relayed != relayed) continue;
      logarithms += std::log(row.gb_per_s / row.rings);
      ++rows;
    }
    return std::exp(logarithms / std::max(1, rows));
  };
  c.mesh_ring = ring_of(false);
  c.mesh_relayed_ring = ring_of(true);
  c.mesh_host = number_at(json, "host_gb_per_s");
}

NcclConstants load() {
  const Json root = load_constants("nccl.json");
  NcclConstants c;
  c.tuning = tuning_of(member(root, "tuning"));
  c.search = search_of(member(root, "search"));
  c.enqueue = enqueue_of(member(root, "enqueue"));
  c.point_to_point = point_to_point_of(member(root, "point_to_point"));
  c.base_us = by_algorithm(member(root, "base_us"));
  const Json& hops = member(root, "hop_us");
  c.nvlink_us = by_algorithm(member(hops, "nvlink"));
  c.pcie_us = by_algorithm(member(hops, "pcie"));
  c.network_us = by_algorithm(member(hops, "network"));
  c.tree_simple = ceiling(root, "tree_simple_gb_per_s");
  c.ring_ll128 = ceiling(root, "ring_ll128_gb_per_s");
  c.tree_ll128 = ceiling(root, "tree_ll128_gb_per_s");
  c.nvls_tree = ceiling(root, "nvls_tree_gb_per_s");
  c.ll = ceiling(root, "ll_gb_per_s");
  c.nvls_efficiency = array_of<4>(member(root, "nvls_efficiency"));
  const Json& correction = member(root, "tree_correction");
  c.tree_correction = {numbers_at(correction, "LL"), numbers_at(correction, "LL128"),
                       numbers_at(correction, "Simple")};
  const Json& overhead = member(root, "net_overhead_us");
  for (const Cpu cpu : {Cpu::kIntel, Cpu::kAmd, Cpu::kArm}) {
    c.net_overhead_us.at(static_cast<std::size_t>(cpu)) = number_at(overhead, name_of(cpu));
  }
  c.plateau_newer = number_at(member(root, "ring_plateau"), "newer");
  c.plateau_volta = number_at(member(root, "ring_plateau"), "volta");
  c.graphs = graph_rows(member(root, "graphs"));
  c.one_node = laws_of(member(member(root, "laws"), "one_node"));
  c.many_nodes = laws_of(member(member(root, "laws"), "many_nodes"));
  c.many_nodes_cloud = laws_of(member(member(root, "laws"), "many_nodes_cloud"));
  c.usual_network_us = number_at(root, "usual_network_us");
  c.usual_cloud_us = number_at(root, "usual_cloud_us");
  c.network_line_share = number_at(root, "network_line_share");
  c.nvls_tree_heads = count_at(root, "nvls_tree_heads");
  const Json& message = member(root, "messages");
  c.message_scale_up = array_of<4>(member(message, "scale_up_efficiency"));
  c.message_network = number_at(message, "network_efficiency");
  c.message_pcie = number_at(message, "pcie_efficiency");
  c.message_scale_up_us = number_at(message, "scale_up_start_us");
  c.message_network_us = number_at(message, "network_start_us");
  c.message_deviation = number_at(message, "deviation");
  const Json& all_to_all = member(root, "all_to_all");
  c.all_to_all_scale_up = array_of<4>(member(all_to_all, "scale_up_efficiency"));
  c.fan_out_scale_up = number_at(all_to_all, "fan_out_scale_up_efficiency");
  c.all_to_all_network = number_at(all_to_all, "network_efficiency");
  c.all_to_all_us = number_at(all_to_all, "start_us");
  c.all_to_all_peer_us = number_at(all_to_all, "per_peer_us");
  c.all_to_all_power = array_of<4>(member(all_to_all, "power"));
  c.all_to_all_deviation = number_at(all_to_all, "deviation");
  c.memory_traffic = number_at(root, "memory_traffic_per_byte");
  c.few_ranks = numbers_at(member(root, "few_ampere"), "ranks");
  c.few_ranks_share = numbers_at(member(root, "few_ampere"), "share");
  read_mesh(member(root, "mesh"), c);
  return c;
}

}  // namespace

const NcclConstants& nccl_constants() {
  static const NcclConstants constants = load();
  return constants;
}

std::size_t nccl_row(Architecture architecture) {
  switch (architecture) {
    case Architecture::kVolta:
      return 0;
    case Architecture::kAmpere:
    case Architecture::kAda:
      return 1;
    case Architecture::kHopper:
      return 2;
    case Architecture::kBlackwell:
      return 3;
    case Architecture::kCdna2:
    case Architecture::kCdna3:
    case Architecture::kCdna4:
    case Architecture::kTpu:
    case Architecture::kTpuV6:
    case Architecture::kAscend:
    case Architecture::kCpu:
      break;
  }
  FT_CHECK(false, "NCCL's tables hold NVIDIA devices only");
  return 0;
}

}  // namespace foretrain
