// Where measured profiles are found, and how they price a run.
#include <cstdlib>
#include <filesystem>

#include "hardware/pools/pools.h"
#include "hardware/presets.h"
#include "sim/base/assets.h"
#include "tools/predict/run_file.h"
#include "traces/file_kind.h"

namespace foretrain {

namespace {

/// Of a device: in which state products were measured, and whether works beside communication were.
std::string states_of(const Profile& profile) {
  bool burst = false;
  bool sustained = false;
  bool beside = false;
  for (const auto& [key, sample] : profile.samples) {
    burst = burst || key.state == kBurst;
    sustained = sustained || key.state == kSustained;
    beside = beside || key.sms > 0;
  }
  std::string out;
  if (sustained) out += ", products sustained";
  if (burst && !sustained) out += ", products in bursts (no sustained samples)";
  if (beside) out += ", slowdown beside communication measured";
  return out;
}

}  // namespace

std::string profile_folder() {
  const char* data = std::getenv("XDG_DATA_HOME");
  // A folder that is not absolute is to be ignored: XDG Base Directory Specification.
  if (data != nullptr && *data == '/') return std::string(data) + "/foretrain/profiles";
  const char* home = std::getenv("HOME");
  if (home == nullptr || *home == '\0') return "";
  return std::string(home) + "/.local/share/foretrain/profiles";
}

std::string profile_path(const std::string& name_or_path) {
  std::error_code ignored;
  const std::string named = profile_folder() + "/" + name_or_path + ".json";
  for (const std::string& path : {name_or_path, named}) {
    if (!name_or_path.empty() && std::filesystem::exists(path, ignored)) return path;
  }
  return "";
}

Result<Profile> load_profile(const std::string& name_or_path, const std::string& where) {
  const std::string path = profile_path(name_or_path);
  if (path.empty() && !find_asset("profiles/" + name_or_path + ".json").empty()) {
    FT_ASSIGN(const NamedJson shipped, load_preset("profiles", name_or_path, where, ""));
    return read_profile(shipped.json, shipped.source);
  }
  if (path.empty()) {
    return input_error(where + ": no profile \"" + name_or_path +
                       "\" and no such file; `foretrain calibrate --out FILE` measures one");
  }
  FT_TRY(refuse_trace(path));
  FT_ASSIGN(const Json json, read_json_file(path));
  return read_profile(json, path);
}

Status use_profile(Run& run, const std::string& name_or_path, const std::string& where) {
  FT_ASSIGN(Profile profile, load_profile(name_or_path, where));
  const std::string device = profile.about("device");
  if (device != run.cluster.device.name) {
    return input_error(where + ": the profile is of device \"" + device + "\", the cluster has " +
                       run.cluster.device.name);
  }
  std::erase_if(run.notes, [](const std::string& note) {
    return note.find("are generic, not of this machine") != std::string::npos;
  });
  std::erase_if(run.notes,
                [](const std::string& note) { return note.starts_with("priced from "); });
  run.notes.push_back("priced from " + name_or_path + ", measured on " +
                      profile.about("processor") + ", " + profile.about("date") +
                      states_of(profile));
  // Kernels of one framework are not another's.
  std::erase_if(profile.samples, [&run](const auto& entry) {
    return entry.first.by == Maker::kFramework && !entry.second.library.starts_with(run.framework);
  });
  if (!profile.of_device()) run.prices_for = PricesFor::kExecution;
  run.profile = std::make_shared<const Profile>(std::move(profile));
  run.profile_source = name_or_path;
  return ok_status();
}

Status use_shipped_profile(Run& run) {
  const std::string& device = run.cluster.device.name;
  if (find_asset("profiles/" + device + ".json").empty()) return ok_status();
  return use_profile(run, device, "/cluster");
}

PriceOptions price_options(const Run& run) {
  PriceOptions out;
  out.dispatch_per_kernel = run.dispatch.each;
  out.captured_dispatch = run.dispatch.captured;
  out.host_operations = run.plan.host_operations;
  return out;
}

/// Of a cluster of equal nodes.
static std::unique_ptr<CostModel> cost_model_on(const Run& run, const Cluster& cluster,
                                                const Profile* profile,
                                                const PriceOptions& options) {
  std::unique_ptr<CostModel> base = make_cost_model(cluster, options);
  if (profile == nullptr) return base;
  MeasuredPricesOptions how;
  how.what = run.prices_for;
  how.ranks_at_once = cluster.accelerators;
  how.graphs = run.graphs;
  how.memory_gb_per_s = cluster.device.memory_gb_per_s;
  // What was measured is one device, not the slowest of the run.
  Cluster measured = cluster;
  measured.device.slowest = 1;
  return make_measured_cost_model(std::move(base), *profile, how,
                                  make_cost_model(measured, price_options(run)));
}

std::unique_ptr<CostModel> cost_model_of(const Run& run, const PriceOptions& options) {
  if (run.cluster.pools.empty()) {
    return cost_model_on(run, run.cluster, run.profile.get(), options);
  }
  const Pools pools(run.cluster);
  std::vector<std::unique_ptr<CostModel>> views;
  for (std::size_t v = 0; v < pools.views(); ++v) {
    const bool measured = v < run.pool_profiles.size();
    const Profile* profile = measured ? run.pool_profiles[v].get() : nullptr;
    views.push_back(cost_model_on(run, pools.view(v), profile, options));
  }
  return make_pooled_cost_model(run.cluster, std::move(views));
}

}  // namespace foretrain
