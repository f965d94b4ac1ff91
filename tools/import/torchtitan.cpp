// torchtitan's TOML and its flags, as torchtitan/config/job_config.py has them.
#include <algorithm>
#include <cstdlib>

#include "tools/import/frameworks.h"

namespace foretrain {
namespace {

/// FSDP over the shard degree times context; a replicate degree makes copies of that.
void finish_mesh(const FinishContext& context, Draft& draft) {
  Json& run = draft.run;
  const std::int64_t ranks = data_ranks(draft, context.accelerators);
  const std::int64_t replicas = std::max<std::int64_t>(1, whole_at(run, "job.replicate", 1));
  std::int64_t shard = whole_at(run, "job.shard", -1);
  if (shard <= 0) shard = std::max<std::int64_t>(1, ranks / replicas);
  const std::int64_t cut = shard * std::max<std::int64_t>(1, whole_at(run, "parallel.context", 1));
  conclude(draft, "parallelism.data_parallel_shard_degree", "sharding.level",
           Json(cut > 1 ? "parameters" : "none"));
  if (replicas > 1 && cut > 1) {
    conclude(draft, "parallelism.data_parallel_shard_degree", "sharding.group_size", Json(cut));
  }
  if (whole_at(run, "parallel.tensor", 1) > 1) {
    conclude(draft, "torchtitan's tensor parallelism", "parallel.sequence", Json(true));
  }
  if (whole_at(run, "parallel.context", 1) == 1) {
    erase_path(run, "kernels.context");
  } else if (find_path(run, "kernels.context") == nullptr) {
    conclude(draft, "default of torchtitan, without context_parallel_rotate_method",
             "kernels.context", Json("allgather"));
  }
}

void finish_batch(const FinishContext& context, Draft& draft) {
  const Json& run = draft.run;
  const std::int64_t data = data_ranks(draft, context.accelerators);
  const std::int64_t local = std::max<std::int64_t>(1, whole_at(run, "job.local_batch", 1));
  std::int64_t micro = local;
  if (whole_at(run, "parallel.pipeline", 1) > 1) {
    const std::int64_t parts = whole_at(run, "job.microbatches", 0);
    micro =
        parts > 0 ? std::max<std::int64_t>(1, local / parts) : whole_at(run, "job.microbatch", 1);
  }
  const std::int64_t global = whole_at(run, "job.global_batch", -1);
  conclude(draft, "training.local_batch_size", "batch.micro", Json(micro));
  conclude(draft, "training.local_batch_size, training.global_batch_size", "batch.global",
           Json(global > 0 ? global : local * data));
}

void finish_checkpointing(Draft& draft) {
  const std::string mode = text_at(draft.run, "job.recompute", "selective");
  const Json* option = find_path(draft.run, "job.selective");
  const std::string text = option == nullptr             ? "2"
                           : option->string() != nullptr ? *option->string()
                                                         : dump_json(*option, -1);
  Json value(mode);
  const std::int64_t period = std::strtol(text.c_str(), nullptr, 10);
  if (mode == "selective" && period == 1) value = Json("full");
  if (mode == "selective" && period > 1 && period < (1 << 20)) {
    value = Json(Json::Object{{"modules", Json(Json::Array{Json("layer")})},
                              {"layer_period", Json(period)}});
  }
  conclude(draft, "activation_checkpoint.mode", "recompute", std::move(value));
}

bool converts(const Json& run, const std::string& what) {
  const Json* list = find_path(run, "job.converters");
  if (list == nullptr) return false;
  const std::string text = list->string() != nullptr ? *list->string() : dump_json(*list, -1);
  return text.find(what) != std::string::npos;
}

void finish_float8(Draft& draft) {
  if (converts(draft.run, "mx")) {
    return conclude(draft, "model.converters", "precision", Json("mxfp8"));
  }
  if (!converts(draft.run, "float8") && !true_at(draft.run, "job.float8")) return;
  const std::string recipe = text_at(draft.run, "job.float8_recipe", "tensorwise");
  conclude(draft, "model.converters", "precision", Json("fp8"));
  conclude(draft, "float8.recipe_name", "kernels.fp8_recipe", Json(recipe));
  if (true_at(draft.run, "job.float8_gather") && recipe == "tensorwise") {
    conclude(draft, "enable_fsdp_float8_all_gather", "sharding.gather_dtype", Json("fp8"));
  }
}

void finish_pipeline(Draft& draft) {
  if (whole_at(draft.run, "parallel.pipeline", 1) < 2) return;
  const std::string schedule = text_at(draft.run, "job.schedule", "1f1b");
  conclude(draft, "parallelism.pipeline_parallel_schedule", "schedule", Json(schedule));
  if (schedule == "1f1b" || schedule == "gpipe") return;
  if (find_path(draft.run, "job.layers_per_stage") != nullptr) {
    draft.not_modelled.push_back({"parallelism.pipeline_parallel_layers_per_stage",
                                  "stages of a rank: two; give parallel.virtual_pipeline"});
  }
  conclude(draft, "two stages of a rank", "parallel.virtual_pipeline", Json(2));
}

}  // namespace

Status finish_torchtitan(const FinishContext& context, Draft& draft) {
  finish_mesh(context, draft);
  finish_batch(context, draft);
  finish_checkpointing(draft);
  finish_float8(draft);
  finish_pipeline(draft);
  const bool fused = text_at(draft.run, "job.implementation", "fused") == "fused";
  const bool sgd = text_at(draft.run, "job.optimizer", "adam") == "sgd";
  conclude(draft, "default of torchtitan: a fused AdamW", "kernels.optimizer",
           Json(sgd     ? "sgd"
                : fused ? "fused_adam"
                        : "adam"));
  if (true_at(draft.run, "job.offload")) {
    conclude(draft, "training.enable_cpu_offload", "offload.parameters", Json("cpu"));
    conclude(draft, "training.enable_cpu_offload", "offload.optimizer", Json("cpu"));
  }
  if (context.has_config) return ok_status();
  const std::string name = text_at(draft.run, "job.model", "llama3");
  return conclude_preset(context, name + " " + text_at(draft.run, "job.flavor", "debugmodel"),
                         draft);
}

}  // namespace foretrain
