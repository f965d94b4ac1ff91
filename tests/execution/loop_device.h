// A device that is made of loops on the host: a thread for each stream, which runs the functors of
// the CUDA kernels one after another. For tests of everything that needs no GPU: streams run ahead
// of each other as far as the Program lets them.
#pragma once

#include <functional>
#include <memory>

#include "executor/cuda/device.h"

namespace foretrain {

/// A GPU as far as its times and its SMs go; what is not there is as on any loop device.
struct LoopGpu {
  std::function<void()> begin;      ///< of a step
  std::function<Time()> busy;       ///< of every op of the step that has ended, at most 1 us
  std::function<Status(int)> hold;  ///< so many SMs
  std::function<Status()> release;
  std::function<Status(int, bool)> holds;  ///< so many SMs, with or without copies; before `hold`
  double held_gb_per_s = 0;                ///< what held SMs moved
  std::function<void(bool)> record;        ///< whether `busy` will be asked for
  bool wall_clock = false;  ///< marks have the time that has passed, not their number in us
};

/// Collectives and messages go through `transport`. What an op writes is searched for NaN. `team`:
/// the workers of a team, threads if more than one.
std::unique_ptr<Device> make_loop_device(RankId rank, Transport& transport, std::size_t team = 1,
                                         LoopGpu gpu = {});

}  // namespace foretrain
