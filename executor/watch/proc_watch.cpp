#include "executor/watch/proc_watch.h"

#include "executor/watch/peer_watch.h"

namespace foretrain {

ProcWatch::ProcWatch(std::vector<RankProcess> others, double silence,
                     std::function<void(const std::string&)> ends)
    : x_others(std::move(others)), x_ends(std::move(ends)) {
  if (silence <= 0 || x_others.empty()) return;
  x_thread = std::thread([this, silence] { watch(silence); });
}

ProcWatch::~ProcWatch() {
  {
    const std::lock_guard lock(x_mutex);
    x_stop = true;
  }
  x_changed.notify_all();
  if (x_thread.joinable()) x_thread.join();
}

/// A process that is not stopped gives a sign of life; no more is known of it.
void ProcWatch::watch(double silence) {
  const auto now = [] { return std::chrono::steady_clock::now(); };
  PeerWatch peers(-1, x_others.size(), {silence, false}, now());
  std::string why;
  std::unique_lock lock(x_mutex);
  while (why.empty()) {
    if (x_changed.wait_for(lock, peers.period(), [this] { return x_stop; })) return;
    for (std::size_t i = 0; i < x_others.size(); ++i) {
      const char state = state_of_process(x_others[i].process);
      if (state != 'T' && state != 't') peers.heard(static_cast<std::int64_t>(i), now());
    }
    const Verdict verdict = peers.verdict(now());
    if (verdict.silent < 0) continue;
    const RankProcess& other = x_others[static_cast<std::size_t>(verdict.silent)];
    why = "rank " + std::to_string(other.rank) + " is silent: process " +
          std::to_string(other.process) + " on " + own_sign(0, {}).host +
          " is stopped (--silence 0 waits for ever)";
  }
  lock.unlock();
  x_ends(why);
}

}  // namespace foretrain
