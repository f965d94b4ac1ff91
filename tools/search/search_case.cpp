#include "tools/search/search_case.h"

#include <algorithm>

#include "models/plan/layout/partition.h"
#include "models/plan/layout/plan_layout.h"
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
  const Json* stated = value_of_key(of.run, "batch.global");
  // A batch that is none has been refused with the RUN.
  const bool whole = stated != nullptr && stated->is_number() && stated->number() >= 1;
  if (whole) return static_cast<std::int64_t>(stated->number());
  if (stated != nullptr && of.own_fault) return *of.own_fault;
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

/// Of the mean accelerator of a case; 0 where the price of a pool is not known.
double price_of(const std::vector<ClusterPrice>& prices, const SearchCase& of) {
  const std::vector<Cluster>& pools = of.seed.cluster.pools;
  const Json* written = of.run.find("cluster");
  if (pools.empty() || written == nullptr) return price_of(prices, of.cluster);
  const Json* all = written->find("pools");
  double sum = 0;
  for (std::size_t k = 0; k < pools.size(); ++k) {
    const Json& pool = (*all->array())[k];
    const Json* preset = pool.object() == nullptr ? &pool : pool.find("preset");
    const bool named = preset != nullptr && preset->string() != nullptr;
    const double price = price_of(prices, named ? *preset->string() : "");
    if (price <= 0) return 0;
    sum += price * pools[k].accelerators;
  }
  return sum / of.seed.cluster.accelerators;
}

constexpr double kSecondsPerHour = 3600, kJoulesPerKwh = 3.6e6;

double weight_of(const SearchCase& of, Objective objective) {
  const auto ranks = static_cast<double>(of.seed.cluster.accelerators);
  if (objective == Objective::kEnergy) {
    return of.seed.cluster.power_w() / kJoulesPerKwh;
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
    if (objective == Objective::kEnergy && one.seed.cluster.power_w() <= 0) {
      return input_error("--objective energy: the power of " + device_names(one.seed.cluster) +
                         " is not known (power_w of its file)");
    }
  }
  return ok_status();
}

ChoosePrices profile_of(const Run& seed) {
  return [&seed](Run& run) {
    run.profile = seed.profile;
    run.profile_source = seed.profile_source;
    run.pool_profiles = seed.pool_profiles;
    return ok_status();
  };
}

}  // namespace

Result<Run> SearchCase::resolve(const Json& written) const {
  return resolve_run(written, seed.source, {}, profile_of(seed), {&seed.model, &seed.cluster});
}

Result<Run> SearchCase::resolve_sample(const Json& written, std::optional<std::size_t> pool) const {
  const ChoosePrices of_pool = [&](Run& sample) {
    if (*pool < seed.pool_profiles.size()) sample.profile = seed.pool_profiles[*pool];
    return ok_status();
  };
  return resolve_run(written, seed.source, {}, pool ? of_pool : profile_of(seed),
                     {&seed.model, nullptr});
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
      one.price_per_gpu_hour = price_of(options.prices, one);
      FT_ASSIGN(one.space, Space::of(one.run, one.seed, batch, options.space));
      one.weight = weight_of(one, options.objective);
      out.push_back(std::move(one));
    }
  }
  FT_TRY(check_weights(out, options.objective));
  return out;
}

}  // namespace foretrain
