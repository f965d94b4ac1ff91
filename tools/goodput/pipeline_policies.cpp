#include "tools/goodput/pipeline_policies.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "sim/campaign/redundant_passes.h"
#include "sim/campaign/template_mix.h"
#include "tools/report/report.h"

namespace foretrain {
namespace {

/// A template has at most so many nodes more or less than the run's own pipeline.
constexpr std::int64_t kMostOther = 8;
/// A job with templates waits where more nodes are missing.
constexpr std::int64_t kMostMissing = 256;

Error policy_error(const Run& run, const std::string& text) {
  return input_error(run.source + ": /campaign/policy: " + text);
}

/// Both policies reckon with stages of equally many ranks.
Status check_equal_stages(const Run& run) {
  if (!run.plan.tensors.any()) return ok_status();
  return policy_error(run,
                      "templates and redundant reckon with stages of equally many ranks, and "
                      "pipeline_stages gives stages tensor degrees of their own; expected one "
                      "degree for all, or the policy wait");
}

/// Faults of a run whose pipelines cannot change.
Status check_templates(const Run& run, const Fleet& fleet, std::int64_t fewest) {
  FT_TRY(check_equal_stages(run));
  if (run.plan.sharding != Sharding::kNone) {
    return policy_error(run,
                        "templates copies states from another replica, and sharding.level leaves "
                        "each only a part of them; expected sharding.level none");
  }
  if (fleet.replicas < fewest) {
    return policy_error(run, "templates keeps " + std::to_string(fewest) +
                                 " pipelines so that a copy of every state is left, and the run "
                                 "has " +
                                 std::to_string(fleet.replicas) +
                                 "; expected more data-parallel replicas or fewer "
                                 "failures_at_once");
  }
  if (fleet.nodes % fleet.replicas == 0) return ok_status();
  return policy_error(run, "templates shares out whole nodes, and " +
                               std::to_string(fleet.replicas) + " pipelines have " +
                               std::to_string(fleet.nodes) +
                               " nodes; expected as many nodes for each");
}

/// The run's own pipeline, and those of fewer and more nodes that its model, its schedule and its
/// memory go with. As many replicas as the run has, of that depth, tell the time of a microbatch.
Result<std::vector<PipelineTemplate>> templates_of(const Run& run, const Fleet& fleet) {
  const std::int64_t own = fleet.nodes / fleet.replicas;
  const auto microbatches = static_cast<double>(run.plan.microbatches());
  std::vector<PipelineTemplate> out;
  const std::int64_t first = std::max<std::int64_t>(1, own - kMostOther);
  for (std::int64_t nodes = first; nodes <= std::min(2 * own, own + kMostOther); ++nodes) {
    if (nodes * run.plan.pipeline % own != 0) continue;
    Sets sets;
    if (nodes != own) {
      sets = {set_text("parallel.pipeline", nodes * run.plan.pipeline / own),
              set_text("cluster.accelerators", run.plan.accelerators / own * nodes)};
    }
    const Result<Prediction> step = predict_with(run, sets);
    if (nodes == own && !step.ok()) return step.error();
    if (!step.ok() || (nodes != own && !step.value().memory.fits)) continue;
    out.push_back({nodes, step.value().iteration_time_s / microbatches});
  }
  return out;
}

/// Ranks from one stage to the next.
std::int64_t stage_stride(const Plan& plan) {
  if (plan.rank_order.empty() || plan.rank_order.back() == "pp") {
    return plan.accelerators / plan.pipeline;
  }
  std::int64_t stride = 1;
  for (const std::string& axis : plan.rank_order) {
    if (axis == "pp") break;
    if (axis == "tp") stride *= plan.tensor;
    if (axis == "cp") stride *= plan.context;
    if (axis == "dp") stride *= plan.batch_ranks();
  }
  return stride;
}

/// Whether every node holds one stage.
bool one_stage_a_node(const Run& run) {
  return stage_stride(run.plan) % run.cluster.accelerators_per_node == 0;
}

/// Seconds that intervals cover together.
double covered_s(std::vector<std::pair<Time, Time>> intervals) {
  std::sort(intervals.begin(), intervals.end());
  Time end;
  Time sum;
  for (const auto& [from, to] : intervals) {
    if (to > end) sum = sum + (to - max(from, end));
    end = max(end, to);
  }
  return sum.seconds();
}

/// Passes of a stage: the median of its microbatches.
NodePasses pass_of(const Timeline& timeline, std::int32_t track) {
  using Intervals = std::vector<std::pair<Time, Time>>;
  std::map<std::int32_t, std::array<Intervals, 2>> of_microbatch;
  for (const Span& span : timeline.spans) {
    const SpanInfo& info = timeline.infos[static_cast<std::size_t>(span.info)];
    const bool moves = info.category == Category::kPipeline || info.category == Category::kData ||
                       info.category == Category::kMemory || info.category == Category::kHost;
    const bool update = info.phase == Phase::kOptimizer || info.phase == Phase::kInput;
    if (span.track != track || span.microbatch < 0 || moves || update) continue;
    const std::size_t backward = info.phase == Phase::kForward ? 0 : 1;
    of_microbatch[span.microbatch][backward].emplace_back(span.start, span.end);
  }
  std::array<std::vector<double>, 2> all;
  for (auto& [microbatch, intervals] : of_microbatch) {
    for (std::size_t i = 0; i < 2; ++i) all[i].push_back(covered_s(std::move(intervals[i])));
  }
  const auto median = [](std::vector<double>& values) {
    std::sort(values.begin(), values.end());
    return values.empty() ? 0 : values[values.size() / 2];
  };
  return {median(all[0]), median(all[1])};
}

/// The passes of every stage, from the Timeline of a rank of each.
Result<std::vector<NodePasses>> stage_passes(const Run& run, double& step_s, MemoryReport& memory) {
  PredictOptions options;
  options.sensitivity = options.verify = false;
  options.timeline = true;
  for (std::int64_t stage = 0; stage < run.plan.pipeline; ++stage) {
    options.trace_ranks.push_back(stage * stage_stride(run.plan));
  }
  FT_ASSIGN(const Prediction prediction, predict(run, options));
  step_s = prediction.iteration_time_s;
  memory = prediction.memory;
  const Timeline timeline = whole_timeline(*prediction.timeline);
  std::vector<NodePasses> out;
  for (std::size_t stage = 0; stage < options.trace_ranks.size(); ++stage) {
    out.push_back(pass_of(timeline, static_cast<std::int32_t>(stage)));
  }
  return out;
}

Status check_redundant(const Run& run) {
  const Plan& plan = run.plan;
  FT_TRY(check_equal_stages(run));
  if (plan.pipeline < 2) {
    return policy_error(run,
                        "redundant has every stage stand in for the next one, and the run has one "
                        "stage; expected parallel.pipeline of 2 or more");
  }
  if (plan.chunks_of_stage() > 1) {
    return policy_error(run, "redundant goes with one chunk of layers a rank, and the run has " +
                                 std::to_string(plan.chunks_of_stage()) +
                                 "; expected parallel.virtual_pipeline 1 and schedule 1f1b");
  }
  if (plan.schedule != Schedule::k1F1B) {
    return policy_error(run,
                        "redundant fills the bubbles of 1F1B, and the run has another schedule; "
                        "expected schedule 1f1b");
  }
  if (one_stage_a_node(run)) return ok_status();
  return policy_error(run,
                      "redundant survives a node that holds one stage, and here a node holds "
                      "several; expected stages of whole nodes");
}

}  // namespace

Status plan_templates(const Run& run, const CampaignRequest& request, Goodput& out) {
  Fleet& fleet = out.plan.fleet;
  const std::int64_t fewest = request.failures_at_once.value_or(1) + 1;
  FT_TRY(check_templates(run, fleet, fewest));
  FT_ASSIGN(const std::vector<PipelineTemplate> templates, templates_of(run, fleet));
  const std::int64_t own = fleet.nodes / fleet.replicas;
  double step_s = 0;
  std::string sizes;
  for (const PipelineTemplate& one : templates) {
    if (one.nodes == own) step_s = one.microbatch_s * static_cast<double>(run.plan.microbatches());
    sizes += (sizes.empty() ? "" : ", ") + std::to_string(one.nodes);
  }
  const std::vector<TemplateMix> mixes = template_mixes(
      templates, fleet.nodes, run.plan.microbatches() * fleet.replicas, fewest, kMostMissing);
  // All nodes run the plan as it is; what is left never runs faster.
  fleet.pace = {1};
  fleet.pipelines = {fleet.replicas};
  for (std::size_t missing = 1; missing < mixes.size(); ++missing) {
    fleet.pace.push_back(std::max(fleet.pace.back(), mixes[missing].step_s / step_s));
    fleet.pipelines.push_back(mixes[missing].count);
  }
  fleet.pause_s = request.regroup_s.value_or(out.plan.recovery.start_s) +
                  peer_copy_s(run, out.checkpoint.bytes);
  out.notes.push_back(
      "pipeline templates have " + sizes + " nodes, and the job goes on with down to " +
      std::to_string(fleet.nodes + 1 - static_cast<std::int64_t>(fleet.pace.size())) + " nodes");
  return ok_status();
}

Status plan_redundant(const Run& run, const CampaignRequest& request, Goodput& out) {
  FT_TRY(check_redundant(run));
  double step_s = 0;
  MemoryReport memory;
  FT_ASSIGN(const std::vector<NodePasses> stages, stage_passes(run, step_s, memory));
  const std::int64_t microbatches = run.plan.microbatches();
  const double plain = pipeline_step(stages, microbatches, false);
  const double redundant = pipeline_step(stages, microbatches, true) / plain;
  const double merged = merged_step(stages, microbatches) / plain;
  Fleet& fleet = out.plan.fleet;
  fleet.pace = {redundant, std::max(redundant, merged)};
  double forward_s = 0;
  double backward_s = 0;
  for (const NodePasses& stage : stages) {
    forward_s = std::max(forward_s, stage.forward_s);
    backward_s = std::max(backward_s, stage.backward_s);
  }
  const auto waiting = static_cast<double>(std::min(microbatches, run.plan.pipeline));
  fleet.pause_s = request.regroup_s.value_or(0) + waiting * backward_s;
  const double most = static_cast<double>(microbatches) * forward_s / plain;
  const double more_gib = out.checkpoint.bytes.rank / kGiB;
  const double peak_gib = memory.peak_gib + more_gib;
  out.notes.push_back("redundant forward passes make a step " + fixed(100 * (redundant - 1), 1) +
                      " % longer, where " + fixed(100 * most, 1) +
                      " % would be if bubbles hid none; copies of the next stage's states take " +
                      fixed(more_gib, 1) + " GiB of a rank, " + fixed(peak_gib, 1) + " of " +
                      fixed(memory.capacity_gib, 1) + " with all else");
  if (peak_gib > memory.capacity_gib) {
    out.notes.push_back("the plan does not fit into memory beside the copies of redundant stages");
  }
  return ok_status();
}

}  // namespace foretrain
