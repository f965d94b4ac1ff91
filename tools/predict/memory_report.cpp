#include "tools/predict/memory_report.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "hardware/communicator_memory.h"
#include "hardware/pools/pools.h"
#include "hardware/presets.h"
#include "models/lower.h"
#include "models/slots.h"
#include "sim/base/assets.h"
#include "sim/base/threads.h"
#include "sim/program/allocator.h"

namespace foretrain {
namespace {

/// configs/memory.json.
struct LibraryMemory {
  double workspace_gib = 0;
  CommunicatorBuffers nccl;
  AllocatorRules allocator;
  Time retry_per_gib;
};

constexpr JsonReader::Range kGibs{0, 1e3};

void read_mib(JsonReader& reader, const char* key, Bytes& out) {
  double mib = 0;
  reader.read(key, mib, {0, 1e6});
  out = static_cast<Bytes>(mib * 1024 * 1024);
}

template <typename Read>
void read_part(JsonReader& reader, const char* key, Read read) {
  const Json* part = reader.require(key, "an object");
  if (part == nullptr) return;
  JsonReader nested(*part, reader.source(), reader.pointer(key));
  read(nested);
  reader.adopt(nested.finish());
}

Result<LibraryMemory> library_memory(const Run& run) {
  FT_ASSIGN(const Json json, parse_json(find_asset("memory.json"), "memory.json"));
  LibraryMemory out;
  JsonReader reader(json, "memory.json", "");
  reader.read("blas_workspace_gib", out.workspace_gib, kGibs);
  read_part(reader, "nccl", [&out](JsonReader& nccl) {
    read_mib(nccl, "connection_mib", out.nccl.connection);
    read_mib(nccl, "nvls_head_mib", out.nccl.nvls_head);
    read_mib(nccl, "pool_mib", out.nccl.pool);
  });
  read_part(reader, "allocator", [&out](JsonReader& rules) {
    rules.read("round", out.allocator.round, JsonReader::IntRange{1, 1 << 30});
    read_mib(rules, "small_mib", out.allocator.small_limit);
    read_mib(rules, "small_segment_mib", out.allocator.small_segment);
    read_mib(rules, "middle_mib", out.allocator.middle_limit);
    read_mib(rules, "middle_segment_mib", out.allocator.middle_segment);
    read_mib(rules, "large_round_mib", out.allocator.large_round);
    double retry_ms = 0;
    rules.read("retry_ms_per_gib", retry_ms, {0, 1e3});
    out.retry_per_gib = Time::from_us(1e3 * retry_ms);
  });
  read_remarks(reader, "foretrain/kernels/1");
  FT_TRY(reader.finish());
  out.allocator.expandable = run.plan.memory.expandable_segments;
  out.allocator.records_streams = run.plan.memory.records_streams;
  return out;
}

double gib(Bytes bytes) { return static_cast<double>(bytes) / kGiB; }

/// Bytes that communicators take of ranks.
class Communicators {
 public:
  Communicators(const Run& run, const Workload& workload, const CommunicatorBuffers& buffers)
      : x_run(run), x_workload(workload), x_buffers(buffers) {
    if (!run.cluster.pools.empty()) x_pools.emplace(run.cluster);
  }

  /// Of one rank: its groups, those it exchanges messages with, and the group of all ranks, over
  /// which every framework meets once.
  Result<double> gib_of(std::size_t rank) {
    if (x_workload.ranks.size() < 2) return 0.0;
    if (x_all.empty()) {
      for (std::size_t r = 0; r < x_workload.ranks.size(); ++r) x_all.emplace_back(r);
      FT_ASSIGN(x_of_all, bytes_of_group(x_all));
    }
    Bytes sum = x_of_all;
    std::vector<const std::vector<RankId>*> known = {&x_all};
    const RankBinding& binding = x_workload.ranks[rank];
    const std::vector<std::string>& slots =
        x_workload.programs[binding.program.index()].group_slots;
    for (std::size_t slot = 0; slot < binding.groups.size(); ++slot) {
      const GroupId group = binding.groups[slot];
      // Who shares out a message exchanges nothing.
      if (!group.valid() || slots[slot] == kPartsToNext || slots[slot] == kPartsToPrevious)
        continue;
      const std::vector<RankId>& members = x_workload.groups[group.index()];
      const auto is_same = [&members](const auto* other) { return *other == members; };
      if (std::any_of(known.begin(), known.end(), is_same)) continue;
      known.push_back(&members);
      FT_ASSIGN(const Bytes bytes, bytes_of_group(members));
      sum += bytes;
    }
    return gib(sum + message_bytes_of(RankId(rank)));
  }

