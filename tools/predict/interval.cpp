#include "tools/predict/interval.h"

#include <algorithm>
#include <cmath>

#include "sim/base/constants.h"

namespace foretrain {
namespace {

/// The 95th percentile of a normal distribution.
constexpr double kNormal95 = 1.6448536269514722;

Deviation deviation_at(const Json& root, const char* key) {
  const std::vector<double> both = numbers_at(root, key);
  return both.size() == 2 ? Deviation{both[0], both[1]} : Deviation{};
}

double number_at_first(const Json& root, const char* key) {
  const std::vector<double> all = numbers_at(root, key);
  return all.empty() ? 0 : all.front();
}

}  // namespace

const IntervalWidths& interval_widths() {
  static const IntervalWidths widths = [] {
    const Json root = load_constants("intervals.json");
    return IntervalWidths{deviation_at(root, "dense"), deviation_at(root, "experts"),
                          deviation_at(root, "memory"), number_at_first(root, "plans")};
  }();
  return widths;
}

Deviation time_deviation(const Model& model, const Cluster& cluster) {
  if (cluster.device.architecture == Architecture::kCpu) return {};
  return model.has_experts() ? interval_widths().experts : interval_widths().dense;
}

Deviation memory_deviation(const Cluster& cluster) {
  const bool host = cluster.device.architecture == Architecture::kCpu;
  return host ? Deviation() : interval_widths().memory;
}

double plans_deviation(const Cluster& cluster) {
  const bool host = cluster.device.architecture == Architecture::kCpu;
  return host ? 0 : interval_widths().plans;
}

Interval interval_around(double value, double prices, const Deviation& published) {
  return {value * std::exp(std::min(-prices, published.low)),
          value * std::exp(std::max(prices, published.high))};
}

double probability_within(double value, double limit, const Deviation& published) {
  if (value <= 0) return 1;
  if (limit <= 0) return 0;
  const double distance = std::log(limit / value);
  const double side = distance < 0 ? -published.low : published.high;
  if (side <= 0) return distance < 0 ? 0 : 1;
  return 0.5 * std::erfc(-distance / (side / kNormal95) / std::sqrt(2.0));
}

}  // namespace foretrain
