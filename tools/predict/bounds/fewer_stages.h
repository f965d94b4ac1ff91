// A step of many pipeline stages from two of fewer.
//
// Stages in the middle of a pipeline differ by where they stand alone. With n of them, and as many
// microbatches, left out, what a rank of the step takes is taken to be affine in n: passes and
// bubbles grow by one microbatch a stage, activations of the first stage by one microbatch. Time
// and memory of p stages follow from those of a and b = 2 a stages:
//     x(p) = x(b) + (p - b) / (b - a) (x(b) - x(a)).
// Left out: leaves and pods of the network that stages beyond the b-th reach, whose hops are taken
// as those before; collectives over all stages; waits of an allocator that is full.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "tools/predict/predict.h"

namespace foretrain {

/// How many stages the two pipelines have, a and b, of at most 128; none where stages in the middle
/// are not alike (other layers, experts, choices of a stage), where the schedule is not 1f1b,
/// where a stages are no whole nodes, and where there are fewer than 64 stages or fewer
/// microbatches than stages.
std::optional<std::pair<std::int64_t, std::int64_t>> fewer_stages(const Run& run);

/// The run with so many stages, those of `fewer_stages`: with their layers, their ranks, and as
/// many fewer microbatches.
Run with_stages(const Run& run, std::int64_t stages);

/// Whether both have their busiest rank at the same place of the pipeline, and most memory on the
/// first stage, whose microbatches under way are the most: on that of another stage the line says
/// nothing of the first.
bool on_a_line(const Run& run, const Prediction& a, const Prediction& b,
               const std::pair<std::int64_t, std::int64_t>& stages);

/// The run's prediction from those with a and b stages, without rates (`fill_rates`): its executed
/// FLOPs stand in `hfu`, as a share of what a rank executes at its peak rate.
Prediction with_more_stages(const Run& run, const Prediction& a, const Prediction& b,
                            const std::pair<std::int64_t, std::int64_t>& stages);

}  // namespace foretrain
