#include "tools/predict/divide.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "hardware/pools/pools.h"
#include "models/lower.h"
#include "models/plan/layout/plan_layout.h"
#include "models/plan/layout/plan_stages.h"
#include "models/schedule/schedule.h"
#include "sim/engine/prepared.h"

namespace foretrain {
namespace {

bool of_pass(const Op& op) {
  const bool pass =
      op.phase == Phase::kForward || op.phase == Phase::kBackward || op.phase == Phase::kRecompute;
  switch (op.category) {
    case Category::kCompute:
    case Category::kTensor:
    case Category::kExpert:
    case Category::kContext:
      return pass;
    default:
      return false;
  }
}

/// In ps, exact up to 2^53.
struct PassTime {
  double device = 0, host = 0;
  void operator+=(const PassTime& other) {
    device += other.device;
    host += other.host;
  }
};

/// Of the device from its begin to the end of its last op, with all that it waits for from
/// elsewhere there; nothing where no op is of a pass.
PassTime time_alone(const Program& program, const Segment& segment,
                    const std::vector<Cost>& costs) {
  std::map<std::pair<std::int16_t, std::int16_t>, double> recorded;
  std::vector<double> streams(program.streams.size());
  PassTime out;
  for (const Op& op : segment.ops) {
    const Cost& cost = costs[op.work.index()];
    out.host += static_cast<double>(launch_of(op, cost).ps);
    if (!of_pass(op)) continue;
    double& stream = streams[op.stream.index()];
    for (const EventRef& wait : op.waits) {
      const auto found = recorded.find({wait.frame, wait.event});
      if (found != recorded.end()) stream = std::max(stream, found->second);
    }
    stream += static_cast<double>(cost.duration.ps);
    if (op.records.valid()) recorded[{op.records.frame, op.records.event}] = stream;
    out.device = std::max(out.device, stream);
  }
  return out.device == 0 ? PassTime{} : out;
}

/// Of the embedding, of each layer, of the head.
using Items = std::vector<PassTime>;

/// Where the time of a call counts; null: nowhere.
PassTime* item_of(const Call& call, const Segment& segment, Items& items) {
  if (call.layer >= 0) {
    return &items[std::min(static_cast<std::size_t>(call.layer) + 1, items.size() - 1)];
  }
  if (segment.name.starts_with("embedding")) return &items.front();
  return segment.name.starts_with("head") ? &items.back() : nullptr;
}

void add_passes(const Program& program, const std::vector<Cost>& costs, Items& items) {
  std::vector<PassTime> alone;
  for (const Segment& segment : program.segments) {
    alone.push_back(time_alone(program, segment, costs));
  }
  for (const Call& call : program.calls) {
    PassTime* item = item_of(call, program.segments[call.segment.index()], items);
    if (item != nullptr) *item += alone[call.segment.index()];
  }
}

/// In integers whose sums hold in 63 bits. A step so long that times must be made smaller for it is
/// refused (tools/predict/predict.cpp).
std::vector<LayerWeights> weights_of(const Items& items) {
  constexpr double kMost = 1e18;
  double sum = 1;
  for (const PassTime& item : items) sum += item.device + item.host;
  const double factor = std::min(1.0, kMost / sum);
  std::vector<LayerWeights> out;
  for (double PassTime::*const kind : {&PassTime::device, &PassTime::host}) {
    std::vector<std::int64_t> whole;
    for (const PassTime& item : items) {
      whole.push_back(static_cast<std::int64_t>(item.*kind * factor));
    }
    out.push_back({whole.front(), whole.back(), {whole.begin() + 1, whole.end() - 1}});
  }
  return out;
}

/// A plan's Programs and what their works cost, by pipeline stage.
class PricedStages {
 public:
  PricedStages(const Run& run, const Plan& plan)
      : x_plan(plan),
        x_workload(lower(run.model, plan)),
        x_model(cost_model_of(run, price_options(run))) {}
  Status price() {
    FT_ASSIGN(x_prepared, prepare(x_workload, *x_model, false));
    return ok_status();
  }
  const Program& program(std::int64_t stage) const {
    return x_workload.programs[x_prepared.quotient.actors[actor(stage)].program.index()];
  }
  const PreparedPrices& prices(std::int64_t stage) const {
    return x_prepared.prices[static_cast<std::size_t>(x_prepared.prices_of[actor(stage)])];
  }

