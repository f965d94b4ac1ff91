#include "tools/search/stage_tuning.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "models/emit/emit.h"
#include "sim/program/memory.h"
#include "tools/predict/divide.h"
#include "tools/search/bounds/memory_bound.h"
#include "tools/search/space.h"

namespace foretrain {
namespace {

/// Questions of one plan, and moves of a layer that make it no better before it is left.
constexpr int kMostAsked = 60, kMostFailures = 8;

/// Layers of a stage, and those of them that are computed again, whose activations are moved, whose
/// states are.
struct OfStage {
  std::int64_t layers = 0, again = 0, activations = 0, states = 0;
};
constexpr std::int64_t OfStage::*kBurdens[] = {&OfStage::again, &OfStage::activations,
                                               &OfStage::states};

using Stages = std::vector<OfStage>;

bool has_own_stages(const Plan& plan) {
  const Recompute& again = plan.recompute;
  const bool layers =
      !again.any() || (again.layer_period == 1 && again.parts == 1 && !again.in_blocks());
  return plan.pipeline > 1 && plan.directions() == 1 && plan.stages.empty() && layers &&
         plan.offload.device_share >= 0;
}

class StageTuner {
 public:
  StageTuner(const Run& run, const TunedKeys& keys)
      : x_run(run),
        x_plan(of_few_microbatches(run.plan)),
        x_keys(keys),
        x_adds(!x_plan.recompute.any()) {
    if (x_adds && keys.adds_recompute) x_plan.recompute.layer = true;
    x_again = x_plan.recompute.any() && (x_adds || keys.recompute);
    x_moves = keys.activations && x_plan.offload.activation_layers > 0;
    x_states = keys.states && x_plan.updates_on_host() && x_plan.by_units();
  }

  /// The plan's own stages, which all do the same.
  Stages even() const {
    Stages out;
    for (std::int64_t stage = 0; stage < x_plan.pipeline; ++stage) {
      OfStage own;
      for (std::int64_t index = 0; index < x_plan.chunks_of_stage(); ++index) {
        own.layers +=
            x_plan.pipeline_layout[static_cast<std::size_t>(x_plan.chunk_at(stage, index))];
      }
      const std::int64_t again = x_adds ? 0 : x_plan.recompute.layers;
      if (x_again) own.again = again < 0 ? own.layers : std::min(own.layers, again);
      own.activations = std::min(own.layers, x_plan.offload.activation_layers);
      const double stay = x_plan.offload.device_share * static_cast<double>(own.layers);
      if (x_states) own.states = own.layers - static_cast<std::int64_t>(stay);
      out.push_back(own);
    }
    return out;
  }

  /// What the tensors of a stage take at once.
  double gib(const Stages& stages, std::size_t stage) const {
    Plan plan = x_plan;
    if (plan.chunks() == plan.pipeline) {
      for (std::size_t s = 0; s < stages.size(); ++s) plan.pipeline_layout[s] = stages[s].layers;
    }
    plan.stages.assign(stages.size(), StageChoice{});
    StageChoice& own = plan.stages[stage];
    if (x_again) own.recompute_layers = stages[stage].again;
    if (x_moves) own.activation_layers = stages[stage].activations;
    if (x_states) own.device_share = 1 - moved_share(stages[stage]);
    const Program program = write_stage(x_run.model, plan, static_cast<std::int64_t>(stage));
    return static_cast<double>(memory_peak(program).bytes) / kGiB;
  }

  /// As much of each burden as a stage may have, then less and less while it takes at most `limit`.
  void lighten(Stages& stages, std::size_t stage, double limit) const {
    OfStage& own = stages[stage];
    own.again = x_again ? own.layers : 0;
    if (x_moves) own.activations = own.layers;
    if (x_states) own.states = own.layers;
    for (std::int64_t OfStage::*const of : kBurdens) {
      std::int64_t low = 0;
      std::int64_t high = own.*of;
      while (low < high) {
        own.*of = (low + high) / 2;
        const bool fits = gib(stages, stage) <= limit;
        (fits ? high : low) = own.*of + (fits ? 0 : 1);
      }
      own.*of = high;
    }
  }

  /// Times of layers and ends, and what computing a layer again adds; nothing where that fails.
  bool time() {
    Run run = x_run;
    run.plan.recompute.layers = 0;
    const Result<std::vector<LayerWeights>> none = pass_times(run);
    run.plan.recompute = x_plan.recompute;
    run.plan.recompute.layers = -1;
    const Result<std::vector<LayerWeights>> all = pass_times(run);
    if (!none.ok() || !all.ok() || none.value().empty()) return false;
    x_times = none.value().front();
    const auto sum = [](const LayerWeights& of) {
      return std::accumulate(of.layers.begin(), of.layers.end(), std::int64_t{0});
    };
    x_again_time = (sum(all.value().front()) - sum(x_times)) /
                   std::max<std::int64_t>(1, static_cast<std::int64_t>(x_times.layers.size()));
    return true;
  }

