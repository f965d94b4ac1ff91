// The plan of a campaign: what the section asks for, with what the run itself says.
#pragma once

#include "tools/goodput/goodput.h"

namespace foretrain {

/// `goodput` gets its plan, its step, its bytes and its notes; no interval yet where the section
/// leaves it open. Every fault is an error.
Status plan_campaign(const Run& run, const CampaignRequest& request, Goodput& goodput);

}  // namespace foretrain
