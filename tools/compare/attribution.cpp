#include "tools/compare/attribution.h"

#include <algorithm>
#include <array>
#include <functional>
#include <queue>

namespace foretrain {
namespace {

constexpr std::size_t kClasses = static_cast<std::size_t>(FamilyClass::kCount);

/// What runs of one class, the one that began first on top.
using Running = std::priority_queue<std::size_t, std::vector<std::size_t>, std::greater<>>;

class Sweep {
 public:
  Sweep(const std::vector<Busy>& busy, std::size_t first, const Window& window,
        std::int64_t short_gap, Attribution& out)
      : x_busy(busy), x_next(first), x_window(window), x_short(short_gap), x_out(out) {}

  void run() {
    std::int64_t now = x_window.begin;
    while (now < x_window.end) {
      start(now);
      const std::size_t owner = owner_at(now);
      const std::int64_t begins = x_next < x_busy.size() ? x_busy[x_next].begin : x_window.end;
      std::int64_t until = std::min(begins, x_window.end);
      if (owner == kNobody) {
        x_out.idle += until - now;
        if (until - now < x_short) x_out.short_idle += until - now;
      } else {
        until = std::min(until, x_busy[owner].end);
        x_out.exposed[x_busy[owner].group] += until - now;
      }
      now = until;
    }
  }

 private:
  static constexpr std::size_t kNobody = static_cast<std::size_t>(-1);

  void start(std::int64_t now) {
    for (; x_next < x_busy.size() && x_busy[x_next].begin <= now; ++x_next) {
      const Busy& one = x_busy[x_next];
      const std::int64_t begin = std::max(one.begin, x_window.begin);
      const std::int64_t end = std::min(one.end, x_window.end);
      if (end <= begin) continue;
      x_out.busy[one.group] += static_cast<double>(end - begin);
      x_running[static_cast<std::size_t>(one.of)].push(x_next);
    }
  }

  std::size_t owner_at(std::int64_t now) {
    for (Running& running : x_running) {
      while (!running.empty() && x_busy[running.top()].end <= now) running.pop();
      if (!running.empty()) return running.top();
    }
    return kNobody;
  }

  const std::vector<Busy>& x_busy;
  std::size_t x_next;
  Window x_window;
  std::int64_t x_short;
  Attribution& x_out;
  std::array<Running, kClasses> x_running;
};

}  // namespace

Attribution attribute(const std::vector<Busy>& busy, const std::vector<Window>& windows,
                      std::size_t groups, std::int64_t short_gap) {
  Attribution out;
  out.busy.resize(groups);
  out.exposed.resize(groups);
  std::vector<std::int64_t> latest(busy.size());  // the last end up to here: never falls
  for (std::size_t i = 0; i < busy.size(); ++i) {
    latest[i] = i == 0 ? busy[i].end : std::max(latest[i - 1], busy[i].end);
  }
  for (const Window& window : windows) {
    if (window.end <= window.begin) continue;
    out.length += window.end - window.begin;
    const auto first = std::upper_bound(latest.begin(), latest.end(), window.begin);
    Sweep(busy, static_cast<std::size_t>(first - latest.begin()), window, short_gap, out).run();
  }
  return out;
}

}  // namespace foretrain
