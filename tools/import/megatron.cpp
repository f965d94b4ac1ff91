// Megatron-LM, and the YAML of those that build on Megatron Core: what follows from several
// settings together, as validate_args of megatron/training/arguments.py has it.
#include <algorithm>

#include "tools/import/frameworks.h"

namespace foretrain {
namespace {

constexpr const char* kBy = "as Megatron-LM has it";

bool states(const Draft& draft, const char* path) { return find_path(draft.run, path) != nullptr; }

/// NeMo's names of precisions are several flags of Megatron-LM.
void name_precision(Draft& draft) {
  Json& run = draft.run;
  const std::string name = text_at(run, "job.precision");
  if (name.empty() || name == "fp32") return;
  if (!true_at(run, "job.bf16")) {
    set_path(run, name == "fp16" ? "job.fp16" : "job.bf16", Json(true));
  }
  if (name == "bf16" || name == "fp16") return;
  set_path(run, "job.fp8", Json(true));
  const std::string recipe = name == "fp8"           ? "delayed"
                             : name == "fp8-current" ? "current"
                             : name == "mxfp8"       ? "mxfp8"
                                                     : "blockwise";
  if (!states(draft, "job.fp8_recipe")) set_path(run, "job.fp8_recipe", Json(recipe));
  // Recipes of NeMo and Megatron Bridge gather fp8 weights (configs/systems/megatron-lm.json).
  if (!states(draft, "job.fp8_weights")) set_path(run, "job.fp8_weights", Json(true));
}

void finish_precision(Draft& draft) {
  const Json& run = draft.run;
  const bool fp16 = true_at(run, "job.fp16");
  const bool bf16 = true_at(run, "job.bf16");
  std::string compute = fp16 ? "fp16" : bf16 ? "bf16" : "fp32";
  if (true_at(run, "job.fp8")) {
    const std::string recipe = text_at(run, "job.fp8_recipe", "delayed");
    const bool by_block = recipe == "blockwise" || recipe == "mxfp8";
    compute = recipe == "blockwise" ? "fp8-blockwise" : by_block ? recipe : "fp8";
    if (!by_block) {
      conclude(draft, "fp8_recipe", "kernels.fp8_recipe", Json(recipe));
      conclude(draft, "fp8_param_gather", "kernels.fp8_weights",
               Json(true_at(run, "job.fp8_weights")));
    }
  }
  if (true_at(run, "job.fp4")) compute = "nvfp4";
  conclude(draft, "--bf16, --fp16, --fp8-format", "precision", Json(compute));
  const bool narrow = (bf16 && (true_at(run, "job.bf16_gradients") ||
                                text_at(run, "job.main_gradients") == "compute")) ||
                      (fp16 && !true_at(run, "job.fp32_gradients"));
  conclude(draft, std::string("the type of gradients, ") + kBy, "gradients.dtype",
           Json(narrow ? "compute" : "fp32"));
  if (!states(draft, "gradients.check_nan")) {
    conclude(draft, std::string("the look for NaN, ") + kBy, "gradients.check_nan",
             Json(!fp16 || states(draft, "job.loss_scale")));
  }
}

void finish_sharding(std::int64_t accelerators, Draft& draft) {
  if (true_at(draft.run, "job.fsdp")) {
    conclude(draft, "--use-megatron-fsdp, --data-parallel-sharding-strategy", "sharding.level",
             Json(text_at(draft.run, "job.fsdp_level", "parameters")));
  }
  const std::string level = text_at(draft.run, "sharding.level");
  if (true_at(draft.run, "kernels.fp8_weights") &&
      (level == "gradients" || level == "parameters")) {
    draft.not_modelled.push_back(
        {"--fp8-param-gather", "beside FSDP weights have 16-bit values, too"});
    conclude(draft, "FSDP", "kernels.fp8_weights", Json(false));
  }
  const std::int64_t instances = whole_at(draft.run, "job.optimizer_instances", 1);
  if (instances > 1 && text_at(draft.run, "sharding.level") != "none") {
    const std::int64_t ranks =
        data_ranks(draft, accelerators) * whole_at(draft.run, "parallel.context", 1);
    conclude(draft, "--num-distributed-optimizer-instances", "sharding.group_size",
             Json(std::max<std::int64_t>(1, ranks / instances)));
  }
}

/// What stages hold, one after the other: "E" the embedding, "t" a layer, "m" one of multi-token
/// prediction, "L" the loss. Of "Et*3|(tt|)*2,mL": {"Ettt", "tt", "tt", "mL"}. Empty: it cannot be
/// read, or is longer than any model.
std::vector<std::string> stages_of(const std::string& layout) {
  constexpr std::size_t kLongest = 1 << 14;
  std::size_t at = 0;
  bool good = true;
  const auto times = [&] {
    if (at >= layout.size() || layout[at] != '*') return std::size_t{1};
    std::size_t count = 0;
    for (++at; at < layout.size() && layout[at] >= '0' && layout[at] <= '9'; ++at) {
      count = std::min(kLongest, count * 10 + static_cast<std::size_t>(layout[at] - '0'));
    }
    return count;
  };
  const auto repeat = [&](std::string& out, const std::string& text, std::size_t count) {
    good = good && (text.empty() || count <= kLongest / text.size()) &&
           out.size() + text.size() * count <= kLongest;
    for (std::size_t i = 0; good && i < count; ++i) out += text;
  };
  std::string flat;
  std::string group;
  bool grouped = false;
  while (good && at < layout.size()) {
    const char c = layout[at++];
    if (c == ',' || c == ' ') continue;
    if (c == '(' && !grouped) {
      grouped = true;
      group.clear();
    } else if (c == ')' && grouped) {
      grouped = false;
      repeat(flat, group, times());
    } else if (std::string_view("EtmL|").find(c) != std::string_view::npos) {
      repeat(grouped ? group : flat, std::string(1, c), times());
    } else {
      good = false;
    }
  }
  if (!good || grouped) return {};
  std::vector<std::string> out(1);
  for (const char c : flat) {
    if (c == '|') {
      out.emplace_back();
    } else {
      out.back() += c;
    }
  }
  return out;
}

/// The same of a list of lists of names, as YAML has it.
std::vector<std::string> stages_of(const Json::Array& lists) {
  std::vector<std::string> out;
  for (const Json& list : lists) {
    out.emplace_back();
    if (list.array() == nullptr) return {};
    for (const Json& name : *list.array()) {
      const std::string text = name.string() == nullptr ? "" : *name.string();
      const char letter = text == "embedding" ? 'E'
                          : text == "decoder" ? 't'
                          : text == "mtp"     ? 'm'
                          : text == "loss"    ? 'L'
                                              : '\0';
      if (letter == '\0') return {};
      out.back() += letter;
    }
  }
  return out;
}

/// --pipeline-model-parallel-layout: layers of every chunk, the embedding before the first and the
/// loss behind the last. Other places of these are not modelled.
void finish_stated_layout(Draft& draft) {
  Json& run = draft.run;
  const Json layout = *find_path(run, "job.layout");
  const std::string from = "--pipeline-model-parallel-layout";
  const std::vector<std::string> stages = layout.array() != nullptr    ? stages_of(*layout.array())
                                          : layout.string() != nullptr ? stages_of(*layout.string())
                                                                       : std::vector<std::string>();
  const std::int64_t pipeline = std::max<std::int64_t>(1, whole_at(run, "parallel.pipeline", 1));
  const auto chunks = static_cast<std::int64_t>(stages.size());
  const auto refuse = [&](const std::string& why) {
    draft.not_modelled.push_back(
        {from, why + "; the default layout is taken, parallel.pipeline_layout has another"});
  };
  if (stages.empty()) return refuse("it cannot be read");
  if (chunks % pipeline != 0) {
    return refuse("its " + std::to_string(chunks) + " stages do not divide by " +
                  std::to_string(pipeline) + " ranks of the pipeline");
  }
  Json::Array list;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const auto count = [&stages, i](char c) {
      return std::count(stages[i].begin(), stages[i].end(), c);
    };
    const bool last = i + 1 == stages.size();
    if ((count('E') > 0) != (i == 0) || (count('L') > 0) != last) {
      return refuse("the embedding stands before the first chunk and the loss behind the last one");
    }
    if (count('m') > 0 && !last) {
      draft.not_modelled.push_back(
          {from, "layers of multi-token prediction are computed in the last chunk"});
    }
    list.emplace_back(static_cast<std::int64_t>(count('t')));
  }
  conclude(draft, from, "parallel.virtual_pipeline", Json(chunks / pipeline));
  conclude(draft, from, "parallel.pipeline_layout", Json(std::move(list)));
}

/// Layers of the first and the last stage, where those have other numbers than the rest.
void finish_layout(Draft& draft) {
  Json& run = draft.run;
  if (states(draft, "job.layout")) return finish_stated_layout(draft);
  const std::int64_t stages = whole_at(run, "parallel.pipeline", 1);
  std::int64_t virtual_stages = whole_at(run, "parallel.virtual_pipeline", 1);
  const std::int64_t layers = whole_at(run, "model.num_hidden_layers", 0);
  const std::int64_t each = whole_at(run, "job.layers_per_virtual_stage", 0);
  const std::int64_t ends =
      (true_at(run, "job.embedding_counts") ? 1 : 0) + (true_at(run, "job.loss_counts") ? 1 : 0);
  if (each > 0 && stages > 0) {
    virtual_stages = std::max<std::int64_t>(1, (layers + ends) / stages / each);
    conclude(draft, "--num-layers-per-virtual-pipeline-stage", "parallel.virtual_pipeline",
             Json(virtual_stages));
  }
  const std::int64_t chunks = stages * virtual_stages;
  constexpr std::int64_t kMostChunks = 1 << 14;
  const bool edges =
      states(draft, "job.first_stage_layers") || states(draft, "job.last_stage_layers");
  if (chunks < 2 || chunks > kMostChunks || stages < 2 || (!edges && ends == 0)) return;
  std::vector<std::int64_t> layout(static_cast<std::size_t>(chunks));
  if (edges) {
    const std::int64_t first = whole_at(run, "job.first_stage_layers", -1);
    const std::int64_t last = whole_at(run, "job.last_stage_layers", -1);
    const std::int64_t between = stages - (first >= 0 ? 1 : 0) - (last >= 0 ? 1 : 0);
    const std::int64_t rest =
        layers - std::max<std::int64_t>(0, first) - std::max<std::int64_t>(0, last);
    const std::int64_t per_stage = between > 0 ? rest / between : 0;
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
      const std::int64_t stage = chunk % stages;
      const std::int64_t own = stage == 0 && first >= 0           ? first
                               : stage == stages - 1 && last >= 0 ? last
                                                                  : per_stage;
      layout[static_cast<std::size_t>(chunk)] = own / virtual_stages;
    }
  } else {
    std::fill(layout.begin(), layout.end(), (layers + ends) / chunks);
    if (true_at(run, "job.embedding_counts")) --layout.front();
    if (true_at(run, "job.loss_counts")) --layout.back();
  }
  Json::Array list;
  for (const std::int64_t one : layout) list.emplace_back(one);
  conclude(draft, "layers of the first and the last stage", "parallel.pipeline_layout",
           Json(std::move(list)));
}

