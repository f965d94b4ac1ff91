#include "sim/campaign/reliability.h"

#include <algorithm>
#include <filesystem>

#include "sim/base/file.h"
#include "sim/campaign/trace_table.h"

namespace foretrain {
namespace {

constexpr double kMostPerDay = 1e4;
constexpr double kMostSeconds = 1e9;

struct Component {
  const char* name;
  FailureScope scope;  ///< where the file says none
};
constexpr Component kComponents[] = {
    {"gpu", FailureScope::kRank},         {"hbm", FailureScope::kRank},
    {"nic", FailureScope::kNode},         {"link", FailureScope::kNode},
    {"switch", FailureScope::kLeaf},      {"host", FailureScope::kNode},
    {"software", FailureScope::kJob},     {"storage", FailureScope::kJob},
    {"maintenance", FailureScope::kNode}, {"preemption", FailureScope::kNode}};

std::int64_t at_least_one(std::int64_t count, std::int64_t of) { return (count + of - 1) / of; }

void read_seconds(JsonReader& reader, const char* key, std::optional<double>& out) {
  double seconds = 0;
  if (reader.read(key, seconds, JsonReader::Range{0, kMostSeconds})) out = seconds;
}

Status read_component(const Json& json, const std::string& source, const std::string& pointer,
                      const JobUnits& job, const Component& component, FailureModel& out) {
  JsonReader reader(json, source, pointer);
  double per_unit_day = 0;
  FailureProcess process;
  process.component = component.name;
  FailureScope scope = component.scope;
  reader.require("per_unit_day", "failures of a unit in a day");
  reader.read("per_unit_day", per_unit_day, JsonReader::Range{0, kMostPerDay});
  reader.read("repair_s", process.repair_s, JsonReader::Range{0, kMostSeconds});
  read_seconds(reader, "detect_s", process.detect_s);
  reader.read_enum("scope", scope, failure_scopes());
  FailureScope unit = scope;
  reader.read_enum("unit", unit, failure_scopes());
  process.per_day = per_unit_day * static_cast<double>(units_of(unit, job));
  process.nodes = static_cast<std::int32_t>(nodes_of(scope, job));
  out.processes.push_back(process);
  return reader.finish();
}

Status read_components(const Json& json, const std::string& source, const std::string& pointer,
                       const JobUnits& job, FailureModel& out) {
  JsonReader reader(json, source, pointer);
  for (const Component& component : kComponents) {
    const Json* one = reader.take(component.name);
    if (one == nullptr) continue;
    reader.adopt(read_component(*one, source, pointer + "/" + component.name, job, component, out));
  }
  return reader.finish();
}

Status read_slow(const Json& json, const std::string& source, const std::string& pointer,
                 const JobUnits& job, FailureModel& out) {
  JsonReader reader(json, source, pointer);
  SlowProcess slow;
  std::string name;
  double per_unit_day = 0;
  FailureScope unit = FailureScope::kNode;
  reader.read("name", name);
  reader.require("per_unit_day", "slow-downs of a unit in a day");
  reader.read("per_unit_day", per_unit_day, JsonReader::Range{0, kMostPerDay});
  reader.require("factor", "by how much a step takes longer");
  reader.read("factor", slow.factor, JsonReader::Range{1, 1000});
  reader.require("lasts_s", "seconds until it is gone by itself");
  reader.read("lasts_s", slow.lasts_s, JsonReader::Range{0, kMostSeconds});
  reader.read_enum("unit", unit, failure_scopes());
  read_seconds(reader, "found_s", slow.found_s);
  double repair_s = 0;
  if (reader.read("repair_s", repair_s, JsonReader::Range{0, kMostSeconds}) && !slow.found_s) {
    reader.fail("repair_s", "goes with found_s: a slow unit that is never found is never mended");
  }
  slow.per_day = per_unit_day * static_cast<double>(units_of(unit, job));
  constexpr double kMostSlowPerDay = 1e4;  // more would take long to simulate
  if (slow.per_day > kMostSlowPerDay) {
    reader.fail("per_unit_day", "found " + describe(Json(slow.per_day)) +
                                    " a day of all units, expected at most 10000");
  }
  if (slow.found_s) {
    // Its own events are no failures; it is known when it is taken out.
    const std::string number = out.slow.empty() ? "" : " " + std::to_string(out.slow.size() + 1);
    FailureProcess taken{"slow" + number, 0, static_cast<std::int32_t>(nodes_of(unit, job)),
                         repair_s, 0.0};
    slow.taken_as = out.processes.size();
    out.processes.push_back(std::move(taken));
  }
  out.slow.push_back(slow);
  return reader.finish();
}

/// The place of a traced component among those seen so far.
std::int32_t traced_component(const std::string& name, FailureModel& out) {
  const auto found = std::find(out.traced_components.begin(), out.traced_components.end(), name);
  if (found == out.traced_components.end()) {
    out.traced_components.push_back(name);
    return static_cast<std::int32_t>(out.traced_components.size()) - 1;
  }
  return static_cast<std::int32_t>(found - out.traced_components.begin());
}

Status read_traced(const Json& json, const std::string& source, const std::string& pointer,
                   const JobUnits& job, FailureModel& out) {
  JsonReader reader(json, source, pointer);
  TracedFailure failure;
  int component = 0;
  reader.require("at_s", "seconds from the campaign's begin");
  reader.read("at_s", failure.at_s, JsonReader::Range{0, kMostSeconds});
  reader.require("component", "what failed");
  reader.read_choice("component", component, failure_components());
  failure.nodes = static_cast<std::int32_t>(
      nodes_of(kComponents[static_cast<std::size_t>(component)].scope, job));
  reader.read("nodes", failure.nodes,
              JsonReader::IntRange{0, static_cast<std::int64_t>(job.nodes)});
  reader.read("repair_s", failure.repair_s, JsonReader::Range{0, kMostSeconds});
  if (!reader.failed() && !out.trace.empty() && failure.at_s < out.trace.back().at_s) {
    reader.fail("at_s", "found " + describe(Json(failure.at_s)) + ", which is before the " +
                            describe(Json(out.trace.back().at_s)) +
                            " of the failure before it; expected failures in order");
  }
  FT_TRY(reader.finish());
  failure.component =
      traced_component(failure_components()[static_cast<std::size_t>(component)], out);
  out.trace.push_back(failure);
  return ok_status();
}

Status read_table(const std::string& text, const std::string& path, const JobUnits& job,
                  FailureModel& out) {
  FT_ASSIGN(const std::vector<TableRow> rows, trace_of_table(text, path));
  for (const TableRow& row : rows) {
    FT_TRY(read_traced(row.failure, line_of_table(path, row.line), "", job, out));
  }
  return ok_status();
}

/// A list of failures, or the file that has it: JSON or a table, as its first letter says.
Status read_trace(const Json& json, const std::string& source, const std::string& pointer,
                  const JobUnits& job, FailureModel& out) {
  if (const std::string* name = json.string()) {
    // Beside the file that names it, where it does not lie there from the working directory.
    const std::filesystem::path beside = std::filesystem::path(source).parent_path() / *name;
    std::error_code ignored;
    const bool is_beside =
        !std::filesystem::exists(*name, ignored) && std::filesystem::exists(beside, ignored);
    const std::string path = is_beside ? beside.string() : *name;
    FT_ASSIGN(std::string text, read_text_file(path));
    if (text.starts_with("\x1f\x8b")) {
      FT_ASSIGN(text, read_compressed_file(path));
    }
    if (is_table(text)) return read_table(text, path, job, out);
    FT_ASSIGN(const Json file, parse_json(text, path));
    return read_trace(file, path, "", job, out);
  }
  const Json* list = json.object() == nullptr ? &json : json.find("failures");
  if (list == nullptr || list->array() == nullptr) {
    return input_error(
        source + ": " + (pointer.empty() ? "/" : pointer) + ": found " + describe(json) +
        R"(, expected a list of {"at_s": S, "component": NAME} or a file of one, JSON or CSV)");
  }
  for (std::size_t i = 0; i < list->array()->size(); ++i) {
    FT_TRY(read_traced((*list->array())[i], source, pointer + "/" + std::to_string(i), job, out));
  }
  return ok_status();
}

Status read_wear_in(const Json& json, const std::string& source, const std::string& pointer,
                    FailureModel& out) {
  JsonReader reader(json, source, pointer);
  reader.require("factor", "the first day's rate over the last one's");
  reader.read("factor", out.wear_in_factor, JsonReader::Range{1, 1000});
  reader.require("days", "in which the excess falls to 37 %");
  reader.read("days", out.wear_in_days, JsonReader::Range{1e-3, 1e4});
  return reader.finish();
}

}  // namespace

std::int64_t units_of(FailureScope scope, const JobUnits& job) {
  switch (scope) {
    case FailureScope::kRank:
      return job.ranks;
    case FailureScope::kNode:
      return job.nodes;
    case FailureScope::kRack:
      return at_least_one(job.nodes, job.nodes_per_rack);
    case FailureScope::kLeaf:
      return at_least_one(job.nodes, job.nodes_per_leaf);
    case FailureScope::kJob:
      return 1;
  }
  return 1;
}

std::int64_t nodes_of(FailureScope scope, const JobUnits& job) {
  if (scope == FailureScope::kJob) return 0;
  if (scope == FailureScope::kRack) return std::min(job.nodes, job.nodes_per_rack);
  if (scope == FailureScope::kLeaf) return std::min(job.nodes, job.nodes_per_leaf);
  return 1;
}

const std::vector<std::string>& failure_components() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> out;
    for (const Component& component : kComponents) out.emplace_back(component.name);
    return out;
  }();
  return names;
}

