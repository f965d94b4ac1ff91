#include "tools/memory_report.h"

#include <algorithm>
#include <vector>

#include "hardware/communicator_memory.h"
#include "sim/base/assets.h"
#include "sim/program/allocator.h"

namespace foretrain {
namespace {

/// configs/memory.json.
struct LibraryMemory {
  double context_gib = 0, workspace_gib = 0;
  CommunicatorBuffers nccl;
  AllocatorRules allocator;
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

Result<LibraryMemory> library_memory() {
  FT_ASSIGN(const Json json, parse_json(find_asset("memory.json"), "memory.json"));
  LibraryMemory out;
  JsonReader reader(json, "memory.json", "");
  reader.read("context_gib", out.context_gib, kGibs);
  reader.read("blas_workspace_gib", out.workspace_gib, kGibs);
  read_part(reader, "nccl", [&out](JsonReader& nccl) {
    read_mib(nccl, "connection_mib", out.nccl.connection);
    read_mib(nccl, "nvls_head_mib", out.nccl.nvls_head);
    read_mib(nccl, "peer_mib", out.nccl.peer);
  });
  read_part(reader, "allocator", [&out](JsonReader& rules) {
    rules.read("round", out.allocator.round, JsonReader::IntRange{1, 1 << 30});
    read_mib(rules, "small_mib", out.allocator.small_limit);
    read_mib(rules, "small_segment_mib", out.allocator.small_segment);
    read_mib(rules, "middle_mib", out.allocator.middle_limit);
    read_mib(rules, "middle_segment_mib", out.allocator.middle_segment);
    read_mib(rules, "large_round_mib", out.allocator.large_round);
  });
  reader.ignore("sources");
  FT_TRY(reader.finish());
  return out;
}

double gib(Bytes bytes) { return static_cast<double>(bytes) / kGiB; }

/// Of one rank: its groups, those it exchanges messages with, and the group of all ranks, over
/// which every framework meets once.
Result<double> communicators_gib(const Run& run, const Workload& workload, std::size_t rank,
                                 const CommunicatorBuffers& buffers) {
  if (workload.ranks.size() < 2) return 0.0;
  Bytes sum = 0;
  std::vector<std::vector<RankId>> known;
  const auto add = [&](const std::vector<RankId>& members) -> Status {
    if (std::find(known.begin(), known.end(), members) != known.end()) return ok_status();
    known.push_back(members);
    FT_ASSIGN(const Placement at, placement_of(run.cluster, members));
    sum += communicator_bytes(run.cluster, at, buffers);
    return ok_status();
  };
  std::vector<RankId> all;
  for (std::size_t r = 0; r < workload.ranks.size(); ++r) all.emplace_back(r);
  FT_TRY(add(all));
  const RankBinding& binding = workload.ranks[rank];
  for (const GroupId group : binding.groups) {
    if (group.valid()) FT_TRY(add(workload.groups[group.index()]));
  }
  std::vector<RankId> peers;
  for (const ChannelId id : binding.channels) {
    if (!id.valid()) continue;
    const Channel& channel = workload.channels[id.index()];
    peers.push_back(channel.source.index() == rank ? channel.destination : channel.source);
  }
  std::sort(peers.begin(), peers.end());
  const auto count = std::unique(peers.begin(), peers.end()) - peers.begin();
  return gib(sum + count * buffers.peer);
}

/// The Program with the highest peak.
struct Highest {
  std::size_t program = 0;
  MemoryPeak peak;
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

std::size_t first_rank(const Workload& workload, std::size_t program) {
  for (std::size_t r = 0; r < workload.ranks.size(); ++r) {
    if (workload.ranks[r].program.index() == program) return r;
  }
  return 0;
}

/// What the allocator reserves for the Program beside `others_gib`; without a limit where it does
/// not fit.
void reserve(const Program& program, AllocatorRules rules, double others_gib, MemoryReport& out) {
  const double room = (out.capacity_gib - others_gib) * kGiB;
  AllocatorUse use;
  use.fits = false;
  if (room >= 1) use = caching_allocator(program, rules, static_cast<Bytes>(room));
  out.fits = use.fits;
  out.allocator_retries = use.fits ? use.retries : 0;
  if (!use.fits) use = caching_allocator(program, rules, 0);
  out.reserved_gib = gib(use.reserved) + out.workspace_gib;
}

}  // namespace

Result<MemoryReport> report_memory(const Run& run, const Workload& workload) {
  FT_ASSIGN(LibraryMemory library, library_memory());
  library.allocator.expandable = run.plan.expandable_segments;
  MemoryReport out;
  Highest worst;
  for (std::size_t p = 0; p < workload.programs.size(); ++p) {
    const MemoryPeak peak = memory_peak(workload.programs[p]);
    if (p == 0) out.theoretical_gib = gib(peak.persistent + peak.saved);
    if (p == 0 || peak.bytes > worst.peak.bytes) worst = Highest{p, peak};
  }
  const Program& program = workload.programs[worst.program];
  const std::size_t rank = first_rank(workload, worst.program);
  for (std::size_t k = 0; k < out.by_kind_gib.size(); ++k) {
    out.by_kind_gib[k] = gib(worst.peak.by_kind[k]);
  }
  out.host_gib = gib(memory_peak(program, Memory::kHost).bytes);
  out.storage_gib = gib(memory_peak(program, Memory::kStorage).bytes);
  out.peak_rank = static_cast<std::int64_t>(rank);
  out.peak_at = place_of(program, worst.peak);
  out.capacity_gib = run.cluster.device.memory_gib;
  out.context_gib = library.context_gib;
  out.workspace_gib = library.workspace_gib;
  FT_ASSIGN(out.communication_gib, communicators_gib(run, workload, rank, library.nccl));
  out.allocated_gib = gib(worst.peak.bytes) + out.workspace_gib;
  const double others = out.context_gib + out.workspace_gib + out.communication_gib;
  reserve(program, library.allocator, others, out);
  out.peak_gib = out.reserved_gib + out.communication_gib + out.context_gib;
  return out;
}

}  // namespace foretrain