 private:
  std::size_t actor(std::int64_t stage) const {
    const RankId rank = rank_at(x_plan, {0, 0, stage});
    return static_cast<std::size_t>(x_prepared.quotient.actor_of[rank.index()]);
  }
  const Plan& x_plan;
  Workload x_workload;
  std::unique_ptr<CostModel> x_model;
  Prepared x_prepared;
};

/// Of a stage and a microbatch.
struct StageTimes {
  PassTime forward, backward, weights;
  double length() const {
    const auto of = [](const PassTime& t) { return std::max(t.device, t.host); };
    return of(forward) + of(backward) + of(weights);
  }
};

StageTimes stage_times(const Program& program, const std::vector<Cost>& costs) {
  std::vector<PassTime> alone;
  for (const Segment& segment : program.segments) {
    alone.push_back(time_alone(program, segment, costs));
  }
  StageTimes out;
  for (const Call& call : program.calls) {
    const Segment& segment = program.segments[call.segment.index()];
    const PassTime& time = alone[call.segment.index()];
    if (time.device == 0) continue;
    const bool of_layer = segment.name.starts_with("layer weights");
    if (of_layer || segment.name.starts_with("head weights")) {
      out.weights += time;
    } else if (segment.ops.front().phase == Phase::kForward) {
      out.forward += time;
    } else {
      out.backward += time;
    }
  }
  return out;
}

/// The longest message to another stage, alone.
Time longest_message(const Program& program, const PreparedPrices& prices) {
  Time most;
  for (const Segment& segment : program.segments) {
    for (const Op& op : segment.ops) {
      if (op.category != Category::kPipeline) continue;
      for (const Cost& cost : prices.message_costs[op.work.index()]) {
        most = std::max(most, cost.duration);
      }
    }
  }
  return most;
}

}  // namespace

Result<std::vector<LayerWeights>> pass_times(const Run& run) {
  Plan even = run.plan;
  even.pipeline_layout = even_layout(run.model, even);
  even.offload.device_share = std::max(even.offload.device_share, 0.0);  // not yet known
  FT_TRY(lowerable(run.model, even));
  PricedStages stages(run, even);
  FT_TRY(stages.price());
  Items items(static_cast<std::size_t>(run.model.layers + 2));
  for (std::int64_t s = 0; s < even.pipeline; ++s) {
    add_passes(stages.program(s), stages.prices(s).costs, items);
  }
  // Every stage has as much of them.
  if (even.shares_vocabulary()) items.front() = items.back() = PassTime{};
  return weights_of(items);
}

/// What a layer's time depends on beside the layer: the kind of nodes, and how many ranks cut it.
struct StageKind {
  std::size_t pool = 0;
  std::int64_t tensor = 1;
  auto operator<=>(const StageKind&) const = default;
};

/// The run as if all of its stages were of one kind.
static Run all_of_kind(const Run& run, const Pools* pools, const StageKind& kind) {
  Run out = run;
  if (pools != nullptr) {
    out.cluster = pools->pool(kind.pool);
    out.profile = kind.pool < run.pool_profiles.size() ? run.pool_profiles[kind.pool] : nullptr;
  }
  if (run.plan.tensors.any()) out.plan = plan_of_degree(run.plan, kind.tensor);
  out.cluster.accelerators = static_cast<std::int32_t>(out.plan.accelerators);
  return out;
}

/// The kinds of a stage's ranks.
static std::vector<std::vector<StageKind>> kinds_of_stages(const Plan& plan, const Pools* pools) {
  std::vector<std::vector<StageKind>> out(static_cast<std::size_t>(plan.pipeline));
  if (pools == nullptr) {
    for (std::int64_t s = 0; s < plan.pipeline; ++s) {
      out[static_cast<std::size_t>(s)].push_back({0, tensor_of(plan, s)});
    }
    return out;
  }
  for (std::int64_t r = 0; r < plan.accelerators; ++r) {
    const RankId rank(static_cast<std::size_t>(r));
    const std::int64_t stage = coordinates_of(plan, rank).pipeline;
    const StageKind kind{pools->pool_of(rank), tensor_of(plan, stage)};
    std::vector<StageKind>& kinds = out[static_cast<std::size_t>(stage)];
    if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) kinds.push_back(kind);
  }
  return out;
}

