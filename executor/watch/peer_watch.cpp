#include "executor/watch/peer_watch.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace foretrain {
namespace {

double seconds_between(Moment from, Moment to) {
  return std::chrono::duration<double>(to - from).count();
}

/// "4.0 s".
std::string seconds_of(double seconds) {
  const auto tenths = std::lround(10 * std::max(seconds, 0.0));
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
}

}  // namespace

PeerWatch::PeerWatch(std::int64_t self, std::size_t ranks, Silence silence, Moment now)
    : x_self(self), x_silence(silence), x_ranks(ranks), x_looked(now) {
  for (Rank& rank : x_ranks) rank.heard = rank.lived = now;
}

std::chrono::milliseconds PeerWatch::period() const {
  const double seconds = x_silence.seconds > 0 ? std::min(x_silence.seconds / 8, 0.5) : 0.5;
  return std::chrono::milliseconds(std::max<std::int64_t>(10, std::llround(1000 * seconds)));
}

void PeerWatch::heard(std::int64_t rank, Moment now) {
  const std::lock_guard lock(x_mutex);
  x_ranks[static_cast<std::size_t>(rank)].heard = now;
}

void PeerWatch::told(std::int64_t rank, const Sign& sign, Moment now) {
  const std::lock_guard lock(x_mutex);
  Rank& one = x_ranks[static_cast<std::size_t>(rank)];
  if (!one.told || one.sign.life != sign.life) one.lived = now;
  one.sign = sign;
  one.told = true;
  one.heard = now;
}

void PeerWatch::left(std::int64_t rank) {
  const std::lock_guard lock(x_mutex);
  x_ranks[static_cast<std::size_t>(rank)].left = true;
}

void PeerWatch::ends() {
  const std::lock_guard lock(x_mutex);
  x_ends = true;
}

Verdict PeerWatch::verdict(Moment now) {
  const std::lock_guard lock(x_mutex);
  const Moment before = std::exchange(x_looked, now);
  if (x_silence.seconds <= 0) return {};
  if (now - before > 2 * period() + std::chrono::milliseconds(200)) {
    for (Rank& rank : x_ranks) rank.heard = rank.lived = now;
    return {};
  }
  for (std::size_t r = 0; r < x_ranks.size(); ++r) {
    const Rank& rank = x_ranks[r];
    if (rank.left || static_cast<std::int64_t>(r) == x_self) continue;
    const double silent = seconds_between(rank.heard, now);
    if (silent < x_silence.seconds) continue;
    return {"rank " + std::to_string(r) + " is silent: " + place_of(rank) +
                " has said nothing for " + seconds_of(silent) +
                (rank.told ? "; it was in " + rank.sign.doing : "") +
                "; it is stopped, or not reached (--silence 0 waits for ever)",
            static_cast<std::int64_t>(r)};
  }
  return hang(now);
}

/// By `x_mutex`. The ranks that wait for no other rank hang. Where every rank waits for another
/// rank, a thread hangs within its wait: all ranks are named, the rank with the fewest operations
/// first.
Verdict PeerWatch::hang(Moment now) const {
  if (!x_silence.hangs || x_ends) return {};
  Moment last{};
  bool all_wait = true;
  for (const Rank& rank : x_ranks) {
    if (rank.left) continue;
    if (!rank.told) return {};
    last = std::max(last, rank.lived);
    all_wait = all_wait && rank.sign.waits;
  }
  const double silent = seconds_between(last, now);
  if (silent < x_silence.seconds) return {};
  constexpr std::size_t kShown = 8;
  std::vector<std::size_t> hanging;
  for (std::size_t r = 0; r < x_ranks.size(); ++r) {
    if (!x_ranks[r].left && (all_wait || !x_ranks[r].sign.waits)) hanging.push_back(r);
  }
  std::stable_sort(hanging.begin(), hanging.end(), [this](std::size_t a, std::size_t b) {
    return x_ranks[a].sign.ops < x_ranks[b].sign.ops;
  });
  std::string which;
  for (std::size_t i = 0; i < std::min(kShown, hanging.size()); ++i) {
    const Rank& rank = x_ranks[hanging[i]];
    which += (i > 0 ? "; rank " : "rank ") + std::to_string(hanging[i]) + " hangs in " +
             rank.sign.doing + " (" + place_of(rank) + ")";
  }
  if (hanging.size() > kShown)
    which += "; and " + std::to_string(hanging.size() - kShown) + " more";
  return {which + ": no rank has done anything for " + seconds_of(silent) +
          " (--silence 0 waits for ever)"};
}

std::string PeerWatch::place_of(const Rank& rank) const {
  if (!rank.told) return "its process";
  return "process " + std::to_string(rank.sign.process) + " on " + rank.sign.host;
}

std::string PeerWatch::gone(std::int64_t rank, const std::string& why, Moment now) const {
  const std::lock_guard lock(x_mutex);
  const Rank& one = x_ranks[static_cast<std::size_t>(rank)];
  const std::string out = "rank " + std::to_string(rank) + " is gone: " + why;
  if (!one.told) return out;
  return out + " (" + place_of(one) + ", last heard of " +
         seconds_of(seconds_between(one.heard, now)) + " ago, in " + one.sign.doing + ")";
}

}  // namespace foretrain
