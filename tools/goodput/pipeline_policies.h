// What a job does that changes its pipelines instead of loading a checkpoint: templates (Oobleck,
// SOSP 2023) and redundant stages (Bamboo, NSDI 2023).
#pragma once

#include "tools/goodput/campaign_plan.h"

namespace foretrain {

/// Paces, pipelines and the pause of `templates`. Every fault is an error.
Status plan_templates(const Run& run, const CampaignRequest& request, Goodput& out);

/// Paces and the pause of `redundant`, and what its copies of states take.
Status plan_redundant(const Run& run, const CampaignRequest& request, Goodput& out);

}  // namespace foretrain
