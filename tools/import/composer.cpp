// Composer's YAML as llm-foundry reads it.
#include <algorithm>
#include <cstdlib>

#include "tools/import/frameworks.h"

namespace foretrain {
namespace {

void finish_mpt(Draft& draft) {
  Json& run = draft.run;
  const bool alibi = true_at(run, "job.alibi");
  const bool rope = true_at(run, "job.rope");
  const Json* learned = find_path(run, "job.learned");
  const bool table = learned == nullptr || *learned == Json(true);
  set_path(run, "model.position",
           Json(alibi   ? "alibi"
                : rope  ? "rope"
                : table ? "learned"
                        : "none"));
  if (find_path(run, "model.norm") == nullptr) set_path(run, "model.norm", Json("layer-norm"));
  const std::string ffn = text_at(run, "job.ffn", "gelu");
  set_path(run, "model.activation", Json(ffn));
  const std::int64_t hidden = whole_at(run, "model.hidden_size", 0);
  const Json* ratio = find_path(run, "job.expansion");
  const double times = ratio == nullptr ? 4 : std::clamp(ratio->number(), 0.01, 100.0);
  if (find_path(run, "model.intermediate_size") == nullptr) {
    set_path(run, "model.intermediate_size",
             Json(static_cast<std::int64_t>(times * static_cast<double>(hidden))));
  }
  const std::string heads = text_at(run, "job.attention_type", "multihead");
  if (heads == "multiquery") set_path(run, "model.num_key_value_heads", Json(1));
  if (find_path(run, "model.max_position_embeddings") == nullptr) {
    set_path(run, "model.max_position_embeddings", *find_path(run, "batch.sequence"));
  }
}

}  // namespace

Status finish_composer(const FinishContext& context, Draft& draft) {
  Json& run = draft.run;
  if (find_path(run, "job.strategy") == nullptr) {
    // Without fsdp_config Composer trains by DDP.
    const bool sharded = find_path(run, "parallelism_config") != nullptr ||
                         find_path(run, "sharding.backward_prefetch") != nullptr;
    set_path(run, "job.strategy", Json(sharded ? "full" : "none"));
  }
  conclude_strategy(draft);
  const std::int64_t micro = whole_at(run, "job.micro", 0);
  if (micro > 0) conclude(draft, "device_train_microbatch_size", "batch.micro", Json(micro));
  const std::string kernel = text_at(run, "job.attention", "flash");
  conclude(draft, "model.attn_config.attn_impl", "kernels.attention",
           Json(kernel == "unfused" ? "unfused" : "flash"));
  if (kernel != "unfused") {
    conclude(draft, "model.attn_config.attn_impl", "kernels.flash",
             Json(kernel == "triton" ? "triton" : "flash2"));
  }
  const std::string duration = text_at(run, "job.duration");
  const long steps = std::strtol(duration.c_str(), nullptr, 10);
  if (duration.ends_with("ba") && steps > 0) {
    conclude(draft, "max_duration", "campaign.steps", Json(static_cast<std::int64_t>(steps)));
  }
  if (context.has_config) return ok_status();
  const std::string name = text_at(run, "job.model", "mpt_causal_lm");
  if (name != "mpt_causal_lm") {
    return input_error("import: the model is a " + name +
                       " of the hub; give its config.json to `import` as well");
  }
  finish_mpt(draft);
  return ok_status();
}

}  // namespace foretrain
