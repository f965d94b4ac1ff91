// Ranks as MPI processes. Every group has a communicator of its own; messages between two ranks
// are told apart by their channel, as the tag.
//
// Every transfer has two phases. First the partners wait for the last of them: a thread that waits
// naps while another of its rank computes, and looks without pause otherwise. Then all are there,
// and they transfer without a nap: MPI moves large data in many pieces, of which each needs both
// ends to look.
#include <mpi.h>
#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <thread>

#include "executor/mpi_module.h"
#include "executor/watch/proc_watch.h"
#include "sim/base/check.h"
#include "sim/base/printable.h"

namespace foretrain {
namespace {

class MpiTransport : public Transport {
 public:
  MpiTransport(const Workload& workload, Silence silence)
      : x_workload(workload), x_groups(workload.groups.size(), MPI_COMM_NULL) {
    MPI_Comm_rank(MPI_COMM_WORLD, &x_rank);
    x_crowded = workload.ranks.size() > std::thread::hardware_concurrency();
    MPI_Comm_dup(MPI_COMM_WORLD, &x_messages);
    MPI_Comm_dup(MPI_COMM_WORLD, &x_tokens);
    MPI_Comm_dup(MPI_COMM_WORLD, &x_control);
    MPI_Group world = MPI_GROUP_NULL;
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    for (std::size_t g = 0; g < workload.groups.size(); ++g) {
      std::vector<int> members;
      for (const RankId rank : workload.groups[g]) members.push_back(rank.value);
      if (std::find(members.begin(), members.end(), x_rank) == members.end()) continue;
      MPI_Group group = MPI_GROUP_NULL;
      MPI_Group_incl(world, static_cast<int>(members.size()), members.data(), &group);
      MPI_Comm_create_group(MPI_COMM_WORLD, group, static_cast<int>(g % 30'000), &x_groups[g]);
      MPI_Group_free(&group);
    }
    MPI_Group_free(&world);
    if (silence.seconds < 0) silence.seconds = kSilenceHere;
    x_watch.emplace(others_here(), silence.seconds, [this](const std::string& why) {
      abort(why + "; " + "rank " + std::to_string(x_rank) + " was in " + x_ops.state().text);
    });
  }

  Status collective(RankId, GroupId group, const CollectiveCall& call, Arrival* there) override {
    MPI_Comm comm = x_groups[group.index()];
    int size = 1;
    MPI_Comm_size(comm, &size);
    const MPI_Datatype type = call.doubles ? MPI_DOUBLE : MPI_FLOAT;
    const MPI_Op op = call.maximum ? MPI_MAX : MPI_SUM;
    const auto count = static_cast<int>(call.count);
    const int part = count / size;
    if (call.count > (std::int64_t{1} << 31) - 1) {
      return input_error("a collective of more than 2^31 elements");
    }
    const auto bytes = static_cast<std::size_t>(call.count) * call.element();
    FT_TRY(meet(comm));
    if (there != nullptr) *there = now();
    switch (call.kind) {
      case CollectiveKind::kAllReduce:
        MPI_Allreduce(call.send == call.receive ? MPI_IN_PLACE : call.send, call.receive, count,
                      type, op, comm);
        return ok_status();
      case CollectiveKind::kAllGather: {
        // A part that already lies in its place within the whole is gathered in place.
        const auto* begin = static_cast<const std::byte*>(call.receive);
        const auto* own = static_cast<const std::byte*>(call.send);
        const bool in_place = own >= begin && own < begin + bytes;
        MPI_Allgather(in_place ? MPI_IN_PLACE : call.send, part, type, call.receive, part, type,
                      comm);
        return ok_status();
      }
      case CollectiveKind::kReduceScatter: {
        // The result may overlap the input, which MPI forbids.
        std::vector<std::byte> result(bytes / static_cast<std::size_t>(size));
        MPI_Reduce_scatter_block(call.send, result.data(), part, type, op, comm);
        std::memcpy(call.receive, result.data(), result.size());
        return ok_status();
      }
      case CollectiveKind::kBroadcast:
        if (call.send != call.receive) std::memmove(call.receive, call.send, bytes);
        MPI_Bcast(call.receive, count, type, call.root, comm);
        return ok_status();
      case CollectiveKind::kReduce: {
        std::vector<std::byte> result(bytes);
        MPI_Reduce(call.send, result.data(), count, type, op, call.root, comm);
        int place = 0;
        MPI_Comm_rank(comm, &place);
        if (place == call.root) std::memcpy(call.receive, result.data(), bytes);
        return ok_status();
      }
      case CollectiveKind::kAllToAll:
        MPI_Alltoall(call.send, part, type, call.receive, part, type, comm);
        return ok_status();
    }
    return ok_status();
  }

  /// Both ends of a message send each other a token, so that each knows when the other is there.
  Status exchange(RankId, std::span<const MessageCall> messages, Arrival* all_there) override {
    std::vector<MPI_Request> data(messages.size(), MPI_REQUEST_NULL);
    std::vector<MPI_Request> tokens(messages.size(), MPI_REQUEST_NULL);
    for (std::size_t i = 0; i < messages.size(); ++i) {
      const MessageCall& m = messages[i];
      const Channel& channel = x_workload.channels[m.channel.index()];
      const int tag = m.channel.value % 30'000;
      if (m.bytes > (std::int64_t{1} << 31) - 1) return input_error("a message over 2 GiB");
      const auto bytes = static_cast<int>(m.bytes);
      const int partner = m.send ? channel.destination.value : channel.source.value;
      MPI_Irecv(nullptr, 0, MPI_BYTE, partner, tag, x_tokens, &tokens[i]);
      MPI_Send(nullptr, 0, MPI_BYTE, partner, tag, x_tokens);
      // Synchronous: a send ends when its receive has begun, as in NCCL.
      if (m.send) {
        MPI_Issend(m.data, bytes, MPI_BYTE, partner, tag, x_messages, &data[i]);
      } else {
        MPI_Irecv(m.data, bytes, MPI_BYTE, partner, tag, x_messages, &data[i]);
      }
    }
    std::int64_t nap = kFirstNap;
    for (int spin = 0;; ++spin) {
      bool open = false;
      bool moving = false;
      bool waits = false;
      for (std::size_t i = 0; i < messages.size(); ++i) {
        int there = 0;
        int done = 0;
        MPI_Test(&tokens[i], &there, MPI_STATUS_IGNORE);
        MPI_Test(&data[i], &done, MPI_STATUS_IGNORE);
        open = open || there == 0 || done == 0;
        moving = moving || (there != 0 && done == 0);
        waits = waits || there == 0;
      }
      if (!waits && all_there != nullptr && !*all_there) {
        *all_there = now();
      }
      if (!open) return ok_status();
      if (!moving) {
        pause(nap);
      } else if (computing()) {
        sleep(kFirstNap);  // the partner may nap, too
      } else if (spin % kPatience == kPatience - 1) {
        sched_yield();
      }
    }
  }

  Status barrier(RankId) override { return meet(x_control); }

  Result<std::vector<std::vector<std::int64_t>>> gather(
      RankId, const std::vector<std::int64_t>& values) override {
    int size = 1;
    MPI_Comm_size(x_control, &size);
    const auto count = static_cast<int>(values.size());
    std::vector<int> counts(static_cast<std::size_t>(size));
    MPI_Gather(&count, 1, MPI_INT, counts.data(), 1, MPI_INT, 0, x_control);
    std::vector<int> starts(counts.size());
    int total = 0;
    for (std::size_t r = 0; r < counts.size(); ++r) {
      starts[r] = total;
      total += counts[r];
    }
    std::vector<std::int64_t> all(x_rank == 0 ? static_cast<std::size_t>(total) : 0);
    MPI_Gatherv(values.data(), count, MPI_INT64_T, all.data(), counts.data(), starts.data(),
                MPI_INT64_T, 0, x_control);
    std::vector<std::vector<std::int64_t>> out;
    for (std::size_t r = 0; x_rank == 0 && r < counts.size(); ++r) {
      out.emplace_back(all.begin() + starts[r], all.begin() + starts[r] + counts[r]);
    }
    return out;
  }

  Status broadcast(RankId, std::vector<std::int64_t>& values) override {
    MPI_Bcast(values.data(), static_cast<int>(values.size()), MPI_INT64_T, 0, x_control);
    return ok_status();
  }

  /// Ends every process of the job.
  void abort(const std::string& reason) noexcept override {
    if (x_aborted.exchange(true)) return;
    warn(reason);
    std::fflush(stderr);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }

  OpsUnderWay* ops(RankId) override { return &x_ops; }
  void kernel_begins(RankId) override { ++x_kernels; }
  void kernel_ends(RankId) override {
    x_idle_since = nanoseconds();
    --x_kernels;
  }
  bool ranks_are_processes() const override { return true; }

 private:
  static AllThere now() {
    timespec cpu{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
    return {std::chrono::steady_clock::now(),
            static_cast<double>(cpu.tv_sec) + 1e-9 * static_cast<double>(cpu.tv_nsec)};
  }

  static constexpr int kPatience = 1000;                                    ///< looks
  static constexpr std::int64_t kBetweenKernels = 100'000;                  ///< ns
  static constexpr std::int64_t kFirstNap = 20'000, kLongestNap = 320'000;  ///< ns

  /// The other ranks of this machine.
  std::vector<RankProcess> others_here() const {
    const Sign own = own_sign(0, {});
    struct Place {
      std::array<char, 256> host{};
      std::int64_t process = 0;
    };
    Place mine;
    own.host.copy(mine.host.data(), mine.host.size() - 1);
    mine.process = own.process;
    std::vector<Place> all(x_workload.ranks.size());
    MPI_Allgather(&mine, sizeof mine, MPI_BYTE, all.data(), sizeof mine, MPI_BYTE, x_control);
    std::vector<RankProcess> out;
    for (std::size_t r = 0; r < all.size(); ++r) {
      if (static_cast<int>(r) == x_rank || all[r].host != mine.host) continue;
      out.push_back({static_cast<std::int64_t>(r), all[r].process});
    }
    return out;
  }

  /// Returns when all of the group are there.
  Status meet(MPI_Comm comm) {
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Ibarrier(comm, &request);
    std::int64_t nap = kFirstNap;
    while (true) {
      int done = 0;
      MPI_Test(&request, &done, MPI_STATUS_IGNORE);
      if (done != 0) return ok_status();
      pause(nap);
    }
  }

  static std::int64_t nanoseconds() {
    return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
  }

  /// A kernel runs, or ended so shortly ago that the next one is about to.
  bool computing() const { return x_kernels > 0 || nanoseconds() - x_idle_since < kBetweenKernels; }

  /// Between two looks for a partner that is not there yet; naps grow, for each costs the kernel
  /// beside it a few microseconds.
  void pause(std::int64_t& nap) {
    if (!x_crowded && !computing()) {
      sched_yield();
      return;
    }
    sleep(nap);
    nap = std::min(2 * nap, kLongestNap);
  }

  static void sleep(std::int64_t nap) {
    // By default Linux stretches every sleep by 50 us.
    thread_local const int exact = prctl(PR_SET_TIMERSLACK, 1);
    (void)exact;
    const timespec time{0, nap};
    nanosleep(&time, nullptr);
  }

  const Workload& x_workload;
  int x_rank = 0;
  bool x_crowded = false;                     ///< more ranks than cores
  std::atomic<int> x_kernels{0};              ///< that run now
  std::atomic<std::int64_t> x_idle_since{0};  ///< ns
  MPI_Comm x_messages = MPI_COMM_NULL, x_tokens = MPI_COMM_NULL, x_control = MPI_COMM_NULL;
  std::vector<MPI_Comm> x_groups;
  std::atomic<bool> x_aborted{false};
  OpsUnderWay x_ops;
  std::optional<ProcWatch> x_watch;  ///< the last: it uses the others
};

}  // namespace
}  // namespace foretrain

extern "C" void foretrain_join_mpi(const foretrain::Workload& workload, foretrain::Silence silence,
                                   foretrain::MpiWorld& world, std::string& problem) {
  int provided = 0;
  int joined = 0;
  MPI_Initialized(&joined);
  if (joined == 0) {
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
  } else {
    MPI_Query_thread(&provided);
  }
  if (provided < MPI_THREAD_MULTIPLE) {
    problem = "this MPI serves one thread at a time; one with MPI_THREAD_MULTIPLE is needed";
    return;
  }
  int rank = 0;
  int size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  world.rank = foretrain::RankId(rank);
  world.size = size;
  world.finish = [] { MPI_Finalize(); };
  if (size != static_cast<int>(workload.ranks.size())) {
    problem = "the run has " + std::to_string(workload.ranks.size()) + " ranks, the MPI job " +
              std::to_string(size);
    MPI_Finalize();
    return;
  }
  world.transport = std::make_unique<foretrain::MpiTransport>(workload, silence);
}
