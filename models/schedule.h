// Pipeline schedules as data: what each stage does, in order.
#pragma once

#include <cstdint>
#include <vector>

#include "models/plan.h"

namespace foretrain {

/// One pass of a microbatch through one chunk. `chunk` counts on this stage: 0 .. virtual - 1; the
/// chunk of the whole pipeline is chunk * pipeline + stage.
struct Pass {
  std::int32_t chunk = 0;
  std::int32_t microbatch = 0;
  bool backward = false;
  bool operator==(const Pass&) const = default;
};

/// The passes of `stage`, 0 .. pipeline - 1.
///
/// gpipe: all forwards, then all backwards in reverse (Huang et al. 2019).
/// 1f1b: min(p - stage - 1, m) forwards, then one forward and one backward in turn (Narayanan et
/// al. 2019). interleaved-1f1b: chunks take turns every p microbatches; 2 (p - stage - 1) + (v - 1)
/// p forwards first, all when m = p (Narayanan et al. 2021; the warm-up of Megatron-LM).
std::vector<Pass> schedule_passes(Schedule schedule, std::int64_t stage, std::int64_t pipeline,
                                  std::int64_t virtual_pipeline, std::int64_t microbatches);

}  // namespace foretrain
