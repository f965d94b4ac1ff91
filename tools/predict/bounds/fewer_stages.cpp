#include "tools/predict/bounds/fewer_stages.h"

#include <algorithm>
#include <cmath>

#include "models/lower.h"

namespace foretrain {
namespace {

/// Whether the stages between the first and the last do the same for each microbatch.
bool are_alike(const Run& run) {
  const Model& model = run.model;
  const Plan& plan = run.plan;
  const bool same_layers = !model.has_experts() && !model.is_hybrid() && !model.is_network() &&
                           !model.is_encoder_decoder() && model.full_attention.empty();
  const std::vector<std::int64_t>& layers = plan.pipeline_layout;
  return same_layers && plan.schedule == Schedule::k1F1B && plan.virtual_pipeline == 1 &&
         plan.stages.empty() && !plan.validates_later() &&
         run.cluster.scale_up != ScaleUp::kTorus && layers.size() > 2 &&
         std::all_of(layers.begin() + 1, layers.end() - 1,
                     [&layers](std::int64_t of_stage) { return of_stage == layers[1]; });
}

/// Continues the line through both.
struct Line {
  double times = 0;  ///< as far behind b as b is behind a
  double operator()(double a, double b) const { return b + times * (b - a); }
  Time operator()(Time a, Time b) const {
    return b + Time{std::llround(times * static_cast<double>(b.ps - a.ps))};
  }
};

MemoryReport memory_of_line(const Line& line, const MemoryReport& a, const MemoryReport& b) {
  MemoryReport out = b;
  for (std::size_t kind = 0; kind < out.by_kind_gib.size(); ++kind) {
    out.by_kind_gib[kind] = line(a.by_kind_gib[kind], b.by_kind_gib[kind]);
  }
  out.communication_gib = line(a.communication_gib, b.communication_gib);
  out.allocated_gib = line(a.allocated_gib, b.allocated_gib);
  out.reserved_gib = std::max(out.allocated_gib, line(a.reserved_gib, b.reserved_gib));
  out.theoretical_gib = line(a.theoretical_gib, b.theoretical_gib);
  out.host_gib = line(a.host_gib, b.host_gib);
  out.storage_gib = line(a.storage_gib, b.storage_gib);
  out.peak_gib = out.reserved_gib + out.communication_gib + out.context_gib;
  out.fits = out.peak_gib <= out.capacity_gib && out.host_fits() && out.storage_fits();
  out.least_gib = out.peak_gib > out.capacity_gib ? out.peak_gib : 0;
  out.allocator_retries = 0;
  out.retries.clear();
  return out;
}

Coordinates place_in(const Run& run, std::int64_t stages, std::int64_t rank) {
  return coordinates_of(with_stages(run, stages).plan, RankId(static_cast<std::size_t>(rank)));
}

/// The rank of the run that stands as far from its end of the pipeline as one of fewer stages does.
std::int64_t rank_of_run(const Run& run, std::int64_t stages, std::int64_t rank) {
  Coordinates at = place_in(run, stages, rank);
  if (at.pipeline >= stages / 2) at.pipeline += run.plan.pipeline - stages;
  return rank_at(run.plan, at).value;
}

}  // namespace

std::optional<std::pair<std::int64_t, std::int64_t>> fewer_stages(const Run& run) {
  constexpr std::int64_t kFewest = 64;
  constexpr std::int64_t kMost = 128;
  const std::int64_t stages = run.plan.pipeline;
  if (!run.cluster.pools.empty()) return std::nullopt;
  if (stages < kFewest || run.plan.microbatches() < stages || !are_alike(run)) return std::nullopt;
  std::int64_t more = kFewest / 2;
  while (2 * more <= std::min(kMost, stages / 2)) more *= 2;
  const std::int64_t ranks = more / 2 * (run.plan.accelerators / stages);
  if (ranks % run.cluster.accelerators_per_node != 0) return std::nullopt;
  return std::pair(more / 2, more);
}

Run with_stages(const Run& run, std::int64_t stages) {
  Run out = run;
  Plan& plan = out.plan;
  const std::int64_t left_out = run.plan.pipeline - stages;
  std::vector<std::int64_t>& layers = plan.pipeline_layout;
  out.model.layers -= left_out * layers[1];
  layers.erase(layers.begin() + 1, layers.begin() + 1 + static_cast<std::ptrdiff_t>(left_out));
  plan.pipeline = stages;
  plan.accelerators = run.plan.accelerators / run.plan.pipeline * stages;
  plan.global_batch -= left_out * plan.micro_batch * plan.batch_ranks();
  out.cluster.accelerators = static_cast<std::int32_t>(plan.accelerators);
  return out;
}

bool on_a_line(const Run& run, const Prediction& a, const Prediction& b,
               const std::pair<std::int64_t, std::int64_t>& stages) {
  const auto [fewer, more] = stages;
  return place_in(run, fewer, a.memory.peak_rank).pipeline == 0 &&
         place_in(run, more, b.memory.peak_rank).pipeline == 0 &&
         rank_of_run(run, fewer, a.critical_rank) == rank_of_run(run, more, b.critical_rank);
}

Prediction with_more_stages(const Run& run, const Prediction& a, const Prediction& b,
                            const std::pair<std::int64_t, std::int64_t>& stages) {
  const auto [fewer, more] = stages;
  const Line line{static_cast<double>(run.plan.pipeline - more) /
                  static_cast<double>(more - fewer)};
  Prediction out = b;
  out.iteration_time_s = line(a.iteration_time_s, b.iteration_time_s);
  for (std::size_t part = 0; part < out.breakdown.size(); ++part) {
    out.breakdown[part] = line(a.breakdown[part], b.breakdown[part]);
  }
  for (std::size_t i = 0; i < out.sensitivity.size() && i < a.sensitivity.size(); ++i) {
    out.sensitivity[i].gain_s = line(a.sensitivity[i].gain_s, b.sensitivity[i].gain_s);
  }
  out.memory = memory_of_line(line, a.memory, b.memory);
  out.memory.peak_rank = rank_of_run(run, more, b.memory.peak_rank);
  out.critical_rank = rank_of_run(run, more, b.critical_rank);
  // FLOPs of a microbatch, on all stages, are what is affine.
  const auto of_microbatch = [&run](const Prediction& p, std::int64_t of_stages) {
    const std::int64_t left_out = run.plan.pipeline - of_stages;
    return p.hfu * p.iteration_time_s * static_cast<double>(of_stages) /
           static_cast<double>(run.plan.microbatches() - left_out);
  };
  out.hfu = line(of_microbatch(a, fewer), of_microbatch(b, more)) *
            static_cast<double>(run.plan.microbatches()) /
            (static_cast<double>(run.plan.pipeline) * out.iteration_time_s);
  out.ranks = run.cluster.accelerators;
  const Interval around = interval_around(out.iteration_time_s, out.interval.prices,
                                          time_deviation(run.model, run.cluster));
  out.interval.low_s = around.low;
  out.interval.high_s = around.high;
  out.operations += a.operations;
  Simulated& simulated = out.simulated;
  simulated.lowered += a.simulated.lowered;
  simulated.events += a.simulated.events;
  simulated.estimated.seconds += a.simulated.estimated.seconds;
  simulated.estimated.operations += a.simulated.estimated.operations;
  simulated.stages = more;
  return out;
}

}  // namespace foretrain
