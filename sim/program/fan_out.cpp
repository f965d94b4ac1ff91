#include <algorithm>

#include "sim/program/work.h"

namespace foretrain {
namespace {

/// C(n - missed, k) / C(n, k): the chance that k of n drawn without replacement miss `missed`.
double all_missed(std::int64_t n, std::int64_t missed, std::int64_t k) {
  double chance = 1;
  for (std::int64_t i = 0; i < k; ++i) {
    chance *= static_cast<double>(std::max<std::int64_t>(0, n - missed - i)) /
              static_cast<double>(std::max<std::int64_t>(1, n - i));
  }
  return chance;
}

/// C(n, k) as a product, exact for the few groups of a router.
double choose(std::int64_t n, std::int64_t k) {
  if (k < 0 || k > n) return 0;
  double ways = 1;
  for (std::int64_t i = 1; i <= k; ++i) {
    ways *= static_cast<double>(n - k + i) / static_cast<double>(i);
  }
  return ways;
}

}  // namespace

double parts_hit(const FanOut& fan_out, std::int64_t parts) {
  const std::int64_t size = std::max<std::int64_t>(1, fan_out.items / parts);
  const std::int64_t group = std::max(1, fan_out.items / fan_out.groups);
  const std::int64_t pool = group * fan_out.limit;
  const auto count = static_cast<double>(parts);
  if (size <= group) {
    const double chosen = static_cast<double>(fan_out.limit) / fan_out.groups;
    return count * chosen * (1 - all_missed(pool, size, fan_out.drawn));
  }
  const std::int64_t spanned = size / group;
  double missed = 0;
  for (std::int64_t j = 0; j <= std::min<std::int64_t>(spanned, fan_out.limit); ++j) {
    const double chance = choose(spanned, j) * choose(fan_out.groups - spanned, fan_out.limit - j) /
                          choose(fan_out.groups, fan_out.limit);
    missed += chance * all_missed(pool, j * group, fan_out.drawn);
  }
  return count * (1 - missed);
}

}  // namespace foretrain
