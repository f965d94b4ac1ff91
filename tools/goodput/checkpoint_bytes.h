// What a checkpoint of a run holds, from its Programs.
#pragma once

#include "tools/predict/run_file.h"

namespace foretrain {

/// Weights as passes read them and the optimizer's states, its fp32 copy of the weights included,
/// wherever they live. Gradients, activations and counters are not saved.
struct CheckpointBytes {
  double total = 0;  ///< every parameter once, whatever ranks hold it
  double rank = 0;   ///< of the rank with most, its copy of what others have too included
};

CheckpointBytes checkpoint_bytes(const Run& run);

}  // namespace foretrain