  /// Stages by the time of their passes, the longest first.
  std::vector<std::size_t> by_time(const Stages& stages) const {
    std::vector<std::pair<std::int64_t, std::size_t>> times;
    std::size_t layer = 0;
    for (std::size_t s = 0; s < stages.size(); ++s) {
      std::int64_t sum = stages[s].again * x_again_time;
      if (s == 0) sum += x_times.embedding;
      if (s + 1 == stages.size()) sum += x_times.head;
      for (std::int64_t l = 0; l < stages[s].layers; ++l) sum += x_times.layers[layer++];
      times.emplace_back(-sum, s);
    }
    std::sort(times.begin(), times.end());
    std::vector<std::size_t> out;
    for (const auto& [time, stage] : times) out.push_back(stage);
    return out;
  }

  bool moves_layers() const {
    return x_keys.layers && x_plan.chunks() == x_plan.pipeline && !x_plan.shares_vocabulary() &&
           x_plan.partition == Partition::kLayers &&
           value_of_key(x_run.resolved, "parallel.pipeline_layout") == nullptr;
  }

  Json json(const Stages& stages) const {
    Json::Array out;
    for (const OfStage& own : stages) {
      Json one{Json::Object{}};
      if (moves_layers()) one.set("layers", own.layers);
      if (x_again && (!x_adds || own.again > 0)) one.set("recompute", own.again);
      Json offload{Json::Object{}};
      if (x_states) offload.set("optimizer", moved_share(own));
      if (x_moves) offload.set("activations", own.activations);
      if (!offload.object()->empty()) one.set("offload", std::move(offload));
      out.push_back(std::move(one));
    }
    return Json(std::move(out));
  }

 private:
  static double moved_share(const OfStage& own) {
    return static_cast<double>(own.states) /
           static_cast<double>(std::max<std::int64_t>(1, own.layers));
  }

  const Run& x_run;
  Plan x_plan;
  TunedKeys x_keys;
  bool x_adds;  ///< the plan itself computes nothing again
  bool x_again = false, x_moves = false, x_states = false;
  LayerWeights x_times;
  std::int64_t x_again_time = 0;
};

/// One plan's stages while they get better.
class Climb {
 public:
  Climb(const StageTuner& tuner, const AskStages& ask, double limit, double objective)
      : x_tuner(tuner), x_ask(ask), x_limit(limit), x_best(objective) {}

  /// Each stage does the least with which it fits, with more and more room for fragments while the
  /// plan does not fit.
  void lighten(Stages& stages, double capacity) {
    for (const double room : {0.0, 0.02, 0.04, 0.07, 0.11}) {
      Stages tried = stages;
      const double limit = x_limit - room * capacity;
      for (std::size_t s = 0; s < tried.size(); ++s) {
        if (!x_ask.may_go_on()) return;
        x_tuner.lighten(tried, s, limit);
      }
      const std::optional<double> objective = asked(tried);
      if (!objective) continue;
      x_limit = limit;
      if (*objective > x_best) return;
      x_best = *objective;
      stages = std::move(tried);
      return;
    }
  }

  /// Moves a layer from one of the stages that take longest to one of those that take least, while
  /// that makes the plan better.
  void move_layers(Stages stages) {
    while (std::optional<Stages> better = moved(stages)) stages = std::move(*better);
  }

 private:
  /// The first move that makes the plan better: from the longest stage to the shortest, then by
  /// how far they stand from these.
  std::optional<Stages> moved(const Stages& stages) {
    const std::vector<std::size_t> order = x_tuner.by_time(stages);
    int failures = 0;
    for (std::size_t away = 0; away + 1 < order.size(); ++away) {
      for (std::size_t from = 0; from <= away; ++from) {
        const std::size_t to = order.size() - 1 - (away - from);
        if (from >= to || stages[order[from]].layers < 2) continue;
        if (failures++ == kMostFailures || x_asked >= kMostAsked || !x_ask.may_go_on()) return {};
        Stages tried = stages;
        --tried[order[from]].layers;
        ++tried[order[to]].layers;
        for (const std::size_t s : {order[from], order[to]}) x_tuner.lighten(tried, s, x_limit);
        const std::optional<double> objective = asked(tried);
        if (!objective || *objective >= x_best) continue;
        x_best = *objective;
        return tried;
      }
    }
    return {};
  }

  std::optional<double> asked(const Stages& stages) {
    ++x_asked;
    return x_ask.objective(x_tuner.json(stages));
  }

  const StageTuner& x_tuner;
  const AskStages& x_ask;
  double x_limit;
  double x_best;
  int x_asked = 0;
};

}  // namespace

void tune_stages(const Run& run, const MemoryReport& memory, double objective,
                 const TunedKeys& keys, const AskStages& ask) {
  if (!has_own_stages(run.plan)) return;
  StageTuner tuner(run, keys);
  Stages stages = tuner.even();
  double fullest = 0;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    fullest = std::max(fullest, tuner.gib(stages, s));
  }
  // NCCL's buffers and CUDA's own memory stand beside the tensors. The fragments of another layout
  // are others.
  const double beside = memory.peak_gib - fullest - memory.fragments_gib();
  Climb climb(tuner, ask, memory.capacity_gib - std::max(0.0, beside), objective);
  climb.lighten(stages, memory.capacity_gib);
  if (tuner.moves_layers() && tuner.time()) climb.move_layers(std::move(stages));
}

}  // namespace foretrain
