#include "tools/score/runs_like.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <map>

#include "hardware/device.h"
#include "models/architecture/model.h"
#include "sim/base/constants.h"

namespace foretrain {
namespace {

std::string name_of_family(const Model& model) {
  if (model.is_network()) return "network";
  if (model.is_hybrid()) return "hybrid";
  return model.has_experts() ? "experts" : "dense";
}

/// Of "fp8-blockwise", 8.
double bits_of_name(const std::string& precision) {
  if (precision.find("fp4") != std::string::npos) return 4;
  if (precision.find("fp8") != std::string::npos) return 8;
  return precision.find("16") != std::string::npos ? 16 : 32;
}

double octaves(double a, double b) { return std::fabs(std::log2(a / b)); }

std::vector<PublishedRun> read_published_runs() {
  const Json root = load_constants("published_errors.json");
  std::vector<PublishedRun> out;
  for (const Json& row : *member(root, "rows").array()) {
    const Json::Array& cells = *row.array();
    std::size_t at = 0;
    PublishedRun run;
    for (std::string* text :
         {&run.id, &run.group, &run.source, &run.model, &run.traits.system, &run.traits.device,
          &run.traits.architecture, &run.traits.precision, &run.traits.family}) {
      *text = *cells.at(at++).string();
    }
    for (std::int64_t* count : {&run.traits.parameters, &run.traits.accelerators}) {
      *count = std::llround(cells.at(at++).number());
    }
    run.step_time_s = cells.at(at++).number();
    run.error = cells.at(at++).number();
    run.inside = cells.at(at++).number() != 0;
    out.push_back(std::move(run));
  }
  return out;
}

}  // namespace

RunTraits traits_of(const Run& run) {
  return {run.system,
          run.cluster.device.name,
          std::string(name_of(run.cluster.device.architecture)),
          precision_text(run),
          name_of_family(run.model),
          parameter_count(run.model),
          run.cluster.accelerators};
}

double distance_between(const RunTraits& a, const RunTraits& b) {
  if (a.family != b.family || a.architecture != b.architecture) return -1;
  if (a.parameters <= 0 || b.parameters <= 0) return -1;
  const auto size = [](std::int64_t count) { return static_cast<double>(count); };
  return (a.device == b.device ? 0 : 1) + (a.system == b.system ? 0 : 1) +
         octaves(bits_of_name(a.precision), bits_of_name(b.precision)) +
         octaves(size(a.parameters), size(b.parameters)) / 2 +
         octaves(size(a.accelerators), size(b.accelerators)) / 3;
}

std::vector<PublishedRun> nearest_runs(const std::vector<PublishedRun>& published,
                                       const RunTraits& traits, std::size_t most) {
  std::vector<PublishedRun> near;
  for (const PublishedRun& run : published) {
    const double distance = distance_between(run.traits, traits);
    if (distance < 0 || distance > kNearRun) continue;
    near.push_back(run);
    near.back().distance = distance;
  }
  std::stable_sort(near.begin(), near.end(), [](const PublishedRun& a, const PublishedRun& b) {
    return a.distance < b.distance;
  });
  std::vector<PublishedRun> out;
  std::map<std::string, int> of_group;
  for (PublishedRun& run : near) {
    if (out.size() == most) break;
    if (++of_group[run.group] <= 2) out.push_back(std::move(run));
  }
  return out;
}

const std::vector<PublishedRun>& published_runs() {
  static const std::vector<PublishedRun> runs = read_published_runs();
  return runs;
}

std::vector<PublishedRun> runs_like(const RunTraits& traits, std::size_t most) {
  return nearest_runs(published_runs(), traits, most);
}

std::string runs_like_text(const std::vector<PublishedRun>& runs) {
  if (runs.empty()) return "\nRuns like yours: no published run is near\n";
  std::string out = "\nRuns like yours, predicted over measured\n";
  for (const PublishedRun& run : runs) {
    std::array<char, 32> error{};
    std::snprintf(error.data(), error.size(), "  %+7.1f %%  ", 100 * run.error);
    out += error.data() + run.model + ", " + std::to_string(run.traits.accelerators) + " " +
           run.traits.device + ", " + run.traits.precision + ", " + run.traits.system + " (" +
           run.id + (run.inside ? ")\n" : "; outside its interval)\n");
  }
  return out;
}

Json runs_like_json(const std::vector<PublishedRun>& runs) {
  Json::Array out;
  for (const PublishedRun& run : runs) {
    Json one{Json::Object{}};
    one.set("name", run.id);
    one.set("source", run.source);
    one.set("model", run.model);
    one.set("system", run.traits.system);
    one.set("device", run.traits.device);
    one.set("precision", run.traits.precision);
    one.set("family", run.traits.family);
    one.set("parameters", run.traits.parameters);
    one.set("accelerators", run.traits.accelerators);
    one.set("measured_step_time_s", run.step_time_s);
    one.set("error", run.error);
    one.set("in_interval", run.inside);
    one.set("distance", std::round(run.distance * 100) / 100);
    out.push_back(std::move(one));
  }
  return Json(std::move(out));
}

}  // namespace foretrain
