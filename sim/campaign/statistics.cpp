#include "sim/campaign/statistics.h"

#include <algorithm>

namespace foretrain {

Spread spread_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  Spread out;
  for (const double value : values) out.mean += value;
  out.mean /= static_cast<double>(values.size());
  const auto at = [&values](double share) {
    const double place = share * static_cast<double>(values.size() - 1);
    const auto below = static_cast<std::size_t>(place);
    const std::size_t above = std::min(below + 1, values.size() - 1);
    return values[below] + (values[above] - values[below]) * (place - static_cast<double>(below));
  };
  out.p10 = at(0.1);
  out.p50 = at(0.5);
  out.p90 = at(0.9);
  return out;
}

CampaignStatistics statistics_of(const std::vector<CampaignOutcome>& outcomes) {
  CampaignStatistics out;
  std::vector<double> ettr;
  std::vector<double> days;
  const auto count = static_cast<double>(outcomes.size());
  out.failures.assign(outcomes.front().failures.size(), 0);
  for (const CampaignOutcome& one : outcomes) {
    const Nanos wall = one.wall();
    ettr.push_back(one.ettr());
    days.push_back(seconds_of(wall) / kSecondsPerDay);
    for (std::size_t part = 0; part < kCampaignParts; ++part) {
      out.parts[part] += static_cast<double>(one.parts[part]) / static_cast<double>(wall) / count;
    }
    for (std::size_t c = 0; c < out.failures.size(); ++c) {
      out.failures[c] += static_cast<double>(one.failures[c]);
    }
    out.ended = out.ended && one.ended;
  }
  for (double& failures : out.failures) failures /= count;
  out.ettr = spread_of(std::move(ettr));
  out.days = spread_of(std::move(days));
  return out;
}

}  // namespace foretrain
