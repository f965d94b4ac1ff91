#include "tools/search/space.h"

#include <algorithm>
#include <functional>

#include "models/plan/keys/keys.h"
#include "models/plan/layout/plan_stages.h"
#include "tools/search/candidates.h"

namespace foretrain {
namespace {

/// More plans are not held at once.
constexpr std::size_t kMostPlans = 20'000'000;

/// Keys of `Degrees`, in its order.
constexpr const char* kDegrees[] = {
    "parallel.pipeline", "parallel.tensor",        "parallel.context", "parallel.virtual_pipeline",
    "parallel.expert",   "parallel.expert_tensor", "batch.micro"};

std::string pointer_of(const std::string& key) {
  std::string out = "/" + key;
  std::replace(out.begin(), out.end(), '.', '/');
  return out;
}

bool contains(const std::vector<std::string>& all, const std::string& one) {
  return std::find(all.begin(), all.end(), one) != all.end();
}

const PlanKey* declared(const std::string& key) {
  for (const PlanKey& one : all_run_keys()) {
    if (one.path() == key) return &one;
  }
  return nullptr;
}

/// A key that a flag names, or why it is none.
Status check_key(const std::string& flag, const std::string& key) {
  const PlanKey* found = declared(key);
  if (found != nullptr &&
      !contains({"name", "model", "cluster", "system", "profile", "search"}, key)) {
    return ok_status();
  }
  std::vector<std::string> names;
  for (const PlanKey& one : all_run_keys()) names.push_back(one.path());
  const std::string near = nearest_name(key, names);
  return input_error(flag + " " + key + ": is no key of a plan" +
                     (near.empty() || near == key ? "" : " (did you mean \"" + near + "\"?)") +
                     "; docs/reference/keys.md lists them");
}

/// The values of a key that no candidates are known of: those that it is declared with.
Result<std::vector<Json>> declared_values(const std::string& key) {
  const PlanKey& of = *declared(key);
  std::vector<Json> out;
  if (of.type == KeyType::kFlag) out = {Json(false), Json(true)};
  if (of.type == KeyType::kChoice) {
    for (const std::string& name : of.choices) {
      if (name.find(' ') == std::string::npos) out.emplace_back(name);
    }
  }
  if (out.empty()) {
    return input_error("--free " + key + ": its values are not listed anywhere; give --range " +
                       key + "=A..B");
  }
  return out;
}

/// The whole numbers of a range, where a key has no candidates; else those of them within it.
Result<std::vector<Json>> ranged(const KeyRange& range, const std::vector<Json>& known) {
  constexpr double kMostNumbers = 200;
  std::vector<Json> out;
  for (const Json& value : known) {
    const bool within =
        value.is_number() && value.number() >= range.low && value.number() <= range.high;
    if (within) out.push_back(value);
  }
  const PlanKey& of = *declared(range.key);
  const std::string flag = "--range " + range.key + ": ";
  if (of.type != KeyType::kCount && of.type != KeyType::kNumber) {
    return input_error(flag + "is no number; use --where or --set");
  }
  if (known.empty()) {
    if (range.high - range.low > kMostNumbers) {
      return input_error(flag + "found more than 200 numbers, expected a narrower range");
    }
    for (double v = range.low; v <= range.high; ++v) out.emplace_back(static_cast<std::int64_t>(v));
  }
  if (out.empty()) return input_error(flag + "no value that the search tries is within it");
  return out;
}

/// Leaves the values that the system has.
void drop_lacking(const Run& seed, Dimension& dimension) {
  std::erase_if(dimension.values,
                [&](const Json& value) { return is_lacked(seed, dimension.key, value); });
}

class Dimensions {
 public:
  Dimensions(const Json& run, const Run& seed, const SpaceOptions& options)
      : x_run(run), x_seed(seed), x_options(options) {}

  Result<std::vector<Dimension>> make() {
    FT_TRY(check());
    std::vector<std::string> keys(std::begin(kDegrees), std::end(kDegrees));
    for (const std::string& key : searched_keys()) {
      if (!contains(keys, key)) keys.push_back(key);
    }
    for (const std::string& key : x_options.free) {
      // No list of values: worked out for the best plans (stage_tuning.h).
      if (!contains(keys, key) && key != kStagesKey) keys.push_back(key);
    }
    for (const KeyRange& range : x_options.ranges) {
      if (!contains(keys, range.key)) keys.push_back(range.key);
    }
    std::vector<Dimension> out;
    for (const std::string& key : keys) {
      FT_ASSIGN(Dimension one, dimension(key));
      const bool degree = out.size() < std::size(kDegrees);
      if (degree || one.values.size() > 1) out.push_back(std::move(one));
    }
    return out;
  }

