#include "tools/score/score.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "models/plan/keys/keys.h"
#include "tools/predict/defaults.h"
#include "tools/predict/fitting.h"
#include "tools/predict/predict.h"
#include "traces/file_kind.h"

namespace foretrain {
namespace {

/// A RUN that names no software has that of its source, where the source says or implies which.
void name_software(const Json& row, Json& run) {
  const Json* called = value_at(row, "/facts/software");
  if (called == nullptr || called->string() == nullptr || run.object() == nullptr) return;
  if (run.find("software") != nullptr) return;
  const Json* stated = run.find("system");
  const Json usual = default_run();
  const Json* system =
      stated != nullptr && stated->string() != nullptr ? stated : usual.find("system");
  const std::string of = *system->string();
  const std::string software = software_called(*called->string(), of);
  if (!software.empty()) run.set("software", Json(software));
}

Result<Row> read_row(const Json& json, const std::string& source, std::size_t index) {
  Row row;
  JsonReader reader(json, source, "/" + std::to_string(index));
  reader.read("id", row.id);
  reader.read("group", row.group);
  reader.read("source", row.source);
  reader.read("trust", row.trust);
  reader.read("bulk", row.bulk);
  for (const char* key : {"facts", "notes"}) reader.ignore(key);
  if (const Json* run = reader.require("run", "a RUN")) row.run = *run;
  name_software(json, row.run);
  if (const Json* measured = reader.require("measured", "an object with step_time_s")) {
    JsonReader inner(*measured, source, reader.pointer("measured"));
    constexpr JsonReader::Range kPositive{1e-9, 1e12};
    inner.read("step_time_s", row.step_time_s, kPositive);
    inner.read("peak_memory_gib", row.peak_memory_gib, kPositive);
    static const std::vector<std::string> metrics = {"allocated", "reserved", "device", "logged",
                                                     "theoretical"};
    int metric = 0;
    inner.read_choice("peak_memory_metric", metric, metrics);
    row.memory_metric = metrics[static_cast<std::size_t>(metric)];
    reader.adopt(inner.finish());
  }
  FT_TRY(reader.finish());
  return row;
}

Status add_rows(const std::string& path, std::vector<Row>& rows) {
  FT_TRY(refuse_trace(path));
  FT_ASSIGN(const Json json, read_json_file(path));
  if (json.array() == nullptr) {
    return input_error(path + ": found " + describe(json) + ", expected a list of rows");
  }
  for (std::size_t i = 0; i < json.array()->size(); ++i) {
    FT_ASSIGN(Row row, read_row((*json.array())[i], path, i));
    rows.push_back(std::move(row));
  }
  return ok_status();
}

double memory_by(const MemoryReport& memory, const std::string& metric) {
  if (metric == "theoretical") return memory.theoretical_gib;
  if (metric == "reserved") return memory.reserved_gib;
  if (metric == "device") return memory.peak_gib;
  return memory.allocated_gib;
}

}  // namespace

Result<std::vector<Row>> read_rows(const std::vector<std::string>& paths) {
  std::vector<Row> rows;
  std::set<std::filesystem::path> known;
  const auto add = [&](const std::string& path) -> Status {
    std::error_code none;
    if (!known.insert(std::filesystem::weakly_canonical(path, none)).second) {
      return input_error(path + ": is given twice, and its rows would count twice");
    }
    return add_rows(path, rows);
  };
  for (const std::string& path : paths) {
    std::error_code problem;
    if (!std::filesystem::is_directory(path, problem)) {
      FT_TRY(add(path));
      continue;
    }
    std::vector<std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(path, problem)) {
      if (entry.path().extension() == ".json") files.push_back(entry.path().string());
    }
    if (problem) return input_error(path + ": cannot be read: " + problem.message());
    if (files.empty()) return input_error(path + ": holds no .json file");
    std::sort(files.begin(), files.end());
    for (const std::string& file : files) FT_TRY(add(file));
  }
  return rows;
}

