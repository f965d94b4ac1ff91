#include "executor/watch/thread_watch.h"

#include <unistd.h>

#include <cstdio>

#include "executor/watch/peer_watch.h"
#include "sim/base/printable.h"
#include "sim/base/temporaries.h"

namespace foretrain {

ThreadWatch::ThreadWatch(std::size_t ranks, double silence,
                         std::function<void(const std::string&)> ends)
    : x_ranks(ranks) {
  if (silence <= 0) return;
  x_thread = std::thread([this, silence, ends = std::move(ends)] { watch(silence, ends); });
}

ThreadWatch::~ThreadWatch() {
  {
    const std::lock_guard lock(x_mutex);
    x_stop = true;
  }
  x_changed.notify_all();
  if (x_thread.joinable()) x_thread.join();
}

/// The ranks are one process: it lives as long as one of them does.
void ThreadWatch::watch(double silence, const std::function<void(const std::string&)>& ends) {
  const auto now = [] { return std::chrono::steady_clock::now(); };
  PeerWatch peers(0, x_ranks.size(), {silence}, now());
  OwnLife life;
  std::unique_lock lock(x_mutex);
  std::string why;
  while (why.empty()) {
    if (x_changed.wait_for(lock, peers.period(), [this] { return x_stop; })) return;
    std::uint64_t changes = 0;
    for (const OpsUnderWay& rank : x_ranks) changes += rank.state().changes;
    const std::uint64_t lived = life.look(changes, now());
    for (std::size_t r = 0; r < x_ranks.size(); ++r) {
      peers.told(static_cast<std::int64_t>(r), own_sign(lived, x_ranks[r].state()), now());
    }
    why = peers.verdict(now()).why;
  }
  // What it locks a thread that hangs may hold.
  std::thread tells([&ends, &why] { ends(why); });
  const bool stop = x_changed.wait_for(lock, std::chrono::seconds(1), [this] { return x_stop; });
  lock.unlock();
  if (stop) {
    tells.join();
    return;
  }
  warn(why);
  std::fflush(stderr);
  remove_temporaries();
  _exit(1);
}

}  // namespace foretrain