void finish_parallel(Draft& draft) {
  if (whole_at(draft.run, "parallel.tensor", 1) == 1 && true_at(draft.run, "parallel.sequence")) {
    conclude(draft, "--sequence-parallel is off with one tensor rank", "parallel.sequence",
             Json(false));
  }
  if (whole_at(draft.run, "parallel.context", 1) == 1) {
    erase_path(draft.run, "kernels.context");
  } else if (!states(draft, "kernels.context")) {
    conclude(draft, "default of Megatron-LM, without cp_comm_type", "kernels.context",
             Json("ring"));
  }
}

void finish_recompute(Draft& draft) {
  const std::string kind = text_at(draft.run, "job.recompute", "none");
  const Json* modules = find_path(draft.run, "job.recompute_modules");
  const std::string method = text_at(draft.run, "job.recompute_method");
  const std::int64_t layers = whole_at(draft.run, "job.recompute_layers", 0);
  const std::string from = "--recompute-*";
  if (kind == "full" && method == "block" && layers > 0) {
    Json out(Json::Object{{"modules", Json(Json::Array{Json("layer")})}});
    out.set("layers", Json(layers * whole_at(draft.run, "parallel.virtual_pipeline", 1)));
    return conclude(draft, from, "recompute", std::move(out));
  }
  if (kind == "full" && method == "uniform" && layers > 1) {
    Json out(Json::Object{{"modules", Json(Json::Array{Json("layer")})}});
    out.set("block_layers", Json(layers));
    return conclude(draft, from, "recompute", std::move(out));
  }
  Json::Array list;
  if (modules != nullptr && modules->array() != nullptr) list = *modules->array();
  if (modules != nullptr && modules->string() != nullptr) list.push_back(*modules);
  if (true_at(draft.run, "job.recompute_moe")) list.emplace_back("moe");
  const bool core_alone = list.size() == 1 && list.front() == Json("core_attn");
  if (kind != "full" && !list.empty() && (kind == "selective" || !core_alone) && !core_alone) {
    Json out{Json::Object{}};
    out.set("modules", Json(std::move(list)));
    return conclude(draft, from, "recompute", std::move(out));
  }
  conclude(draft, kind == "none" ? "default of Megatron-LM, without recompute_granularity" : from,
           "recompute", Json(kind));
}

