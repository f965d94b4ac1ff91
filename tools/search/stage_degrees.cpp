#include "tools/search/stage_degrees.h"

#include <algorithm>
#include <functional>

namespace foretrain {
namespace {

using List = std::vector<std::int64_t>;

class Lister {
 public:
  Lister(const DegreesAsked& asked, std::size_t most) : x_asked(asked), x_most(most) {
    std::sort(x_asked.degrees.begin(), x_asked.degrees.end());
  }

  /// One degree a pool.
  void by_pool() {
    if (x_asked.pools.empty()) return;
    List list;
    const std::function<void(std::size_t)> next = [&](std::size_t pool) {
      if (pool == x_asked.pools.size()) return take(list);
      for (const std::int64_t degree : x_asked.degrees) {
        const std::int64_t ranks = x_asked.pools[pool];
        if (ranks % degree != 0 || full()) continue;
        const std::size_t before = list.size();
        if (static_cast<std::int64_t>(before) + ranks / degree > x_asked.most_stages) continue;
        list.insert(list.end(), static_cast<std::size_t>(ranks / degree), degree);
        next(pool + 1);
        list.resize(before);
      }
    };
    next(0);
  }

  /// Of so many stages, growing and shrinking.
  void in_order(std::int64_t stages) {
    List list;
    const std::function<void(std::int64_t, std::size_t)> next = [&](std::int64_t left,
                                                                    std::size_t least) {
      const std::int64_t more = stages - static_cast<std::int64_t>(list.size());
      if (full()) return;
      if (more == 0 && left == 0) {
        take(list);
        take(List(list.rbegin(), list.rend()));
      }
      if (more == 0) return;
      for (std::size_t d = least; d < x_asked.degrees.size(); ++d) {
        const std::int64_t degree = x_asked.degrees[d];
        if (degree * more > left) return;  // the others are no less
        list.push_back(degree);
        next(left - degree, d);
        list.pop_back();
      }
    };
    next(x_asked.ranks, 0);
  }

  bool full() const { return x_out.size() >= x_most; }
  std::vector<List> lists() && { return std::move(x_out); }

 private:
  void take(const List& list) {
    const auto count = static_cast<std::int64_t>(list.size());
    if (full() || count < x_asked.least_stages || count > x_asked.most_stages) return;
    bool alike = true;
    for (std::size_t s = 0; s + 1 < list.size(); ++s) {
      const auto [low, high] = std::minmax(list[s], list[s + 1]);
      if (high % low != 0) return;
      alike &= low == high;
    }
    if (alike || std::find(x_out.begin(), x_out.end(), list) != x_out.end()) return;
    x_out.push_back(list);
  }

  DegreesAsked x_asked;
  std::size_t x_most;
  std::vector<List> x_out;
};

}  // namespace

std::vector<std::vector<std::int64_t>> stage_degrees(const DegreesAsked& asked, std::size_t most) {
  Lister lister(asked, most);
  lister.by_pool();
  for (std::int64_t stages = asked.least_stages; stages <= asked.most_stages; ++stages) {
    if (lister.full()) break;
    lister.in_order(stages);
  }
  return std::move(lister).lists();
}

}  // namespace foretrain
