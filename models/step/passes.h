// Lowering of a stage's step: the schedule becomes tasks, and every mechanism that the plan asks
// for is a pass over them.
#pragma once

#include <string>

#include "models/step/context.h"

namespace foretrain {

/// One rewriting of a stage's tasks. A pass has no state: what it needs it reads from the list.
struct StagePass {
  const char* name;
  bool (*wanted)(const StageContext& s);
  void (*run)(const StageContext& s, StageStep& step);
};

/// All passes, in the order in which they run.
const std::vector<StagePass>& stage_passes();

/// The plainest step: for every pass of the schedule its inputs, embedding, layers, head, messages;
/// what begins a step and what ends it.
StageStep expand(const StageContext& s);

/// Runs the passes that the plan wants, the last one the one called `until` where that is given;
/// `verified`: checks the list after each (see `fault_of`).
StageStep lowered_step(const StageContext& s, const std::string& until = "", bool verified = false);

/// The same for a stage of a plan: what emission gets.
StageStep step_of(const Model& model, const Plan& plan, std::int64_t stage,
                  const std::string& until = "", bool verified = false);

/// The same as text, with a line that names the passes; an error names those that there are where
/// `until` is none of them.
Result<std::string> step_text(const Model& model, const Plan& plan, std::int64_t stage,
                              const std::string& until);

/// Why these tasks are no step: one stands twice, comes after a later one, or a layer's backward
/// pass before its forward pass. "" if they are.
std::string fault_of(const StageStep& step);

// A pass each, in a file of that name in models/step/passes/.
void recycle_outputs(const StageContext& s, StageStep& step);
void spread_vocabulary(const StageContext& s, StageStep& step);
void recompute_blocks(const StageContext& s, StageStep& step);
void quantize_weights(const StageContext& s, StageStep& step);
void defer_head(const StageContext& s, StageStep& step);
void scatter_messages(const StageContext& s, StageStep& step);
void offload_activations(const StageContext& s, StageStep& step);
void release_casts(const StageContext& s, StageStep& step);
void retain_outputs(const StageContext& s, StageStep& step);
void host_time(const StageContext& s, StageStep& step);
void share_scales(const StageContext& s, StageStep& step);
void copy_contiguous(const StageContext& s, StageStep& step);
void reduce_buckets(const StageContext& s, StageStep& step);
void reduce_units(const StageContext& s, StageStep& step);
void gather_units(const StageContext& s, StageStep& step);
void gather_updated(const StageContext& s, StageStep& step);
void post_validate(const StageContext& s, StageStep& step);
void slice_microbatch(const StageContext& s, StageStep& step);
void order_messages(const StageContext& s, StageStep& step);

}  // namespace foretrain
