#include "tools/search/search_case.h"

#include <algorithm>

#include "models/plan/partition.h"
#include "models/plan/plan_layout.h"
#include "models/plan/plan_schedule.h"
#include "tools/search/candidates.h"

namespace foretrain {
namespace {

Json with_cluster(Json run, const std::string& preset, std::int64_t accelerators) {
  if (run.find("cluster") == nullptr) return run;
  Json* cluster = &cluster_object(run);
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

ChoosePrices profile_of(const Run& seed) {
  return [&seed](Run& run) {
    run.profile = seed.profile;
    run.profile_source = seed.profile_source;
    return ok_status();
  };
}

}  // namespace

Result<Run> SearchCase::resolve(const Json& written) const {
  return resolve_run(written, seed.source, {}, profile_of(seed), {&seed.model, &seed.cluster});
}

Result<Run> SearchCase::resolve_sample(const Json& written) const {
  return resolve_run(written, seed.source, {}, profile_of(seed), {&seed.model, nullptr});
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

}  // namespace

const Json* CaseBounds::value(Point point, const char* key) const {
  const std::vector<Dimension>& dimensions = x_case.space.dimensions();
  for (std::size_t d = 0; d < dimensions.size(); ++d) {
    if (dimensions[d].key == key) return &dimensions[d].values[point[d]];
  }
  return nullptr;
}

/// The sample of a point, with `recompute` in place of its own where that is given. `of_memory`:
/// one sequence a microbatch, and tensor ranks' communication as it comes.
std::int32_t CaseBounds::sample(Point point, const Json* recompute, bool of_memory) {
  const std::vector<Dimension>& dimensions = x_case.space.dimensions();
  Degrees degrees = x_case.space.degrees(point);
  if (of_memory) degrees.micro = 1;
  // A sample has no more stages than tell one from several.
  std::string key = std::to_string(degrees.pipeline % 2 == 0 ? 2 : degrees.pipeline) + ':' +
                    std::to_string(degrees.micro) + ':';
  if (recompute != nullptr) key += dump_json(*recompute, -1);
  for (std::size_t d = 0; d < dimensions.size(); ++d) {
    const std::string& name = dimensions[d].key;
    if (is_beside(name) || (recompute != nullptr && name == "recompute")) continue;
    if (name == "sharding.level" || name == "batch.micro" ||
        (of_memory && name == "overlap.tensor"))
      continue;
    key += dump_json(dimensions[d].values[point[d]], -1) + ',';
  }
  const auto [it, fresh] = x_known.try_emplace(key, static_cast<std::int32_t>(x_samples.size()));
  if (!fresh) return it->second;
  Json run = x_case.space.run_of(point);
  if (recompute != nullptr) set_key(run, "recompute", *recompute);
  if (of_memory && value(point, "overlap.tensor") != nullptr) {
    set_key(run, "overlap.tensor", Json(false));
  }
  // Whose passes write gradients and need not add to them.
  if (value(point, "sharding.level") != nullptr) set_key(run, "sharding.level", "gradients");
  x_samples.push_back(sample_of(std::move(run), degrees, x_case.seed));
  return it->second;
}

CaseBounds::Samples CaseBounds::samples_of(Point point, bool of_memory) {
  static const Json kNone("none");
  static const Json kFull("full");
  const bool some = layers_again(value(point, "recompute")) > 0;
  Samples out;
  out.plain = sample(point, some ? &kNone : nullptr, of_memory);
  if (some) out.all = sample(point, &kFull, of_memory);
  return out;
}

CaseBounds::CaseBounds(const SearchCase& of) : x_case(of) {
  if (!is_bounded(of.seed)) return;
  for (std::size_t i = 0; i < of.space.size(); ++i) {
    const Point point = of.space.at(i);
    const Degrees degrees = of.space.degrees(point);
    Samples& samples = x_of_memory.emplace_back();
    const std::pair chunks(degrees.pipeline, degrees.virtual_pipeline);
    if (chunks.first * chunks.second > of.seed.model.layers + 2) continue;
    samples = samples_of(point, true);
    if (x_layouts.find(chunks) != x_layouts.end()) continue;
    Plan plan = of.seed.plan;
    plan.pipeline = degrees.pipeline;
    plan.virtual_pipeline = degrees.virtual_pipeline;
    x_layouts[chunks] = even_layout(of.seed.model, plan);
  }
  x_times.resize(x_samples.size());
}

void CaseBounds::sample_times() {
  if (x_of_memory.empty()) return;
  const double capacity = x_case.seed.cluster.device.memory_gib;
  for (std::size_t i = 0; i < x_case.space.size(); ++i) {
    Samples& samples = x_of_time.emplace_back();
    const bool known = x_of_memory[i].plain >= 0;
    if (known && least_gib(i) <= capacity) samples = samples_of(x_case.space.at(i), false);
  }
  x_times.resize(x_samples.size());
}

void CaseBounds::price(std::size_t sample) {
  const Result<Run> resolved = x_case.resolve_sample(x_samples[sample]);
  if (!resolved.ok() || !is_bounded(resolved.value())) return;
  Result<LayerTimes> times = layer_times(resolved.value());
  if (times.ok()) x_times[sample] = std::move(times.value());
}

bool CaseBounds::stands_in_turn(Point point) const {
  const Json* schedule = value(point, "schedule");
  const Schedule own = x_case.seed.plan.schedule;
  if (schedule == nullptr) return own == Schedule::k1F1B || own == Schedule::kInterleaved;
  return schedule->is_null() || *schedule == Json("1f1b") || *schedule == Json("interleaved-1f1b");
}

bool CaseBounds::stands_round(Point point) const {
  const Json* schedule = value(point, "schedule");
  if (schedule == nullptr || schedule->is_null()) return true;
  const std::string name = schedule->string() == nullptr ? "" : *schedule->string();
  return name == "1f1b" || name == "interleaved-1f1b" || name == name_of(Schedule::kGpipe) ||
         name == "bfs";
}

const std::vector<std::int64_t>* CaseBounds::layout(const Degrees& degrees) const {
  const auto found = x_layouts.find({degrees.pipeline, degrees.virtual_pipeline});
  return found == x_layouts.end() ? nullptr : &found->second;
}

std::optional<LayerTimes> CaseBounds::times(Point point, const Samples& samples) const {
  if (samples.plain < 0) return {};
  const std::optional<LayerTimes>& plain = x_times[static_cast<std::size_t>(samples.plain)];
  if (!plain || samples.all < 0) return plain;
  const std::optional<LayerTimes>& all = x_times[static_cast<std::size_t>(samples.all)];
  if (!all) return {};
  const Degrees degrees = x_case.space.degrees(point);
  return with_recomputed(*plain, *all, layers_again(value(point, "recompute")), degrees.pipeline,
                         *layout(degrees));
}

double CaseBounds::seconds(std::size_t plan) const {
  const Point point = x_case.space.at(plan);
  if (x_of_time.empty() || !stands_round(point)) return 0;
  const std::optional<LayerTimes> known = times(point, x_of_time[plan]);
  const Degrees degrees = x_case.space.degrees(point);
  return known ? least_step_s(*known, degrees, *layout(degrees)) : 0;
}

std::string CaseBounds::level(Point point) const {
  static constexpr const char* kLevels[] = {"none", "optimizer", "gradients", "parameters"};
  const Json* searched = value(point, "sharding.level");
  if (searched != nullptr && searched->string() != nullptr) return *searched->string();
  return kLevels[static_cast<std::size_t>(x_case.seed.plan.sharding)];
}

/// Of parameters, gradients and optimizer states; 0 where some of them may be on the host.
double CaseBounds::states_gib(Point point, const LayerTimes& known) const {
  const Plan& own = x_case.seed.plan;
  const bool offloads = own.offload.states() || value(point, "offload.parameters") != nullptr ||
                        value(point, "offload.optimizer") != nullptr;
  if (offloads) return 0;
  const Degrees d = x_case.space.degrees(point);
  const std::string sharding = level(point);
  const auto ranks = static_cast<double>(d.batch_ranks * d.context);
  const bool grouped = own.shard_group > 0 || value(point, "sharding.group_size") != nullptr;
  double each = 0;
  if (sharding != "parameters") each += known.weight_bytes;
  if (sharding == "none" || sharding == "optimizer") each += known.gradient_bytes;
  if (sharding == "none") each += known.state_bytes;
  if (sharding == "optimizer" && !grouped) each += known.state_bytes / ranks;
  const auto cut = static_cast<double>(d.pipeline * std::max(d.tensor, d.expert * d.expert_tensor));
  return each * static_cast<double>(parameter_count(x_case.seed.model)) / cut / kGiB;
}

double CaseBounds::least_gib(std::size_t plan) const {
  const Point point = x_case.space.at(plan);
  if (x_of_memory.empty()) return 0;
  const std::optional<LayerTimes> known = times(point, x_of_memory[plan]);
  if (!known) return 0;
  const Degrees d = x_case.space.degrees(point);
  const bool stays = x_case.seed.plan.offload.activation_layers == 0 && stands_in_turn(point) &&
                     value(point, "offload.activation_layers") == nullptr;
  // Of a microbatch of several sequences so many times as much.
  const double each = stays ? least_saved_bytes(*known, d, *layout(d)) : 0;
  return states_gib(point, *known) + each * static_cast<double>(d.micro) / kGiB;
}

}  // namespace foretrain