/// "[0]*3+[1]*58" and "([0]+[1])*4" as a list; empty: something else.
std::vector<Json> layers_of(std::string_view text, std::size_t& at, int depth) {
  constexpr std::size_t kMost = 1 << 14;
  std::vector<Json> sum;
  while (at < text.size() && depth < 8) {
    std::vector<Json> one;
    if (text[at] == '(') {
      ++at;
      one = layers_of(text, at, depth + 1);
      if (at < text.size()) ++at;  // )
    } else if (text[at] == '[') {
      for (++at; at < text.size() && text[at] != ']'; ++at) {
        if (text[at] == '0' || text[at] == '1') one.emplace_back(text[at] - '0');
      }
      ++at;
    } else {
      return {};
    }
    if (at < text.size() && text[at] == '*') {
      std::size_t times = 0;
      for (++at; at < text.size() && text[at] >= '0' && text[at] <= '9'; ++at) {
        times = std::min(kMost, times * 10 + static_cast<std::size_t>(text[at] - '0'));
      }
      std::vector<Json> repeated;
      for (std::size_t i = 0; i < times && repeated.size() < kMost; ++i) {
        repeated.insert(repeated.end(), one.begin(), one.end());
      }
      one = std::move(repeated);
    }
    sum.insert(sum.end(), one.begin(), one.end());
    if (sum.size() > kMost || at >= text.size() || text[at] != '+') break;
    ++at;
  }
  return sum;
}

