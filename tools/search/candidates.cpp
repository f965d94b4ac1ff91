#include "tools/search/candidates.h"

#include <algorithm>

#include "hardware/device.h"
#include "tools/predict/run_notes.h"

namespace foretrain {
namespace {

/// Fewer tokens of a sequence on a rank are not worth the exchange of keys.
constexpr std::int64_t kLeastTokens = 2048;
constexpr std::int64_t kMostContext = 32, kMostMicro = 16;

std::vector<std::int64_t> divisors(std::int64_t of, std::int64_t most) {
  std::vector<std::int64_t> out;
  for (std::int64_t d = 1; d <= std::min(of, most); ++d) {
    if (of % d == 0) out.push_back(d);
  }
  return out;
}

std::vector<Json> as_json(const std::vector<std::int64_t>& numbers) {
  std::vector<Json> out;
  for (const std::int64_t number : numbers) out.emplace_back(number);
  return out;
}

std::vector<std::int64_t> tensor_degrees(const Run& seed) {
  std::vector<std::int64_t> out =
      divisors(seed.cluster.accelerators, seed.cluster.accelerators_per_node);
  for (const std::int64_t heads : {seed.model.heads, seed.model.kv_heads}) {
    std::erase_if(out, [heads](std::int64_t t) { return heads > 0 && heads % t != 0; });
  }
  return out;
}

std::vector<std::int64_t> context_degrees(const Run& seed) {
  std::vector<std::int64_t> out = divisors(seed.cluster.accelerators, kMostContext);
  const std::int64_t tokens = seed.plan.sequence_length;
  std::erase_if(out, [tokens](std::int64_t c) {
    return c > 1 && (tokens % (2 * c) != 0 || tokens / c < kLeastTokens);
  });
  return out;
}

std::vector<std::int64_t> powers_of_two(std::int64_t most) {
  std::vector<std::int64_t> out;
  for (std::int64_t v = 1; v <= most; v *= 2) out.push_back(v);
  return out;
}

Json modules(const std::vector<std::string>& names) {
  Json out{Json::Object{}};
  Json::Array list;
  for (const std::string& name : names) list.emplace_back(name);
  out.set("modules", Json(std::move(list)));
  return out;
}

/// Whether a layer has an MLP of its own: those of blocks that layers share are not computed again.
bool has_dense_layers(const Model& model) {
  const std::vector<LayersOfKind> kinds = model.kinds(false);
  return std::any_of(kinds.begin(), kinds.end(), [](const LayersOfKind& of) {
    return of.kind.feed_forward == FeedForward::kMlp;
  });
}

/// Nothing, what is cheap to compute again, so many layers of a stage, all of them.
std::vector<Json> recomputations(const Run& seed) {
  std::vector<Json> out = {Json("none")};
  const bool operations = asks(seed, "/kernels/selective", Json("operations"));
  if (operations || seed.plan.attention == AttentionKernel::kUnfused) out.emplace_back("selective");
  if (seed.model.is_network()) return {Json("none"), Json("full")};
  out.push_back(modules({"layernorm"}));
  if (seed.model.has_experts()) {
    std::vector<std::string> cheap = {"moe_act"};
    if (seed.model.is_latent()) cheap.emplace_back("mla_up_proj");
    out.push_back(modules(cheap));
    cheap.emplace_back("layernorm");
    out.push_back(modules(cheap));
  } else if (has_dense_layers(seed.model)) {
    out.push_back(modules({"mlp"}));
  }
  for (std::int64_t layers : {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64}) {
    if (layers >= seed.model.layers) break;
    Json some = modules({"layer"});
    some.set("layers", Json(layers));
    out.push_back(some);
  }
  out.emplace_back("full");
  return out;
}

/// Layers of a stage whose activations go to the host: none, or as of `recomputations`.
std::vector<Json> offloaded_layers(const Run& seed) {
  std::vector<Json> out = {Json(0)};
  for (std::int64_t layers : {1, 2, 4, 8, 16, 32, 64}) {
    if (layers < seed.model.layers) out.emplace_back(layers);
  }
  return out;
}

std::vector<Json> precisions(const Run& seed) {
  std::vector<Json> out = {Json("bf16")};
  const std::vector<Cluster>& pools = seed.cluster.pools;
  const bool all = std::all_of(pools.begin(), pools.end(), [](const Cluster& pool) {
    return peak_tflops(pool.device, DType::kFp8) > 0;
  });
  if (all && peak_tflops(seed.cluster.device, DType::kFp8) > 0) {
    out.insert(out.end(), {Json("fp8"), Json("fp8-blockwise"), Json("mxfp8")});
  }
  return out;
}

std::vector<Json> expert_values(const Run& seed, const std::string& key) {
  if (!seed.model.has_experts()) return {};
  if (key == "parallel.expert") {
    return as_json(divisors(seed.model.experts.count, seed.cluster.accelerators));
  }
  return as_json(tensor_degrees(seed));
}

bool is_numeric_key(const std::string& key) {
  return key == "precision" || key == "gradients.dtype";
}

}  // namespace

std::int64_t layers_again(const Json* recompute) {
  const Json* layers =
      recompute == nullptr || recompute->object() == nullptr ? nullptr : recompute->find("layers");
  return layers == nullptr ? 0 : static_cast<std::int64_t>(layers->number());
}

const std::vector<std::string>& searched_keys() {
  static const std::vector<std::string> all = {"sharding.level",
                                               "recompute",
                                               "overlap.tensor",
                                               "kernels.context",
                                               "parallel.pipeline_partition",
                                               "offload.optimizer",
                                               "offload.parameters",
                                               "offload.activation_layers",
                                               "precision",
                                               "gradients.dtype"};
  return all;
}

bool is_asked_for_only(const std::string& key, bool numerics) {
  return key.starts_with("offload.") || (!numerics && is_numeric_key(key));
}

std::vector<Json> candidates(const Run& seed, const std::string& key) {
  const std::int64_t ranks = seed.cluster.accelerators;
  if (key == "parallel.tensor") return as_json(tensor_degrees(seed));
  if (key == "parallel.pipeline") return as_json(divisors(ranks, seed.model.layers));
  if (key == "parallel.virtual_pipeline") {
    std::vector<std::int64_t> chunks = powers_of_two(1);
    for (std::int64_t v = 2; 2 * v <= seed.model.layers + 2 && v <= 64; ++v) chunks.push_back(v);
    return as_json(chunks);
  }
  if (key == "parallel.context") return as_json(context_degrees(seed));
  if (key.starts_with("parallel.expert")) return expert_values(seed, key);
  if (key == "batch.micro") return as_json(powers_of_two(kMostMicro));
  if (key == "sharding.level") return {"none", "optimizer", "gradients", "parameters"};
  if (key == "recompute") return recomputations(seed);
  if (key == "overlap.tensor") return {Json(false), Json(true)};
  if (key == "kernels.context") {
    const bool named = value_at(seed.usual, "/kernels/context") != nullptr;
    return {named ? Json("ring") : Json(), "allgather", "alltoall"};
  }
  if (key == "parallel.pipeline_partition") {
    // Where nodes are alike layers are divided by number.
    return seed.cluster.pools.empty() ? std::vector<Json>()
                                      : std::vector<Json>{"layers", "profiled"};
  }
  if (key == "offload.optimizer" || key == "offload.parameters") return {"none", "cpu"};
  if (key == "offload.activation_layers") return offloaded_layers(seed);
  if (key == "precision") return precisions(seed);
  if (key == "gradients.dtype") return {"fp32", "compute"};
  return {};
}

bool is_lacked(const Run& seed, const std::string& key, const Json& value) {
  if (value.is_null()) return false;
  const std::string text = value.string() != nullptr ? *value.string() : dump_json(value, -1);
  return !lacked_by(seed, key + "=" + text).empty();
}

bool may_be(const std::string& key, const Json& value, const Degrees& d, const Run& seed) {
  const std::int64_t ranks = seed.cluster.accelerators;
  // Stages with tensor degrees of their own may be as many as they are: their sum divides.
  const auto own = [&] {
    return d.pipeline == seed.plan.pipeline && has_stage_degrees(seed.resolved);
  };
  if (key == "parallel.pipeline") return ranks % d.pipeline == 0 || own();
  if (key == "parallel.tensor") return ranks % (d.pipeline * d.tensor) == 0 || own();
  if (key == "parallel.context") {
    return ranks % (d.pipeline * d.tensor * d.context) == 0 || own();
  }
  if (key == "parallel.virtual_pipeline") {
    return d.virtual_pipeline == 1 || d.pipeline * d.virtual_pipeline <= seed.model.layers + 2;
  }
  if (key == "parallel.expert_tensor") {
    return d.expert_tensor == 1 || d.expert_tensor == d.tensor;
  }
  const std::int64_t of_stage = most_layers(seed.model, d.pipeline);
  if (key == "kernels.context" && value == Json("alltoall")) {
    return seed.model.kv_heads % (d.tensor * d.context) == 0;
  }
  if (key == "recompute") return layers_again(&value) < of_stage;
  if (key == "offload.activation_layers") return value.number() <= static_cast<double>(of_stage);
  return true;
}

}  // namespace foretrain
