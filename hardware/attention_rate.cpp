#include "hardware/attention_rate.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace foretrain {
namespace {

double rate_on_curve(const AttentionConstants& c, const AttentionCurve& curve, double length) {
  if (length <= c.lengths.front()) {
    return curve.tflops.front() *
           std::pow(length / c.lengths.front(), shared_constants().short_length_power);
  }
  if (length >= c.lengths.back()) return curve.tflops.back();
  std::size_t i = 1;
  while (c.lengths[i] < length) ++i;
  const double at = std::log(length / c.lengths[i - 1]) / std::log(c.lengths[i] / c.lengths[i - 1]);
  return curve.tflops[i - 1] + at * (curve.tflops[i] - curve.tflops[i - 1]);
}

/// Forward multiplies by keys and by values; backward three times by keys, twice by values.
double flops_of_pair(bool backward, std::int64_t keys, std::int64_t values) {
  const auto k = static_cast<double>(keys), v = static_cast<double>(values);
  return 2 * (backward ? 3 * k + 2 * v : k + v);
}

struct Point {
  double flops = 0, seconds = 0;
};

/// Time of a pair of so many FLOPs between `points`, which are in their order.
double between(const std::vector<Point>& points, double narrow, double flops) {
  if (flops <= points.front().flops) {
    const Point& first = points.front();
    return first.seconds * std::min(1.0, std::max(flops, narrow) / first.flops);
  }
  for (std::size_t i = 1; i < points.size(); ++i) {
    const Point& a = points[i - 1];
    const Point& b = points[i];
    if (flops > b.flops) continue;
    return a.seconds + (b.seconds - a.seconds) * (flops - a.flops) / (b.flops - a.flops);
  }
  return points.back().seconds * flops / points.back().flops;
}

}  // namespace

KnownKernel known_kernel(const AttentionConstants& c, AttentionKernel kernel, bool backward) {
  KnownKernel out{kernel, 1};
  for (const AttentionRelative& r : c.relatives) {
    if (r.kernel != out.kernel) continue;
    out.kernel = r.to;
    out.relative *= backward ? r.backward : r.forward;
  }
  return out;
}

PaddedWidths padded_widths(const AttentionConstants& c, const Attention& work) {
  const auto pad = [&c](std::int64_t width) {
    const auto at = std::lower_bound(c.widths.begin(), c.widths.end(), width);
    return at == c.widths.end() ? width : *at;
  };
  return {pad(work.head_dim), pad(work.value_width())};
}

std::optional<double> seconds_per_pair(const AttentionConstants& c, const Attention& work,
                                       AttentionKernel kernel, bool causal, double length) {
  std::vector<Point> equal, all;
  const auto [keys, values] = padded_widths(c, work);
  double contained = 0;  // longest of the narrower heads that are on curves
  for (const AttentionCurve& curve : c.curves) {
    if (curve.kernel != kernel || curve.backward != work.backward || curve.causal != causal) {
      continue;
    }
    const double flops = flops_of_pair(work.backward, curve.head_dim, curve.value_dim);
    const Point point{flops, flops / (rate_on_curve(c, curve, length) * 1e12)};
    all.push_back(point);
    if (curve.value_dim == curve.head_dim) {
      equal.push_back(point);
    } else if (curve.head_dim <= keys) {
      contained = std::max(contained, point.seconds);
    }
  }
  if (equal.empty()) return std::nullopt;
  const auto by_flops = [](const Point& a, const Point& b) { return a.flops < b.flops; };
  std::sort(equal.begin(), equal.end(), by_flops);
  std::sort(all.begin(), all.end(), by_flops);
  const std::int64_t narrow_width = shared_constants().narrow_width;
  const double narrow = flops_of_pair(work.backward, narrow_width, narrow_width);
  const double wide = flops_of_pair(work.backward, keys, std::max(keys, values));
  const double whole = std::max(between(equal, narrow, wide), contained);
  if (values >= keys) return whole;
  return std::min(whole, between(all, narrow, flops_of_pair(work.backward, keys, values)));
}

double rate_by_power(const DeviceSpec& device, const AttentionConstants& c) {
  const bool known = c.reference_power_w > 0 && device.power_w > 0;
  return known ? power_law(device.power_w, c.reference_power_w) : 1;
}

double device_rate(const DeviceSpec& device, const AttentionConstants& c, bool backward) {
  double rate = std::max(device.bf16_tflops, device.fp16_tflops) / c.reference_tflops;
  rate *= c.reference_power_w > 0 ? device.slowest * power_factor(device) * rate_by_power(device, c)
                                  : sustained_factor(device, DType::kBf16);
  if (!backward && c.reference_exponentials > 0 && device.exponentials_per_clock > 0) {
    rate *= std::pow(device.exponentials_per_clock / c.reference_exponentials, c.exponential_power);
  }
  return rate;
}

}  // namespace foretrain