void finish_experts(Draft& draft) {
  Json& run = draft.run;
  if (whole_at(run, "model.num_experts", 0) <= 0) {
    erase_path(run, "model.num_experts");
    for (const char* key : {"moe", "parallel.expert_tensor", "overlap.expert", "overlap.passes"}) {
      erase_path(run, key);
    }
    if (whole_at(run, "parallel.expert", 1) == 1) erase_path(run, "parallel.expert");
    return;
  }
  if (!states(draft, "parallel.expert_tensor")) {
    conclude(draft, "default of Megatron-LM, without expert_tensor_parallel_size",
             "parallel.expert_tensor", Json(whole_at(run, "parallel.tensor", 1)));
  }
  if (!states(draft, "moe.dispatcher")) {
    conclude(draft, "default of Megatron-LM, without moe_token_dispatcher_type", "moe.dispatcher",
             Json("allgather"));
  }
  const std::string backend = text_at(run, "job.flex_backend");
  if (!backend.empty() && text_at(run, "moe.dispatcher") == "deepep") {
    conclude(draft, "--moe-flex-dispatcher-backend", "moe.dispatcher", Json(backend));
  }
  const std::string dispatcher = text_at(run, "moe.dispatcher");
  if (dispatcher != "deepep" && dispatcher != "hybridep") erase_path(run, "moe.dispatcher_sms");
  if (states(draft, "moe.capacity_factor")) {
    conclude(draft, "--moe-expert-capacity-factor", "moe.routing", Json("capacity"));
  }
  if (!states(draft, "model.moe_intermediate_size") && states(draft, "model.intermediate_size")) {
    set_path(run, "model.moe_intermediate_size", *find_path(run, "model.intermediate_size"));
  }
  if (!true_at(run, "job.grouped_gemm")) {
    draft.not_modelled.push_back({"no --moe-grouped-gemm", "experts' products are grouped"});
  }
  const std::string pattern = text_at(run, "model.moe_layers");
  if (pattern.empty()) return;
  std::string dense = pattern;
  dense.erase(std::remove(dense.begin(), dense.end(), ' '), dense.end());
  std::size_t at = 0;
  std::vector<Json> list = layers_of(dense, at, 0);
  if (list.empty() || at < dense.size()) {
    draft.not_modelled.push_back({"--moe-layer-freq " + pattern, "a list is expected"});
    return erase_path(run, "model.moe_layers");
  }
  set_path(run, "model.moe_layers", Json(Json::Array(list.begin(), list.end())));
}

