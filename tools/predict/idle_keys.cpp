#include "tools/predict/idle_keys.h"

#include <algorithm>

#include "models/layers/optimizer.h"

namespace foretrain {
namespace {

/// Why a key changes nothing in this run; null: it may.
using Why = const char* (*)(const Run& run);

const char* if_not_parameters(const Run& run) {
  return run.plan.sharding == Sharding::kParameters ? nullptr : "sharding.level is not parameters";
}

const char* if_not_by_units(const Run& run) {
  if (run.plan.contiguous_passes()) return "gradients.bucketing is contiguous";
  return run.plan.by_units() ? nullptr : "sharding.level is neither gradients nor parameters";
}

const char* if_no_tensor(const Run& run) {
  return run.plan.tensor > 1 ? nullptr : "parallel.tensor is 1";
}

const char* if_no_pipeline(const Run& run) {
  return run.plan.chunks() > 1 ? nullptr : "parallel.pipeline is 1";
}

const char* if_no_experts(const Run& run) {
  return run.model.has_experts() ? nullptr : "the model has no experts";
}

const char* reduction(const Run& run) {
  if (run.plan.contiguous() || run.plan.to_owners()) return nullptr;
  return run.plan.sharding == Sharding::kOptimizer ? nullptr : "sharding.level is not optimizer";
}

const char* if_none(const Run& run) {
  return run.plan.sharding == Sharding::kNone ? "sharding.level is none" : nullptr;
}

const char* reshard_in_pipeline(const Run& run) {
  return run.plan.by_units() ? if_no_pipeline(run) : if_not_by_units(run);
}

const char* reuse_elements(const Run& run) {
  const Plan& p = run.plan;
  if (p.sharding != Sharding::kParameters) return if_not_parameters(run);
  if (p.pipeline > 1) return "in a pipeline other microbatches run before the backward pass";
  return p.units.reshard ? nullptr : "sharding.reshard_after_forward is false";
}

const char* record_stream(const Run& run) {
  return run.plan.planned_memory ? "allocator.kind is planned" : if_not_by_units(run);
}

const char* context_gib(const Run& run) {
  return run.cluster.scale_up == ScaleUp::kTorus ? "TPUs have no CUDA" : nullptr;
}

const char* live_elements(const Run& run) {
  const Plan& p = run.plan;
  if (p.sharding != Sharding::kParameters) return if_not_parameters(run);
  return p.pipeline > 1 && !p.units.reshard ? "stages gather once a step" : nullptr;
}

const char* prefetch(const Run& run) {
  if (run.plan.sharding != Sharding::kParameters) return if_not_parameters(run);
  return run.plan.units.live_elements > 0 ? "sharding.live_elements is above 0" : nullptr;
}

const char* gather_elements(const Run& run) {
  const Plan& p = run.plan;
  if (p.sharding != Sharding::kParameters) return if_not_parameters(run);
  if (p.shards_by_parameter() || p.units.gather_elements == 0) return nullptr;
  const Units& u = p.units;
  if (u.inner_group > 1) return "parameters are gathered by units with sharding.inner_group";
  if (u.secondary > 0) return "parameters are gathered by units with sharding.secondary_group";
  if (u.narrow_reduction)
    return "parameters are gathered by units with gradients.reduce_dtype int4";
  return "parameters are gathered by units with sharding.gather_dtype int8 and fp8";
}

const char* scatter_us(const Run& run) {
  if (run.plan.sharding != Sharding::kParameters) return if_not_parameters(run);
  return run.plan.units.narrow_reduction ? "gradients.reduce_dtype is int4" : nullptr;
}

const char* update_us(const Run& run) {
  if (run.plan.updates_on_host()) return "the host updates the parameters itself";
  return loops_over_tensors(run.plan.optimizer)
             ? nullptr
             : "kernels of kernels.optimizer update lists of tensors";
}

const char* clock_mhz(const Run&) {
  return "prices rest on rates that were reached, whatever the clock was: peaks and bandwidth move "
         "them";
}

const char* if_no_network(const Run& run) {
  if (run.cluster.uses_network()) return nullptr;
  return run.cluster.topology.slice_size() > 0 ? "the job is one slice" : "the job has one node";
}

const char* topology(const Run& run) {
  return run.cluster.scale_up == ScaleUp::kTorus ? nullptr : if_no_network(run);
}

const char* oversubscription(const Run& run) {
  const Cluster& c = run.cluster;
  if (!c.uses_network()) return if_no_network(run);
  const std::vector<NetworkLevel>& levels = c.topology.levels;
  // Without a switch in the node messages between rails cross the leaves wherever they go.
  const bool to_rails =
      c.topology.kind == TopologyKind::kRailFatTree && c.scale_up != ScaleUp::kSwitch;
  const bool below = !levels.empty() && c.nodes() <= levels.front().nodes && !to_rails;
  return below ? "all nodes of the job lie below one leaf" : nullptr;
}

const char* sharp(const Run& run) {
  if (!run.cluster.uses_network()) return if_no_network(run);
  if (!is_nvidia(run.cluster.device.architecture)) return "it is NCCL's to use";
  return run.cluster.fabric == Fabric::kInfiniBand ? nullptr : "SHARP is InfiniBand's";
}

const char* post_validation(const Run& run) {
  if (run.plan.pipeline == 1) return if_no_pipeline(run);
  return run.plan.validates_later() || !run.plan.overlap.post_validation
             ? nullptr
             : "gradients are not clipped: there is nothing to validate";
}

const char* scatter_gather(const Run& run) {
  const Plan& p = run.plan;
  if (p.pipeline == 1) return if_no_pipeline(run);
  if (p.tensor == 1) return if_no_tensor(run);
  if (p.shard() > 1) return "tensor ranks hold parts of the residual stream anyway";
  if (p.scatter_gather || !asks(run, "/parallel/scatter_gather", Json(true))) return nullptr;
  return "it is modelled for decoders and encoders whose tokens x hidden_size tensor divides";
}

const char* flat_update(const Run& run) {
  if (run.plan.by_units()) return "sharding.level is neither none nor optimizer";
  if (run.plan.updates_on_host()) return "the host updates the parameters itself";
  return run.plan.precision.gradients == DType::kFp32 ? "gradients are fp32" : nullptr;
}

const char* weights_copy(const Run& run) {
  const Plan& p = run.plan;
  if (!(p.by_units() ? p.master_shards() : p.precision.master)) {
    return "no fp32 copies of the weights are kept";
  }
  const bool on_host = p.updates_on_host() && p.offload.device_share == 0;
  return on_host ? "the host writes both as it updates" : nullptr;
}

const char* unscale(const Run& run) {
  if (run.plan.precision.branch() != DType::kFp16) return "losses are scaled in fp16 alone";
  const bool decided = run.plan.offload.device_share >= 0;
  return decided && run.plan.updates_on_host() ? "the host takes the scale out as it updates"
                                               : nullptr;
}

const char* average(const Run& run) {
  if (!asks(run, "/gradients/average", Json("before"))) return nullptr;
  if (run.plan.data == 1) return "one rank holds all gradients";
  return run.plan.units.narrow_reduction ? "gradients.reduce_dtype is int4" : nullptr;
}

const char* accumulation(const Run& run) {
  const Plan& p = run.plan;
  // What adds up within a pass: parts of a layer, the output matrix of later tokens.
  const bool within = p.recompute.parts > 1 || run.model.predict_layers > 0;
  const bool apart = p.writes_fresh() && !p.sums_after_pass;
  return apart && !within ? "the gradients of every microbatch are reduced on their own" : nullptr;
}

const char* check_nan(const Run& run) {
  if (run.plan.by_units()) return "sharding.level is neither none nor optimizer";
  return run.plan.contiguous() ? "gradients.bucketing is contiguous" : nullptr;
}

const char* reduce_dtype(const Run& run) {
  const Plan& p = run.plan;
  const bool wider = bits_of(p.precision.gradients) > bits_of(p.precision.compute);
  return p.by_units() || wider ? nullptr : "gradients are of the type that computes";
}

const char* copy_out(const Run& run) {
  const Plan& p = run.plan;
  if (p.sharding != Sharding::kParameters) return if_not_parameters(run);
  return p.units.copies_out && !p.copies_out()
             ? "it does not go with inner_group, secondary_group, int8 and fp8"
             : nullptr;
}

const char* bucketing(const Run& run) {
  const bool asked = asks(run, "/gradients/bucketing", Json("contiguous"));
  if (run.plan.contiguous() || !asked) return nullptr;
  return "contiguous buckets are of decoders without experts whose optimizer is sharded over more "
         "than one rank, each microbatch's gradients only without a pipeline (docs/plans.md)";
}

const char* bucket_elements(const Run& run) {
  if (run.plan.shards_by_parameter()) return nullptr;
  if (run.plan.sharding == Sharding::kParameters) {
    const char* const units = gather_elements(run);
    return units != nullptr ? units : "sharding.gather_elements is 0";
  }
  if (run.plan.by_units()) return "sharding.level is neither none nor optimizer";
  if (run.plan.contiguous()) return nullptr;
  if (run.plan.buckets.cut != Bucketing::kRanges) return "gradients.bucketing is not ranges";
  return run.plan.overlap.gradient_reduce ? nullptr : "overlap.gradient_reduce is false";
}

const char* bucket_mib(const Run& run) {
  if (run.plan.contiguous()) return "gradients.bucketing is contiguous";
  return run.plan.buckets.cut == Bucketing::kRanges ? "gradients.bucketing is ranges" : nullptr;
}

const char* compression(const Run& run) {
  return run.plan.buckets.compression == Compression::kNone ? "gradients are of that type"
                                                            : nullptr;
}

const char* compression_rank(const Run& run) {
  return run.plan.buckets.compression == Compression::kPowerSgd
             ? nullptr
             : "gradients.compression is not powersgd";
}

const char* page_mib(const Run& run) {
  return run.plan.offload.states() ? nullptr : "offload.optimizer is none";
}

const char* pageable(const Run& run) {
  const Offload& o = run.plan.offload;
  return o.optimizer == Memory::kHost ? nullptr : "offload.optimizer is not cpu";
}

const char* activations(const Run& run) {
  return run.plan.offload.activation_layers > 0 ? nullptr : "offload.activation_layers is 0";
}

const char* overlap_expert(const Run& run) {
  if (run.model.experts.shared_width == 0) return "the model has no shared experts";
  return run.plan.experts.dispatcher == Dispatcher::kAllToAll ? nullptr
                                                              : "moe.dispatcher is not alltoall";
}

const char* amax_reduction(const Run& run) {
  return run.plan.precision.delayed() ? nullptr : "there are no delayed scales of fp8";
}

const char* gradient_reduce(const Run& run) {
  return run.plan.by_units() ? "the gradients of sharded units are reduced beside the passes, and "
                               "waited for with gradients.blocking"
                             : nullptr;
}

const char* parameter_gather(const Run& run) {
  if (run.plan.sharding == Sharding::kParameters && !run.plan.persists()) {
    return "sharded parameters are gathered for passes that need them";
  }
  return if_none(run);
}

const char* blocking(const Run& run) {
  if (!run.plan.by_units()) return if_not_by_units(run);
  return run.plan.data > 1 ? nullptr : "one rank holds all gradients";
}

const char* fusion(const Run& run) {
  if (!asks(run, "/kernels/fusion", Json("norms"))) return nullptr;
  const bool differs = run.model.position == Position::kRope || run.model.gated();
  const Json* usual = value_at(run.usual, "/kernels/fusion");
  if (differs || usual == nullptr || !(*usual == Json("fused"))) return nullptr;
  return "the model has no rotary embedding and no gated activation";
}

const char* attention_products(const Run& run) {
  if (run.plan.attention != AttentionKernel::kUnfused) return "kernels.attention is not unfused";
  return run.plan.precision.matrix == DType::kFp32 ? "fp32 has no tensor cores" : nullptr;
}

const char* image_layout(const Run& run) {
  if (!run.model.is_network()) return "the model has no convolutions";
  if (run.plan.fusion == Fusion::kCompiled) return "under kernels.compile compilers choose it";
  return bits_of(run.plan.precision.matrix) == 16 ? nullptr : "the precision is not one of 16 bits";
}

const char* fp8_weights(const Run& run) {
  if (run.plan.precision.low_weights) return nullptr;
  if (asks(run, "/kernels/fp8_weights", Json(false))) return nullptr;
  return run.plan.precision.by_tensor() ? "the plan is not one that it is modelled for"
                                        : "nothing is in fp8 with one scale for a matrix";
}

const char* fp8_copies(const Run& run) {
  return run.plan.precision.by_tensor() ? nullptr : "nothing is in fp8 with one scale for a matrix";
}

const char* early_stop(const Run& run) {
  return run.plan.recompute.any() ? nullptr : "nothing is computed again";
}

const char* if_no_rings(const Run& run) {
  if (run.plan.tensor == 1) return if_no_tensor(run);
  return run.plan.sequence ? nullptr : "parallel.sequence is false";
}

const char* if_not_in_parts(const Run& run) {
  return run.plan.overlap.tensor ? if_no_rings(run) : "overlap.tensor is false";
}

const char* copy_engines(const Run& run) {
  const bool holds = is_nvidia(run.cluster.device.architecture);
  return holds ? if_not_in_parts(run) : "messages hold no compute units on this device";
}

const char* gather_dtype(const Run& run) {
  if (run.plan.sharding != Sharding::kParameters) return if_not_parameters(run);
  return run.plan.shards() > 1 ? nullptr : "one rank holds all parameters";
}

const char* documents(const Run& run) {
  if (run.model.is_network()) return "a model of layers has no attention";
  return run.plan.documents.empty() ? "one document fills a sequence" : nullptr;
}

const char* synchronize(const Run& run) {
  return run.plan.spreads_vocabulary()
             ? "with the vocabulary spread over stages no host waits for its stage's passes"
             : nullptr;
}

const char* autocast(const Run& run) {
  if (run.plan.precision.autocast || asks(run, "/kernels/autocast", Json(false))) return nullptr;
  return bits_of(run.plan.precision.compute) > 16 ? "the precision is not one of 16 bits"
                                                  : "the plan is not one that it is modelled for";
}

const char* wide_under_autocast(const Run& run) {
  return run.plan.precision.autocast ? "under kernels.autocast parameters and gradients are fp32"
                                     : nullptr;
}

const char* narrow_under_autocast(const Run& run, const char* pointer) {
  return asks(run, pointer, Json("compute")) ? wide_under_autocast(run) : nullptr;
}
const char* gradients_dtype(const Run& run) {
  return narrow_under_autocast(run, "/gradients/dtype");
}
const char* precision_gradients(const Run& run) {
  return narrow_under_autocast(run, "/precision/gradients");
}

const char* if_no_capacity(const Run& run) {
  return run.plan.experts.routing == Routing::kCapacity ? nullptr : "moe.routing is not capacity";
}

struct IdleKey {
  const char* pointer;
  Why why;
};

constexpr IdleKey kIdleKeys[] = {
    {"/moe/gate", if_no_capacity},
    {"/moe/min_capacity", if_no_capacity},
    {"/sharding/unit_layers", if_not_by_units},
    {"/allocator/record_stream", record_stream},
    {"/allocator/context_gib", context_gib},
    {"/sharding/reshard_after_forward", if_not_parameters},
    {"/sharding/reshard_last_unit", if_not_parameters},
    {"/sharding/reshard_in_pipeline", reshard_in_pipeline},
    {"/sharding/persist_elements", if_not_parameters},
    {"/sharding/reuse_elements", reuse_elements},
    {"/sharding/forward_prefetch", prefetch},
    {"/sharding/backward_prefetch", prefetch},
    {"/sharding/live_elements", live_elements},
    {"/sharding/gathers_in_flight", if_not_parameters},
    {"/sharding/copy_out", copy_out},
    {"/sharding/shard_dtype", if_not_parameters},
    {"/gradients/reduce", if_not_by_units},
    {"/gradients/blocking", blocking},
    {"/overlap/gradient_reduce", gradient_reduce},
    {"/kernels/fusion", fusion},
    {"/kernels/image_layout", image_layout},
    {"/kernels/attention_products", attention_products},
    {"/gradients/accumulation", accumulation},
    {"/gradients/average", average},
    {"/gradients/check_nan", check_nan},
    {"/gradients/reduce_dtype", reduce_dtype},
    {"/gradients/reduction", reduction},
    {"/gradients/bucketing", bucketing},
    {"/gradients/flat_update", flat_update},
    {"/gradients/unscale", unscale},
    {"/kernels/weights_copy", weights_copy},
    {"/gradients/bucket_elements", bucket_elements},
    {"/gradients/bucket_elements_per_rank", bucket_elements},
    {"/gradients/bucket_mib", bucket_mib},
    {"/gradients/first_bucket_mib", bucket_mib},
    {"/gradients/compression", compression},
    {"/gradients/compression_rank", compression_rank},
    {"/offload/activations", activations},
    {"/offload/page_mib", page_mib},
    {"/offload/pageable", pageable},
    {"/overlap/expert", overlap_expert},
    {"/overlap/head_deferral", if_no_pipeline},
    {"/overlap/parameter_gather", parameter_gather},
    {"/overlap/pipeline", if_no_pipeline},
    {"/overlap/post_validation", post_validation},
    {"/overlap/tensor", if_no_rings},
    {"/overlap/tensor_backward", if_no_tensor},
    {"/overlap/tensor_copy_engines", copy_engines},
    {"/overlap/tensor_streams", if_not_in_parts},
    {"/parallel/keep_outputs", if_no_pipeline},
    {"/parallel/pipeline_partition", if_no_pipeline},
    {"/parallel/scatter_gather", scatter_gather},
    {"/cluster/device/clock_mhz", clock_mhz},
    {"/cluster/network/fabric", if_no_network},
    {"/cluster/network/latency_us", if_no_network},
    {"/cluster/network/nic_gbit_per_s", if_no_network},
    {"/cluster/network/nics_per_node", if_no_network},
    {"/cluster/network/nodes_per_leaf", if_no_network},
    {"/cluster/network/oversubscription", oversubscription},
    {"/cluster/network/sharp", sharp},
    {"/cluster/network/topology", topology},
    {"/parallel/sequence", if_no_tensor},
    {"/batch/documents", documents},
    {"/sharding/gather_dtype", gather_dtype},
    {"/sharding/chunk_elements", if_not_parameters},
    {"/sharding/gather_elements", gather_elements},
    {"/host/scatter_us", scatter_us},
    {"/host/synchronize", synchronize},
    {"/host/update_us", update_us},
    {"/kernels/amax_reduction", amax_reduction},
    {"/kernels/autocast", autocast},
    {"/kernels/fp8_weights", fp8_weights},
    {"/kernels/fp8_copies", fp8_copies},
    {"/gradients/dtype", gradients_dtype},
    {"/precision/gradients", precision_gradients},
    {"/precision/master_weights", wide_under_autocast},
    {"/recompute/early", if_no_pipeline},
    {"/kernels/early_stop", early_stop},
    {"/kernels/grouped_gemm", if_no_experts},
};

std::int64_t most_layers_of_a_stage(const Plan& p) {
  std::vector<std::int64_t> layers(static_cast<std::size_t>(p.pipeline));
  for (std::int64_t chunk = 0; chunk < p.chunks(); ++chunk) {
    for (std::int64_t way = 0; way < p.ways(); ++way) {
      layers[static_cast<std::size_t>(p.stage_of(chunk, way))] +=
          p.pipeline_layout[static_cast<std::size_t>(chunk)];
    }
  }
  return *std::max_element(layers.begin(), layers.end());
}

/// Of the value, or of the object that brought it.
std::string origin_of(const Run& run, const std::string& pointer) {
  auto found = run.origins.find(pointer);
  if (found == run.origins.end()) found = run.origins.find(pointer.substr(0, pointer.rfind('/')));
  return found == run.origins.end() ? "" : found->second;
}

bool asks_for_nothing(const Json& value) {
  return value == Json(false) || value == Json("none") || value == Json(std::int64_t{0});
}

/// What asks for nothing is named where the system would do something.
bool set_by_user(const Run& run, const std::string& pointer) {
  const Json* value = value_at(run.resolved, pointer);
  const std::string origin = origin_of(run, pointer);
  if (value == nullptr || value->is_null() || !is_users(origin)) return false;
  const Json* usual = value_at(run.usual, pointer);
  return !asks_for_nothing(*value) || (usual != nullptr && !(*usual == *value));
}

}  // namespace

std::vector<std::string> idle_keys(const Run& run) {
  std::vector<std::string> out;
  for (const auto& [pointer, why] : kIdleKeys) {
    const char* reason = why(run);
    if (reason == nullptr || !set_by_user(run, pointer)) continue;
    out.push_back(std::string(pointer) + " has no effect: " + reason);
  }
  const char* pointer = "/offload/activation_layers";
  const std::int64_t layers = most_layers_of_a_stage(run.plan);
  if (run.plan.offload.activation_layers > layers && set_by_user(run, pointer)) {
    out.push_back(std::string(pointer) + " has no effect beyond the " + std::to_string(layers) +
                  " layers of a stage");
  }
  return out;
}

}  // namespace foretrain
