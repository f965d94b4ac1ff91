// The page of a verb's result: `--report F.html`.
#pragma once

#include <string>

#include "sim/base/json.h"
#include "sim/campaign/campaign.h"
#include "sim/timeline/timeline_source.h"

namespace foretrain {

/// Of `simulate`: verdict, memory by kind, where the time goes, what a step gains, the schedule of
/// the shown ranks (`timeline`, may be null), provenance and the RUN with all defaults.
std::string simulation_page(const Json& result, const Json& run, const TimelineSource* timeline);
/// Of `search`: the ranked plans, step time over memory with the front marked, the certificate.
std::string search_page(const Json& result);
/// Of `goodput`: days, parts of the time, failures, checkpoints, sensitivities, and one campaign
/// drawn.
std::string goodput_page(const Json& result, const CampaignTimeline& timeline);
/// Of `goodput` on several clusters and with several policies: a table, days over cost.
std::string goodput_table_page(const Json& result);
/// Of `compare`: families of both sides, phases.
std::string comparison_page(const Json& result);
/// Of `score`: errors, predicted over measured, coverage, ranking, all rows.
std::string score_page(const Json& result);

}  // namespace foretrain