void finish_vocabulary(const Table& table, Draft& draft) {
  Json& run = draft.run;
  if (const Json* padded = find_path(run, "model.padded_vocab_size")) {
    const Json value = *padded;
    return set_path(run, "model.vocab_size", value);
  }
  if (!states(draft, "model.vocab_size")) {
    const std::string asked =
        text_at(run, "job.tokenizer") + " " + text_at(run, "job.tokenizer_model");
    for (const auto& [name, size] : *table.json().find("vocabularies")->object()) {
      if (asked.find(name) == std::string::npos) continue;
      conclude(draft, "the tokenizer " + name, "model.vocab_size", size);
      break;
    }
  }
  if (!states(draft, "model.vocab_size")) {
    constexpr int kGpt2 = 50257;
    draft.unresolved.push_back("vocab_size: no file says it; taken as 50257, GPT-2's");
    set_path(run, "model.vocab_size", Json(kGpt2));
  }
  // Tables are padded to 128 rows a rank in any case; a larger multiple is padded here.
  constexpr std::int64_t kUsual = 128;
  const std::int64_t multiple = whole_at(run, "model.vocab_multiple", kUsual);
  if (multiple <= kUsual || multiple > (1 << 20)) return;
  const std::int64_t rows = multiple * whole_at(run, "parallel.tensor", 1);
  const std::int64_t vocabulary = whole_at(run, "model.vocab_size", 1);
  if (rows <= 0 || vocabulary <= 0 || vocabulary % rows == 0) return;
  conclude(draft, "--make-vocab-size-divisible-by", "model.vocab_size",
           Json((vocabulary + rows - 1) / rows * rows));
}

void finish_sizes(const Table& table, Draft& draft) {
  Json& run = draft.run;
  // Arguments need --group-query-attention; keys of documents do not.
  const bool asks = !true_at(table.json(), "leaf");
  if (asks && !true_at(run, "model.grouped")) {
    erase_path(run, "model.num_key_value_heads");
  } else if (asks && !states(draft, "model.num_key_value_heads")) {
    set_path(run, "model.num_key_value_heads", Json(1));
  }
  const std::string activation = text_at(run, "model.activation", "gelu");
  if (true_at(run, "model.gated") && activation == "gelu") {
    set_path(run, "model.activation", Json("geglu"));
  }
  const std::int64_t hidden = whole_at(run, "model.hidden_size", 0);
  if (!states(draft, "model.intermediate_size") && hidden > 0 && hidden < (1 << 28)) {
    const bool swiglu = activation == "swiglu" && asks;
    constexpr std::int64_t kMultiple = 64;
    const std::int64_t width = swiglu ? 8 * hidden / 3 / kMultiple * kMultiple : 4 * hidden;
    conclude(draft, "default of Megatron-LM, without ffn_hidden_size", "model.intermediate_size",
             Json(width));
  }
  if (true_at(run, "model.no_positions") &&
      text_at(run, "model.position", "learned") == "learned") {
    set_path(run, "model.position", Json("none"));
  }
  if (true_at(run, "model.latent") && !states(draft, "model.kv_lora_rank")) {
    constexpr int kRank = 32;
    set_path(run, "model.kv_lora_rank", Json(kRank));
  }
  if (!states(draft, "model.max_position_embeddings")) {
    if (const Json* sequence = find_path(run, "batch.sequence")) {
      const Json value = *sequence;
      set_path(run, "model.max_position_embeddings", value);
    }
  }
}

void finish_kernels(Draft& draft) {
  Json& run = draft.run;
  if (true_at(run, "job.local_layers") && !states(draft, "kernels.attention")) {
    conclude(draft, "--transformer-impl local", "kernels.attention", Json("unfused"));
  }
  if (text_at(run, "launch.cuda_graph") == "layer") {
    Json::Array modules;
    const Json* scope = find_path(run, "job.graph_modules");
    if (scope != nullptr && scope->array() != nullptr) modules = *scope->array();
    if (scope != nullptr && scope->string() != nullptr) modules.push_back(*scope);
    const bool known = std::all_of(modules.begin(), modules.end(), [](const Json& one) {
      constexpr const char* kKnown[] = {"attn", "mlp", "moe", "moe_router", "moe_preprocess"};
      return std::any_of(std::begin(kKnown), std::end(kKnown),
                         [&one](const char* name) { return one == Json(name); });
    });
    if (!modules.empty() && modules.front() == Json("full_iteration")) {
      conclude(draft, "--cuda-graph-scope", "launch.cuda_graph", Json("full"));
    } else if (!modules.empty() && known) {
      conclude(draft, "--cuda-graph-scope", "launch.graph_modules", Json(modules));
    }
  }
  if (text_at(run, "offload.optimizer", "none") != "none" && states(draft, "job.offloaded_share")) {
    const Json* share = find_path(run, "job.offloaded_share");
    conclude(draft, "--optimizer-offload-fraction", "offload.device_share",
             Json(1.0 - share->number()));
  }
}