 private:
  Result<Bytes> bytes_of_group(const std::vector<RankId>& members) const {
    if (!x_pools) return bytes_in(x_run.cluster, members);
    const std::size_t view = x_pools->view_of(members);
    return bytes_in(x_pools->view(view), x_pools->placed(members, view));
  }
  Result<Bytes> bytes_in(const Cluster& cluster, const std::vector<RankId>& members) const {
    FT_ASSIGN(const Placement at, placement_of(cluster, members));
    return communicator_bytes(cluster, at, x_buffers);
  }
  Bytes message_bytes_of(RankId rank) const {
    std::vector<RankId> peers = peers_of(rank.index());
    if (!x_pools) return message_bytes(x_run.cluster, rank, peers, x_buffers);
    peers.push_back(rank);
    const std::size_t view = x_pools->view_of(peers);
    peers = x_pools->placed(peers, view);
    rank = peers.back();
    peers.pop_back();
    return message_bytes(x_pools->view(view), rank, peers, x_buffers);
  }

  std::vector<RankId> peers_of(std::size_t rank) const {
    std::vector<RankId> peers;
    for (const ChannelId id : x_workload.ranks[rank].channels) {
      if (!id.valid()) continue;
      const Channel& channel = x_workload.channels[id.index()];
      peers.push_back(channel.source.index() == rank ? channel.destination : channel.source);
    }
    std::sort(peers.begin(), peers.end());
    peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
    return peers;
  }

  const Run& x_run;
  const Workload& x_workload;
  const CommunicatorBuffers& x_buffers;
  std::optional<Pools> x_pools;
  std::vector<RankId> x_all;
  Bytes x_of_all = 0;
};

std::string place_of(const Program& program, const MemoryPeak& peak) {
  if (peak.call < 0) return "the start";
  const Call& call = program.calls[static_cast<std::size_t>(peak.call)];
  const Segment& segment = program.segments[call.segment.index()];
  std::string out = segment.name + ", " + segment.ops[static_cast<std::size_t>(peak.op)].name;
  if (call.layer >= 0) out += ", layer " + std::to_string(call.layer);
  if (call.microbatch >= 0) out += ", microbatch " + std::to_string(call.microbatch);
  return out;
}

/// Where a Program has least memory: the first rank that runs it there, and its device's memory.
struct Home {
  std::size_t rank = 0;
  double memory_gib = 0;
};
Home home_of(const Run& run, const Workload& workload, std::size_t program) {
  const std::vector<Cluster>& pools = run.cluster.pools;
  std::optional<Pools> places;
  if (!pools.empty()) places.emplace(run.cluster);
  std::optional<Home> out;
  for (std::size_t r = 0; r < workload.ranks.size(); ++r) {
    if (workload.ranks[r].program.index() != program) continue;
    if (!places) return {r, run.cluster.device.memory_gib};
    const double memory = pools[places->pool_of(RankId(r))].device.memory_gib;
    if (!out || memory < out->memory_gib) out = {r, memory};
  }
  return out.value_or(Home{0, run.cluster.device.memory_gib});
}

/// Peaks and what the allocator reserves, once for all stages that keep the same memory.
class StageMemory {
 public:
  StageMemory(const LoweredStep& step, const AllocatorRules& rules) : x_step(step), x_rules(rules) {
    const std::vector<Program>& programs = step.workload.programs;
    for (std::size_t p = 0; p < programs.size(); ++p) {
      std::size_t first = 0;
      while (first < p && !alike(first, p)) ++first;
      x_first.push_back(first);
      if (first == p) x_kinds.push_back(p);
    }
    x_peaks.resize(programs.size());
    each_kind([&](std::size_t p) { x_peaks[p] = memory_peak(programs[p]); });
  }