const std::vector<std::string>& failure_scopes() {
  static const std::vector<std::string> names = {"rank", "node", "rack", "leaf", "job"};
  return names;
}

Result<FailureModel> read_reliability(const Json& json, const std::string& source,
                                      const std::string& pointer, JobUnits job) {
  FailureModel out;
  JsonReader reader(json, source, pointer);
  read_schema(reader, "foretrain/reliability/1");
  for (const char* remark : {"name", "description", "sources", "figures_changed"}) {
    reader.take(remark);
  }
  reader.read("nodes_per_rack", job.nodes_per_rack, JsonReader::IntRange{1, 1 << 20});
  double per_node_day = 0;
  FailureProcess any;
  any.component = kAnyComponent;
  any.nodes = 1;
  reader.read("repair_s", any.repair_s, JsonReader::Range{0, kMostSeconds});
  const bool whole =
      reader.read("failures_per_node_day", per_node_day, JsonReader::Range{0, kMostPerDay});
  any.per_day = per_node_day * static_cast<double>(job.nodes);
  if (whole) out.processes.push_back(any);
  if (const Json* components = reader.take("components")) {
    if (whole) {
      reader.fail("components", "stands beside failures_per_node_day, which is of all causes");
    } else {
      reader.adopt(read_components(*components, source, pointer + "/components", job, out));
    }
  }
  if (const Json* slow = reader.take("slow")) {
    if (slow->array() == nullptr)
      reader.fail("slow", "found " + describe(*slow) + ", expected a list");
    for (std::size_t i = 0; slow->array() != nullptr && i < slow->array()->size(); ++i) {
      reader.adopt(
          read_slow((*slow->array())[i], source, pointer + "/slow/" + std::to_string(i), job, out));
    }
  }
  if (const Json* wear_in = reader.take("wear_in")) {
    reader.adopt(read_wear_in(*wear_in, source, pointer + "/wear_in", out));
  }
  if (const Json* trace = reader.take("trace")) {
    reader.adopt(read_trace(*trace, source, pointer + "/trace", job, out));
  }
  FT_TRY(reader.finish());
  return out;
}

}  // namespace foretrain
