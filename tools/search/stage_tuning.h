// What each stage of a pipeline does for itself (`pipeline_stages` of a RUN).
//
// Under 1F1B the first stages hold more microbatches than the last. A plan that does the same on
// every stage computes as much again, or moves as much to the host, as its fullest stage needs.
// Here each stage does the least with which it fits: fewest recomputed layers first, then fewest
// layers whose activations leave the device, then fewest whose states do. Where a stage is one
// chunk, layers then move one by one from stages whose passes take long to others (Mist, EuroSys
// 2025, tunes layers, recomputation and offloading by stage likewise, with an integer program).
#pragma once

#include <functional>
#include <optional>

#include "tools/predict/memory_report.h"

namespace foretrain {

/// What stages may do otherwise than the plan.
struct TunedKeys {
  bool recompute = false, activations = false, states = false;  ///< what a plan has already
  bool adds_recompute = false;  ///< also where it computes nothing again
  bool layers = false;
};

/// Objective of the plan with this value of `pipeline_stages`, the less the better; nothing where
/// it does not fit or is excluded. Who answers keeps the best.
struct AskStages {
  std::function<std::optional<double>(const Json& stages)> objective;
  std::function<bool()> may_go_on;  ///< whether there is time for more
};

/// Asks about stages of a plan that takes `memory` and is as good as `objective`, at most some
/// sixty times: each question comes from the best answer before it. The objective of a plan that
/// does not fit has no bound. Asks nothing of plans whose stages have no layers of their own: one
/// stage, two pipelines over the same stages, layers in blocks or by period.
void tune_stages(const Run& run, const MemoryReport& memory, double objective,
                 const TunedKeys& keys, const AskStages& ask);

}  // namespace foretrain