/// Every chunk weighs layers as the ranks of its stage take for them, of several kinds the slowest.
static Status divide_over_kinds(Run& run) {
  const std::optional<Pools> pools =
      run.cluster.pools.empty() ? std::nullopt : std::optional<Pools>(run.cluster);
  const Pools* const of = pools ? &*pools : nullptr;
  std::vector<std::vector<LayerWeights>> times;
  std::map<StageKind, std::pair<std::size_t, double>> known;  // place in `times`, all layers
  std::vector<std::size_t> of_stage;
  for (const std::vector<StageKind>& kinds : kinds_of_stages(run.plan, of)) {
    std::pair<std::size_t, double> slowest = {0, -1};
    for (const StageKind& kind : kinds) {
      const auto [it, fresh] = known.try_emplace(kind, times.size(), 0.0);
      if (fresh) {
        FT_ASSIGN(std::vector<LayerWeights> one, pass_times(all_of_kind(run, of, kind)));
        for (const LayerWeights& part : one) {
          for (const std::int64_t layer : part.layers) {
            it->second.second += static_cast<double>(layer);
          }
        }
        times.push_back(std::move(one));
      }
      if (it->second.second > slowest.second) slowest = it->second;
    }
    of_stage.push_back(slowest.first);
  }
  Plan& p = run.plan;
  std::vector<std::size_t> of_chunk;
  for (std::int64_t c = 0; c < p.chunks(); ++c) {
    of_chunk.push_back(of_stage[static_cast<std::size_t>(p.stage_of(c))]);
  }
  p.pipeline_layout = balanced_layout(times, of_chunk);
  return ok_status();
}

Status divide_by_time(Run& run) {
  Plan& p = run.plan;
  if (p.partition != Partition::kProfiled || p.chunks() == 1) return ok_status();
  if (!run.cluster.pools.empty() || p.tensors.any()) return divide_over_kinds(run);
  FT_ASSIGN(const std::vector<LayerWeights> times, pass_times(run));
  p.pipeline_layout = balanced_layout(times, p.chunks());
  return ok_status();
}

Status order_by_time(Run& run) {
  Plan& p = run.plan;
  if (!fits_durations(p.schedule) || p.automatic.given || p.pipeline == 1) return ok_status();
  Plan priced = p;
  priced.offload.device_share = std::max(priced.offload.device_share, 0.0);  // not yet known
  FT_TRY(lowerable(run.model, priced));
  PricedStages stages(run, priced);
  FT_TRY(stages.price());
  StageTimes busiest;
  for (std::int64_t s = 0; s < p.pipeline; ++s) {
    const StageTimes times = stage_times(stages.program(s), stages.prices(s).costs);
    if (times.length() > busiest.length()) busiest = times;
    const Time message = longest_message(stages.program(s), stages.prices(s));
    p.automatic.transfer = std::max(p.automatic.transfer, message);
  }
  const auto each = [&p](const PassTime& t) {
    const double ps = std::max(t.device, t.host) / static_cast<double>(p.microbatches());
    return Time{std::max<std::int64_t>(1, static_cast<std::int64_t>(ps))};
  };
  p.automatic.forward = each(busiest.forward);
  p.automatic.input_gradients = each(busiest.backward);
  p.automatic.weight_gradients = p.splits_backward() ? each(busiest.weights) : Time{};
  p.passes.clear();
  p.passes = passes_of(p);
  return ok_status();
}

}  // namespace foretrain
