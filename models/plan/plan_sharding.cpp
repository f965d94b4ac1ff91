#include "models/plan/plan_sharding.h"

#include <algorithm>
#include <array>
#include <tuple>

#include "models/plan/plan_reading.h"

namespace foretrain {
namespace {

/// The parameters of a mean rank that the rank reduces with others: experts have groups of their
/// own.
std::int64_t reduced_elements(const Model& model, const Plan& p) {
  std::int64_t experts = 0;
  for (const LayersOfKind& of : model.kinds(false)) {
    for (const Parameter& one : layer_parameters(model, of.kind)) {
      if (one.expert) experts += of.layers * one.count();
    }
  }
  const std::int64_t others = (parameter_count(model) - experts) / (p.tensor * p.pipeline);
  const std::int64_t own = experts / (p.experts.expert * p.experts.tensor * p.pipeline);
  return (p.data > 1 ? others : 0) + (p.expert_data() > 1 ? own : 0);
}

/// Most buckets and chunks of a rank. Each is an op; each bucket has frames of its own, and the
/// frames of one call are 16-bit numbers.
constexpr std::int64_t kMostBuckets = 12'288;
constexpr std::int64_t kMostChunks = 65'536;

/// Whether gradients lie in equal ranges that are reduced bucket by bucket.
bool in_ranges(const Plan& p) {
  return !p.by_units() && p.buckets.cut == Bucketing::kRanges && p.overlap.gradient_reduce;
}

/// Whether no device holds the weights and gradients of a rank, whatever the rest. The largest
/// devices hold 288 GB (configs/devices); the bound leaves room for others.
bool fits_no_device(std::int64_t elements, const Plan& p) {
  constexpr double kMostBytes = 480e9;
  const int bits = bits_of(p.precision.compute) + bits_of(p.precision.gradients);
  return static_cast<double>(elements) * bits / 8 > kMostBytes;
}

void check_group(const Model&, const Plan& p, Violations& out) {
  if (p.shard_group == 0) return;
  if (p.sharding == Sharding::kNone) {
    return out.add("sharding/group_size", "sharding.level is none: nothing is shared");
  }
  if (p.data % p.shard_group != 0) {
    out.add("sharding/group_size",
            text(p.shard_group) + " does not divide " + text(p.data) + " data-parallel ranks");
  }
  if (p.by_units() && p.shard_group == 1 && p.data > 1) {
    out.add("sharding/group_size",
            "a group of one rank shares nothing: set sharding.level to none");
  }
}

/// What of parameters and gradients travels in fewer bits, and a second copy of the parameters.
void check_quantized(const Model& model, const Plan& p, Violations& out) {
  const Units& u = p.units;
  const char* place = u.quantized_gathers ? "sharding/gather_dtype"
                      : u.secondary > 0   ? "sharding/secondary_group"
                                          : "gradients/reduce_dtype";
  const bool gathers = u.quantized_gathers || u.secondary > 0;
  if (!gathers && !u.quantized_reduction) return;
  if (gathers && p.sharding != Sharding::kParameters) {
    out.add(place, "needs sharding.level parameters");
  } else if (!p.by_units()) {
    out.add(place, "int4 needs sharding.level gradients or parameters");
  }
  if (u.quantized_reduction && p.reduces_to_owner()) {
    out.unsupported("gradients/reduction",
                    "reduce is not modelled with gradients.reduce_dtype int4");
  }
  if (model.has_experts() || p.offload.states()) {
    out.unsupported(place, "is not modelled with experts, nor with offloaded states");
  }
  const Precision& c = p.precision;
  if (u.casts_shards && (c.linear != DType::kFp8 || c.blocks)) {
    out.add(place,
            "fp8 needs precision fp8, with kernels.fp8_recipe delayed, current or "
            "tensorwise: one scale for a matrix");
  }
  if (u.casts_shards && u.secondary > 0) {
    out.unsupported(place, "fp8 does not go with secondary_group");
  }
  if (u.secondary > 0 && (u.secondary == 1 || p.shards() % u.secondary != 0)) {
    out.add("sharding/secondary_group", "found " + text(u.secondary) +
                                            ", expected more than one rank, and a divisor of "
                                            "the " +
                                            text(p.shards()) + " that share the parameters");
  }
  if (u.quantized_reduction && p.replicas() > 1) {
    out.unsupported("gradients/reduce_dtype",
                    "int4 is not modelled with sharding.group_size: its exchanges run over all "
                    "data-parallel ranks, in two levels with gradients.inner_group");
  }
}

/// Gathers in two levels.
void check_levels(const Model& model, const Plan& p, Violations& out) {
  const Units& u = p.units;
  const char* place = "sharding/inner_group";
  if (u.inner_group == 1) return;
  if (p.sharding != Sharding::kParameters) {
    return out.add(place, "needs sharding.level parameters");
  }
  if (u.inner_group >= p.shards() || p.shards() % u.inner_group != 0) {
    out.add(place, "found " + text(u.inner_group) + ", expected a divisor of the " +
                       text(p.shards()) + " ranks that share the parameters, less than all");
  }
  if (model.has_experts() || u.quantized_gathers || u.secondary > 0) {
    out.unsupported(place,
                    "is not modelled with experts, gather_dtype int8 or fp8, secondary_group");
  }
}

/// What of `gradients` goes with a sharded optimizer; all else is at its default.
GradientBuckets of_shards(const Plan& p) {
  GradientBuckets out;
  out.bytes = p.buckets.bytes;
  out.first_bytes = p.buckets.first_bytes;
  if (p.units.quantized_reduction) out.inner_group = p.buckets.inner_group;
  if (p.contiguous()) out.cut = p.buckets.cut;
  return out;
}

/// Every key whose value goes with nothing that is sharded.
void check_beside_shards(const GradientBuckets& b, const GradientBuckets& of, Violations& out) {
  const std::array<std::tuple<bool, const char*, const char*>, 7> keys = {{
      {b.cut != of.cut, "gradients/bucketing",
       "ranges, or contiguous below sharding.level parameters"},
      {b.copy != of.copy, "gradients/bucket_copy", "false"},
      {b.last_pass_only != of.last_pass_only, "gradients/no_sync", "true"},
      {b.inner_group != of.inner_group, "gradients/inner_group", "1, but with reduce_dtype int4"},
      {b.compression != of.compression, "gradients/compression", "none"},
      {b.rank != of.rank, "gradients/compression_rank", "0"},
      {b.cycle != of.cycle, "gradients/cycle_us", "0"},
  }};
  for (const auto& [differs, place, expected] : keys) {
    if (!differs) continue;
    out.unsupported(place,
                    std::string("does not go with a sharded optimizer: set sharding.level to "
                                "none, or this to ") +
                        expected);
  }
}

/// Buckets of whole parameters, copies and compression are ways of plain data parallelism.
void check_kinds(const Model& model, const Plan& p, Violations& out) {
  const GradientBuckets& b = p.buckets;
  if (p.data % b.inner_group != 0) {
    out.add("gradients/inner_group",
            text(b.inner_group) + " does not divide " + text(p.data) + " data-parallel ranks");
  }
  if (p.sharding != Sharding::kNone) {
    return check_beside_shards(b, of_shards(p), out);
  }
  if (b.cut != Bucketing::kRanges && b.bytes == 0) {
    out.add("gradients/bucket_mib", "buckets of whole parameters need a size above 0");
  }
  const bool factors = b.compression == Compression::kPowerSgd;
  if (factors && (b.rank == 0 || b.cut == Bucketing::kRanges)) {
    out.add("gradients/compression_rank",
            "powersgd needs a rank above 0, and bucketing by whole parameters");
  }
  if ((factors || b.compression == Compression::kOneBit) && b.inner_group > 1) {
    out.unsupported("gradients/inner_group", "goes with compression none, fp16 and bf16");
  }
  const bool casts = b.compression == Compression::kFp16 || b.compression == Compression::kBf16;
  if (casts && p.precision.gradients != DType::kFp32) {
    out.unsupported("gradients/compression", "found a cast of " +
                                                 std::string(name_of(p.precision.gradients)) +
                                                 " gradients to another 16-bit type; expected "
                                                 "none, powersgd, onebit or gradients in fp32");
  }
  if (model.has_experts() && (factors || b.inner_group > 1)) {
    out.unsupported("gradients", "inner_group and powersgd are modelled without experts");
  }
  constexpr std::int64_t kMostPasses = 4096;
  if (!b.last_pass_only && p.microbatches() > kMostPasses) {
    out.add("gradients/no_sync", "a reduction in each of " + text(p.microbatches()) +
                                     " microbatches; expected at most " + text(kMostPasses));
  }
  if (!b.last_pass_only && (p.pipeline > 1 || p.tensor > 1 || model.has_experts())) {
    out.unsupported("gradients/no_sync",
                    "a reduction in every microbatch is modelled for "
                    "pipeline 1 and tensor 1, without experts");
  }
}

/// Buckets are ops; more of them than this describe no real run and would only fill memory.
void check_buckets(const Model& model, const Plan& p, Violations& out) {
  if (p.bucket_elements == 0 || !in_ranges(p)) return;
  const std::int64_t elements = reduced_elements(model, p);
  if (elements / p.bucket_elements <= kMostBuckets) return;
  out.add("gradients/bucket_elements", text(elements) + " parameters of a rank in buckets of " +
                                           text(p.bucket_elements) + " make more than " +
                                           text(kMostBuckets) + " buckets; expected at least " +
                                           text(elements / kMostBuckets + 1));
}

}  // namespace

/// No two layers multiply with the same weights.
static bool has_own_weights(const Model& model) {
  return !model.hybrid.one_layer && model.hybrid.shared.blocks == 0;
}

bool can_sum_after_pass(const Model& model, const Plan& p) {
  const bool plain =
      !p.in_grid() && !model.has_experts() && !model.is_encoder_decoder() && !model.is_network();
  const bool one_place = p.placement() == ChunkPlacement::kRound && !p.shares_vocabulary();
  // Slices of a microbatch add their gradients up.
  const bool in_turn = !p.splits_backward() && p.overlap.tensor_slices == 1;
  return plain && one_place && in_turn && has_own_weights(model) && !p.by_units() &&
         !p.reduces_each_pass();
}

void derive_accumulation(const Model& model, const GradientKeys& keys, Plan& plan) {
  const bool wider = plan.precision.gradients != plan.precision.compute;
  const bool within = plan.recompute.parts > 1 || plan.overlap.tensor_slices > 1;
  const bool only =
      plan.microbatches() == 1 && !within && has_own_weights(model) && model.predict_layers == 0;
  plan.adds_nothing = only && !wider && !plan.fused_accumulation;
  plan.fused_accumulation |= plan.adds_nothing;
  const bool in_pipelines = keys.stored == GradientKeys::Stored::kFp32InPipelines;
  if (!in_pipelines || !wider || !can_sum_after_pass(model, plan)) return;
  plan.sums_after_pass = true;
  if (plan.contiguous()) plan.buckets.cut = Bucketing::kRanges;
}

bool can_copy_into_buckets(const Model& model, const Plan& p) {
  const bool plain = !p.in_grid() && !model.has_experts() && !model.is_encoder_decoder() &&
                     !model.is_network() && model.ends.masked == 0 && model.predict_layers == 0 &&
                     has_own_weights(model);
  const bool own_passes = p.splits_backward() || p.shares_vocabulary() || p.sums_after_pass ||
                          p.overlap.tensor_slices > 1 || p.forwards > 1;
  const bool one_place = p.placement() == ChunkPlacement::kRound;
  const bool shared = p.data > 1 && p.bucket_elements > 0 && p.shard_group == 0;
  const bool level =
      p.sharding == Sharding::kOptimizer ||
      (p.sharding == Sharding::kGradients && p.chunks() == 1 && p.schedule != Schedule::kFile &&
       p.units.reduce_each && !p.units.quantized_reduction);
  // What stays on the device, and what fills pages, are whole units.
  const bool units = p.offload.states() && (p.offload.device_share != 0 || p.offload.page > 0);
  return plain && one_place && !own_passes && shared && level && !units;
}

void widen_buckets(const Model& model, Plan& plan) {
  if (!in_ranges(plan) || plan.bucket_elements == 0) return;
  const std::int64_t elements = reduced_elements(model, plan);
  if (!fits_no_device(elements, plan)) return;
  plan.bucket_elements = std::max(plan.bucket_elements, elements / kMostBuckets + 1);
}

bool has_widened_buckets(const Model& model, const Plan& plan) {
  if (!in_ranges(plan)) return false;
  const std::int64_t elements = reduced_elements(model, plan);
  return fits_no_device(elements, plan) && plan.bucket_elements == elements / kMostBuckets + 1;
}

void derive_buckets(const Model& model, Plan& plan) {
  if (!plan.contiguous() || can_copy_into_buckets(model, plan)) return;
  plan.buckets.cut = Bucketing::kRanges;
}

void derive_compression(Plan& plan) {
  Compression& c = plan.buckets.compression;
  const DType type = plan.precision.gradients;
  const bool same = (c == Compression::kFp16 && type == DType::kFp16) ||
                    (c == Compression::kBf16 && type == DType::kBf16);
  if (same) c = Compression::kNone;
}

/// Each in the compute type, in one level, with nothing else kept of it.
bool Plan::shards_by_parameter() const {
  return shards_parameters() && units.gather_elements > 0 && !units.quantized_gathers &&
         !units.casts_shards && units.secondary == 0 && units.inner_group == 1 &&
         !units.quantized_reduction;
}

void derive_chunks(const Model& model, Plan& plan) {
  Units& u = plan.units;
  if (u.chunk_elements == 0 || !plan.shards_parameters() || model.layers == 0) return;
  // Of a rank; experts are units of their own with as many layers.
  std::int64_t layer = 1;
  for (const LayersOfKind& of : model.kinds(false)) {
    std::int64_t others = 0;
    std::int64_t experts = 0;
    for (const Parameter& one : layer_parameters(model, of.kind)) {
      (one.expert ? experts : others) += one.count();
    }
    layer = std::max(
        {layer, others / plan.tensor, experts / (plan.experts.expert * plan.experts.tensor)});
  }
  u.layers = std::max(u.layers, std::min(model.layers, u.chunk_elements / layer));
}

namespace {

/// Chunks are whole arrays of the compute type, in one level, of which nothing else is kept.
void check_unit_chunks(const Model& model, const Plan& p, Violations& out) {
  const Units& u = p.units;
  if (u.chunk_elements == 0 || !p.shards_parameters()) return;
  const bool tied = model.tied_embeddings && p.stage_of(0) != p.stage_of(p.chunks() - 1);
  constexpr const char* kKey = "sharding/chunk_elements";
  out.beside(
      "a unit in chunks",
      {{u.quantized_gathers || u.casts_shards, kKey, "sharding.gather_dtype other than compute"},
       {u.secondary > 0, kKey, "sharding.secondary_group"},
       {u.inner_group > 1, kKey, "sharding.inner_group"},
       {u.gather_elements > 0, kKey, "sharding.gather_elements (set it to 0)"},
       {u.quantized_reduction, kKey, "gradients.reduce_dtype int4"},
       {tied, kKey, "a table that is tied across pipeline stages"}});
  // Each is an op of the unit's segments.
  const std::int64_t elements = reduced_elements(model, p);
  if (elements / u.chunk_elements <= kMostChunks) return;
  out.add("sharding/chunk_elements", text(elements) + " parameters of a stage in chunks of " +
                                         text(u.chunk_elements) + " make more than " +
                                         text(kMostChunks) + "; expected at least " +
                                         text(elements / kMostChunks + 1));
}

/// Gradients that are added up after passes, tables that are tied, owners.
void check_reduction(const Model& model, const Plan& plan, Violations& out) {
  if (plan.sums_after_pass && plan.defers_head()) {
    out.unsupported("overlap/head_deferral",
                    "does not go with gradients that are added up after every pass: set "
                    "gradients.dtype to fp32 and gradients.accumulation to fused");
  }
  if (plan.sums_after_pass && !can_sum_after_pass(model, plan)) {
    out.unsupported(
        "gradients/accumulation",
        "after-pass is modelled for decoders without experts, with tensor_mode 1d, "
        "sharding.level none or optimizer, no_sync, without overlap.tensor_slices, and "
        "schedules whose backward passes are whole and whose chunks go round the stages");
  }
  constexpr std::int64_t kMostOwners = 1024;
  if (plan.reduces_to_owner() && plan.shards() > kMostOwners) {
    out.add("gradients/reduction", "reduce makes a reduction for each of " + text(plan.shards()) +
                                       " ranks that share the states; expected at most " +
                                       text(kMostOwners));
  }
  const bool tied = plan.by_units() && model.tied_embeddings;
  const bool on_one_stage = plan.stage_of(0) == plan.stage_of(plan.chunks() - 1);
  if (tied && (on_one_stage ? plan.splits_backward() : plan.updates_on_host())) {
    out.unsupported("sharding/level",
                    on_one_stage ? "a table that is tied on one stage is not modelled with sharded "
                                   "gradients and separate passes for those of weights"
                                 : "a table that is tied across pipeline stages is not modelled "
                                   "with sharded gradients that the host updates");
  }
}

}  // namespace

void check_sharding(const Model& model, const Plan& plan, Violations& out) {
  for (const auto check : {check_group, check_kinds, check_quantized, check_levels,
                           check_unit_chunks, check_reduction, check_buckets}) {
    check(model, plan, out);
  }
}

}  // namespace foretrain
