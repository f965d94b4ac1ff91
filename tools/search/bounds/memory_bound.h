// A plan's memory from below, for less than it costs to lower the plan.
#pragma once

#include "tools/predict/run_file.h"

namespace foretrain {

/// GiB of a device of the first stage and of the last that a plan takes at least: tensors live at
/// once in a step of few microbatches, and what CUDA holds. More microbatches keep no fewer alive.
/// Left out, which makes it lower: fragments, NCCL's buffers, stages between.
double least_memory_gib(const Run& run);

/// The same plan with no more microbatches than keep as much alive as all of them.
Plan of_few_microbatches(Plan plan);

}  // namespace foretrain
