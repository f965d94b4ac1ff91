#include "models/plan/layout/plan_stages.h"

#include <algorithm>
#include <cmath>

#include "models/plan/plan_reading.h"
#include "models/plan/plan_recompute.h"
#include "models/plan/plan_sharding.h"
#include "models/plan/plan_tensor.h"

namespace foretrain {
namespace {

constexpr const char* kKey = "pipeline_stages";
constexpr std::int64_t kMostLayers = 1'000'000'000;
constexpr std::int64_t kMostTensor = 1 << 20;

const std::vector<std::string>& levels() {
  static const std::vector<std::string> names = {"none", "optimizer", "gradients", "parameters"};
  return names;
}

/// One item of the list.
struct StageRequest {
  std::optional<std::int64_t> layers;
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
                       ", expected an object with any of layers, tensor, recompute, sharding "
                       "and offload");
  }
  JsonReader reader(json, source, pointer);
  StageRequest out;
  std::int64_t layers = 0;
  if (reader.read("layers", layers, {0, kMostLayers})) out.layers = layers;
  std::int64_t tensor = 0;  // `derive_tensors` takes it
  reader.read("tensor", tensor, {1, kMostTensor});
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
  if (plan.tensors.any()) check_tensor(model, own, found);
  for (const Violation& one : found.all()) {
    out.add(std::string(kKey) + "/" + text(stage), one.key + " of this stage: " + one.message,
            one.kind);
  }
}

/// What stages with tensor degrees of their own are not modelled with.
void check_tensors(const Model& model, const Plan& plan, Violations& out) {
  if (!plan.tensors.any()) return;
  const std::vector<std::int64_t>& degrees = plan.tensors.degrees;
  out.beside(
      "a stage with a tensor degree of its own",
      {{model.has_experts(), kKey, "experts"},
       {model.ends.masked > 0, kKey, "the head of masked tokens"},
       {model.is_encoder_decoder(), kKey, "encoder-decoders"},
       {plan.in_grid(), "parallel/tensor_mode", "grids: set parallel.tensor_mode to 1d"},
       {plan.placement() != ChunkPlacement::kRound || plan.shares_vocabulary(), "schedule",
        "schedules that turn round or share the vocabulary"},
       {plan.forwards > 1, "schedule/forwards", "several forward passes of a microbatch"},
       {plan.validates_later(), "overlap/post_validation", "a norm that goes from stage to stage"},
       {model.tied_embeddings && degrees.front() != degrees.back(), "model",
        "a table that is tied across stages of two degrees: set "
        "model.tie_word_embeddings to false"},
       {plan.rank_order.back() != "pp", "parallel/rank_order",
        "an order of ranks that does not end with pp"}});
  const auto stages = static_cast<std::int64_t>(degrees.size());
  const bool around = plan.virtual_pipeline > 1;
  for (std::int64_t stage = 0; stage < stages - (around ? 0 : 1); ++stage) {
    const std::int64_t next = neighbour_of(plan, stage, true);
    const std::int64_t one = tensor_of(plan, stage), other = tensor_of(plan, next);
    const std::int64_t ratio = std::max(one, other) / std::min(one, other);
    if (ratio * std::min(one, other) != std::max(one, other)) {
      out.unsupported(std::string(kKey) + "/" + text(next) + "/tensor",
                      "found " + text(other) + " behind a stage of " + text(one) +
                          ": messages between stages are modelled where one degree is a multiple "
                          "of the other");
    } else if (plan.tokens() * model.hidden % ratio != 0) {
      out.unsupported(std::string(kKey) + "/" + text(next) + "/tensor",
                      "what a microbatch sends, " + text(plan.tokens()) + " tokens of width " +
                          text(model.hidden) + ", does not divide into " + text(ratio) +
                          " equal messages");
    }
  }
}

}  // namespace