 private:
  Status check() const {
    for (const std::string& key : x_options.free) FT_TRY(check_key("--free", key));
    for (const std::string& key : x_options.fixed) FT_TRY(check_key("--fix", key));
    for (const KeyRange& range : x_options.ranges) FT_TRY(check_key("--range", range.key));
    for (const std::string& key : x_options.over) {
      const std::vector<KeySection>& all = run_sections();
      const bool section = std::any_of(all.begin(), all.end(),
                                       [&key](const KeySection& one) { return one.name == key; });
      if (!section || key.empty()) FT_TRY(check_key("--over", key));
    }
    for (const std::string& key : x_options.free) {
      if (contains(x_options.fixed, key)) {
        return input_error("--free " + key + ": stands in --fix too; leave one of them out");
      }
    }
    return ok_status();
  }

  bool is_over(const std::string& key) const {
    if (x_options.over.empty()) return !is_asked_for_only(key, x_options.numerics);
    return std::any_of(x_options.over.begin(), x_options.over.end(), [&key](const auto& over) {
      return key == over || key.starts_with(over + ".");
    });
  }

  bool is_free(const std::string& key) const {
    if (contains(x_options.fixed, key)) return false;
    // The RUN's stages have the degrees.
    const bool degrees = key == "parallel.tensor" || key == "parallel.pipeline";
    if (degrees && has_stage_degrees(x_run) && !names_stages(x_options)) return false;
    if (contains(x_options.free, key) || range_of(key) != nullptr) return true;
    if (!is_over(key)) return false;
    // What alone is searched is searched although the RUN states it.
    return !x_options.over.empty() || value_of_key(x_run, key) == nullptr;
  }

  const KeyRange* range_of(const std::string& key) const {
    for (const KeyRange& range : x_options.ranges) {
      if (range.key == key) return &range;
    }
    return nullptr;
  }

  Result<Dimension> dimension(const std::string& key) const {
    Dimension out;
    out.key = key;
    // A seed is any legal plan: what it says of a free key is not the RUN's.
    const Json* own = value_at(x_seed.usual, pointer_of(key));
    const Json* stated = value_of_key(x_run, key);
    const Json usual = stated != nullptr ? *stated : own != nullptr ? *own : Json();
    if (is_free(key)) {
      out.values = candidates(x_seed, key);
      if (const KeyRange* range = range_of(key)) {
        FT_ASSIGN(out.values, ranged(*range, out.values));
      } else if (out.values.empty() && contains(x_options.free, key)) {
        FT_ASSIGN(out.values, declared_values(key));
      }
      drop_lacking(x_seed, out);
    }
    auto it = std::find(out.values.begin(), out.values.end(), usual);
    if (it == out.values.end() && (range_of(key) == nullptr || out.values.empty())) {
      it = out.values.insert(out.values.begin(), usual);
    }
    constexpr std::size_t kMostValues = 255;
    out.usual = static_cast<std::size_t>(it - out.values.begin());
    if (out.values.size() > kMostValues) out.values.resize(kMostValues);
    out.usual = std::min(out.usual, out.values.size());
    return out;
  }

