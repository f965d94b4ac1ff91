// How a pipeline's layers are divided, and its passes ordered, by the time that they take.
#pragma once

#include "models/plan/layout/partition.h"
#include "tools/predict/run_file.h"

namespace foretrain {

/// Time of a step's forward and backward passes by layer, as the even division prices them: of the
/// device, what the operations of each pass take alone, with its own exchanges of tensor, expert
/// and context ranks and what it computes again; and of the host, which issues them. Left out:
/// passes slowed by what other streams do, parameters that are gathered and gradients that are
/// reduced, the update.
Result<std::vector<LayerWeights>> pass_times(const Run& run);

/// Fills in the layout of `parallel.pipeline_partition` `profiled`, where a run is read. The even
/// division decides what a layer's pass takes, also where it depends on its place in a stage
/// (`recompute.layers`, `offload.activation_layers`).
Status divide_by_time(Run& run);

/// Makes the order of a schedule that fits durations (`fits_durations`) for those of this run,
/// where it gives none: of the stage that works longest, forward passes, gradients of inputs with
/// what is computed again, and of weights, each as long as its device or its host takes alone; the
/// longest message. Its authors time them in the first steps.
Status order_by_time(Run& run);

}  // namespace foretrain
