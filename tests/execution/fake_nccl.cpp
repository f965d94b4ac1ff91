// A fake of NCCL between ranks that are threads of this process, on the streams of the fake runtime
// of the program that loads it. Sends do not wait, all else waits for its partners.
#include <nccl.h>

#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "executor/cuda/storage.h"
#include "tests/execution/fake_cuda.h"

namespace foretrain::fake {

struct Split {
  int colour = 0, key = 0;
};

/// What the ranks of a communicator share.
struct Members {
  explicit Members(int ranks)
      : size(ranks),
        from(static_cast<std::size_t>(ranks)),
        splits(from.size()),
        made(from.size()) {}
  void meet() {
    std::unique_lock lock(mutex);
    const int round = rounds;
    if (++here == size) {
      here = 0;
      ++rounds;
      changed.notify_all();
    }
    changed.wait(lock, [&] { return rounds != round; });
  }
  int size;
  std::mutex mutex;
  std::condition_variable changed;
  int here = 0, rounds = 0;
  std::vector<const void*> from;  ///< of a collective
  std::vector<Split> splits;
  std::vector<std::pair<std::shared_ptr<Members>, int>> made;  ///< by a split
  std::map<std::pair<int, int>, std::deque<std::vector<char>>> mail;
};

}  // namespace foretrain::fake

namespace fake = foretrain::fake;

struct ncclComm {
  std::shared_ptr<fake::Members> members;
  int rank = 0;
};

namespace foretrain::fake {
namespace {

std::mutex worlds_mutex;
std::map<int, std::shared_ptr<Members>> worlds;
int worlds_named = 0;
thread_local int groups_open = 0;
thread_local std::vector<std::function<void()>> sends_of_group, receives_of_group;

std::size_t bytes_of_type(ncclDataType_t type) {
  if (type == ncclInt8) return 1;
  return type == ncclInt64 ? 8 : type == ncclFloat32 ? 4 : 2;
}

template <typename T>
void reduce_as(const std::vector<const void*>& from, std::size_t first, std::size_t count,
               bool maximum, void* to) {
  for (std::size_t i = 0; i < count; ++i) {
    float sum = to_float(static_cast<const T*>(from[0])[first + i]);
    for (std::size_t r = 1; r < from.size(); ++r) {
      const float v = to_float(static_cast<const T*>(from[r])[first + i]);
      sum = maximum ? std::max(sum, v) : sum + v;
    }
    static_cast<T*>(to)[i] = stored<T>(sum);
  }
}

/// Elements of all members, added up or the largest.
void reduce(const std::vector<const void*>& from, std::size_t first, std::size_t count,
            ncclDataType_t type, ncclRedOp_t op, void* to) {
  const bool maximum = op == ncclMax;
  if (type == ncclFloat32) return reduce_as<float>(from, first, count, maximum, to);
  if (type == ncclBfloat16) return reduce_as<Bf16>(from, first, count, maximum, to);
  if (type == ncclFloat16) return reduce_as<Fp16>(from, first, count, maximum, to);
  fault("a reduction of a type that the fake does not add");
}

/// `give` fills the rank's result from what all members have; then it is written.
ncclResult_t collective(const void* send, void* receive, std::size_t bytes, ncclComm_t comm,
                        cudaStream_t stream,
                        std::function<void(const std::vector<const void*>&, void*)> give) {
  const auto act = [=] {
    Members& all = *comm->members;
    all.from[static_cast<std::size_t>(comm->rank)] = send;
    all.meet();
    std::vector<char> result(bytes);
    give(all.from, result.data());
    all.meet();
    if (bytes > 0) std::memcpy(receive, result.data(), bytes);
    all.meet();
  };
  enqueue(stream, act, comm);
  return ncclSuccess;
}

void leave_group() {
  for (std::vector<std::function<void()>>* works : {&sends_of_group, &receives_of_group}) {
    for (const auto& work : *works) work();
    works->clear();
  }
}

ncclComm_t make_comm(std::shared_ptr<Members> members, int rank) {
  lives("communicators", 1);
  return new ncclComm{std::move(members), rank};
}

ncclResult_t end_comm(ncclComm_t comm, bool aborts) {
  {
    const std::lock_guard lock(state().mutex);
    if (state().graphs_with[comm] > 0) {
      state().faults.emplace_back("a communicator ends, and would wait for a graph");
    }
  }
  count(aborts ? "ncclCommAbort" : "ncclCommDestroy");
  lives("communicators", -1);
  delete comm;
  return ncclSuccess;
}

}  // namespace
}  // namespace foretrain::fake