namespace {

/// A measured run fitted. Where the published plan surely does not, its source left something out,
/// and what sources leave out is recomputation and offloading: the recomputation that the system
/// does by itself if that fits, as far as predictions of memory tell, else of all the fastest that
/// does; as given if there is none. Times the capacity:
constexpr double kSurelyTooLarge = 1.25, kFits = 1.05;

/// What the system of a RUN computes again where nothing is said.
Sets usual_recomputation(const Row& row) {
  Json silent = row.run;
  silent.erase("recompute");
  const Result<Run> run = resolve_run(silent, row.id, {}, use_shipped_profile);
  const Json* usual = run.ok() ? run.value().resolved.find("recompute") : nullptr;
  return usual == nullptr ? Sets() : Sets{"recompute=" + dump_json(*usual, -1)};
}

/// A run that was measured did what its release can do.
Run as_released(const Row& row, Run run, Sets& assumed) {
  const Sets sets = unlike_release(run);
  if (sets.empty()) return run;
  Result<Run> other = resolve_run(row.run, row.id, sets, use_shipped_profile);
  if (!other.ok() || other.value().plan == run.plan) return run;
  assumed = sets;
  return std::move(other.value());
}

Result<Prediction> predict_measured(const Row& row, const Run& run, const PredictOptions& options,
                                    Sets& assumed) {
  FT_ASSIGN(Prediction as_given, predict(run, options));
  if (as_given.memory.within(kSurelyTooLarge)) return as_given;
  const auto changed = [&run, &options](const Sets& sets) -> Result<Prediction> {
    FT_ASSIGN(const Run other, resolve_run(run.resolved, run.source, sets, use_shipped_profile));
    return predict(other, options);
  };
  if (const Sets usual = usual_recomputation(row); !usual.empty()) {
    Result<Prediction> prediction = changed(usual);
    if (prediction.ok() && prediction.value().memory.within(kFits)) {
      assumed.insert(assumed.end(), usual.begin(), usual.end());
      return prediction;
    }
  }
  const Fitting fitting = find_unsaid(run, as_given, kFits);
  if (fitting.changes.empty()) return as_given;
  const Sets& sets = fitting.changes.front().sets;
  assumed.insert(assumed.end(), sets.begin(), sets.end());
  return changed(sets);
}

}  // namespace

RowResult score_row(const Row& row) {
  RowResult out;
  const auto refuse = [&out](const Error& error) {
    out.state = error.kind == ErrorKind::kUnsupported ? RowResult::State::kUnsupported
                                                      : RowResult::State::kError;
    out.reason = error.message;
    return out;
  };
  Result<Run> run = resolve_run(row.run, row.id, {}, use_shipped_profile);
  if (!run.ok()) return refuse(run.error());
  if (row.step_time_s > 0) run = as_released(row, std::move(run.value()), out.assumed);
  PredictOptions options;
  options.sensitivity = false;
  options.verify = false;
  const Result<Prediction> prediction =
      row.step_time_s > 0 ? predict_measured(row, run.value(), options, out.assumed)
                          : predict(run.value(), options);
  if (!prediction.ok()) return refuse(prediction.error());
  const Prediction& p = prediction.value();
  out.step_time_s = p.iteration_time_s;
  out.interval_s[0] = p.interval.low_s;
  out.interval_s[1] = p.interval.high_s;
  out.peak_memory_gib = memory_by(p.memory, row.memory_metric);
  out.facts = {p.interval.prices,
               run.value().model.has_experts(),
               bits_of(run.value().plan.precision.linear) <= 8,
               run.value().cluster.accelerators,
               p.tokens_per_s * p.iteration_time_s,
               traits_of(run.value()),
               run.value().model.name,
               {}};
  for (std::size_t k = 0; k < p.breakdown.size(); ++k) {
    out.facts.parts_s[k] = p.breakdown[k].seconds();
  }
  if (row.step_time_s > 0) out.time_error = out.step_time_s / row.step_time_s - 1;
  if (row.peak_memory_gib > 0) out.memory_error = out.peak_memory_gib / row.peak_memory_gib - 1;
  return out;
}

ErrorStatistics statistics(const std::vector<double>& errors, const std::vector<double>& weights) {
  ErrorStatistics out;
  out.count = errors.size();
  if (errors.empty()) return out;
  std::vector<std::pair<double, double>> sorted;
  double total = 0;
  for (std::size_t i = 0; i < errors.size(); ++i) {
    sorted.emplace_back(std::fabs(errors[i]), weights[i]);
    total += weights[i];
    out.mean += std::fabs(errors[i]) * weights[i];
    out.bias += errors[i] * weights[i];
  }
  out.mean /= total;
  out.bias /= total;
  std::sort(sorted.begin(), sorted.end());
  // Each value stands in the middle of its weight; between two the quantile is in proportion.
  const double last = total - (sorted.front().second + sorted.back().second) / 2;
  const auto quantile = [&](double share) {
    double at = 0;
    for (std::size_t i = 0; i + 1 < sorted.size(); ++i) {
      const double step = (sorted[i].second + sorted[i + 1].second) / 2;
      if (at + step >= share * last) {
        const double part = (share * last - at) / step;
        return sorted[i].first + part * (sorted[i + 1].first - sorted[i].first);
      }
      at += step;
    }
    return sorted.back().first;
  };
  out.median = quantile(0.5);
  out.p90 = quantile(0.9);
  return out;
}

}  // namespace foretrain