  const Json& x_run;
  const Run& x_seed;
  const SpaceOptions& x_options;
};

std::int64_t whole(const Json& value) {
  const auto* number = std::get_if<std::int64_t>(&value.value);
  return number == nullptr ? 1 : *number;
}

std::int64_t& member(Degrees& degrees, std::size_t index) {
  std::int64_t* const all[] = {
      &degrees.pipeline, &degrees.tensor,        &degrees.context, &degrees.virtual_pipeline,
      &degrees.expert,   &degrees.expert_tensor, &degrees.micro};
  return *all[index];
}

}  // namespace

bool names_stages(const SpaceOptions& options) {
  return contains(options.free, kStagesKey) || contains(options.over, kStagesKey);
}

bool has_stage_degrees(const Json& run) {
  const Json* stages = value_of_key(run, kStagesKey);
  if (stages == nullptr || stages->array() == nullptr) return false;
  return std::any_of(stages->array()->begin(), stages->array()->end(), [](const Json& stage) {
    return stage.object() != nullptr && stage.find("tensor") != nullptr;
  });
}

bool tunes_stages(const SpaceOptions& options) {
  if (contains(options.fixed, kStagesKey)) return false;
  return names_stages(options) || contains(options.over, "recompute") ||
         contains(options.over, "offload");
}

const Json* value_of_key(const Json& run, const std::string& key) {
  const Json* out = value_at(run, pointer_of(key));
  return out == nullptr || out->is_null() ? nullptr : out;
}

void set_key(Json& run, const std::string& key, const Json& value) {
  const std::size_t dot = key.find('.');
  if (dot == std::string::npos) {
    run.set(key, value);
    return;
  }
  const std::string section = key.substr(0, dot);
  Json* in = run.find(section);
  if (in == nullptr || in->object() == nullptr) in = &run.set(section, Json(Json::Object{}));
  set_key(*in, key.substr(dot + 1), value);
}

Json& cluster_object(Json& run) {
  Json& cluster = *run.find("cluster");
  if (cluster.object() == nullptr) {
    Json object{Json::Object{}};
    object.set("preset", cluster);
    cluster = std::move(object);
  }
  return cluster;
}

std::int64_t most_layers(const Model& model, std::int64_t stages) {
  return (model.layers + stages - 1) / stages;
}

Result<Space> Space::of(Json run, const Run& seed, std::int64_t global_batch,
                        const SpaceOptions& options) {
  Space out;
  FT_ASSIGN(out.x_dimensions, Dimensions(run, seed, options).make());
  out.x_accelerators = seed.cluster.accelerators;
  out.x_global_batch = global_batch;
  // What the search works out is not what the RUN says.
  out.x_drops_stages = names_stages(options) && run.find(kStagesKey) != nullptr;
  if (out.x_drops_stages) run.erase(kStagesKey);
  if (has_stage_degrees(run)) {
    out.x_stage_ranks = model_ranks(seed.plan);
    out.x_stage_tensor = seed.plan.tensor;
  }
  out.x_run = std::move(run);
  set_key(out.x_run, "batch.global", Json(global_batch));
  FT_TRY(out.enumerate(seed));
  return out;
}

/// Ranks that hold parts of one copy of the model.
std::int64_t Space::stage_ranks(const Degrees& d) const {
  return x_stage_ranks > 0 ? x_stage_ranks : d.pipeline * d.tensor;
}

/// What no rule of a plan can be asked about before it holds.
bool Space::divides(const Degrees& d, const Run& seed) const {
  const std::int64_t layers = seed.model.layers;
  if (d.virtual_pipeline > 1) {
    const std::int64_t chunks = d.pipeline * d.virtual_pipeline;
    const Dimension& chunked = x_dimensions[3];
    const bool own = chunked.usual < chunked.values.size() &&
                     d.virtual_pipeline == whole(chunked.values[chunked.usual]);
    if (d.pipeline == 1 || chunks > layers + 2) return false;
    if (!own && layers % chunks != 0 && (layers + 2) % chunks != 0) return false;
  }
  const std::int64_t ranks = stage_ranks(d) * d.context;
  if (seed.cluster.accelerators % ranks != 0) return false;
  if (x_global_batch % (d.micro * d.batch_ranks) != 0) return false;
  if (!seed.model.has_experts()) return true;
  const std::int64_t of_stage = seed.cluster.accelerators / d.pipeline;
  return of_stage % (d.expert * d.expert_tensor) == 0;
}

bool Space::is_idle(const Dimension& dimension, const Degrees& d) {
  const std::string& key = dimension.key;
  if (key == "kernels.context") return d.context == 1;
  if (key.starts_with("overlap.tensor") || key == "parallel.sequence") return d.tensor == 1;
  if (key == "overlap.pipeline" || key == "schedule" || key == "parallel.pipeline_partition") {
    return d.pipeline == 1;
  }
  return false;
}

Status Space::enumerate(const Run& seed) {
  std::vector<std::uint8_t> point(x_dimensions.size());
  bool many = false;
  const std::function<void(std::size_t)> rest = [&](std::size_t at) {
    if (many) return;
    if (at == x_dimensions.size()) {
      x_points.insert(x_points.end(), point.begin(), point.end());
      many = x_points.size() > kMostPlans * x_dimensions.size();
      return;
    }
    const Dimension& dimension = x_dimensions[at];
    const Degrees d = degrees(point.data());
    if (at == std::size(kDegrees) && !divides(d, seed)) return;
    if (at >= std::size(kDegrees) && is_idle(dimension, d)) {
      const bool own = dimension.usual < dimension.values.size();
      point[at] = static_cast<std::uint8_t>(own ? dimension.usual : 0);
      return rest(at + 1);
    }
    for (std::size_t v = 0; v < dimension.values.size(); ++v) {
      point[at] = static_cast<std::uint8_t>(v);
      const Degrees with = degrees(point.data());
      // The number that "auto" stands for is the same plan.
      const bool twice = dimension.key == "parallel.expert_tensor" &&
                         dimension.values[v].is_number() && with.expert_tensor == with.tensor &&
                         dimension.usual < dimension.values.size() &&
                         dimension.values[dimension.usual] == Json("auto");
      if (!twice && may_be(dimension.key, dimension.values[v], with, seed)) rest(at + 1);
    }
    point[at] = 0;
  };
  rest(0);
  // Where there are degrees alone nothing has asked whether they divide.
  if (x_dimensions.size() == std::size(kDegrees)) {
    std::vector<std::uint8_t> kept;
    for (std::size_t i = 0; i < size(); ++i) {
      if (divides(degrees(at(i)), seed))
        kept.insert(kept.end(), at(i), at(i) + x_dimensions.size());
    }
    x_points = std::move(kept);
  }
  if (!many) return ok_status();
  return input_error("more than " + std::to_string(kMostPlans) +
                     " plans: fix some keys by --fix, or bound them by --range");
}

Degrees Space::degrees(Point point) const {
  Degrees out;
  for (std::size_t d = 0; d < std::size(kDegrees); ++d) {
    const Json& value = x_dimensions[d].values[point[d]];
    // parallel.expert_tensor, which follows the degrees before it.
    member(out, d) = value == Json("auto") ? out.tensor : whole(value);
  }
  if (x_stage_ranks > 0) out.tensor = x_stage_tensor;
  const std::int64_t ranks = stage_ranks(out) * out.context;
  out.batch_ranks = std::max<std::int64_t>(1, x_accelerators / ranks);
  out.microbatches = x_global_batch / (out.micro * out.batch_ranks);
  return out;
}

/// Points stand in the order of their values.
std::optional<std::size_t> Space::find(std::vector<std::uint8_t> point) const {
  constexpr std::size_t kVirtual = 3;
  const std::size_t width = x_dimensions.size();
  for (const bool one_chunk : {false, true}) {
    if (one_chunk) point[kVirtual] = 0;
    const Degrees d = degrees(point.data());
    for (std::size_t i = std::size(kDegrees); i < width; ++i) {
      const Dimension& dimension = x_dimensions[i];
      const bool own = dimension.usual < dimension.values.size();
      if (is_idle(dimension, d)) point[i] = static_cast<std::uint8_t>(own ? dimension.usual : 0);
    }
    std::size_t low = 0;
    std::size_t high = size();
    while (low < high) {
      const std::size_t middle = (low + high) / 2;
      const bool before =
          std::lexicographical_compare(at(middle), at(middle) + width, point.begin(), point.end());
      (before ? low : high) = before ? middle + 1 : middle;
    }
    if (low < size() && std::equal(point.begin(), point.end(), at(low))) return low;
  }
  return {};
}

std::vector<std::pair<std::string, Json>> Space::changes(Point point) const {
  std::vector<std::pair<std::string, Json>> out;
  for (std::size_t d = 0; d < x_dimensions.size(); ++d) {
    const Dimension& dimension = x_dimensions[d];
    if (point[d] != dimension.usual) out.emplace_back(dimension.key, dimension.values[point[d]]);
  }
  if (x_drops_stages) out.emplace_back(kStagesKey, Json());
  return out;
}

Json Space::run_of(Point point) const {
  Json out = x_run;
  for (const auto& [key, value] : changes(point)) {
    if (!value.is_null()) set_key(out, key, value);
  }
  return out;
}

}  // namespace foretrain
