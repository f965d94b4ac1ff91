#include "tools/search/bounds/case_bounds.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "models/lower.h"
#include "models/plan/layout/plan_layout.h"
#include "models/plan/plan_schedule.h"
#include "tools/search/candidates.h"

namespace foretrain {
namespace {

/// Keys that change nothing of what a sample of layers is read for.
bool is_beside(const std::string& key) {
  return key == "parallel.pipeline" || key == "parallel.virtual_pipeline" || key == "schedule" ||
         key == "parallel.rank_order" || key == "overlap.gradient_reduce" ||
         key == "overlap.parameter_gather" || key == "overlap.pipeline" ||
         key == "sharding.level" || key == "batch.micro" || key == "parallel.pipeline_partition";
}

/// Keys that change what data-parallel ranks exchange, the number of stages apart.
bool is_of_exchange(const std::string& key) {
  return key == "parallel.tensor" || key == "parallel.context" || key == "parallel.expert" ||
         key == "parallel.expert_tensor" || key.starts_with("sharding.") ||
         key.starts_with("gradients.") || key.starts_with("precision") ||
         key == "overlap.gradient_reduce" || key == "overlap.parameter_gather" ||
         key.starts_with("offload.");
}

/// Keys that a first sample is made without: it computes nothing again, and counts no exchanges of
/// tensor and context ranks.
bool is_beside_first(const std::string& key) {
  return key == "recompute" || key == "overlap.tensor";
}

/// The level that a plan shards states to: the one that is searched, or the RUN's own.
std::string level_of(const Json* searched, const Plan& own) {
  static constexpr const char* kLevels[] = {"none", "optimizer", "gradients", "parameters"};
  if (searched != nullptr && searched->string() != nullptr) return *searched->string();
  return kLevels[static_cast<std::size_t>(own.sharding)];
}

/// Whether pairs in a node have unequal links: ranks of other stages than a sample's may have more.
bool is_uneven(const Cluster& cluster) { return cluster.scale_up == ScaleUp::kMesh; }

/// Whether ranks of one stage stand together, so that fewer stages place them alike.
bool stages_are_outermost(const Plan& plan) {
  return !plan.rank_order.empty() && plan.rank_order.back() == "pp";
}

/// The bound of a plan on pools, of which a microbatch takes `layer_s` for a layer.
double pooled_seconds(const SearchCase& of, const Pools& pools, const Degrees& d,
                      const std::vector<double>& layer_s) {
  if (!stages_are_outermost(of.seed.plan)) return 0;
  const std::int64_t ranks = of.seed.cluster.accelerators / d.pipeline;
  const auto microbatches = static_cast<double>(d.microbatches);
  double sum = 0;  // of y
  for (std::int64_t s = d.pipeline; s-- > 0;) {
    const std::size_t first = pools.pool_of(RankId(static_cast<std::size_t>(s * ranks)));
    const std::size_t last = pools.pool_of(RankId(static_cast<std::size_t>((s + 1) * ranks - 1)));
    // Each rank of a stage runs all of its layers.
    double slowest = 0;
    for (std::size_t k = first; k <= last; ++k) slowest = std::max(slowest, layer_s[k]);
    const double after = d.virtual_pipeline == 1 ? sum : 0;
    sum += std::max(0.0, (1 / slowest - after) / microbatches);
  }
  return static_cast<double>(of.seed.model.layers) / sum;
}

/// A sample on each pool alone: of the quickest layer there, and the memory of the first.
SampleAnswer answer_on_pools(const SearchCase& of, const SampleRequest& sample) {
  SampleAnswer out;
  std::vector<double> layer_s;
  const Json* cluster = sample.run.find("cluster");
  const Json* ranks = cluster->find("accelerators");
  const Json* pools = cluster->find("pools");
  for (std::size_t k = 0; k < of.seed.cluster.pools.size(); ++k) {
    Json run = sample.run;
    Json& pool = *run.find("cluster");
    pool = (*pools->array())[k];
    cluster_object(run).set("accelerators", *ranks);
    if (value_of_key(run, "parallel.pipeline_partition") != nullptr) {
      set_key(run, "parallel.pipeline_partition", Json("layers"));
    }
    const Result<Run> resolved = of.resolve_sample(run, k);
    if (!resolved.ok() || !is_bounded(resolved.value())) return {};
    const Result<LayerTimes> times = layer_times(resolved.value(), {false, false});
    if (!times.ok() || times.value().layers.empty()) return {};
    double least = std::numeric_limits<double>::max();
    for (const LayerTime& layer : times.value().layers) {
      least = std::min(least, (layer.forward + layer.backward).seconds());
    }
    layer_s.push_back(least);
    if (k == 0) out.layers = times.value();
  }
  out.layers->pool_layer_s = std::move(layer_s);
  return out;
}

}  // namespace

SampleAnswer answer_of(const SearchCase& of, const SampleRequest& sample) {
  if (!of.seed.cluster.pools.empty()) return answer_on_pools(of, sample);
  SampleAnswer out;
  const Result<Run> resolved = of.resolve_sample(sample.run);
  if (!resolved.ok() || !is_bounded(resolved.value())) return out;
  if (sample.exchange) {
    Result<ExchangeTimes> times = exchange_times(resolved.value());
    if (times.ok()) out.times = std::move(times.value());
    return out;
  }
  const bool even = !is_uneven(of.seed.cluster);
  const Counted counted{even && sample.ask != Ask::kFirst, even};
  Result<LayerTimes> times = layer_times(resolved.value(), counted);
  if (!times.ok()) return out;
  out.kernels = std::exchange(times.value().kernels, {});
  out.layers = std::move(times.value());
  return out;
}

CaseBounds::CaseBounds(const SearchCase& of) : x_case(of) {
  if (!of.seed.cluster.pools.empty()) x_pools.emplace(of.seed.cluster);
  x_known = is_bounded(of.seed);
  const bool fixed_order =
      std::none_of(of.space.dimensions().begin(), of.space.dimensions().end(),
                   [](const Dimension& one) { return one.key == "parallel.rank_order"; });
  const bool alike = of.seed.cluster.pools.empty();
  x_exchange_known = alike && x_known && fixed_order && stages_are_outermost(of.seed.plan) &&
                     !is_uneven(of.seed.cluster);
}

const Json* CaseBounds::value(Point point, const char* key) const {
  const std::vector<Dimension>& dimensions = x_case.space.dimensions();
  for (std::size_t d = 0; d < dimensions.size(); ++d) {
    if (dimensions[d].key == key) return &dimensions[d].values[point[d]];
  }
  return nullptr;
}

std::int64_t CaseBounds::keep(std::string key, Ask ask, bool exchange, Json run) {
  const auto number = static_cast<std::int64_t>(x_samples.size());
  x_samples.emplace_back().request = {std::move(run), ask, exchange};
  x_by_key.emplace(std::move(key), number);
  return number;
}

/// The sample of a point, with `recompute` in place of its own where that is given.
std::int64_t CaseBounds::sample(Point point, Ask ask, const Json* recompute) {
  const std::vector<Dimension>& dimensions = x_case.space.dimensions();
  Degrees degrees = x_case.space.degrees(point);
  if (ask == Ask::kMemory) degrees.micro = 1;
  if (ask == Ask::kFirst) degrees.pipeline = degrees.pipeline == 1 ? 1 : 2;
  // A sample has no more stages than tell one from several.
  std::string key = std::to_string(static_cast<int>(ask)) + ':' +
                    std::to_string(sample_stages(degrees)) + ':' + std::to_string(degrees.micro) +
                    (recompute == nullptr         ? ':'
                     : *recompute == Json("none") ? 'n'
                                                  : 'f');
  // Passes write gradients where every rank keeps a part of them, and else add to them.
  const std::string level = level_of(value(point, "sharding.level"), x_case.seed.plan);
  const bool adds = level == "none" || level == "optimizer";
  key += adds ? 'a' : 'w';
  key += degrees.microbatches == 1 ? '1' : 'm';
  const auto is_left = [&](const std::string& name) {
    return is_beside(name) || (recompute != nullptr && name == "recompute") ||
           (ask == Ask::kFirst && is_beside_first(name)) ||
           (ask == Ask::kMemory && name == "overlap.tensor");
  };
  for (std::size_t d = 0; d < dimensions.size(); ++d) {
    if (!is_left(dimensions[d].key)) key += static_cast<char>(point[d]);
  }
  const auto known = x_by_key.find(key);
  if (known != x_by_key.end()) return known->second;
  Json run = x_case.space.run_of(point);
  if (recompute != nullptr) set_key(run, "recompute", *recompute);
  if (ask != Ask::kTime && value(point, "overlap.tensor") != nullptr) {
    set_key(run, "overlap.tensor", Json(false));
  }
  if (value(point, "sharding.level") != nullptr) {
    set_key(run, "sharding.level", adds ? "optimizer" : "gradients");
  }
  return keep(std::move(key), ask, false, sample_of(std::move(run), degrees, x_case.seed));
}

std::int64_t CaseBounds::exchange_sample(Point point) {
  if (!x_exchange_known) return -1;
  const std::vector<Dimension>& dimensions = x_case.space.dimensions();
  const Degrees degrees = x_case.space.degrees(point);
  if (degrees.batch_ranks * degrees.context == 1) return -1;
  std::string key = "x" + std::to_string(degrees.pipeline) + ':';
  for (std::size_t d = 0; d < dimensions.size(); ++d) {
    if (is_of_exchange(dimensions[d].key)) key += static_cast<char>(point[d]);
  }
  const auto known = x_by_key.find(key);
  if (known != x_by_key.end()) return known->second;
  Json run = x_case.space.run_of(point);
  if (value(point, "overlap.tensor") != nullptr) set_key(run, "overlap.tensor", Json(false));
  return keep(std::move(key), Ask::kTime, true,
              exchange_sample_of(std::move(run), degrees, x_case.seed));
}

CaseBounds::Samples CaseBounds::samples_of(std::size_t plan, Ask ask) {
  static const Json kNone("none");
  static const Json kFull("full");
  Samples out;
  const Point point = x_case.space.at(plan);
  const Degrees degrees = x_case.space.degrees(point);
  const bool fits = degrees.pipeline * degrees.virtual_pipeline <= x_case.seed.model.layers + 2;
  if (!x_known || !fits) return out;
  if (ask == Ask::kFirst) {
    out.plain = sample(point, ask, value(point, "recompute") == nullptr ? nullptr : &kNone);
    return out;
  }
  const bool some = layers_again(value(point, "recompute")) > 0;
  out.plain = sample(point, ask, some ? &kNone : nullptr);
  if (some) out.all = sample(point, ask, &kFull);
  if (ask == Ask::kTime) out.exchange = exchange_sample(point);
  return out;
}

std::vector<std::size_t> CaseBounds::lacking(std::size_t plan, Ask ask) {
  const Samples samples = samples_of(plan, ask);
  std::vector<std::size_t> out;
  for (const std::int64_t one : {samples.plain, samples.all, samples.exchange}) {
    if (one >= 0 && !x_samples[static_cast<std::size_t>(one)].priced) {
      out.push_back(static_cast<std::size_t>(one));
    }
  }
  return out;
}

SampleRequest CaseBounds::request(std::size_t sample) {
  return std::move(x_samples[sample].request);
}

void CaseBounds::learn(std::size_t sample, SampleAnswer answer) {
  x_samples[sample].answer = std::move(answer);
  x_samples[sample].priced = true;
}

bool CaseBounds::stands_in_turn(Point point) const {
  const Json* schedule = value(point, "schedule");
  const Schedule own = x_case.seed.plan.schedule;
  if (schedule == nullptr) return own == Schedule::k1F1B || own == Schedule::kInterleaved;
  return schedule->is_null() || *schedule == Json("1f1b") || *schedule == Json("interleaved-1f1b");
}

bool CaseBounds::bounds(std::size_t plan) const {
  const Json* schedule = value(x_case.space.at(plan), "schedule");
  if (schedule == nullptr || schedule->is_null()) return true;
  const std::string name = schedule->string() == nullptr ? "" : *schedule->string();
  return name == "1f1b" || name == "interleaved-1f1b" || name == name_of(Schedule::kGpipe) ||
         name == "bfs";
}

const std::vector<std::int64_t>& CaseBounds::layout(const Degrees& degrees) {
  const auto [it, fresh] = x_layouts.try_emplace({degrees.pipeline, degrees.virtual_pipeline});
  if (fresh) {
    Plan plan = x_case.seed.plan;
    plan.pipeline = degrees.pipeline;
    plan.virtual_pipeline = degrees.virtual_pipeline;
    it->second = even_layout(x_case.seed.model, plan);
  }
  return it->second;
}

std::optional<LayerTimes> CaseBounds::times(Point point, const Samples& samples) {
  if (samples.plain < 0) return {};
  const std::optional<LayerTimes>& plain =
      x_samples[static_cast<std::size_t>(samples.plain)].answer.layers;
  if (!plain || samples.all < 0) return plain;
  const std::optional<LayerTimes>& all =
      x_samples[static_cast<std::size_t>(samples.all)].answer.layers;
  if (!all) return {};
  const Degrees degrees = x_case.space.degrees(point);
  return with_recomputed(*plain, *all, layers_again(value(point, "recompute")), degrees.pipeline,
                         layout(degrees));
}

/// A layer that is computed again runs all products of its forward pass again but those whose
/// results nothing needs, the last of the layer: half of its time and more.
const CaseBounds::First& CaseBounds::first_of(Point point) {
  const Degrees degrees = x_case.space.degrees(point);
  const Samples samples = samples_of(x_case.space.index(point), Ask::kFirst);
  const Json* recompute = value(point, "recompute");
  const bool full = recompute != nullptr && *recompute == Json("full");
  const std::int64_t again = full ? x_case.seed.model.layers : layers_again(recompute);
  const bool same = x_first.sample == samples.plain && x_first.again == again;
  if (same && x_first.degrees == degrees) return x_first;
  x_first = {degrees, samples.plain, again, 0, 0};
  const std::optional<LayerTimes> known = times(point, samples);
  if (!known) return x_first;
  if (!known->pool_layer_s.empty()) {
    x_first.seconds = pooled_seconds(x_case, *x_pools, degrees, known->pool_layer_s);
    return x_first;
  }
  const auto least_of = [&](const LayerTimes& layers) {
    const std::vector<StageLoad> loads = stage_loads(layers, degrees.pipeline, layout(degrees));
    return least_step_s(loads, degrees.microbatches);
  };
  const double once = least_of(*known);
  x_first.seconds = once;
  if (again == 0) return x_first;
  LayerTimes twice = *known;
  for (LayerTime& layer : twice.layers) layer.backward += Time{layer.forward.ps / 2};
  x_first.seconds =
      least_of(with_recomputed(*known, twice, again, degrees.pipeline, layout(degrees)));
  x_first.rest = x_first.seconds - once;
  return x_first;
}

double CaseBounds::first_seconds(std::size_t plan) {
  return first_of(x_case.space.at(plan)).seconds;
}

double CaseBounds::again_seconds(std::size_t plan) { return first_of(x_case.space.at(plan)).rest; }

double CaseBounds::seconds(std::size_t plan) {
  const Samples samples = samples_of(plan, Ask::kTime);
  const Point point = x_case.space.at(plan);
  const std::optional<LayerTimes> known = times(point, samples);
  if (!known) return 0;
  const Degrees degrees = x_case.space.degrees(point);
  if (!known->pool_layer_s.empty())
    return pooled_seconds(x_case, *x_pools, degrees, known->pool_layer_s);
  const std::vector<StageLoad> loads = stage_loads(*known, degrees.pipeline, layout(degrees));
  const double alone = least_step_s(loads, degrees.microbatches);
  if (samples.exchange < 0) return alone;
  const auto& exchange = x_samples[static_cast<std::size_t>(samples.exchange)].answer.times;
  if (!exchange) return alone;
  const std::vector<ExchangeKernel>& beside = kernels(samples);
  return std::max(alone, least_step_s(loads, degrees.microbatches, *exchange, beside));
}

const std::vector<ExchangeKernel>& CaseBounds::kernels(const Samples& samples) {
  const auto [it, fresh] = x_kernels.try_emplace({samples.plain, samples.all, samples.exchange});
  if (!fresh) return it->second;
  // Of layers that are computed again and of others: as much time as any of them has.
  std::vector<PassKernel> kernels =
      x_samples[static_cast<std::size_t>(samples.plain)].answer.kernels;
  if (samples.all >= 0) {
    merge_kernels(kernels, x_samples[static_cast<std::size_t>(samples.all)].answer.kernels);
  }
  it->second =
      kernels_beside(kernels, *x_samples[static_cast<std::size_t>(samples.exchange)].answer.times);
  return it->second;
}

/// Of parameters, gradients and optimizer states; 0 where some of them may be on the host.
double CaseBounds::states_gib(Point point, const LayerTimes& known) const {
  const Plan& own = x_case.seed.plan;
  const bool offloads = own.offload.states() || value(point, "offload.parameters") != nullptr ||
                        value(point, "offload.optimizer") != nullptr;
  if (offloads) return 0;
  const Degrees d = x_case.space.degrees(point);
  const std::string sharding = level_of(value(point, "sharding.level"), own);
  const auto ranks = static_cast<double>(d.batch_ranks * d.context);
  const bool grouped = own.shard_group > 0 || value(point, "sharding.group_size") != nullptr;
  const bool weights = sharding == "parameters";
  const bool gradients = weights || sharding == "gradients";
  const bool states = sharding != "none";
  double shared = 0;  // by the ranks
  double each = 0;
  (weights ? shared : each) += known.weight_bytes;
  (gradients ? shared : each) += known.gradient_bytes;
  (states ? shared : each) += known.state_bytes;
  if (!grouped) each += shared / ranks;
  const auto cut = static_cast<double>(d.pipeline * std::max(d.tensor, d.expert * d.expert_tensor));
  return each * static_cast<double>(parameter_count(x_case.seed.model)) / cut / kGiB;
}

double CaseBounds::least_gib(std::size_t plan) {
  const Point point = x_case.space.at(plan);
  const std::optional<LayerTimes> known = times(point, samples_of(plan, Ask::kMemory));
  if (!known) return 0;
  const Degrees d = x_case.space.degrees(point);
  // Where layers may be divided by time the first stage may have few.
  const bool stays = x_case.seed.cluster.pools.empty() &&
                     x_case.seed.plan.offload.activation_layers == 0 && stands_in_turn(point) &&
                     value(point, "offload.activation_layers") == nullptr;
  // Of a microbatch of several sequences so many times as much.
  const double each = stays ? least_saved_bytes(*known, d, layout(d)) : 0;
  const bool torus = x_case.seed.cluster.scale_up == ScaleUp::kTorus;
  const double held = torus ? 0 : x_case.seed.plan.context_gib;
  return held + states_gib(point, *known) + each * static_cast<double>(d.micro) / kGiB;
}

}  // namespace foretrain