  const MemoryPeak& peak(std::size_t p) const { return x_peaks[x_first[p]]; }

  /// Walks those of at least `least` at their peak, which `reserved` without a limit tells then.
  void walk(Bytes least) {
    for (const std::size_t p : x_kinds) {
      if (x_peaks[p].bytes >= least) x_reserved[{p, 0}] = {};
    }
    each_kind([this](std::size_t p) {
      const auto found = x_reserved.find({p, 0});
      if (found != x_reserved.end()) found->second = walked(p, 0);
    });
  }

  const AllocatorUse& reserved(std::size_t p, Bytes limit) {
    const auto [found, fresh] = x_reserved.try_emplace({x_first[p], limit});
    if (fresh) found->second = walked(p, limit);
    return found->second;
  }

 private:
  AllocatorUse walked(std::size_t p, Bytes limit) const {
    return caching_allocator(x_step.workload.programs[p], x_rules, limit, x_step.more_of(p));
  }

  /// Of the Programs that no earlier one is like, at once where they are long.
  void each_kind(const std::function<void(std::size_t)>& work) const {
    constexpr std::size_t kLong = 256;  // calls
    const bool few = x_step.workload.programs.front().calls.size() < kLong;
    in_parallel(
        x_kinds.size(), [&](std::size_t i) { work(x_kinds[i]); }, few ? 1 : 0);
  }

  bool alike(std::size_t first, std::size_t p) const {
    const std::vector<Program>& programs = x_step.workload.programs;
    return x_first[first] == first &&
           (x_step.more == 0 || x_step.rounds[first] == x_step.rounds[p]) &&
           same_memory(programs[first], programs[p]);
  }

