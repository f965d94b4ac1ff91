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

/// Ranks are threads of this process.
std::unique_ptr<Transport> make_thread_transport(const Workload& workload);

}  // namespace foretrain
