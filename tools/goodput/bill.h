// What the steps of a run cost where nothing goes wrong.
#pragma once

#include <optional>

#include "sim/campaign/request.h"
#include "tools/predict/run_file.h"

namespace foretrain {

/// The RUN's section `campaign`; none where it has none.
Result<std::optional<CampaignRequest>> campaign_of(const Run& run);

/// Steps of the request: as given, or those that its tokens fill. Checks that one of the two is.
Result<std::int64_t> steps_of(const Run& run, const WorkRequest& work);

struct Bill {
  std::int64_t steps = 0;
  double days = 0, gpu_hours = 0, energy_mwh = 0;
  std::optional<double> cost;
};

/// Of `days` of the run's accelerators and `spares` nodes. Energy is what the accelerators may
/// draw, times the site's PUE; hosts, network and spares are left out of it.
Bill bill_of(const Run& run, const PriceRequest& price, double days, std::int64_t spares);

/// The simple bill of a step time: no failures, no checkpoints. None where the RUN has no campaign.
Result<std::optional<Bill>> simple_bill(const Run& run, double step_s);
std::string text_of(const Bill& bill);
Json json_of(const Bill& bill);

}  // namespace foretrain
