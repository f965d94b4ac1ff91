#include "tools/search/robustness.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "sim/base/rng.h"

namespace foretrain {
namespace {

/// Of a standard normal distribution (Box and Muller 1958).
double normal(Rng& rng) {
  const double radius = std::sqrt(-2 * std::log(1 - rng.uniform()));
  return radius * std::cos(2 * std::numbers::pi * rng.uniform());
}

/// Adds every plan's own error of one draw: of each part a path of a Brownian motion, whose value
/// at a plan's share of the part is what it adds.
void add_own_errors(const std::vector<UnsurePlan>& plans, double deviation, Rng& rng,
                    std::vector<double>& factors) {
  std::vector<std::pair<double, std::size_t>> order(plans.size());
  for (std::size_t part = 0; part < PartDeviations().size(); ++part) {
    for (std::size_t i = 0; i < plans.size(); ++i) order[i] = {plans[i].shares[part], i};
    std::sort(order.begin(), order.end());
    double at = 0;
    double value = 0;
    for (const auto& [share, plan] : order) {
      if (share > at) value += std::sqrt(share - at) * normal(rng);
      at = std::max(at, share);
      factors[plan] += deviation * value;
    }
  }
}

}  // namespace

std::vector<double> shares_of_wins(const std::vector<UnsurePlan>& plans, double deviation,
                                   std::size_t draws) {
  std::vector<double> out(plans.size());
  if (plans.empty() || draws == 0) return out;
  constexpr std::uint64_t kSeed = 1;
  Rng rng(kSeed);
  for (std::size_t draw = 0; draw < draws; ++draw) {
    PartDeviations of_parts{};
    for (double& one : of_parts) one = normal(rng);
    std::vector<double> factors(plans.size(), 1.0);
    add_own_errors(plans, deviation, rng, factors);
    std::size_t best = 0;
    double least = 0;
    for (std::size_t i = 0; i < plans.size(); ++i) {
      for (std::size_t part = 0; part < of_parts.size(); ++part) {
        factors[i] += of_parts[part] * plans[i].by_part[part];
      }
      const double objective = plans[i].objective * factors[i];
      if (i > 0 && objective >= least) continue;
      best = i;
      least = objective;
    }
    out[best] += 1;
  }
  for (double& share : out) share /= static_cast<double>(draws);
  return out;
}

}  // namespace foretrain
