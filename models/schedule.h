// Pipeline schedules as data: what each stage does, in order.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/plan.h"

namespace foretrain {

/// The passes of `stage`, 0 .. pipeline - 1.
///
/// gpipe: all forwards, then all backwards in reverse (Huang et al. 2019).
/// 1f1b: min(p - stage - 1, m) forwards, then one forward and one backward in turn (Narayanan et
/// al. 2019). interleaved-1f1b: chunks take turns every p microbatches; 2 (p - stage - 1) + (v - 1)
/// p forwards first, all when m = p (Narayanan et al. 2021; the warm-up of Megatron-LM).
///
/// zb-h1, zb-h2 (Qi et al., arXiv 2401.10241): as 1f1b with the gradients of weights in passes of
/// their own, `stage` microbatches behind those of inputs; h2: twice the warm-up, 2 stage behind.
/// With equal passes no stage keeps more than p microbatches, h2: 2p - 1.
/// zb-v (arXiv 2405.15362): two chunks a stage, the second in reverse order. Here the list that
/// comes of equal passes when every stage always takes the first of: forward of chunk 1, gradients
/// of inputs of chunk 0, of chunk 1, forward of chunk 0, gradients of weights, and never keeps more
/// than 2p passes.
std::vector<Pass> schedule_passes(Schedule schedule, std::int64_t stage, std::int64_t pipeline,
                                  std::int64_t virtual_pipeline, std::int64_t microbatches);

/// The passes of every stage of `plan`.
std::vector<std::vector<Pass>> passes_of(const Plan& plan);

/// Reads a user's schedule, for every stage a list of [chunk of the pipeline, microbatch, "F", "B"
/// or "W"], and refuses what misses a pass or can not run (see `check_passes`). Without any "W" a
/// "B" is the whole backward pass.
Result<std::vector<std::vector<Pass>>> read_schedule_file(const std::string& path,
                                                          const Plan& plan);

/// Every pass of every microbatch stands once, on the stage of its chunk; messages between two
/// stages are sent in the order in which they are taken; no stage waits for ever.
Status check_passes(const Plan& plan, const std::vector<std::vector<Pass>>& passes);

}  // namespace foretrain