/// Experts of DeepSpeed: every second layer has them unless --expert-interval says otherwise.
void finish_deepspeed_experts(Draft& draft) {
  Json& run = draft.run;
  if (whole_at(run, "model.num_experts", 1) < 2) {
    erase_path(run, "model.num_experts");
    erase_path(run, "moe");
    return erase_path(run, "parallel.expert");
  }
  constexpr std::int64_t kInterval = 2;
  const std::int64_t interval = whole_at(run, "job.expert_interval", kInterval);
  const std::int64_t layers = whole_at(run, "model.num_hidden_layers", 0);
  constexpr std::int64_t kMostLayers = 1 << 14;
  Json::Array list;
  for (std::int64_t i = 0; interval > 0 && i < std::min(layers, kMostLayers); ++i) {
    list.emplace_back((i + 1) % interval == 0 ? 1 : 0);
  }
  conclude(draft, "--num-experts, --expert-interval", "model.moe_layers", Json(std::move(list)));
  if (const Json* width = find_path(run, "model.intermediate_size")) {
    const Json value = *width;
    set_path(run, "model.moe_intermediate_size", value);
  }
}

}  // namespace

Status finish_megatron_deepspeed(const FinishContext& context, Draft& draft) {
  Json& run = draft.run;
  conclude(draft, "bf16.enabled and fp16.enabled, --bf16, --fp16", "precision",
           Json(precision_of_flags(run)));
  if (!states(draft, "sharding.level")) {
    conclude(draft, "--zero-stage", "sharding.level", Json(text_at(run, "job.zero_level", "none")));
  }
  const bool bf16 = true_at(run, "job.bf16");
  if (bf16 && text_at(run, "sharding.level") == "none") {
    conclude(draft, "DeepSpeed's bf16 optimizer, which shards its states at stage 0 too",
             "sharding.level", Json("optimizer"));
  }
  if (!states(draft, "overlap.gradient_reduce")) {
    conclude(draft, "default of DeepSpeed, without overlap_comm", "overlap.gradient_reduce",
             Json(text_at(run, "sharding.level") == "parameters"));
  }
  if (true_at(run, "job.ends_count")) {
    set_path(run, "job.embedding_counts", Json(true));
    set_path(run, "job.loss_counts", Json(true));
  }
  finish_layout(draft);
  if (text_at(run, "job.recompute") == "full" && states(draft, "job.recompute_layers") &&
      !states(draft, "job.recompute_method")) {
    set_path(run, "job.recompute_method", Json("uniform"));
  }
  finish_recompute(draft);
  finish_vocabulary(context.table, draft);
  if (states(draft, "model.num_key_value_heads")) set_path(run, "model.grouped", Json(true));
  finish_sizes(context.table, draft);
  finish_deepspeed_experts(draft);
  if (states(draft, "kernels.flash")) {
    conclude(draft, "--use-flash-attn-v1, -v2", "kernels.attention", Json("flash"));
  } else if (!states(draft, "kernels.attention")) {
    conclude(draft, "default of Megatron-DeepSpeed, without --use-flash-attn", "kernels.attention",
             Json("unfused"));
  }
  finish_engine(context, draft);
  return ok_status();
}

Status finish_megatron(const FinishContext& context, Draft& draft) {
  name_precision(draft);
  finish_precision(draft);
  finish_layout(draft);
  finish_parallel(draft);
  finish_sharding(context.accelerators, draft);
  finish_recompute(draft);
  finish_vocabulary(context.table, draft);
  finish_sizes(context.table, draft);
  finish_experts(draft);
  finish_kernels(draft);
  return ok_status();
}

}  // namespace foretrain
