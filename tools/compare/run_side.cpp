// A RUN that is predicted now, and what `simulate` wrote of one before.
#include <algorithm>

#include "tools/compare/side.h"
#include "tools/predict/predict.h"
#include "tools/report/report.h"

namespace foretrain {
namespace {

/// Parts in which the GPU of the rank does nothing.
bool idles(std::string_view part) {
  for (const Part idle : {Part::kBubble, Part::kData, Part::kHost, Part::kHostUpdate}) {
    if (part == name_of(idle)) return true;
  }
  return false;
}

std::string text_member(const Json& json, const char* key) {
  const Json* value = json.find(key);
  return value != nullptr && value->string() != nullptr ? *value->string() : std::string();
}

}  // namespace

Result<Side> side_of_run(const std::string& name_or_path, const SideOptions& options) {
  FT_ASSIGN(Run run, load_run(name_or_path, options.sets));
  PredictOptions how;
  how.verify = false;
  how.sensitivity = false;
  FT_ASSIGN(const Prediction whole, predict(run, how));
  how.timeline = true;
  how.trace_ranks = {whole.critical_rank};
  FT_ASSIGN(const Prediction shown, predict(run, how));
  Timeline timeline = whole_timeline(*shown.timeline);
  Side out;
  out.source = source_of_run(name_or_path);
  out.kind = SideKind::kRun;
  out.device = device_names(run.cluster);
  out.ranks = run.cluster.accelerators;
  out.time = times_of(timeline, 0);
  // A mean of several steps, where they overlap: the first one is what is drawn and divided.
  const double more = whole.iteration_time_s - out.time.step_s;
  if (std::abs(more) > 1e-12 && out.time.idle_s + more >= 0) {
    out.notes.push_back("a step takes " + seconds_text(whole.iteration_time_s) +
                        " in the mean of several that overlap; families are those of the first, "
                        "of " +
                        seconds_text(out.time.step_s));
    out.time.step_s = whole.iteration_time_s;
    out.time.idle_s += more;
  }
  for (std::size_t part = 0; part < whole.breakdown.size(); ++part) {
    out.time.parts[std::string(name_of(static_cast<Part>(part)))] = whole.breakdown[part].seconds();
  }
  out.notes.insert(out.notes.end(), run.notes.begin(), run.notes.end());
  if (options.timeline) out.timeline = std::move(timeline);
  out.run = std::make_shared<const Run>(std::move(run));
  return out;
}

Result<Side> side_of_result(const Json& json, const std::string& source) {
  Side out;
  out.source = source;
  out.kind = SideKind::kResult;
  out.device = text_member(json, "accelerator");
  const Json* ranks = json.find("accelerators");
  const Json* step = json.find("iteration_time_s");
  const Json* parts = json.find("breakdown_s");
  if (step == nullptr || !step->is_number() || parts == nullptr || parts->object() == nullptr) {
    return input_error(source +
                       ": /iteration_time_s, /breakdown_s: a number and an object are expected, as "
                       "`simulate --json` writes them");
  }
  out.ranks =
      ranks != nullptr && ranks->is_number() ? static_cast<std::int64_t>(ranks->number()) : 0;
  out.time.step_s = step->number();
  for (const auto& [name, value] : *parts->object()) {
    if (!value.is_number()) {
      return input_error(source + ": /breakdown_s/" + name + ": found " + describe(value) +
                         ", expected seconds");
    }
    const double seconds = value.number();
    out.time.parts[name] = seconds;
    if (idles(name)) {
      out.time.idle_s += seconds;
    } else if (seconds > 0) {
      out.time.families[{name, ""}] += {seconds, seconds, 0, 0};
    }
  }
  return out;
}

}  // namespace foretrain
