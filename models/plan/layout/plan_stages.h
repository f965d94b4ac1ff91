// What single stages of the pipeline do otherwise (`pipeline_stages` of a RUN): the layers of each,
// how many of them are computed again, what of them lives on the host, what its ranks share, and
// how many ranks cut each layer.
//
//   "pipeline_stages": [{"layers": 7, "recompute": 2, "offload": {"optimizer": 0.5}},
//                       {"layers": 9, "sharding": "parameters", "tensor": 4}]
//
// Planners that tune stages one by one (Mist, EuroSys 2025) choose so: stages that hold more
// microbatches compute more layers again. Others (Alpa, OSDI 2022; Sailor, SOSP 2025) give stages
// meshes of their own: a stage of tensor degree t has t x data x context ranks, and ranks stand
// stage after stage. Left out: data degrees by stage, and levels of sharding of which one is
// `none`.
#pragma once

#include "models/plan/plan.h"
#include "models/plan/violations.h"

namespace foretrain {

/// Reads the tensor degrees of `asked` into `plan.tensor`, and into `plan.tensors` where they are
/// several, if the list is sound: where it is not, `derive_stages` says so.
void derive_tensors(const Json& asked, Plan& plan);

/// Reads `asked` into `plan.stages`, and into the plan what follows for all stages: the layout of
/// layers, recomputation of layers where the plan has none, optimizer states on the host where it
/// leaves them on the device. `plan.recompute` is already what the RUN says.
Status derive_stages(const Json& asked, const std::string& source, const Model& model, Plan& plan);

/// The stage behind a stage, or before it. Stages form a ring: the last one sends to the first
/// where chunks are interleaved.
std::int64_t neighbour_of(const Plan& plan, std::int64_t stage, bool next);

/// How many messages a rank of a stage exchanges with the ranks of another stage: its receivers'
/// tensor degree over its own, at least 1. Each end of a message holds a whole number of the other
/// end's parts (`check_stages`).
std::int64_t messages_between(const Plan& plan, std::int64_t stage, std::int64_t other);

/// Ranks that hold parts of one copy of the model: the sum of the stages' tensor degrees.
std::int64_t model_ranks(const Plan& plan);

/// "4", or "2 x 4 and 2 by stage".
std::string tensor_text(const Plan& plan);

/// The tensor degree of a stage.
std::int64_t tensor_of(const Plan& plan, std::int64_t stage);

/// The plan with one tensor degree for all stages: of more or fewer ranks.
Plan plan_of_degree(const Plan& plan, std::int64_t tensor);

/// What no stage can do otherwise. Levels of sharding are for who derives plans to compare
/// (models/plan/plan.cpp).
void check_stages(const Model& model, const Plan& plan, Violations& out);

/// The plan as `stage` follows it.
Plan plan_of_stage(const Plan& plan, std::int64_t stage);

}  // namespace foretrain