void derive_tensors(const Json& asked, Plan& plan) {
  const Json::Array* stages = asked.array();
  if (stages == nullptr || static_cast<std::int64_t>(stages->size()) != plan.pipeline) return;
  std::vector<std::int64_t> degrees;
  for (const Json& stage : *stages) {
    const Json* found = stage.object() == nullptr ? nullptr : stage.find("tensor");
    const bool sound = found != nullptr && found->is_number() && found->number() >= 1 &&
                       found->number() <= static_cast<double>(kMostTensor);
    degrees.push_back(sound ? static_cast<std::int64_t>(found->number()) : plan.tensor);
  }
  if (degrees.empty()) return;
  const auto [least, most] = std::minmax_element(degrees.begin(), degrees.end());
  plan.tensor = *most;
  if (*least != *most) plan.tensors.degrees = std::move(degrees);
}

std::string tensor_text(const Plan& plan) {
  if (!plan.tensors.any()) return text(plan.tensor);
  constexpr std::size_t kMostRuns = 8;
  std::vector<std::string> runs;
  const std::vector<std::int64_t>& all = plan.tensors.degrees;
  for (auto it = all.begin(); it != all.end();) {
    const auto end = std::find_if(it, all.end(), [it](std::int64_t d) { return d != *it; });
    const std::string times = end - it > 1 ? text(end - it) + " x " : "";
    if (runs.size() < kMostRuns) runs.push_back(times + text(*it));
    if (runs.size() == kMostRuns && end != all.end()) {
      runs.emplace_back("others");
      break;
    }
    it = end;
  }
  return enumerated(runs) + " by stage";
}

std::int64_t model_ranks(const Plan& plan) {
  return plan.tensors.any() ? plan.tensors.sum() : plan.tensor * plan.pipeline;
}

std::int64_t tensor_of(const Plan& plan, std::int64_t stage) {
  return plan.tensors.any() ? plan.tensors.degrees[static_cast<std::size_t>(stage)] : plan.tensor;
}

std::int64_t neighbour_of(const Plan& plan, std::int64_t stage, bool next) {
  return (stage + (next ? 1 : plan.pipeline - 1)) % plan.pipeline;
}

std::int64_t messages_between(const Plan& plan, std::int64_t stage, std::int64_t other) {
  return std::max<std::int64_t>(1, tensor_of(plan, other) / tensor_of(plan, stage));
}

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
    stages.push_back(std::move(stage));
  }
  FT_TRY(take_layers(stages, source, model, plan));
  for (StageRequest& one : stages) plan.stages.push_back(std::move(one.choice));
  take_defaults(plan);
  const auto alike = [](const StageChoice& one) { return one == StageChoice{}; };
  const bool same = std::all_of(plan.stages.begin(), plan.stages.end(), alike);
  if (same && !plan.tensors.any()) plan.stages.clear();
  return ok_status();
}

void check_stages(const Model& model, const Plan& plan, Violations& out) {
  if (plan.stages.empty()) return;
  check_tensors(model, plan, out);
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

Plan plan_of_degree(const Plan& plan, std::int64_t tensor) {
  Plan out = plan;
  out.tensors = StageTensors{};
  out.tensor = tensor;
  out.sequence = plan.tensors.any() ? plan.tensors.sequence && tensor > 1 : plan.sequence;
  out.accelerators = tensor * plan.pipeline * plan.data;
  return out;
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
  if (plan.tensors.any()) {
    out.tensor = tensor_of(plan, stage);
    out.sequence = plan.tensors.sequence && out.tensor > 1;
  }
  // A host takes fp16's scale out as it clips; all stages look for what is not finite in one way.
  const auto leaves = [&plan](const StageChoice& one) {
    return one.device_share.value_or(plan.offload.device_share) < 1;
  };
  const auto own_share = [](const StageChoice& one) { return one.device_share.has_value(); };
  const bool any = std::any_of(plan.stages.begin(), plan.stages.end(), own_share) &&
                   std::any_of(plan.stages.begin(), plan.stages.end(), leaves);
  if (plan.offload.optimizer != Memory::kDevice && any) out.unscales = false;
  return out;
}

}  // namespace foretrain