  const LoweredStep& x_step;
  const AllocatorRules& x_rules;
  std::vector<std::size_t> x_first;  ///< by Program: the first that is like it
  std::vector<std::size_t> x_kinds;  ///< those that are the first of their like
  std::vector<MemoryPeak> x_peaks;   ///< by Program, of these
  std::map<std::pair<std::size_t, Bytes>, AllocatorUse> x_reserved;  ///< by that, and the limit
};

/// What the allocator reserves for the Program beside `others_gib`; without a limit where it does
/// not fit.
void reserve(StageMemory& memory, double others_gib, std::size_t p, MemoryReport& out) {
  const double room = (out.capacity_gib - others_gib) * kGiB;
  AllocatorUse use = memory.reserved(p, 0);
  // With this much room a limit changes nothing, with less than the tensors nothing helps.
  const double tensors = (out.allocated_gib - out.workspace_gib) * kGiB;
  if (room >= std::max(1.0, tensors) && use.reserved > static_cast<Bytes>(room)) {
    AllocatorUse limited = memory.reserved(p, static_cast<Bytes>(room));
    limited.known = limited.known && use.known;
    if (limited.fits) use = std::move(limited);
  }
  out.allocator.known = use.known;
  if (!use.retries.empty()) out.retries[p] = use.retries;
  out.reserved_gib = gib(use.reserved) + out.workspace_gib;
}

/// Every buffer has its place before the step: no allocator looks for one.
bool is_planned(const Run& run) {
  return run.cluster.scale_up == ScaleUp::kTorus || run.plan.memory.planned;
}

/// Of Program `p` where it has least memory.
Result<MemoryReport> report_program(const Run& run, const LoweredStep& step, std::size_t p,
                                    const LibraryMemory& library, StageMemory& memory,
                                    Communicators& communicators) {
  const MemoryPeak& peak = memory.peak(p);
  const Program& program = step.workload.programs[p];
  const Home home = home_of(run, step.workload, p);
  const bool torus = run.cluster.scale_up == ScaleUp::kTorus;
  MemoryReport out;
  for (std::size_t k = 0; k < out.by_kind_gib.size(); ++k)
    out.by_kind_gib[k] = gib(peak.by_kind[k]);
  out.peak_rank = static_cast<std::int64_t>(home.rank);
  out.peak_at = place_of(program, peak);
  out.capacity_gib = home.memory_gib;
  out.context_gib = torus ? 0 : run.plan.context_gib;
  out.workspace_gib = torus ? 0 : library.workspace_gib;
  FT_ASSIGN(out.communication_gib, communicators.gib_of(home.rank));
  out.allocated_gib = gib(peak.bytes) + out.workspace_gib;
  const double others = out.context_gib + out.workspace_gib + out.communication_gib;
  out.reserved_gib = out.allocated_gib;
  if (!is_planned(run)) reserve(memory, others, p, out);
  out.peak_gib = out.reserved_gib + out.communication_gib + out.context_gib;
  out.fits = out.peak_gib <= out.capacity_gib;
  return out;
}

}  // namespace

/// Keeps the larger share of a capacity. A pool whose capacity is not known (0) counts only where
/// that of no pool is known.
void take_fuller(double used, double capacity, double& out, double& out_capacity) {
  const bool known = capacity > 0;
  const bool out_known = out_capacity > 0;
  const bool fuller =
      known == out_known ? (known ? used * out_capacity > out * capacity : used > out) : known;
  if (!fuller) return;
  out = used;
  out_capacity = capacity;
}

/// Beside the devices: of the node whose ranks keep most of what it has, the mean.
void fill_host(const Run& run, const Workload& workload, MemoryReport& out) {
  std::vector<double> on_host, in_storage;
  for (const Program& program : workload.programs) {
    on_host.push_back(gib(memory_peak(program, Memory::kHost).bytes));
    in_storage.push_back(gib(memory_peak(program, Memory::kStorage).bytes));
  }
  std::vector<const Cluster*> pools;
  for (const Cluster& pool : run.cluster.pools) pools.push_back(&pool);
  if (pools.empty()) pools.push_back(&run.cluster);
  std::size_t begin = 0;
  for (const Cluster* pool : pools) {
    const std::size_t last =
        std::min(workload.ranks.size(), begin + static_cast<std::size_t>(pool->accelerators));
    const auto each =
        std::min<std::size_t>(last - begin, static_cast<std::size_t>(pool->accelerators_per_node));
    double host = 0, storage = 0;  // of the node with most
    for (std::size_t first = begin; first < last; first += each) {
      double node_host = 0, node_storage = 0;
      const std::size_t end = std::min(last, first + each);
      for (std::size_t r = first; r < end; ++r) {
        node_host += on_host[workload.ranks[r].program.index()];
        node_storage += in_storage[workload.ranks[r].program.index()];
      }
      // A last node with fewer ranks has as much memory for them.
      host = std::max(host, node_host / static_cast<double>(each));
      storage = std::max(storage, node_storage / static_cast<double>(each));
    }
    const auto ranks_of_node = static_cast<double>(each);
    take_fuller(host, pool->host_memory_gib / ranks_of_node, out.host_gib, out.host_capacity_gib);
    take_fuller(storage, pool->storage_tb * 1e12 / kGiB / ranks_of_node, out.storage_gib,
                out.storage_capacity_gib);
    begin = last;
  }
  out.fits = out.fits && out.host_fits() && out.storage_fits();
}

MemoryOdds odds_of(const Run& run, const MemoryReport& memory) {
  const Deviation published = memory_deviation(run.cluster);
  const bool others = memory.host_fits() && memory.storage_fits();
  return {interval_around(memory.peak_gib, 0, published),
          others ? probability_within(memory.peak_gib, memory.capacity_gib, published) : 0};
}

Result<MemoryReport> report_memory(const Run& run, const LoweredStep& step) {
  const Workload& workload = step.workload;
  FT_ASSIGN(const LibraryMemory library, library_memory(run));
  StageMemory memory(step, library.allocator);
  Bytes most = 0;
  for (std::size_t p = 0; p < workload.programs.size(); ++p) {
    most = std::max(most, memory.peak(p).bytes);
  }
  // Fragments and communicators differ between stages by less than this share of tensors.
  constexpr double kNear = 0.95;
  const double near = run.cluster.pools.empty() ? kNear * static_cast<double>(most) : 0;
  const auto least = static_cast<Bytes>(std::ceil(near));
  if (!is_planned(run)) memory.walk(least);
  std::optional<MemoryReport> out;
  Communicators communicators(run, workload, library.nccl);
  std::map<std::size_t, std::vector<AllocatorRetry>> retries;
  bool all_fit = true;
  bool known = true;
  for (std::size_t p = 0; p < workload.programs.size(); ++p) {
    if (memory.peak(p).bytes < least) continue;
    FT_ASSIGN(const MemoryReport one, report_program(run, step, p, library, memory, communicators));
    retries.insert(one.retries.begin(), one.retries.end());
    all_fit = all_fit && one.fits;
    known = known && one.allocator.known;
    // Of several kinds of devices the fullest tells.
    if (out && one.peak_gib * out->capacity_gib <= out->peak_gib * one.capacity_gib) continue;
    out = one;
  }
  out->fits = all_fit;
  out->allocator.retry_per_gib = library.retry_per_gib;
  out->retries.clear();
  out->allocator.known = known;
  if (all_fit && !run.graphs && !run.graphs_by_layer) out->retries = std::move(retries);
  for (const auto& [program, of_program] : out->retries) {
    out->allocator_retries = std::max<std::int64_t>(out->allocator_retries, std::ssize(of_program));
  }
  fill_host(run, workload, *out);
  out->theoretical_gib = gib(memory.peak(0).persistent + memory.peak(0).saved);
  return *out;
}

Result<double> least_memory(const Run& run, const LoweredStep& step, MemoryReport& memory) {
  const Workload& workload = step.workload;
  FT_ASSIGN(const LibraryMemory library, library_memory(run));
  const auto rank = static_cast<std::size_t>(memory.peak_rank);
  const std::size_t p = workload.ranks[rank].program.index();
  constexpr Bytes kStep = Bytes{1} << 26;
  auto least = static_cast<Bytes>((memory.allocated_gib - memory.workspace_gib) * kGiB);
  auto most = static_cast<Bytes>((memory.reserved_gib - memory.workspace_gib) * kGiB);
  while (most - least > kStep) {
    const Bytes middle = least + (most - least) / 2;
    const AllocatorUse use =
        caching_allocator(workload.programs[p], library.allocator, middle, step.more_of(p));
    (use.fits ? most : least) = middle;
    memory.allocator.known = memory.allocator.known && use.known;
    if (!memory.allocator.known) break;
  }
  return memory.peak_gib - memory.reserved_gib + memory.workspace_gib + gib(most);
}

/// By Programs with fewer microbatches, where these are of rounds.
Result<MemoryReport> memory_of(const Run& run) {
  for (const std::int64_t few : fewer_microbatches(run.plan)) {
    const std::optional<LoweredStep> fewer = lower_fewer(run.model, run.plan, few);
    if (!fewer) continue;
    FT_ASSIGN(MemoryReport memory, report_memory(run, *fewer));
    if (!memory.allocator.known) break;
    return memory;
  }
  FT_TRY(lowerable(run.model, run.plan));
  return report_memory(run, lower_step(run.model, run.plan));
}

Status place_states(Run& run) {
  double& share = run.plan.offload.device_share;
  if (share >= 0) return ok_status();
  constexpr int kSteps = 256;
  int least = 0;
  int most = kSteps;
  while (least < most) {
    const int middle = (least + most + 1) / 2;
    share = static_cast<double>(middle) / kSteps;
    FT_ASSIGN(const MemoryReport memory, memory_of(run));
    const bool fits = memory.fits && memory.allocator_retries == 0;
    (fits ? least : most) = fits ? middle : middle - 1;
  }
  share = static_cast<double>(least) / kSteps;
  run.notes.push_back("offload.device_share auto: the states of " +
                      std::to_string(least * 100 / kSteps) + " % of the layers have room");
  return ok_status();
}

}  // namespace foretrain
