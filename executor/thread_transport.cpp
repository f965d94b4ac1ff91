#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>

#include "executor/transport.h"
#include "executor/watch/thread_watch.h"
#include "sim/base/check.h"
#include "sim/base/threads.h"

namespace foretrain {
namespace {

/// result = sum or maximum of the members' arrays, in the order of the group.
template <typename T>
void combine(const std::vector<CollectiveCall>& calls, std::vector<std::byte>& result) {
  const auto count = static_cast<std::size_t>(calls[0].count);
  auto* out = reinterpret_cast<T*>(result.data());
  std::copy_n(static_cast<const T*>(calls[0].send), count, out);
  for (std::size_t m = 1; m < calls.size(); ++m) {
    const T* in = static_cast<const T*>(calls[m].send);
    for (std::size_t i = 0; i < count; ++i) {
      out[i] = calls[0].maximum ? std::max(out[i], in[i]) : out[i] + in[i];
    }
  }
}

/// The rendezvous of one group. Members arrive; the last one computes into `result`; each copies
/// its part out; the last to leave opens the next round.
struct Rendezvous {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<CollectiveCall> calls;
  std::vector<std::byte> result;
  std::size_t arrived = 0, left = 0;
  std::uint64_t round = 0;   ///< opened
  std::uint64_t solved = 0;  ///< rounds whose result is there
};

struct Pending {
  MessageCall call;
  std::shared_ptr<bool[]> done;  ///< of all messages of one exchange, which may end in an exception
  std::size_t index = 0;
};
struct Mailbox {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Pending> sends, receives;
};

class ThreadTransport : public Transport {
 public:
  ThreadTransport(const Workload& workload, double silence)
      : x_workload(workload),
        x_groups(workload.groups.size() + 1),
        x_channels(workload.channels.size()),
        x_watch(workload.ranks.size(), silence, [this](const std::string& why) { abort(why); }) {
    for (std::size_t g = 0; g < workload.groups.size(); ++g) {
      x_groups[g].calls.resize(workload.groups[g].size());
    }
    x_groups.back().calls.resize(workload.ranks.size());
  }

  Status collective(RankId self, GroupId group, const CollectiveCall& call, Arrival*) override {
    const std::vector<RankId>& members = x_workload.groups[group.index()];
    const auto at = std::find(members.begin(), members.end(), self);
    FT_CHECK(at != members.end(), "a rank uses a group that it is no member of");
    const WaitsHere waits(x_watch.of(self));
    return meet(x_groups[group.index()], static_cast<std::size_t>(at - members.begin()), call);
  }

  Status barrier(RankId self) override {
    const WaitsHere waits(x_watch.of(self));
    return meet(x_groups.back(), self.index(), CollectiveCall{});
  }

  Status exchange(RankId self, std::span<const MessageCall> messages, Arrival*) override {
    const WaitsHere waits(x_watch.of(self));
    const std::shared_ptr<bool[]> done(new bool[messages.size()]());
    for (std::size_t i = 0; i < messages.size(); ++i) {
      const Channel& channel = x_workload.channels[messages[i].channel.index()];
      FT_CHECK((messages[i].send ? channel.source : channel.destination) == self,
               "a rank uses a channel that it is no end of");
      Mailbox& box = x_channels[messages[i].channel.index()];
      const std::lock_guard lock(box.mutex);
      if (x_aborted) return failure();
      (messages[i].send ? box.sends : box.receives).push_back({messages[i], done, i});
      deliver(box);
    }
    for (std::size_t i = 0; i < messages.size(); ++i) {
      Mailbox& box = x_channels[messages[i].channel.index()];
      std::unique_lock lock(box.mutex);
      box.changed.wait(lock, [&] { return x_aborted || done.get()[i]; });
      // After an abort nothing is delivered, so nothing refers to this frame any more.
      if (x_aborted) return failure();
    }
    return ok_status();
  }

  Result<std::vector<std::vector<std::int64_t>>> gather(
      RankId self, const std::vector<std::int64_t>& values) override {
    {
      const std::lock_guard lock(x_mutex);
      x_gathered.resize(x_workload.ranks.size());
      x_gathered[self.index()] = values;
    }
    FT_TRY(barrier(self));
    std::vector<std::vector<std::int64_t>> out;
    if (self.value == 0) out = x_gathered;
    FT_TRY(barrier(self));
    return out;
  }

  Status broadcast(RankId self, std::vector<std::int64_t>& values) override {
    if (self.value == 0) {
      const std::lock_guard lock(x_mutex);
      x_broadcast = values;
    }
    FT_TRY(barrier(self));
    if (self.value != 0) values = x_broadcast;
    return barrier(self);
  }

  OpsUnderWay* ops(RankId self) override { return &x_watch.of(self); }

  void abort(const std::string& reason) noexcept override {
    {
      const std::lock_guard lock(x_mutex);
      if (x_aborted) return;
      x_reason = reason_or_want(reason.c_str());
      x_aborted = true;
    }
    for (Mailbox& box : x_channels) {
      const std::lock_guard lock(box.mutex);
      box.sends.clear();
      box.receives.clear();
      box.changed.notify_all();
    }
    for (Rendezvous& meeting : x_groups) {
      const std::lock_guard lock(meeting.mutex);
      meeting.changed.notify_all();
    }
  }

