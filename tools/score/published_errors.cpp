#include "tools/score/published_errors.h"

#include <cmath>
#include <iterator>

namespace foretrain {
namespace {

/// The columns of the file, in order.
constexpr const char* kColumns[] = {
    "id",        "group",  "source",     "model",        "system",      "device", "architecture",
    "precision", "family", "parameters", "accelerators", "step_time_s", "error",  "inside"};

}  // namespace

std::vector<PublishedRun> published_errors(const std::vector<Row>& rows,
                                           const std::vector<RowResult>& results) {
  std::vector<PublishedRun> out;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    const RowResult& result = results[i];
    if (result.state != RowResult::State::kOk || row.step_time_s <= 0) continue;
    PublishedRun run;
    run.id = row.id;
    run.group = row.group;
    run.source = row.source;
    run.model = result.facts.model;
    run.traits = result.facts.traits;
    run.step_time_s = row.step_time_s;
    run.error = std::round(result.time_error * 1e4) / 1e4;
    run.inside = result.interval_s[0] <= row.step_time_s && row.step_time_s <= result.interval_s[1];
    out.push_back(std::move(run));
  }
  return out;
}

std::string published_errors_text(const std::vector<PublishedRun>& runs, const std::string& month) {
  std::string out =
      "{\n  \"schema\": \"foretrain/published-errors/1\",\n  \"figures_changed\": \"" + month +
      "\",\n  \"sources\": {\"rows\": \"configs/published, written by `foretrain "
      "score ROWS --errors FILE`\"},\n  \"columns\": ";
  out += dump_json(Json(Json::Array(std::begin(kColumns), std::end(kColumns))), -1);
  out += ",\n  \"rows\": [";
  bool first = true;
  for (const PublishedRun& run : runs) {
    const RunTraits& of = run.traits;
    const Json row = Json::Array{run.id,    run.group,         run.source,      run.model,
                                 of.system, of.device,         of.architecture, of.precision,
                                 of.family, of.parameters,     of.accelerators, run.step_time_s,
                                 run.error, run.inside ? 1 : 0};
    out += (first ? "\n    " : ",\n    ") + dump_json(row, -1);
    first = false;
  }
  return out + "\n  ]\n}\n";
}

}  // namespace foretrain
