#include "models/plan/layout/plan_stages.h"

#include <algorithm>
#include <cmath>

#include "models/plan/plan_reading.h"
#include "models/plan/plan_recompute.h"
#include "models/plan/plan_sharding.h"

namespace foretrain {
namespace {

constexpr const char* kKey = "pipeline_stages";
constexpr std::int64_t kMostLayers = 1'000'000'000;

const std::vector<std::string>& levels() {
  static const std::vector<std::string> names = {"none", "optimizer", "gradients", "parameters"};
  return names;
}

/// One item of the list.
struct StageRequest {
  std::optional<std::int64_t> layers;
  std::int64_t tensor = 0;  ///< 0: as the others
  StageChoice choice;
};

/// "none", "full", or the first so many layers of the stage.
void read_recompute(JsonReader& item, StageChoice& out) {
  const Json* json = item.take("recompute");
  if (json == nullptr) return;
  if (*json == Json("none")) {
    out.recompute_layers = 0;
  } else if (*json == Json("full")) {
    out.recompute_layers = -1;
  } else if (const double layers = json->is_number() ? json->number() : -1;
             layers >= 0 && layers <= kMostLayers && layers == std::floor(layers)) {
    out.recompute_layers = static_cast<std::int64_t>(layers);
  } else {
    item.fail("recompute", "found " + describe(*json) +
                               ", expected a number of layers of the stage, \"none\" or \"full\"");
  }
}

/// {"optimizer": share of the layers whose states live on the host, "activations": layers}.
Status read_offload(const Json& json, const std::string& source, const std::string& pointer,
                    StageChoice& out) {
  if (json.object() == nullptr) {
    return input_error(source + ": " + pointer + ": found " + describe(json) +
                       ", expected an object with optimizer (a share of the stage's layers, 0 to "
                       "1) and activations (a number of them)");
  }
  JsonReader reader(json, source, pointer);
  double share = 0;
  if (reader.read("optimizer", share, {0, 1})) out.device_share = 1 - share;
  std::int64_t layers = 0;
  if (reader.read("activations", layers, {0, kMostLayers})) out.activation_layers = layers;
  return reader.finish();
}

Result<StageRequest> read_stage(const Json& json, const std::string& source,
                                const std::string& pointer) {
  if (json.object() == nullptr) {
    return input_error(source + ": " + pointer + ": found " + describe(json) +
                       ", expected an object with any of layers, recompute, sharding and offload");
  }
  JsonReader reader(json, source, pointer);
  StageRequest out;
  std::int64_t layers = 0;
  if (reader.read("layers", layers, {0, kMostLayers})) out.layers = layers;
  reader.read("tensor", out.tensor, {1, 1 << 20});
  read_recompute(reader, out.choice);
  int level = 0;
  if (reader.read_choice("sharding", level, levels())) {
    out.choice.sharding = static_cast<Sharding>(level);
  }
  if (const Json* offload = reader.take("offload")) {
    reader.adopt(read_offload(*offload, source, reader.pointer("offload"), out.choice));
  }
  FT_TRY(reader.finish());
  return out;
}

Error wrong(const std::string& source, const std::string& message,
            ErrorKind kind = ErrorKind::kInput) {
  return Error{source + ": /" + kKey + ": " + message, kind};
}

/// The layers of all stages, where the list says them.
Status take_layers(const std::vector<StageRequest>& stages, const std::string& source,
                   const Model& model, Plan& plan) {
  const auto says = [](const StageRequest& one) { return one.layers.has_value(); };
  if (std::none_of(stages.begin(), stages.end(), says)) return ok_status();
  if (!std::all_of(stages.begin(), stages.end(), says)) {
    return wrong(source, "some stages have layers and others none; give them in all or in none");
  }
  if (!plan.pipeline_layout.empty() || plan.partition != Partition::kLayers) {
    return wrong(source,
                 "its layers stand beside parallel.pipeline_layout or "
                 "pipeline_partition; leave one of them out");
  }
  if (plan.chunks() != plan.pipeline || plan.directions() != 1) {
    return wrong(source,
                 "layers of a stage need one chunk a stage; give "
                 "parallel.pipeline_layout, the layers of every chunk, instead");
  }
  std::int64_t sum = 0;
  for (const StageRequest& one : stages) {
    plan.pipeline_layout.push_back(*one.layers);
    sum += *one.layers;
  }
  if (sum != model.layers) {
    return wrong(source, "the stages have " + text(sum) + " layers together, and the model has " +
                             text(model.layers));
  }
  return ok_status();
}

/// What the plan is where a stage says nothing.
void take_defaults(Plan& plan) {
  const auto any = [&plan](auto asks) {
    return std::any_of(plan.stages.begin(), plan.stages.end(), asks);
  };
  const bool again =
      any([](const StageChoice& one) { return one.recompute_layers.value_or(0) != 0; });
  if (again && !plan.recompute.any()) {
    plan.recompute.layer = true;
    plan.recompute.layers = 0;
  }
  if (!plan.recompute.any()) {  // none is what all do
    for (StageChoice& one : plan.stages) one.recompute_layers.reset();
  }
  if (plan.offload.optimizer == Memory::kDevice) {
    const bool leaves =
        any([](const StageChoice& one) { return one.device_share.value_or(1) < 1; });
    if (leaves) plan.offload.optimizer = Memory::kHost;
    for (StageChoice& one : plan.stages) {
      if (!leaves) one.device_share.reset();  // stays on the device, as all does
      if (leaves && !one.device_share) one.device_share = 1;
    }
  }
  // One share for all is the plan's.
  const std::optional<double> share = plan.stages.front().device_share;
  if (share && !any([&share](const StageChoice& one) { return one.device_share != share; })) {
    plan.offload.device_share = *share;
    for (StageChoice& one : plan.stages) one.device_share.reset();
  }
}

/// A stage's own plan breaks rules that the plan of all keeps.
void check_stage(const Model& model, const Plan& plan, std::int64_t stage, Violations& out) {
  const Plan own = plan_of_stage(plan, stage);
  Violations found;
  for (const auto rules : {check_recompute, check_sharding, check_offload}) {
    rules(model, own, found);
  }
  for (const Violation& one : found.all()) {
    out.add(std::string(kKey) + "/" + text(stage), one.key + " of this stage: " + one.message,
            one.kind);
  }
}

}  // namespace

Status derive_stages(const Json& asked, const std::string& source, const Model& model, Plan& plan) {
  if (asked.is_null()) return ok_status();
  if (asked.array() == nullptr) {
    return wrong(source, "found " + describe(asked) + ", expected a list with an object a stage");
  }
  const auto count = static_cast<std::int64_t>(asked.array()->size());
  if (count != plan.pipeline) {
    return wrong(source, "found " + text(count) + " stages, and parallel.pipeline is " +
                             text(plan.pipeline));
  }
  std::vector<StageRequest> stages;
  for (const Json& item : *asked.array()) {
    const std::string pointer = "/" + std::string(kKey) + "/" + std::to_string(stages.size());
    FT_ASSIGN(StageRequest stage, read_stage(item, source, pointer));
    if (stage.tensor > 0 && stage.tensor != plan.tensor) {
      return Error{source + ": " + pointer + "/tensor: found " + text(stage.tensor) +
                       ", and parallel.tensor is " + text(plan.tensor) +
                       ": stages with tensor degrees of their own are not modelled",
                   ErrorKind::kUnsupported};
    }
    stages.push_back(std::move(stage));
  }
  FT_TRY(take_layers(stages, source, model, plan));
  for (StageRequest& one : stages) plan.stages.push_back(std::move(one.choice));
  take_defaults(plan);
  const auto alike = [](const StageChoice& one) { return one == StageChoice{}; };
  if (std::all_of(plan.stages.begin(), plan.stages.end(), alike)) plan.stages.clear();
  return ok_status();
}

void check_stages(const Model& model, const Plan& plan, Violations& out) {
  if (plan.stages.empty()) return;
  std::vector<Sharding> own;
  for (const StageChoice& one : plan.stages) own.push_back(one.sharding.value_or(plan.sharding));
  const bool differ = std::any_of(own.begin(), own.end(), [&](Sharding s) { return s != own[0]; });
  const bool any = std::any_of(plan.stages.begin(), plan.stages.end(),
                               [](const StageChoice& one) { return one.sharding.has_value(); });
  const bool none = std::find(own.begin(), own.end(), Sharding::kNone) != own.end();
  if ((differ && none) || (any && plan.sharding == Sharding::kNone)) {
    out.unsupported(kKey,
                    "levels of sharding by stage are modelled where sharding.level and the "
                    "level of every stage are optimizer, gradients or parameters");
  }
  const bool tied = model.tied_embeddings && plan.pipeline > 1;
  if (differ && (tied || plan.directions() != 1 || plan.shares_vocabulary())) {
    out.unsupported(kKey, std::string("levels of sharding by stage are not modelled ") +
                              (tied ? "with a table that is tied across stages: set "
                                      "model.tie_word_embeddings to false"
                                    : "with schedules in which stages hold the same parameters"));
  }
  if (!out.empty()) return;
  for (std::int64_t stage = 0; stage < plan.pipeline; ++stage) check_stage(model, plan, stage, out);
}

Plan plan_of_stage(const Plan& plan, std::int64_t stage) {
  Plan out = plan;
  if (plan.stages.empty()) return out;
  out.stages.clear();
  const StageChoice& own = plan.stages[static_cast<std::size_t>(stage)];
  if (own.recompute_layers) out.recompute.layers = *own.recompute_layers;
  if (own.activation_layers) out.offload.activation_layers = *own.activation_layers;
  if (own.device_share) out.offload.device_share = *own.device_share;
  if (own.sharding) out.sharding = *own.sharding;
  // A host takes fp16's scale out as it clips; all stages look for what is not finite in one way.
  const auto leaves = [&plan](const StageChoice& one) {
    return one.device_share.value_or(plan.offload.device_share) < 1;
  };
  const bool any = std::any_of(plan.stages.begin(), plan.stages.end(), leaves);
  if (plan.offload.optimizer != Memory::kDevice && any) out.unscales = false;
  return out;
}

}  // namespace foretrain
