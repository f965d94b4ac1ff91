// What many campaigns say together.
#pragma once

#include <array>
#include <vector>

#include "sim/campaign/campaign.h"

namespace foretrain {

struct Spread {
  double mean = 0, p10 = 0, p50 = 0, p90 = 0;
};

/// Mean and percentiles, between neighbours by proportion. `values` is not empty.
Spread spread_of(std::vector<double> values);

struct CampaignStatistics {
  Spread ettr, days;
  std::array<double, kCampaignParts> parts{};  ///< mean shares of the wall time; they add up to 1
  std::vector<double> failures;                ///< mean count of each component
  bool ended = true;                           ///< none was given up
};

CampaignStatistics statistics_of(const std::vector<CampaignOutcome>& outcomes);

}  // namespace foretrain
