// How ranks talk: the meaning of NCCL's collectives and grouped send/receive, for memory of the
// host. Three implementations: threads of one process, MPI, and TCP.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "executor/watch/life.h"
#include "sim/base/result.h"
#include "sim/program/program.h"

namespace foretrain {

/// When the last of the partners had come and the transfer began, and the CPU time that this
/// process had used by then; none where that is not known.
struct AllThere {
  std::chrono::steady_clock::time_point at;
  double cpu_seconds = 0;
};
using Arrival = std::optional<AllThere>;

/// One rank's part in a rendezvous of its group. `count`: elements of the full array, as in
/// Collective. `send` and `receive` may overlap. `root`: place in the group, of broadcast and
/// reduce.
struct CollectiveCall {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  bool maximum = false;
  bool doubles = false;  ///< elements are double, else float
  std::int64_t count = 0;
  const void* send = nullptr;
  void* receive = nullptr;
  int root = 0;
  std::size_t element() const { return doubles ? sizeof(double) : sizeof(float); }
};

struct MessageCall {
  bool send = false;
  ChannelId channel;
  Bytes bytes = 0;
  void* data = nullptr;
};

/// Calls block the calling thread until the operation is done for this rank. Threads of one rank
/// may call at the same time, for different groups and channels. After `abort` every call of every
/// rank returns an error.
class Transport {
 public:
  Transport() : x_id(++s_made) {}
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;
  Transport(Transport&&) = delete;
  Transport& operator=(Transport&&) = delete;
  virtual ~Transport() = default;

  virtual Status collective(RankId self, GroupId group, const CollectiveCall& call,
                            Arrival* there = nullptr) = 0;
  /// All messages progress together; returns when all are done.
  virtual Status exchange(RankId self, std::span<const MessageCall> messages,
                          Arrival* there = nullptr) = 0;
  /// Of all ranks.
  virtual Status barrier(RankId self) = 0;
  /// What every rank gives, by rank; empty but on rank 0. Of all ranks.
  virtual Result<std::vector<std::vector<std::int64_t>>> gather(
      RankId self, const std::vector<std::int64_t>& values) = 0;
  /// Rank 0's values on every rank; there are as many of them on each. Of all ranks.
  virtual Status broadcast(RankId self, std::vector<std::int64_t>& values) = 0;
  /// Ends what all ranks wait for. Memory that runs out here costs the reason's text alone.
  virtual void abort(const std::string& reason) noexcept = 0;

  /// Where the rank notes what it does, for messages and to tell ranks that hang; none: nowhere.
  virtual OpsUnderWay* ops(RankId) { return nullptr; }
  /// A thread of the rank begins or ends a kernel: while one runs, those that wait for other ranks
  /// leave it the core.
  virtual void kernel_begins(RankId) {}
  virtual void kernel_ends(RankId) {}
  /// Whether every rank is a process: its CPU time is then that of its threads together.
  virtual bool ranks_are_processes() const { return false; }
  /// Told apart from every other transport that this process has made, gone ones too.
  std::uint64_t id() const { return x_id; }

 private:
  static inline std::atomic<std::uint64_t> s_made{0};
  std::uint64_t x_id;
};

/// While it lives the rank does what the name says, which must outlive it.
class OpUnderWay {
 public:
  OpUnderWay(Transport& transport, RankId rank, const std::string& name)
      : x_ops(transport.ops(rank)), x_name(name) {
    if (x_ops != nullptr) x_ops->begins(x_name);
  }
  OpUnderWay(const OpUnderWay&) = delete;
  OpUnderWay& operator=(const OpUnderWay&) = delete;
  OpUnderWay(OpUnderWay&&) = delete;
  OpUnderWay& operator=(OpUnderWay&&) = delete;
  ~OpUnderWay() {
    if (x_ops != nullptr) x_ops->ends(x_name);
  }

 private:
  OpsUnderWay* x_ops;
  const std::string& x_name;
};

/// Ranks are threads of this process. `silence` > 0: after so many seconds in which no rank does
/// anything the job ends, and soon after that the process.
std::unique_ptr<Transport> make_thread_transport(const Workload& workload, double silence = 0);

}  // namespace foretrain
