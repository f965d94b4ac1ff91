#include "tools/search/search_state.h"

#include <filesystem>

#include "sim/base/file.h"
#include "sim/base/rng.h"
#include "tools/version.h"

namespace foretrain {
namespace {

const char* const kSchema = "foretrain/search-state/1";
const std::vector<std::string> kFates = {"refused", "excluded", "too-large", "simulated"};

}  // namespace

std::string question_of(const std::vector<SearchCase>& cases, const SearchOptions& options) {
  std::uint64_t hash = 0;
  const auto add = [&hash](const std::string& text) {
    for (const char c : text) hash = mix_u64(hash, static_cast<std::uint8_t>(c));
    hash = mix_u64(hash, text.size());
  };
  add(kVersion);
  add(kRevision);
  for (const SearchCase& one : cases) {
    add(dump_json(one.run, -1));
    add(dump_json(one.seed.resolved, -1));
    add(dump_json(to_json(one.seed.cluster), -1));
    if (one.seed.profile != nullptr) add(dump_json(to_json(*one.seed.profile), -1));
    for (const auto& profile : one.seed.pool_profiles) {
      add(profile != nullptr ? dump_json(to_json(*profile), -1) : "");
    }
    const Model& m = one.seed.model;
    for (const std::int64_t size :
         {parameter_count(m), active_parameter_count(m), m.layers, m.hidden, m.heads, m.kv_heads,
          m.head_dim, m.intermediate, m.vocabulary}) {
      add(std::to_string(size));
    }
    add(dump_json(Json(one.price_per_gpu_hour), -1));
    add(dump_json(Json(one.weight), -1));
    add(one.cluster);
    for (const Dimension& dimension : one.space.dimensions()) {
      add(dimension.key);
      for (const Json& value : dimension.values) add(dump_json(value, -1));
    }
    hash = mix_u64(hash, one.space.size());
  }
  for (const std::string& condition : options.conditions) add(condition);
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

FoundPlan found_plan(const SearchCase& of, double iteration_time_s) {
  constexpr double kHour = 3600, kKwh = 3.6e6;
  FoundPlan out;
  out.cluster = of.cluster;
  out.accelerators = of.seed.cluster.accelerators;
  out.iteration_time_s = iteration_time_s;
  const double seconds = static_cast<double>(out.accelerators) * iteration_time_s;
  out.cost = seconds / kHour * of.price_per_gpu_hour;
  out.energy_kwh = iteration_time_s * of.seed.cluster.power_w() / kKwh;
  out.objective = iteration_time_s * of.weight;
  return out;
}

Result<SearchState> SearchState::open(std::string path, const std::vector<SearchCase>& cases,
                                      const SearchOptions& options) {
  SearchState out;
  out.x_cases = &cases;
  out.x_path = std::move(path);
  if (out.x_path.empty()) return out;
  out.x_question = question_of(cases, options);
  std::error_code none;
  if (!std::filesystem::exists(out.x_path, none)) return out;
  if (!std::filesystem::is_regular_file(out.x_path, none)) {
    return input_error("--resume " + out.x_path + ": is no file; name one");
  }
  FT_ASSIGN(const Json file, read_json_file(out.x_path));
  FT_TRY(out.read(file));
  return out;
}

Status SearchState::read(const Json& file) {
  JsonReader reader(file, x_path, "");
  std::string question;
  read_schema(reader, kSchema);
  if (reader.require("schema", kSchema) == nullptr) return reader.finish();
  reader.read("question", question);
  const Json* plans = reader.require("plans", "a list of plans");
  FT_TRY(reader.finish());
  if (question != x_question) {
    return input_error(place_in(x_path, "/question") +
                       "is of another RUN, other flags or another version of foretrain; give "
                       "--resume a file that is not there yet, or remove this one");
  }
  if (plans->array() == nullptr) {
    return input_error(place_in(x_path, "/plans") + "found " + describe(*plans) +
                       ", expected a list of plans");
  }
  for (std::size_t i = 0; i < plans->array()->size(); ++i) {
    FT_TRY(read_plan((*plans->array())[i], "/plans/" + std::to_string(i)));
  }
  return ok_status();
}

Status SearchState::read_plan(const Json& json, const std::string& where) {
  constexpr JsonReader::Range kAny{0, 1e18};
  constexpr JsonReader::Range kSome{1e-12, 1e18};
  JsonReader reader(json, x_path, where);
  std::int64_t of_case = 0;
  std::int64_t plan = 0;
  Kept kept;
  const auto most = static_cast<std::int64_t>(x_cases->size()) - 1;
  const bool known = reader.read("case", of_case, JsonReader::IntRange{0, most});
  const SearchCase& of = (*x_cases)[static_cast<std::size_t>(of_case)];
  const auto plans = static_cast<std::int64_t>(of.space.size()) - 1;
  const bool has_plan = reader.read("plan", plan, JsonReader::IntRange{0, plans});
  int fate = 0;
  const bool has_fate = reader.read_choice("fate", fate, kFates);
  kept.fate = static_cast<Fate>(fate);
  const bool has_memory = reader.read("least_gib", kept.least_gib, kAny);
  read_any_text(reader, "reason", kept.reason);
  const bool has_time = reader.read("iteration_time_s", kept.iteration_time_s, kSome);
  reader.read("tokens_per_s", kept.tokens_per_s, kAny);
  reader.read("mfu", kept.mfu, JsonReader::Range{0, 1});
  const bool has_capacity = reader.read("capacity_gib", kept.capacity_gib, kSome);
  reader.read("host_gib", kept.host_gib, kAny);
  if (!known) reader.require("case", "a number of a cluster and size");
  if (!has_plan) reader.require("plan", "a number of a plan");
  if (!has_fate) reader.require("fate", "what became of the plan");
  if (has_fate && kept.fate == Fate::kSimulated) {
    if (!has_time) reader.require("iteration_time_s", "the step of a simulated plan");
    if (!has_memory) reader.require("least_gib", "the memory of a simulated plan");
    if (!has_capacity) reader.require("capacity_gib", "the memory of a device");
  }
  FT_TRY(reader.finish());
  x_kept[{static_cast<std::uint32_t>(of_case), static_cast<std::uint32_t>(plan)}] = kept;
  return ok_status();
}

std::optional<Outcome> SearchState::find(std::uint32_t of_case, std::uint32_t plan) const {
  const auto it = x_kept.find({of_case, plan});
  if (it == x_kept.end()) return {};
  const Kept& kept = it->second;
  Outcome out;
  out.fate = kept.fate;
  out.least_gib = kept.least_gib;
  out.reason = kept.reason;
  if (kept.fate != Fate::kSimulated) return out;
  const SearchCase& of = (*x_cases)[of_case];
  FoundPlan found = found_plan(of, kept.iteration_time_s);
  found.run = of.space.run_of(of.space.at(plan));
  found.changes = of.space.changes(of.space.at(plan));
  found.tokens_per_s = kept.tokens_per_s;
  found.mfu = kept.mfu;
  found.memory.peak_gib = kept.least_gib;
  found.memory.capacity_gib = kept.capacity_gib;
  found.memory.host_gib = kept.host_gib;
  out.found = std::move(found);
  return out;
}

void SearchState::add(std::uint32_t of_case, std::uint32_t plan, const Outcome& outcome) {
  if (x_path.empty()) return;
  Kept kept{outcome.fate, outcome.least_gib, outcome.reason};
  if (outcome.found) {
    kept.iteration_time_s = outcome.found->iteration_time_s;
    kept.tokens_per_s = outcome.found->tokens_per_s;
    kept.mfu = outcome.found->mfu;
    kept.capacity_gib = outcome.found->memory.capacity_gib;
    kept.host_gib = outcome.found->memory.host_gib;
  }
  x_kept.insert_or_assign({of_case, plan}, std::move(kept));
}

Status SearchState::save() const {
  if (x_path.empty()) return ok_status();
  Json::Array plans;
  for (const auto& [key, kept] : x_kept) {
    Json one{Json::Object{}};
    one.set("case", Json(static_cast<std::int64_t>(key.first)));
    one.set("plan", Json(static_cast<std::int64_t>(key.second)));
    one.set("fate", Json(kFates[static_cast<std::size_t>(kept.fate)]));
    if (kept.least_gib > 0) one.set("least_gib", Json(kept.least_gib));
    if (!kept.reason.empty()) one.set("reason", Json(kept.reason));
    if (kept.fate == Fate::kSimulated) {
      one.set("iteration_time_s", Json(kept.iteration_time_s));
      one.set("tokens_per_s", Json(kept.tokens_per_s));
      one.set("mfu", Json(kept.mfu));
      one.set("capacity_gib", Json(kept.capacity_gib));
      one.set("host_gib", Json(kept.host_gib));
    }
    plans.push_back(std::move(one));
  }
  Json out{Json::Object{}};
  out.set("schema", Json(kSchema));
  out.set("question", Json(x_question));
  out.set("plans", Json(std::move(plans)));
  return write_text_file(x_path, dump_json(out, -1) + "\n");
}

}  // namespace foretrain