// NOLINTBEGIN(readability-identifier-naming): the library's names
extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = 22803;
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t) { return "an error of the fake"; }
const char* ncclGetLastError(ncclComm_t) { return ""; }
ncclResult_t ncclGetUniqueId(ncclUniqueId* out) {
  const std::lock_guard lock(fake::worlds_mutex);
  *out = {};
  ++fake::worlds_named;
  std::memcpy(out->internal, &fake::worlds_named, sizeof(int));
  return ncclSuccess;
}
ncclResult_t ncclCommInitRank(ncclComm_t* out, int ranks, ncclUniqueId id, int rank) {
  fake::count("ncclCommInitRank");
  int name = 0;
  std::memcpy(&name, id.internal, sizeof name);
  std::shared_ptr<fake::Members> members;
  {
    const std::lock_guard lock(fake::worlds_mutex);
    auto& known = fake::worlds[name];
    if (known == nullptr) known = std::make_shared<fake::Members>(ranks);
    members = known;
  }
  members->meet();
  *out = fake::make_comm(std::move(members), rank);
  return ncclSuccess;
}
ncclResult_t ncclCommSplit(ncclComm_t comm, int colour, int key, ncclComm_t* out, ncclConfig_t*) {
  fake::count("ncclCommSplit");
  if (fake::state().refuses_split) return ncclInternalError;
  fake::Members& all = *comm->members;
  const auto self = static_cast<std::size_t>(comm->rank);
  all.splits[self] = {colour, key};
  all.meet();
  if (comm->rank == 0) {
    std::map<int, std::map<int, std::size_t>> by_colour;
    for (std::size_t r = 0; r < all.splits.size(); ++r) {
      if (all.splits[r].colour >= 0) by_colour[all.splits[r].colour][all.splits[r].key] = r;
    }
    for (const auto& [own, ranks] : by_colour) {
      const auto made = std::make_shared<fake::Members>(static_cast<int>(ranks.size()));
      int place = 0;
      for (const auto& [order, r] : ranks) all.made[r] = {made, place++};
    }
  }
  all.meet();
  *out = colour < 0 ? nullptr : fake::make_comm(all.made[self].first, all.made[self].second);
  all.meet();
  all.made[self] = {};
  return ncclSuccess;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) { return fake::end_comm(comm, false); }
ncclResult_t ncclCommAbort(ncclComm_t comm) { return fake::end_comm(comm, true); }
ncclResult_t ncclGroupStart() {
  ++fake::groups_open;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  if (--fake::groups_open == 0) fake::leave_group();
  return ncclSuccess;
}
ncclResult_t ncclAllReduce(const void* send, void* receive, std::size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return fake::collective(
      send, receive, count * fake::bytes_of_type(type), comm, stream,
      [=](const auto& from, void* to) { fake::reduce(from, 0, count, type, op, to); });
}
ncclResult_t ncclReduceScatter(const void* send, void* receive, std::size_t count,
                               ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                               cudaStream_t stream) {
  const std::size_t first = count * static_cast<std::size_t>(comm->rank);
  return fake::collective(
      send, receive, count * fake::bytes_of_type(type), comm, stream,
      [=](const auto& from, void* to) { fake::reduce(from, first, count, type, op, to); });
}
ncclResult_t ncclReduce(const void* send, void* receive, std::size_t count, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
  const bool writes = comm->rank == root;
  return fake::collective(send, receive, writes ? count * fake::bytes_of_type(type) : 0, comm,
                          stream, [=](const auto& from, void* to) {
                            if (writes) fake::reduce(from, 0, count, type, op, to);
                          });
}
ncclResult_t ncclAllGather(const void* send, void* receive, std::size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  const std::size_t part = count * fake::bytes_of_type(type);
  const auto members = static_cast<std::size_t>(comm->members->size);
  return fake::collective(send, receive, members * part, comm, stream,
                          [=](const auto& from, void* to) {
                            for (std::size_t r = 0; r < members; ++r) {
                              std::memcpy(static_cast<char*>(to) + r * part, from[r], part);
                            }
                          });
}
ncclResult_t ncclBroadcast(const void* send, void* receive, std::size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream) {
  const std::size_t bytes = count * fake::bytes_of_type(type);
  return fake::collective(send, receive, bytes, comm, stream, [=](const auto& from, void* to) {
    std::memcpy(to, from[static_cast<std::size_t>(root)], bytes);
  });
}
ncclResult_t ncclSend(const void* from, std::size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  if (fake::groups_open == 0) fake::fault("a message outside of a group");
  const auto act = [=] {
    const auto* const bytes = static_cast<const char*>(from);
    fake::Members& all = *comm->members;
    const std::lock_guard lock(all.mutex);
    all.mail[{comm->rank, peer}].emplace_back(bytes, bytes + count * fake::bytes_of_type(type));
    all.changed.notify_all();
  };
  fake::sends_of_group.emplace_back([=] { fake::enqueue(stream, act, comm); });
  return ncclSuccess;
}
ncclResult_t ncclRecv(void* to, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  if (fake::groups_open == 0) fake::fault("a message outside of a group");
  const auto act = [=] {
    fake::Members& all = *comm->members;
    std::unique_lock lock(all.mutex);
    auto& mail = all.mail[{peer, comm->rank}];
    all.changed.wait(lock, [&mail] { return !mail.empty(); });
    if (mail.front().size() != count * fake::bytes_of_type(type)) {
      fake::fault("a message of another size than its receiver expects");
    } else {
      std::memcpy(to, mail.front().data(), mail.front().size());
    }
    mail.pop_front();
  };
  fake::receives_of_group.emplace_back([=] { fake::enqueue(stream, act, comm); });
  return ncclSuccess;
}

}  // extern "C"
// NOLINTEND(readability-identifier-naming)