 private:
  Error failure() {
    const std::lock_guard lock(x_mutex);
    return reason_or_want(x_reason.message.c_str());
  }

  void deliver(Mailbox& box) {
    while (!box.sends.empty() && !box.receives.empty()) {
      const Pending send = box.sends.front();
      const Pending receive = box.receives.front();
      box.sends.pop_front();
      box.receives.pop_front();
      std::memcpy(receive.call.data, send.call.data, static_cast<std::size_t>(send.call.bytes));
      send.done.get()[send.index] = receive.done.get()[receive.index] = true;
      box.changed.notify_all();
    }
  }

  Status meet(Rendezvous& meeting, std::size_t place, const CollectiveCall& call) {
    std::unique_lock lock(meeting.mutex);
    // The round before may still be handing out its result.
    meeting.changed.wait(lock, [&] { return x_aborted || meeting.round == meeting.solved; });
    if (x_aborted) return failure();
    meeting.calls[place] = call;
    const std::uint64_t mine = meeting.round + 1;
    if (++meeting.arrived == meeting.calls.size()) {
      solve(meeting);
      meeting.arrived = 0;
      meeting.round = mine;
      lock.unlock();
      meeting.changed.notify_all();
    } else {
      meeting.changed.wait(lock, [&] { return x_aborted || meeting.round == mine; });
      if (x_aborted) return failure();
      lock.unlock();
    }
    // What was sent lies in the result: whoever has its part may go on.
    copy_out(meeting, place);
    lock.lock();
    if (++meeting.left < meeting.calls.size()) return ok_status();
    meeting.left = 0;
    meeting.solved = mine;
    lock.unlock();
    meeting.changed.notify_all();
    return ok_status();
  }

  static void solve(Rendezvous& meeting) {
    const CollectiveCall& first = meeting.calls[0];
    const std::size_t bytes = static_cast<std::size_t>(first.count) * first.element();
    if (bytes == 0) return;
    const std::size_t n = meeting.calls.size();
    switch (first.kind) {
      case CollectiveKind::kAllReduce:
      case CollectiveKind::kReduceScatter:
      case CollectiveKind::kReduce:
        meeting.result.resize(bytes);
        first.doubles ? combine<double>(meeting.calls, meeting.result)
                      : combine<float>(meeting.calls, meeting.result);
        return;
      case CollectiveKind::kAllGather:
        meeting.result.resize(bytes);
        for (std::size_t m = 0; m < n; ++m) {
          std::memcpy(meeting.result.data() + m * (bytes / n), meeting.calls[m].send, bytes / n);
        }
        return;
      case CollectiveKind::kBroadcast: {
        meeting.result.resize(bytes);
        const auto root = static_cast<std::size_t>(first.root);
        std::memcpy(meeting.result.data(), meeting.calls[root].send, bytes);
        return;
      }
      case CollectiveKind::kAllToAll:
        meeting.result.resize(bytes * n);
        for (std::size_t m = 0; m < n; ++m) {
          std::memcpy(meeting.result.data() + m * bytes, meeting.calls[m].send, bytes);
        }
        return;
    }
  }

  static void copy_out(const Rendezvous& meeting, std::size_t place) {
    const CollectiveCall& call = meeting.calls[place];
    const std::size_t bytes = static_cast<std::size_t>(call.count) * call.element();
    const std::size_t n = meeting.calls.size();
    auto* out = static_cast<std::byte*>(call.receive);
    if (bytes == 0) return;
    switch (call.kind) {
      case CollectiveKind::kReduceScatter:
        std::memcpy(out, meeting.result.data() + place * (bytes / n), bytes / n);
        return;
      case CollectiveKind::kReduce:
        if (static_cast<int>(place) == call.root) std::memcpy(out, meeting.result.data(), bytes);
        return;
      case CollectiveKind::kBroadcast:
        // In place the root only reads, and other work of it may read beside.
        if (static_cast<int>(place) == call.root && call.send == call.receive) return;
        std::memcpy(out, meeting.result.data(), bytes);
        return;
      case CollectiveKind::kAllToAll:
        for (std::size_t m = 0; m < n; ++m) {
          std::memcpy(out + m * (bytes / n),
                      meeting.result.data() + m * bytes + place * (bytes / n), bytes / n);
        }
        return;
      default:
        std::memcpy(out, meeting.result.data(), bytes);
    }
  }

  const Workload& x_workload;
  std::mutex x_mutex;                ///< of the reason, of what `gather` and `broadcast` carry
  std::vector<Rendezvous> x_groups;  ///< the last: all ranks, for `barrier`
  std::vector<Mailbox> x_channels;
  std::vector<std::vector<std::int64_t>> x_gathered;
  std::vector<std::int64_t> x_broadcast;
  std::atomic<bool> x_aborted{false};
  Error x_reason;
  ThreadWatch x_watch;  ///< the last: what it ends goes after it
};

}  // namespace

std::unique_ptr<Transport> make_thread_transport(const Workload& workload, double silence) {
  return std::make_unique<ThreadTransport>(workload, silence);
}

}  // namespace foretrain
