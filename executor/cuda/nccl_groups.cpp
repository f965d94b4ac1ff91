#include "executor/cuda/nccl_groups.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

namespace foretrain {
namespace {

Status check(ncclResult_t result, const char* what) {
  if (result == ncclSuccess) return ok_status();
  std::string out = std::string("NCCL: ") + what + ": " + ncclGetErrorString(result);
  if (const char* last = ncclGetLastError(nullptr); last != nullptr && *last != '\0') {
    out += std::string(" (") + last + ")";
  }
  if (result == ncclInvalidUsage) {
    out += "; NCCL refuses two ranks on one GPU: give every rank its own";
  }
  return input_error(out);
}

ncclDataType_t nccl_type_of(DType type) {
  switch (type) {
    case DType::kBf16:
      return ncclBfloat16;
    case DType::kFp16:
      return ncclFloat16;
    case DType::kInt64:
      return ncclInt64;
    default:
      return ncclFloat32;
  }
}

/// One launch of all that `queue` calls NCCL for; closed whatever happened, as groups nest.
template <typename Queue>
Status as_group(const char* what, const Queue& queue) {
  FT_TRY(check(ncclGroupStart(), "group"));
  const Status queued = queue();
  Status ended = check(ncclGroupEnd(), what);
  return queued.ok() ? ended : queued;
}

}  // namespace

Result<std::unique_ptr<NcclGroups>> NcclGroups::create(const Workload& workload, RankId rank,
                                                       Transport& transport) {
  std::unique_ptr<NcclGroups> out(new NcclGroups(workload, rank));
  if (workload.ranks.size() == 1) return out;
  ncclUniqueId id{};
  if (rank.value == 0) FT_TRY(check(ncclGetUniqueId(&id), "identifier"));
  std::vector<std::int64_t> words(sizeof id / sizeof(std::int64_t));
  std::memcpy(words.data(), &id, sizeof id);
  FT_TRY(transport.broadcast(rank, words));
  std::memcpy(&id, words.data(), sizeof id);
  const auto ranks = static_cast<int>(workload.ranks.size());
  FT_TRY(
      check(ncclCommInitRank(&out->x_world, ranks, id, rank.value), "communicator of all ranks"));
  FT_TRY(out->split());
  return out;
}

/// Every rank takes part in every split, with or without a colour.
Status NcclGroups::split() {
  const auto member = [&](const std::vector<RankId>& ranks) {
    const auto at = std::find(ranks.begin(), ranks.end(), x_rank);
    return at == ranks.end() ? -1 : static_cast<int>(at - ranks.begin());
  };
  const auto make = [&](const std::vector<RankId>& ranks, ncclComm_t& out) {
    const int place = member(ranks);
    return check(ncclCommSplit(x_world, place < 0 ? NCCL_SPLIT_NOCOLOR : 0, std::max(place, 0),
                               &out, nullptr),
                 "communicator of a group");
  };
  x_groups.assign(x_workload.groups.size(), nullptr);
  for (std::size_t g = 0; g < x_groups.size(); ++g) {
    FT_TRY(make(x_workload.groups[g], x_groups[g]));
  }
  x_channels.assign(x_workload.channels.size(), nullptr);
  for (std::size_t c = 0; c < x_channels.size(); ++c) {
    const Channel& channel = x_workload.channels[c];
    FT_TRY(make({channel.source, channel.destination}, x_channels[c]));
  }
  return ok_status();
}

NcclGroups::~NcclGroups() {
  const auto destroy = [](ncclComm_t comm) {
    if (comm != nullptr) ncclCommDestroy(comm);
  };
  std::for_each(x_channels.begin(), x_channels.end(), destroy);
  std::for_each(x_groups.begin(), x_groups.end(), destroy);
  destroy(x_world);
}

Status NcclGroups::collectives(GroupId group, std::span<const DeviceCollective> calls,
                               cudaStream_t stream) {
  if (calls.size() == 1) return collective(group, calls[0], stream);
  return as_group("collectives", [&]() -> Status {
    for (const DeviceCollective& call : calls) FT_TRY(collective(group, call, stream));
    return ok_status();
  });
}

Status NcclGroups::collective(GroupId group, const DeviceCollective& call, cudaStream_t stream) {
  const auto members = x_workload.groups[group.index()].size();
  const auto count = static_cast<std::size_t>(call.count);
  const ncclDataType_t type = nccl_type_of(call.type);
  const ncclRedOp_t op = call.maximum ? ncclMax : ncclSum;
  if (x_groups.empty()) {  // one rank: what it has is the result
    const auto bytes = static_cast<std::size_t>(bytes_of(call.type, call.count));
    if (call.send == call.receive) return ok_status();
    const cudaError_t copied =
        cudaMemcpyAsync(call.receive, call.send, bytes, cudaMemcpyDeviceToDevice, stream);
    return copied == cudaSuccess ? ok_status() : input_error(cudaGetErrorString(copied));
  }
  ncclComm_t comm = x_groups[group.index()];
  switch (call.kind) {
    case CollectiveKind::kAllReduce:
      return check(ncclAllReduce(call.send, call.receive, count, type, op, comm, stream),
                   "all-reduce");
    case CollectiveKind::kAllGather:
      return check(ncclAllGather(call.send, call.receive, count / members, type, comm, stream),
                   "all-gather");
    case CollectiveKind::kReduceScatter:
      return check(
          ncclReduceScatter(call.send, call.receive, count / members, type, op, comm, stream),
          "reduce-scatter");
    case CollectiveKind::kBroadcast:
      return check(ncclBroadcast(call.send, call.receive, count, type, call.root, comm, stream),
                   "broadcast");
    case CollectiveKind::kReduce:
      return check(ncclReduce(call.send, call.receive, count, type, op, call.root, comm, stream),
                   "reduce");
    case CollectiveKind::kAllToAll:
      break;
  }
  const auto part = static_cast<std::size_t>(bytes_of(call.type, call.count)) / members;
  FT_TRY(check(ncclGroupStart(), "group"));
  for (std::size_t m = 0; m < members; ++m) {
    const auto* const from = static_cast<const std::byte*>(call.send) + m * part;
    auto* const to = static_cast<std::byte*>(call.receive) + m * part;
    FT_TRY(check(ncclSend(from, part, ncclInt8, static_cast<int>(m), comm, stream), "send"));
    FT_TRY(check(ncclRecv(to, part, ncclInt8, static_cast<int>(m), comm, stream), "receive"));
  }
  return check(ncclGroupEnd(), "all-to-all");
}

Status NcclGroups::exchange(std::span<const MessageCall> messages, cudaStream_t stream) {
  return as_group("messages", [&]() -> Status {
    for (const MessageCall& m : messages) {
      ncclComm_t comm = x_channels[m.channel.index()];
      const auto bytes = static_cast<std::size_t>(m.bytes);
      FT_TRY(m.send ? check(ncclSend(m.data, bytes, ncclInt8, 1, comm, stream), "send")
                    : check(ncclRecv(m.data, bytes, ncclInt8, 0, comm, stream), "receive"));
    }
    return ok_status();
  });
}

}  // namespace foretrain
