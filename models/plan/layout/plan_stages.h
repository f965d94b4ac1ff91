// What single stages of the pipeline do otherwise (`pipeline_stages` of a RUN): the layers of each,
// how many of them are computed again, what of them lives on the host, what its ranks share.
//
//   "pipeline_stages": [{"layers": 7, "recompute": 2, "offload": {"optimizer": 0.5}},
//                       {"layers": 9, "sharding": "parameters"}]
//
// Planners that tune stages one by one (Mist, EuroSys 2025) choose so: stages that hold more
// microbatches compute more layers again. Left out: tensor degrees by stage, and levels of sharding
// of which one is `none`.
#pragma once

#include "models/plan/plan.h"
#include "models/plan/violations.h"

namespace foretrain {

/// Reads `asked` into `plan.stages`, and into the plan what follows for all stages: the layout of
/// layers, recomputation of layers where the plan has none, optimizer states on the host where it
/// leaves them on the device. `plan.recompute` is already what the RUN says.
Status derive_stages(const Json& asked, const std::string& source, const Model& model, Plan& plan);

/// What no stage can do otherwise. Levels of sharding are for who derives plans to compare
/// (models/plan/plan.cpp).
void check_stages(const Model& model, const Plan& plan, Violations& out);

/// The plan as `stage` follows it.
Plan plan_of_stage(const Plan& plan, std::int64_t stage);

}  // namespace foretrain
