// What a plan does, in one line.
#include <algorithm>
#include <functional>

#include "models/plan/layout/plan_layout.h"
#include "models/plan/layout/plan_stages.h"
#include "models/plan/plan_schedule.h"
#include "models/plan/violations.h"
#include "tools/report/report.h"

namespace foretrain {
namespace {

std::string sharded_text(const Plan& p) {
  if (p.data == 1 || p.sharding == Sharding::kNone) return "";
  std::string what = "optimizer";
  if (p.sharding == Sharding::kGradients) what = "gradients and optimizer";
  if (p.sharding == Sharding::kParameters) what = "parameters, gradients and optimizer";
  const std::string groups =
      p.replicas() > 1 ? " in groups of " + std::to_string(p.shards()) : std::string();
  return " (" + what + " sharded" + groups + ")";
}

/// " of 13 + 2 x 14 + 9 layers", where they are not equal.
std::string layout_text(const Plan& p) {
  const std::vector<std::int64_t>& layout = p.pipeline_layout;
  if (std::adjacent_find(layout.begin(), layout.end(), std::not_equal_to<>()) == layout.end()) {
    return "";
  }
  std::string out;
  for (auto it = layout.begin(); it != layout.end();) {
    const auto end = std::find_if(it, layout.end(), [it](std::int64_t n) { return n != *it; });
    out += out.empty() ? " of " : " + ";
    if (end - it > 1) out += std::to_string(end - it) + " x ";
    out += std::to_string(*it);
    it = end;
  }
  out += " layers";
  return p.partition == Partition::kLayers ? out : out + " (" + name_of(p.partition) + ")";
}

/// "2, 1, 0 and 0": the first so many layers of the stages, where each has its own number.
std::string by_stage(const Plan& plan) {
  std::vector<std::string> layers;
  for (std::size_t stage = 0; stage < plan.stages.size(); ++stage) {
    const std::int64_t own = plan.stages[stage].recompute_layers.value_or(plan.recompute.layers);
    const std::int64_t all = plan.pipeline_layout[stage];
    layers.push_back(std::to_string(own < 0 ? all : std::min(own, all)));
  }
  return enumerated(layers);
}

std::string recompute_text(const Plan& plan) {
  const Recompute& r = plan.recompute;
  if (!r.any()) return "";
  const auto own = [](const StageChoice& one) { return one.recompute_layers.has_value(); };
  if (std::any_of(plan.stages.begin(), plan.stages.end(), own) && plan.chunks() == plan.pipeline) {
    return ", " + by_stage(plan) + " layers of the stages computed again in backward passes";
  }
  if (r.in_blocks()) {
    const std::int64_t most =
        *std::max_element(plan.pipeline_layout.begin(), plan.pipeline_layout.end());
    std::string block = std::to_string(r.block_layers) + " layers at once";
    if (r.block_layers == 1) block = "layers";
    if (r.block_layers == 0 || (r.block_layers > 1 && r.block_layers >= most)) block = "stages";
    return ", " + block + " computed again " +
           (r.early ? "before gradients arrive" : "in backward passes");
  }
  if (r.layer && r.parts == 1) return ", layers computed again in backward passes";
  return ", parts of layers computed again in backward passes";
}

/// Of the newest kernels for the device nothing is said.
const char* attention_text(AttentionKernel kernel) {
  switch (kernel) {
    case AttentionKernel::kUnfused:
      return ", unfused attention";
    case AttentionKernel::kFlash1:
      return ", FlashAttention 1";
    case AttentionKernel::kTriton:
      return ", FlashAttention 1 in Triton";
    case AttentionKernel::kFlash2:
      return ", FlashAttention 2";
    case AttentionKernel::kCudnn:
      return ", cuDNN's attention";
    case AttentionKernel::kFlash:
      break;
  }
  return "";
}

/// What systems choose, and time and memory hang on.
std::string kernels_text(const Run& run) {
  std::string out;
  if (!run.model.is_network()) out += attention_text(run.plan.attention);
  const Precision& precision = run.plan.precision;
  if (precision.autocast) out += ", autocast";
  if (precision.low()) {
    out += precision.fp8_primary_weights ? ", linears and their weights in " : ", linears in ";
    out += name_of(precision.linear);
  }
  return out;
}

/// What lives elsewhere.
std::string offload_text(const Offload& o) {
  const auto in = [](Memory memory) {
    return memory == Memory::kStorage ? " in storage" : " on the host";
  };
  std::string out;
  if (o.optimizer != Memory::kDevice) out += std::string(", optimizer") + in(o.optimizer);
  if (o.parameters != Memory::kDevice) out += std::string(", parameters") + in(o.parameters);
  if (o.activation_layers > 0) {
    out += ", activations of " + count_text(o.activation_layers) + " layers a stage" +
           in(o.activations);
  }
  return out;
}

std::string documents_text(const Plan& p) {
  if (p.documents.empty()) return "";
  const auto [least, most] = std::minmax_element(p.documents.begin(), p.documents.end());
  const std::string lengths =
      std::to_string(*least) + (*least == *most ? "" : " to " + std::to_string(*most));
  return " in documents of " + lengths;
}

std::string context_text(const Plan& p) {
  switch (p.context_exchange) {
    case ContextExchange::kAllGather:
      return " by all-gather";
    case ContextExchange::kAllToAll:
      return " by all-to-all";
    case ContextExchange::kRingSelf:
      return " by ring self-attention";
    default:
      return p.context_inner > 1 ? " by rings of all-to-all" : " by ring";
  }
}

}  // namespace

std::string plan_text(const Run& run) {
  const Plan& p = run.plan;
  std::string out = "tensor " + tensor_text(p);
  if (p.in_grid()) out += " in " + std::string(name_of(p.tensor_mode));
  if (p.tensor_depth > 1) out += " of depth " + std::to_string(p.tensor_depth);
  if (p.sequence) out += " with sequence parallelism";
  if (p.rings()) out += " and its exchanges under products";
  out += ", pipeline " + std::to_string(p.pipeline);
  if (p.virtual_pipeline > 1) out += " x " + std::to_string(p.virtual_pipeline) + " virtual";
  if (p.chunks() > 1) out += " by " + name_of(p) + layout_text(p);
  if (p.validates_later()) out += " with post-validation";
  if (p.context > 1) out += ", context " + std::to_string(p.context) + context_text(p);
  if (p.experts.expert > 1) out += ", expert " + std::to_string(p.experts.expert);
  if (p.experts.tensor > 1) out += " x tensor " + std::to_string(p.experts.tensor);
  out += ", data " + std::to_string(p.batch_ranks());
  out += sharded_text(p);
  out += ", " + std::to_string(p.microbatches()) +
         (p.microbatches() == 1 ? " microbatch of " : " microbatches of ") +
         std::to_string(p.micro_batch);
  if (run.model.is_network()) return out + " images";
  out += " x " + std::to_string(p.sequence_length) + " tokens";
  if (run.model.is_encoder_decoder()) out += " and " + std::to_string(p.target()) + " targets";
  out += documents_text(p);
  return out + recompute_text(p) + offload_text(p.offload) + kernels_text(run);
}

}  // namespace foretrain
