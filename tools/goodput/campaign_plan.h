// The plan of a campaign: what the section asks for, with what the run itself says.
#pragma once

#include "tools/goodput/goodput.h"
#include "tools/predict/predict.h"

namespace foretrain {

/// `goodput` gets its plan, its step, its bytes and its notes; no interval yet where the section
/// leaves it open. Every fault is an error.
Status plan_campaign(const Run& run, const CampaignRequest& request, Goodput& goodput);

/// The step of the run with changes, and its memory.
Result<Prediction> predict_with(const Run& run, const Sets& sets);

/// "KEY=VALUE".
std::string set_text(const char* key, std::int64_t value);

/// Seconds in which a node gets what another one holds.
double peer_copy_s(const Run& run, const CheckpointBytes& bytes);

}  // namespace foretrain
