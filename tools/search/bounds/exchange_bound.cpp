#include "tools/search/bounds/exchange_bound.h"

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "models/lower.h"
#include "models/plan/layout/plan_layout.h"

namespace foretrain {
namespace {

/// A collective is priced as such a part of a larger one.
constexpr std::int64_t kPart = 64;
/// Other plans' buckets may be so many times smaller than a sample's.
constexpr std::int64_t kSmaller = 16;
constexpr std::int64_t kFewMicrobatches = 2;

/// Gives collectives `times` as many elements, or a part of them.
void scale_collectives(Workload& workload, std::int64_t times, std::int64_t part) {
  for (Program& program : workload.programs) {
    for (Work& work : program.works) {
      auto* collective = std::get_if<Collective>(&work);
      if (collective == nullptr) continue;
      const auto scale = [&](std::int64_t& count) {
        count = std::max<std::int64_t>(std::min<std::int64_t>(count, 1), count * times / part);
      };
      scale(collective->count);
      for (std::int64_t& run : collective->runs) scale(run);
    }
  }
}

/// By stream, and by port below zero.
using Sums = std::map<std::int16_t, double>;
std::int16_t line_of(int port) { return static_cast<std::int16_t>(-1 - port); }

struct StageSums {
  Sums gathers, reductions;
  Sums holding;  ///< of both, beside the compute stream: what holds SMs or memory bandwidth
  Cost hold;     ///< the least of it
};

/// Communication does, copies and casts of what is exchanged do not.
bool holds(const Op& op, const Cost& cost) {
  return op.stream.index() != 0 && (cost.sms_held > 0 || cost.memory_share > 0);
}

bool exchanges(const Op& op) {
  return op.category == Category::kData && op.phase != Phase::kOptimizer;
}

StageSums sums_of(const Program& program, const std::vector<Cost>& alone) {
  StageSums out;
  for (const Call& call : program.calls) {
    for (const Op& op : program.segments[call.segment.index()].ops) {
      if (!exchanges(op)) continue;
      const bool large = std::holds_alternative<Collective>(program.works[op.work.index()]);
      const double part = large ? 1.0 / static_cast<double>(kPart) : 1;
      const Cost& cost = alone[op.work.index()];
      Sums& sums = op.phase == Phase::kGradients ? out.reductions : out.gathers;
      const auto stream = static_cast<std::int16_t>(op.stream.index());
      sums[stream] += part * cost.duration.seconds();
      if (holds(op, cost)) out.holding[stream] += part * cost.duration.seconds();
      // What shares a port takes turns on it.
      for (int port = 0; port < kPortCount; ++port) {
        const auto share = static_cast<double>(cost.port_share[static_cast<std::size_t>(port)]);
        if (share <= 0) continue;
        sums[line_of(port)] +=
            part * (cost.duration - cost.latency).seconds() * share / static_cast<double>(kWhole);
      }
    }
  }
  return out;
}

/// Of exchanges of several sizes, what one holds at least.
Cost least_hold(const Program& program, const std::vector<Cost>& alone, Cost out) {
  bool first = out.sms_held == 0 && out.memory_share == 0;
  for (const Segment& segment : program.segments) {
    for (const Op& op : segment.ops) {
      const Cost& cost = alone[op.work.index()];
      if (!exchanges(op) || !holds(op, cost)) continue;
      out.sms_held = first ? cost.sms_held : std::min(out.sms_held, cost.sms_held);
      out.memory_share = first ? cost.memory_share : std::min(out.memory_share, cost.memory_share);
      first = false;
    }
  }
  return out;
}

/// Of the first stage and the last of a sample with so many layers and microbatches.
Result<std::vector<StageSums>> exchange_of(Run sample, std::int64_t layers,
                                           std::int64_t microbatches) {
  Plan& plan = sample.plan;
  sample.model.layers = layers;
  plan.pipeline_layout = even_layout(sample.model, plan);
  plan.global_batch = microbatches * plan.micro_batch * plan.batch_ranks();
  Workload workload = lower(sample.model, plan);
  const std::unique_ptr<CostModel> model = cost_model_of(sample, price_options(sample));
  const auto counts = [](const Op& op, const Work&) { return exchanges(op); };
  const std::array<std::size_t, 2> stages = {0, workload.programs.size() - 1};
  std::vector<StageSums> out(stages.size());
  // As they are; large ones, for the time of a part; small ones.
  using Scale = std::pair<std::int64_t, std::int64_t>;
  for (const auto& [times, part] : {Scale{1, 1}, Scale{kPart, 1}, Scale{1, kPart * kSmaller}}) {
    scale_collectives(workload, times, part);
    for (std::size_t i = 0; i < stages.size(); ++i) {
      const Program& program = workload.programs[stages[i]];
      FT_ASSIGN(const std::vector<Cost> costs, costs_alone(workload, stages[i], *model, counts));
      const Cost hold = least_hold(program, costs, out[i].hold);
      if (times == kPart) out[i] = sums_of(program, costs);
      out[i].hold = hold;
    }
  }
  return out;
}

double of_stream(const Sums& sums, std::int16_t stream) {
  const auto found = sums.find(stream);
  return found == sums.end() ? 0 : found->second;
}

/// From the sums of a sample whose stages have `layers` layers, in few microbatches, of one with
/// twice as many, of one with a microbatch more, of one with both.
std::map<std::int16_t, ExchangeLine> lines_of(const std::array<const Sums*, 4>& sums,
                                              double layers) {
  constexpr auto kMicrobatches = static_cast<double>(kFewMicrobatches);
  std::map<std::int16_t, ExchangeLine> out;
  for (const auto& [stream, unused] : *sums[3]) {
    const double base = of_stream(*sums[0], stream);
    const double longer = of_stream(*sums[1], stream);
    const double later = of_stream(*sums[2], stream);
    const double both = of_stream(*sums[3], stream);
    ExchangeLine line;
    line.of_both = std::max(0.0, both - longer - later + base) / layers;
    line.of_layer = std::max(0.0, (longer - base) / layers - kMicrobatches * line.of_both);
    line.of_microbatch = std::max(0.0, later - base - line.of_both * layers);
    line.fixed = std::max(0.0, base - line.of_layer * layers -
                                   kMicrobatches * (line.of_microbatch + line.of_both * layers));
    out[stream] = line;
  }
  return out;
}

StageExchange stage_exchange(const std::array<StageSums, 4>& sums, double layers) {
  StageExchange out;
  std::array<const Sums*, 4> gathers{};
  std::array<const Sums*, 4> reductions{};
  std::array<const Sums*, 4> holding{};
  for (std::size_t i = 0; i < sums.size(); ++i) {
    gathers[i] = &sums[i].gathers;
    reductions[i] = &sums[i].reductions;
    holding[i] = &sums[i].holding;
  }
  out.gathers = lines_of(gathers, layers);
  out.reductions = lines_of(reductions, layers);
  out.holding = lines_of(holding, layers);
  return out;
}

/// What a stage exchanges, in seconds.
struct Exchanged {
  double longest = 0;  ///< on one stream besides the compute stream, or through one port
  double in_line = 0;  ///< on the compute stream
  double holding = 0;  ///< on one stream besides it, holding SMs or memory bandwidth
  double gathers = 0, reductions = 0;
  double once = 0;  ///< reductions that begin after the last microbatch
};

Exchanged exchanged(const ExchangeTimes& times, std::size_t stage, std::size_t stages,
                    double layers, double microbatches) {
  const bool ends = stage == 0 || stage + 1 == stages;
  const StageExchange& of = stage == 0 ? times.first : times.last;
  layers = std::max(0.0, layers - static_cast<double>(times.uncounted));
  std::map<std::int16_t, double> by_stream;
  Exchanged out;
  const auto add = [&](std::int16_t stream, const ExchangeLine& line, double& sum) {
    const double seconds = (ends ? line : line.of_layers_alone()).seconds(layers, microbatches);
    by_stream[stream] += seconds;
    if (stream > 0) sum += seconds;
  };
  for (const auto& [stream, line] : of.gathers) add(stream, line, out.gathers);
  for (const auto& [stream, line] : of.reductions) {
    add(stream, line, out.reductions);
    const bool once = stream > 0 && line.of_microbatch == 0 && line.of_both == 0;
    if (!once) continue;
    const ExchangeLine& own = ends ? line : line.of_layers_alone();
    out.once = std::max(out.once, own.seconds(layers, microbatches));
  }
  for (const auto& [stream, seconds] : by_stream) {
    double& most = stream == 0 ? out.in_line : out.longest;
    most = std::max(most, seconds);
  }
  for (const auto& [stream, line] : of.holding) {
    const double seconds = (ends ? line : line.of_layers_alone()).seconds(layers, microbatches);
    out.holding = std::max(out.holding, seconds);
  }
  return out;
}

/// What a stage's kernels lose at least to exchanges that take `held_s` seconds beside them.
double lost_beside(const std::vector<ExchangeKernel>& kernels, double layers, double microbatches,
                   double held_s) {
  std::vector<KernelsBeside> of_stage;
  of_stage.reserve(kernels.size());
  for (const ExchangeKernel& kernel : kernels) {
    of_stage.push_back({microbatches * (layers * kernel.layer_s + kernel.ends_s), kernel.loss});
  }
  return least_loss_s(of_stage, held_s);
}

}  // namespace

Json exchange_sample_of(Json run, const Degrees& degrees, const Run& seed) {
  const std::int64_t stages = sample_stages(degrees);
  const std::int64_t ranks = seed.cluster.accelerators / degrees.pipeline;
  const std::int64_t batch_ranks = ranks / (degrees.tensor * degrees.context);
  set_key(run, "parallel.pipeline", Json(stages));
  set_key(run, "parallel.virtual_pipeline", Json(1));
  set_key(run, "batch.micro", Json(1));
  set_key(run, "batch.global", Json(kFewMicrobatches * batch_ranks));
  set_key(run, "recompute", Json("none"));
  cluster_object(run).set("accelerators", Json(ranks * stages));
  run.erase("schedule");
  return run;
}

Result<ExchangeTimes> exchange_times(const Run& sample) {
  const Pattern pattern = Pattern::of(sample.model);
  const std::int64_t stages = sample.plan.pipeline;
  const std::int64_t period = stages * pattern.period;
  const std::int64_t base = pattern.first + period;
  if (base + period > sample.model.layers) return input_error("too few layers are alike");
  std::array<std::array<StageSums, 4>, 2> sums;
  for (std::size_t i = 0; i < 4; ++i) {
    FT_ASSIGN(const std::vector<StageSums> one,
              exchange_of(sample, base + static_cast<std::int64_t>(i % 2) * period,
                          kFewMicrobatches + static_cast<std::int64_t>(i / 2)));
    sums[0][i] = one.front();
    sums[1][i] = one.back();
  }
  const auto layers = static_cast<double>(pattern.period);
  ExchangeTimes out;
  out.first = stage_exchange(sums[0], layers);
  out.last = stage_exchange(sums[1], layers);
  out.uncounted = pattern.first;
  out.hold = sums[0][0].hold;
  for (const auto& stage : sums) {
    for (const StageSums& one : stage) {
      out.hold.sms_held = std::min(out.hold.sms_held, one.hold.sms_held);
      out.hold.memory_share = std::min(out.hold.memory_share, one.hold.memory_share);
    }
  }
  out.sm_count = sample.cluster.device.sm_count;
  // Units are gathered and reduced beside the passes whatever the keys say.
  const bool units = sample.plan.by_units();
  out.hides_reductions = units || sample.plan.overlap.gradient_reduce;
  out.hides_gathers = units || sample.plan.overlap.parameter_gather;
  return out;
}

std::vector<ExchangeKernel> kernels_beside(const std::vector<PassKernel>& kernels,
                                           const ExchangeTimes& exchange) {
  std::vector<ExchangeKernel> out;
  for (const PassKernel& kernel : kernels) {
    out.push_back(
        {lost_share(kernel.cost, exchange.hold, exchange.sm_count), kernel.layer_s, kernel.ends_s});
  }
  std::sort(out.begin(), out.end(),
            [](const ExchangeKernel& a, const ExchangeKernel& b) { return a.loss < b.loss; });
  return out;
}

double least_step_s(const std::vector<StageLoad>& loads, std::int64_t microbatches,
                    const ExchangeTimes& exchange, const std::vector<ExchangeKernel>& kernels) {
  const auto m = static_cast<double>(microbatches);
  double most = 0;
  double fill_forward = 0;
  double fill = 0;
  for (std::size_t s = 0; s < loads.size(); ++s) {
    const StageLoad& load = loads[s];
    const Exchanged of = exchanged(exchange, s, loads.size(), static_cast<double>(load.layers), m);
    const double forward = load.forward.seconds();
    const double compute = m * (forward + load.backward.seconds()) + of.in_line;
    const double gathers = exchange.hides_gathers ? 0 : of.gathers;
    const double reductions = exchange.hides_reductions ? 0 : of.reductions;
    const double lost =
        lost_beside(kernels, static_cast<double>(load.layers), m, std::max(0.0, of.holding - fill));
    most = std::max(
        {most, of.longest, gathers + compute + reductions,
         fill_forward + compute - of.in_line + reductions, fill + compute - of.in_line + lost,
         fill_forward + m * forward + (m - 1) * load.last_chunk_backward.seconds() + of.once});
    fill_forward += load.first_chunk_forward.seconds();
    fill += load.first_chunk.seconds();
  }
  return most;
}

}  // namespace foretrain
