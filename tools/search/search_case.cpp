#include "tools/search/search_case.h"

#include <algorithm>

#include "models/plan/partition.h"
#include "models/plan/plan_layout.h"

namespace foretrain {
namespace {

Json with_cluster(Json run, const std::string& preset, std::int64_t accelerators) {
  Json* cluster = run.find("cluster");
  if (cluster == nullptr) return run;
  if (cluster->object() == nullptr) {
    Json object{Json::Object{}};
    object.set("preset", *cluster);
    *cluster = std::move(object);
  }
  if (!preset.empty()) {
    // What the RUN says of its own cluster is none of another's, but for the number.
    Json object{Json::Object{}};
    object.set("preset", Json(preset));
    if (const Json* number = cluster->find("accelerators")) object.set("accelerators", *number);
    *cluster = std::move(object);
  }
  if (accelerators > 0) cluster->set("accelerators", Json(accelerators));
  return run;
}

std::string cluster_name(const Json& run) {
  const Json* cluster = run.find("cluster");
  const Json* preset =
      cluster == nullptr || cluster->object() == nullptr ? cluster : cluster->find("preset");
  return preset != nullptr && preset->string() != nullptr ? *preset->string() : "the cluster";
}

/// Any legal plan: the RUN's own; else one of some stages and tensor ranks, of any batch.
Status find_seed(const std::string& source, const ChoosePrices& profile, SearchCase& out) {
  Result<Run> own = resolve_run(out.run, source, {}, profile);
  if (own.ok()) {
    out.seed = std::move(own.value());
    out.own = true;
    return ok_status();
  }
  out.own_fault = own.error();
  for (const std::int64_t stages : {1, 2, 4, 8, 16, 3, 5, 6}) {
    for (const std::int64_t tensor : {1, 2, 4, 8}) {
      Json tried = out.run;
      if (Json* batch = tried.find("batch"); batch != nullptr) batch->erase("global");
      if (value_of_key(tried, "parallel.pipeline") == nullptr) {
        set_key(tried, "parallel.pipeline", Json(stages));
      }
      if (value_of_key(tried, "parallel.tensor") == nullptr) {
        set_key(tried, "parallel.tensor", Json(tensor));
      }
      Result<Run> seed = resolve_run(tried, source, {}, profile);
      if (!seed.ok()) continue;
      out.seed = std::move(seed.value());
      return ok_status();
    }
  }
  return own.error();
}

Result<std::int64_t> global_batch_of(const SearchCase& of) {
  if (const Json* stated = value_of_key(of.run, "batch.global")) {
    return static_cast<std::int64_t>(stated->number());
  }
  if (of.own) return of.seed.plan.global_batch;
  return *of.own_fault;
}

double price_of(const std::vector<ClusterPrice>& prices, const std::string& cluster) {
  double any = 0;
  for (const ClusterPrice& one : prices) {
    if (one.cluster == cluster) return one.per_gpu_hour;
    if (one.cluster.empty()) any = one.per_gpu_hour;
  }
  return any;
}

constexpr double kSecondsPerHour = 3600, kJoulesPerKwh = 3.6e6;

double weight_of(const SearchCase& of, Objective objective) {
  const auto ranks = static_cast<double>(of.seed.cluster.accelerators);
  if (objective == Objective::kEnergy) {
    return ranks * of.seed.cluster.device.power_w / kJoulesPerKwh;
  }
  if (objective != Objective::kCost) return 1;
  const double price = of.price_per_gpu_hour > 0 ? of.price_per_gpu_hour : 1;
  return ranks * price / kSecondsPerHour;
}

Status check_weights(const std::vector<SearchCase>& cases, Objective objective) {
  const bool several = std::any_of(cases.begin(), cases.end(), [&](const SearchCase& one) {
    return one.cluster != cases.front().cluster;
  });
  for (const SearchCase& one : cases) {
    if (objective == Objective::kCost && several && one.price_per_gpu_hour <= 0) {
      return input_error("--objective cost: no price of " + one.cluster + "; give --price " +
                         one.cluster + "=PER_GPU_HOUR for every cluster");
    }
    if (objective == Objective::kEnergy && one.seed.cluster.device.power_w <= 0) {
      return input_error("--objective energy: the power of " + one.seed.cluster.device.name +
                         " is not known (power_w of its file)");
    }
  }
  return ok_status();
}

}  // namespace

ChoosePrices SearchCase::profile() const {
  return [this](Run& priced) {
    priced.profile = seed.profile;
    priced.profile_source = seed.profile_source;
    return ok_status();
  };
}

Result<std::vector<SearchCase>> search_cases(const Json& run, const std::string& source,
                                             const SearchOptions& options) {
  std::vector<std::string> clusters = options.clusters;
  if (clusters.empty()) clusters.emplace_back();
  std::vector<std::int64_t> sizes = options.accelerators;
  if (sizes.empty()) sizes.push_back(0);
  std::vector<SearchCase> out;
  std::int64_t batch = 0;
  for (const std::string& cluster : clusters) {
    for (const std::int64_t size : sizes) {
      SearchCase one;
      one.run = with_cluster(run, cluster, size);
      FT_TRY(find_seed(source, options.profile, one));
      if (batch == 0) {
        FT_ASSIGN(batch, global_batch_of(one));
      }
      one.cluster = cluster_name(one.run);
      one.price_per_gpu_hour = price_of(options.prices, one.cluster);
      FT_ASSIGN(one.space, Space::of(one.run, one.seed, batch, options.space));
      one.weight = weight_of(one, options.objective);
      out.push_back(std::move(one));
    }
  }
  FT_TRY(check_weights(out, options.objective));
  return out;
}

namespace {

/// Keys that change nothing of what a sample is read for.
bool is_beside(const std::string& key) {
  return key == "parallel.pipeline" || key == "parallel.virtual_pipeline" || key == "schedule" ||
         key == "parallel.rank_order" || key == "overlap.gradient_reduce" ||
         key == "overlap.parameter_gather" || key == "overlap.pipeline";
}

/// Layers of a stage that are computed again, of a value of `recompute`; 0: all, or no layers.
std::int64_t layers_again(const Json* recompute) {
  const Json* layers =
      recompute == nullptr || recompute->object() == nullptr ? nullptr : recompute->find("layers");
  return layers == nullptr ? 0 : static_cast<std::int64_t>(layers->number());
}

}  // namespace

const Json* CaseBounds::value(Point point, const char* key) const {
  const std::vector<Dimension>& dimensions = x_case.space.dimensions();
  for (std::size_t d = 0; d < dimensions.size(); ++d) {
    if (dimensions[d].key == key) return &dimensions[d].values[point[d]];
  }
  return nullptr;
}

/// The sample of a point, with `recompute` in place of its own where that is given.
std::int32_t CaseBounds::sample(Point point, const Json* recompute) {
  const std::vector<Dimension>& dimensions = x_case.space.dimensions();
  const Degrees degrees = x_case.space.degrees(point);
  // A sample has no more stages than tell one from several.
  const bool even = degrees.pipeline % 2 == 0;
  std::string key = std::to_string(even ? 2 : degrees.pipeline) + ':';
  if (recompute != nullptr) key += dump_json(*recompute, -1);
  for (std::size_t d = 0; d < dimensions.size(); ++d) {
    const std::string& name = dimensions[d].key;
    if (is_beside(name) || (recompute != nullptr && name == "recompute")) continue;
    // Whether the optimizer's states are sharded is nothing to the passes.
    const bool none = name == "sharding.level" && dimensions[d].values[point[d]] == Json("none");
    key += none ? dump_json(Json("optimizer"), -1) : dump_json(dimensions[d].values[point[d]], -1);
  }
  const auto [it, fresh] = x_known.try_emplace(key, static_cast<std::int32_t>(x_samples.size()));
  if (fresh) {
    Json run = x_case.space.run_of(point);
    if (recompute != nullptr) set_key(run, "recompute", *recompute);
    x_samples.push_back(sample_of(std::move(run), degrees, x_case.seed));
  }
  return it->second;
}

CaseBounds::CaseBounds(const SearchCase& of) : x_case(of) {
  if (!is_bounded(of.seed)) return;
  const Json kNone("none");
  const Json kFull("full");
  for (std::size_t i = 0; i < of.space.size(); ++i) {
    const Point point = of.space.at(i);
    Samples& samples = x_samples_of.emplace_back();
    if (least_gib(i) > of.seed.cluster.device.memory_gib) continue;
    const Degrees degrees = of.space.degrees(point);
    samples.layers = layers_again(value(point, "recompute"));
    samples.plain = sample(point, samples.layers > 0 ? &kNone : nullptr);
    if (samples.layers > 0) samples.all = sample(point, &kFull);
    const std::pair chunks(degrees.pipeline, degrees.virtual_pipeline);
    if (x_layouts.find(chunks) != x_layouts.end()) continue;
    Plan plan = of.seed.plan;
    plan.pipeline = degrees.pipeline;
    plan.virtual_pipeline = degrees.virtual_pipeline;
    if (plan.chunks() > of.seed.model.layers + 2) continue;
    x_layouts[chunks] = even_layout(of.seed.model, plan);
  }
  x_times.resize(x_samples.size());
}

void CaseBounds::price(std::size_t sample) {
  const Result<Run> resolved =
      resolve_run(x_samples[sample], x_case.seed.source, {}, x_case.profile());
  if (!resolved.ok() || !is_bounded(resolved.value())) return;
  Result<LayerTimes> times = layer_times(resolved.value());
  if (times.ok()) x_times[sample] = std::move(times.value());
}

bool CaseBounds::stands_round(Point point) const {
  const Json* schedule = value(point, "schedule");
  if (schedule == nullptr || schedule->is_null()) return true;
  const std::string name = schedule->string() == nullptr ? "" : *schedule->string();
  return name == "1f1b" || name == "interleaved-1f1b" || name == "gpipe" || name == "bfs";
}

double CaseBounds::seconds(std::size_t plan) const {
  const Point point = x_case.space.at(plan);
  if (x_samples_of.empty() || !stands_round(point)) return 0;
  const Samples& samples = x_samples_of[plan];
  const Degrees degrees = x_case.space.degrees(point);
  const auto layout = x_layouts.find({degrees.pipeline, degrees.virtual_pipeline});
  if (samples.plain < 0 || layout == x_layouts.end()) return 0;
  const std::optional<LayerTimes>& times = x_times[static_cast<std::size_t>(samples.plain)];
  if (!times) return 0;
  const bool again = samples.all >= 0 && x_times[static_cast<std::size_t>(samples.all)].has_value();
  if (!again) return least_step_s(*times, degrees, layout->second);
  const LayerTimes& all = *x_times[static_cast<std::size_t>(samples.all)];
  const LayerTimes mixed =
      with_recomputed(*times, all, samples.layers, degrees.pipeline, layout->second);
  return least_step_s(mixed, degrees, layout->second);
}

double CaseBounds::least_gib(std::size_t plan) const {
  const Point point = x_case.space.at(plan);
  const Plan& p = x_case.seed.plan;
  const bool offloads = p.offload.states() || value(point, "offload.parameters") != nullptr ||
                        value(point, "offload.optimizer") != nullptr;
  const bool wide = p.precision.compute != DType::kBf16 || p.precision.matrix != DType::kBf16;
  if (offloads || wide || value(point, "precision") != nullptr) return 0;
  const Json* level = value(point, "sharding.level");
  const std::string sharding =
      level != nullptr && level->string() != nullptr ? *level->string() : "";
  const bool whole = level == nullptr ? p.sharding < Sharding::kGradients
                                      : sharding == "none" || sharding == "optimizer";
  if (!whole) return 0;
  // Weights and gradients in 16 bits at least.
  constexpr double kBytes = 4;
  const Degrees d = x_case.space.degrees(point);
  const auto cut = static_cast<double>(d.pipeline * std::max(d.tensor, d.expert * d.expert_tensor));
  return kBytes * static_cast<double>(parameter_count(x_case.seed.model)) / cut / kGiB;
}

}  // namespace foretrain
