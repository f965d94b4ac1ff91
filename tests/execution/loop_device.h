// A device that is made of loops on the host: a thread for each stream, which runs the functors of
// the CUDA kernels one after another. For tests of everything that needs no GPU: streams run ahead
// of each other as far as the Program lets them.
#pragma once

#include <memory>

#include "executor/cuda/device.h"

namespace foretrain {

/// Collectives and messages go through `transport`. What an op writes is searched for NaN. `team`:
/// the workers of a team, threads if more than one.
std::unique_ptr<Device> make_loop_device(RankId rank, Transport& transport, std::size_t team = 1);

}  // namespace foretrain
