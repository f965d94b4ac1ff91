// Lowering: a model and a plan become a Workload.
//
// Passes, in order: coordinates of ranks from `rank_order`; groups and channels; a Program for each
// pipeline stage; bindings. Nothing here knows hardware.
#pragma once

#include <array>

#include "models/plan/plan.h"
#include "sim/program/program.h"

namespace foretrain {

/// Place of a rank along each parallel dimension.
struct Coordinates {
  std::int64_t tensor = 0, data = 0, pipeline = 0;
  bool operator==(const Coordinates&) const = default;
};

/// `plan.rank_order` lists dimensions from the fastest on: rank = sum of coordinate x product of
/// the sizes of faster dimensions.
Coordinates coordinates_of(const Plan& plan, RankId rank);
RankId rank_at(const Plan& plan, const Coordinates& at);

/// Place of a rank among the experts of its stage: which part of each, which experts, which copy.
/// As in Megatron-LM the order of ranks is that of `rank_order`, with the experts' degrees in place
/// of the others'; "ep" stands before "dp" where the order does not name it.
struct ExpertCoordinates {
  std::int64_t tensor = 0, expert = 0, data = 0;
};
ExpertCoordinates expert_coordinates(const Plan& plan, const Coordinates& at);

/// "tensor 3, data 0, pipeline 7".
std::string name_of(const Coordinates& at);

/// Refuses steps whose Programs would fill memory: a pass of a layer takes about 10 kB, and a
/// million of them is the most.
Status lowerable(const Model& model, const Plan& plan);

/// The Programs of a step, and what each rank's slots are. `lowerable` is to be asked first.
Workload lower(const Model& model, const Plan& plan);

}  // namespace foretrain
