#include "executor/cuda/nccl_groups.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "executor/cuda/cuda_check.h"
#include "executor/cuda/disjoint_layers.h"
#ifdef FORETRAIN_NCCL
#include "executor/cuda/nccl_api.h"
#endif

namespace foretrain {

#ifdef FORETRAIN_NCCL
namespace {

Status check(const NcclApi& nccl, ncclResult_t result, const char* what) {
  if (result == ncclSuccess) return ok_status();
  std::string out = std::string("NCCL: ") + what + ": " + nccl.error_string(result);
  if (const char* last = nccl.last_error(nullptr); last != nullptr && *last != '\0') {
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

/// Its place among members, -1 where it is none.
int place_in(const std::vector<RankId>& members, RankId rank) {
  const auto at = std::find(members.begin(), members.end(), rank);
  return at == members.end() ? -1 : static_cast<int>(at - members.begin());
}

}  // namespace

class NcclWorld {
 public:
  /// Members, whether they are those of a channel, and how many of the same came before: two groups
  /// of the same ranks work at the same time.
  using Key = std::tuple<std::vector<RankId>, bool, int>;

  static Result<std::shared_ptr<NcclWorld>> create(std::size_t ranks, RankId rank,
                                                   Transport& transport) {
    FT_ASSIGN(const NcclApi* const nccl, nccl_api());
    std::shared_ptr<NcclWorld> out(new NcclWorld(*nccl, rank));
    ncclUniqueId id{};
    if (rank.value == 0) FT_TRY(check(*nccl, nccl->get_unique_id(&id), "identifier"));
    std::vector<std::int64_t> words(sizeof id / sizeof(std::int64_t));
    std::memcpy(words.data(), &id, sizeof id);
    FT_TRY(transport.broadcast(rank, words));
    std::memcpy(&id, words.data(), sizeof id);
    FT_TRY(check(*nccl, nccl->comm_init_rank(&out->x_all, static_cast<int>(ranks), id, rank.value),
                 "communicator of all ranks"));
    return out;
  }
  NcclWorld(const NcclWorld&) = delete;
  NcclWorld& operator=(const NcclWorld&) = delete;
  NcclWorld(NcclWorld&&) = delete;
  NcclWorld& operator=(NcclWorld&&) = delete;
  ~NcclWorld() {
    for (ncclComm_t comm : all()) {
      if (comm != nullptr) x_nccl.comm_destroy(comm);
    }
  }

  /// Those that are not there yet; as few splits as have room for them. Every rank takes part in
  /// every split, with or without a colour.
  Status make(const std::vector<Key>& keys, const std::function<void()>& make_room) {
    std::vector<Key> missing;
    std::vector<std::vector<RankId>> members;
    for (const Key& key : keys) {
      if (std::get<0>(key).size() < 2 || x_made.contains(key)) continue;
      missing.push_back(key);
      members.push_back(std::get<0>(key));
    }
    if (!missing.empty()) make_room();
    for (const std::vector<std::size_t>& layer : disjoint_layers(members)) {
      int colour = NCCL_SPLIT_NOCOLOR;
      int place = 0;
      for (std::size_t i = 0; i < layer.size(); ++i) {
        const int found = place_in(members[layer[i]], x_rank);
        if (found < 0) continue;
        colour = static_cast<int>(i);
        place = found;
      }
      ncclComm_t made = nullptr;
      FT_TRY(check(x_nccl, x_nccl.comm_split(x_all, colour, place, &made, nullptr),
                   "communicators of groups"));
      for (std::size_t i = 0; i < layer.size(); ++i) {
        x_made[missing[layer[i]]] = static_cast<int>(i) == colour ? made : nullptr;
      }
    }
    return ok_status();
  }
  ncclComm_t find(const Key& key) const {
    const auto found = x_made.find(key);
    return found == x_made.end() ? nullptr : found->second;
  }
  void abort() {
    for (ncclComm_t comm : all()) {
      if (comm != nullptr) x_nccl.comm_abort(comm);
    }
    x_made.clear();
    x_all = nullptr;
    x_aborted = true;
  }
  bool aborted() const { return x_aborted; }
  const NcclApi& nccl() const { return x_nccl; }

 private:
  NcclWorld(const NcclApi& nccl, RankId rank) : x_nccl(nccl), x_rank(rank) {}
  /// What was split off comes first.
  std::vector<ncclComm_t> all() const {
    std::vector<ncclComm_t> out;
    for (const auto& [key, comm] : x_made) out.push_back(comm);
    out.push_back(x_all);
    return out;
  }

  const NcclApi& x_nccl;
  RankId x_rank;
  ncclComm_t x_all = nullptr;
  std::map<Key, ncclComm_t> x_made;
  bool x_aborted = false;  ///< what others of the rank have found here is gone
};

namespace {

/// One launch of all that `queue` calls NCCL for; closed whatever happened, as groups nest.
template <typename Queue>
Status as_group(const NcclApi& nccl, const char* what, const Queue& queue) {
  FT_TRY(check(nccl, nccl.group_start(), "group"));
  const Status queued = queue();
  Status ended = check(nccl, nccl.group_end(), what);
  return queued.ok() ? ended : queued;
}

Status all_to_all(const NcclApi& nccl, std::size_t members, const DeviceCollective& call,
                  ncclComm_t comm, cudaStream_t stream) {
  const auto part = static_cast<std::size_t>(bytes_of(call.type, call.count)) / members;
  return as_group(nccl, "all-to-all", [&]() -> Status {
    for (std::size_t m = 0; m < members; ++m) {
      const auto* const from = static_cast<const std::byte*>(call.send) + m * part;
      auto* const to = static_cast<std::byte*>(call.receive) + m * part;
      const int peer = static_cast<int>(m);
      FT_TRY(check(nccl, nccl.send(from, part, ncclInt8, peer, comm, stream), "send"));
      FT_TRY(check(nccl, nccl.receive(to, part, ncclInt8, peer, comm, stream), "receive"));
    }
    return ok_status();
  });
}

Status collective_of(const NcclApi& nccl, std::size_t members, const DeviceCollective& call,
                     ncclComm_t comm, cudaStream_t stream) {
  const auto count = static_cast<std::size_t>(call.count);
  const ncclDataType_t type = nccl_type_of(call.type);
  const ncclRedOp_t op = call.maximum ? ncclMax : ncclSum;
  const void* const from = call.send;
  void* const to = call.receive;
  switch (call.kind) {
    case CollectiveKind::kAllReduce:
      return check(nccl, nccl.all_reduce(from, to, count, type, op, comm, stream), "all-reduce");
    case CollectiveKind::kAllGather:
      return check(nccl, nccl.all_gather(from, to, count / members, type, comm, stream),
                   "all-gather");
    case CollectiveKind::kReduceScatter:
      return check(nccl, nccl.reduce_scatter(from, to, count / members, type, op, comm, stream),
                   "reduce-scatter");
    case CollectiveKind::kBroadcast:
      return check(nccl, nccl.broadcast(from, to, count, type, call.root, comm, stream),
                   "broadcast");
    case CollectiveKind::kReduce:
      return check(nccl, nccl.reduce(from, to, count, type, op, call.root, comm, stream), "reduce");
    case CollectiveKind::kAllToAll:
      break;
  }
  return all_to_all(nccl, members, call, comm, stream);
}

Status no_communicators() {
  return input_error("NCCL: communicators were given up after an error");
}

/// Groups, then channels.
std::vector<NcclWorld::Key> keys_of(const Workload& workload) {
  std::vector<NcclWorld::Key> out;
  std::map<std::pair<std::vector<RankId>, bool>, int> count;
  const auto add = [&](const std::vector<RankId>& members, bool channel) {
    out.emplace_back(members, channel, count[{members, channel}]++);
  };
  for (const std::vector<RankId>& group : workload.groups) add(group, false);
  for (const Channel& channel : workload.channels) add({channel.source, channel.destination}, true);
  return out;
}

}  // namespace

std::string nccl_version() {
  const auto nccl = nccl_api();
  int version = 0;
  if (!nccl.ok() || nccl.value()->get_version(&version) != ncclSuccess) return ", no NCCL";
  return ", NCCL " + std::to_string(version);
}

Result<std::unique_ptr<NcclGroups>> NcclGroups::create(const Workload& workload, RankId rank,
                                                       Transport& transport, NcclWorlds& worlds,
                                                       const std::function<void()>& make_room) {
  std::unique_ptr<NcclGroups> out(new NcclGroups(workload, worlds));
  out->x_groups.assign(workload.groups.size(), nullptr);
  out->x_channels.assign(workload.channels.size(), nullptr);
  if (workload.ranks.size() == 1) return out;
  out->x_transport = transport.id();
  std::shared_ptr<NcclWorld>& world = worlds.x_made[transport.id()];
  if (world == nullptr) {
    std::erase_if(worlds.x_made, [&](const auto& one) {
      return one.first != transport.id() && one.second.use_count() <= 1;
    });
    make_room();
    auto made = NcclWorld::create(workload.ranks.size(), rank, transport);
    if (!made.ok()) {
      worlds.x_made.erase(transport.id());
      return input_error("runs of several ranks need NCCL: " + made.error().message);
    }
    world = std::move(made).value();
  }
  const std::vector<NcclWorld::Key> keys = keys_of(workload);
  if (const Status made = world->make(keys, make_room); !made.ok()) {
    // What others have made by now is of no use either.
    world->abort();
    worlds.x_made.erase(transport.id());
    return made.error();
  }
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const std::size_t groups = out->x_groups.size();
    (i < groups ? out->x_groups[i] : out->x_channels[i - groups]) = world->find(keys[i]);
  }
  out->x_world = world;
  return out;
}

void NcclGroups::abort() {
  if (x_world == nullptr) return;
  x_world->abort();
  x_worlds.x_made.erase(x_transport);
  x_world = nullptr;
}

Status NcclGroups::collectives(GroupId group, std::span<const DeviceCollective> calls,
                               cudaStream_t stream) {
  if (calls.size() == 1 || x_world == nullptr) {
    for (const DeviceCollective& call : calls) FT_TRY(collective(group, call, stream));
    return ok_status();
  }
  return as_group(x_world->nccl(), "collectives", [&]() -> Status {
    for (const DeviceCollective& call : calls) FT_TRY(collective(group, call, stream));
    return ok_status();
  });
}

Status NcclGroups::exchange(std::span<const MessageCall> messages, cudaStream_t stream) {
  if (x_world == nullptr || x_world->aborted()) return no_communicators();
  const NcclApi& nccl = x_world->nccl();
  return as_group(nccl, "messages", [&]() -> Status {
    for (const MessageCall& m : messages) {
      auto* const comm = static_cast<ncclComm_t>(x_channels[m.channel.index()]);
      const auto bytes = static_cast<std::size_t>(m.bytes);
      FT_TRY(m.send
                 ? check(nccl, nccl.send(m.data, bytes, ncclInt8, 1, comm, stream), "send")
                 : check(nccl, nccl.receive(m.data, bytes, ncclInt8, 0, comm, stream), "receive"));
    }
    return ok_status();
  });
}

#else

class NcclWorld {};

std::string nccl_version() { return ", built without NCCL"; }

Result<std::unique_ptr<NcclGroups>> NcclGroups::create(const Workload& workload, RankId, Transport&,
                                                       NcclWorlds& worlds,
                                                       const std::function<void()>&) {
  if (workload.ranks.size() > 1) {
    return unsupported(
        "this build has no NCCL, which runs of several ranks need: install it with "
        "its header and build again, or use one rank");
  }
  std::unique_ptr<NcclGroups> out(new NcclGroups(workload, worlds));
  out->x_groups.assign(workload.groups.size(), nullptr);
  return out;
}

void NcclGroups::abort() {}

Status NcclGroups::collectives(GroupId group, std::span<const DeviceCollective> calls,
                               cudaStream_t stream) {
  for (const DeviceCollective& call : calls) FT_TRY(collective(group, call, stream));
  return ok_status();
}

Status NcclGroups::exchange(std::span<const MessageCall>, cudaStream_t) {
  return input_error("NCCL: this build has none");
}

#endif

NcclWorlds::NcclWorlds() = default;
NcclWorlds::~NcclWorlds() = default;
void NcclWorlds::clear() { x_made.clear(); }
NcclGroups::~NcclGroups() = default;

/// Of a group of one what it has is the result.
Status NcclGroups::collective(GroupId group, const DeviceCollective& call, cudaStream_t stream) {
  const std::size_t members = x_workload.groups[group.index()].size();
#ifdef FORETRAIN_NCCL
  if (members > 1) {
    if (x_world == nullptr || x_world->aborted()) return no_communicators();
    return collective_of(x_world->nccl(), members, call,
                         static_cast<ncclComm_t>(x_groups[group.index()]), stream);
  }
#endif
  FT_CHECK(members == 1, "a group of several ranks without NCCL");
  if (call.send == call.receive) return ok_status();
  const auto bytes = static_cast<std::size_t>(bytes_of(call.type, call.count));
  return cuda_status(
      cudaMemcpyAsync(call.receive, call.send, bytes, cudaMemcpyDeviceToDevice, stream), "copy");
}

}  // namespace foretrain
