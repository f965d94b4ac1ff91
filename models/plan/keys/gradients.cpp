#include "models/plan/keys/keys.h"

namespace foretrain {
namespace {

const Sets& whole_parameters() {
  static const Sets sets = {"sharding.level=none", "parallel.pipeline=1", "parallel.tensor=1",
                            "gradients.bucketing=parameters", "gradients.bucket_mib=5"};
  return sets;
}

/// Its gradients have 16 bits without a pipeline.
const Sets& of_deepspeed() {
  static const Sets sets = {"system=deepspeed", "sharding.level=none", "parallel.pipeline=1",
                            "parallel.tensor=1"};
  return sets;
}

const Sets kContiguous = {"gradients.bucketing=contiguous", "gradients.bucket_elements=10000000"};
const Sets kOneHolder = {"sharding.level=parameters", "parallel.pipeline=1", "parallel.tensor=4",
                         "cluster.accelerators=4"};

PlanKey time_key_of_cycle() {
  return PlanKey::number("gradients.cycle_us",
                         [](Request& r, double v) { r.plan.buckets.cycle = Time::from_us(v); })
      .range(0, 1e6)
      .fallback_to(0)
      .says("The period of a coordinator that lists which gradients are ready (Horovod); 0: none.")
      .probe("1000", whole_parameters());
}

/// Where gradients travel in buckets of ranges, while the backward pass runs.
PlanKey idle_without_ranges(PlanKey key) {
  return std::move(key)
      .idle(if_gathered_by_units(GatheredBy::kLevels))
      .idle(if_gathered_by_units(GatheredBy::kSecondary))
      .idle(if_gathered_by_units(GatheredBy::kInt4))
      .idle(if_gathered_by_units(GatheredBy::kNarrow))
      .idle_if(
          [](const KeyContext& c) {
            return c.plan.shards_parameters() && !c.plan.shards_by_parameter();
          },
          "sharding.gather_elements is 0", kSharded)
      .idle_if(
          [](const KeyContext& c) { return c.plan.by_units() && !c.plan.shards_by_parameter(); },
          "sharding.level is neither none nor optimizer", kShardedGradients)
      .idle_if(
          [](const KeyContext& c) {
            return !c.plan.shards_by_parameter() && !c.plan.contiguous() &&
                   c.plan.buckets.cut != Bucketing::kRanges;
          },
          "gradients.bucketing is not ranges",
          {"sharding.level=none", "gradients.bucketing=ready", "gradients.bucket_mib=5"})
      .idle_if(
          [](const KeyContext& c) {
            return !c.plan.shards_by_parameter() && !c.plan.contiguous() &&
                   !c.plan.overlap.gradient_reduce;
          },
          "overlap.gradient_reduce is false", {"overlap.gradient_reduce=false"});
}

PlanKey idle_without_whole(PlanKey key) {
  return std::move(key)
      .idle_if([](const KeyContext& c) { return c.plan.contiguous(); },
               "gradients.bucketing is contiguous", kContiguous)
      .idle_if([](const KeyContext& c) { return c.plan.buckets.cut == Bucketing::kRanges; },
               "gradients.bucketing is ranges");
}

bool asks_for_contiguous(const KeyContext& c) {
  return !c.plan.contiguous() && c.asks("gradients", "bucketing", Json("contiguous"));
}

bool reduces_units_alone(const KeyContext& c) {
  const Plan& p = c.plan;
  // Parts of a layer, and predictions of later tokens, add to the same gradient within one pass.
  const bool within = p.recompute.parts > 1 || c.model.predict_layers > 0;
  return p.writes_fresh() && !p.sums_after_pass && !within;
}

bool host_unscales(const KeyContext& c) {
  return c.plan.offload.device_share >= 0 && c.plan.updates_on_host();
}

bool gradients_are_narrow(const KeyContext& c) {
  const Precision& p = c.plan.precision;
  return !c.plan.by_units() && bits_of(p.gradients) <= bits_of(p.compute);
}

/// What gradients are stored in, added up in and reduced in.
PlanKeys gradient_type_keys() {
  using Stored = GradientKeys::Stored;
  using Unscale = GradientKeys::Unscale;
  return {
      PlanKey::choice<Stored>("gradients.dtype", {"fp32", "compute", "fp32-in-pipelines"},
                              [](Request& r, Stored v) { r.gradients.stored = v; })
          .fallback_to("fp32")
          .says("The type of gradients; fp32-in-pipelines: fp32 where the passes of a pipeline "
                "add bf16 gradients up, else the compute type.")
          .probe("compute")
          .probe("fp32-in-pipelines", {"parallel.pipeline=1"})
          .idle_if(
              [](const KeyContext& c) {
                return c.plan.precision.autocast && c.asks("gradients", "dtype", Json("compute"));
              },
              "under kernels.autocast parameters and gradients are fp32",
              {"parallel.tensor=1", "kernels.autocast=true"}),
      PlanKey::choice<int>("gradients.accumulation", {"fused", "separate", "after-pass"},
                           [](Request& r, int v) {
                             r.plan.fused_accumulation = v != 1;
                             r.plan.sums_after_pass = v == 2;
                           })
          .fallback_to("fused")
          .says("Where gradients of microbatches are added up: in the GEMMs, in kernels of their "
                "own, or, written in the compute type, when a backward pass has ended.")
          .probe("separate")
          .probe("after-pass")
          .idle_if(reduces_units_alone,
                   "the gradients of every microbatch are reduced on their own", kSharded)
          .idle_if(reduces_units_alone,
                   "the gradients of every microbatch are reduced on their own",
                   with(kShardedGradients, {"gradients.bucketing=contiguous"}), "fused"),
      PlanKey::flag("gradients.flat_update", [](Request& r, bool v) { r.plan.flat_update = v; })
          .fallback_to(false)
          .says("A rank's 16-bit gradients are copied together and widened before the update.")
          .probe("true", {"gradients.dtype=compute"})
          .idle(if_by_units(with(kShardedGradients, {"gradients.dtype=compute"})))
          .idle(if_host_updates({"offload.optimizer=cpu", "gradients.dtype=compute"}))
          .idle_if([](const KeyContext& c) { return c.plan.precision.gradients == DType::kFp32; },
                   "gradients are fp32"),
      PlanKey::choice<Unscale>("gradients.unscale", {"apart", "with-clipping", "none"},
                               [](Request& r, Unscale v) { r.gradients.unscale = v; })
          .fallback_to("apart")
          .says("How fp16's loss scale leaves the gradients: in a pass of its own, which the host "
                "waits for; with the clipping, if there is one; not at all.")
          .probe("with-clipping", {"precision=fp16"})
          .probe("none",
                 {"precision=fp16", "gradients.unscale=with-clipping", "gradients.clip_norm=0"})
          .probe("none", {"precision=fp16", "kernels.autocast=true", "parallel.tensor=1",
                          "parallel.pipeline=1"})
          .idle_if([](const KeyContext& c) { return c.plan.precision.branch() != DType::kFp16; },
                   "losses are scaled in fp16 alone")
          .idle_if(host_unscales, "the host takes the scale out as it updates",
                   with(kShardedGradients, {"precision=fp16", "offload.optimizer=cpu"}), "none"),
      PlanKey::flag("gradients.blocking", [](Request& r, bool v) { r.plan.units.reduce_waits = v; })
          .fallback_to(false)
          .says("Compute waits until a unit's gradients are reduced.")
          .probe("true", kSharded)
          .idle(if_contiguous_passes())
          .idle(if_not_by_units())
          .idle_if([](const KeyContext& c) { return c.plan.data == 1; },
                   "one rank holds all gradients", kOneHolder),
      PlanKey::choice<GradientReduction>("gradients.reduction",
                                         {"reduce-scatter", "all-reduce", "reduce"},
                                         [](Request& r, auto v) { r.plan.reduction = v; })
          .fallback_to("reduce-scatter")
          .says("How gradients travel where the optimizer is sharded; reduce: to the rank that "
                "updates them, which broadcasts the parameters.")
          .probe("all-reduce")
          .probe("reduce")
          .idle_if(
              [](const KeyContext& c) {
                return !c.plan.contiguous() && !c.plan.reduces_to_owner() &&
                       c.plan.sharding != Sharding::kOptimizer;
              },
              "sharding.level is not optimizer", {"sharding.level=none"}),
      PlanKey::choice<int>("gradients.reduce", {"every-microbatch", "last-microbatch"},
                           [](Request& r, int v) { r.plan.units.reduce_each = v == 0; })
          .fallback_to("every-microbatch")
          .says("When the gradients of units are reduced.")
          .probe("last-microbatch", kSharded)
          .idle(if_contiguous_passes("every-microbatch"))
          .idle(if_not_by_units()),
      PlanKey::choice<int>("gradients.reduce_dtype", {"fp32", "compute", "int4"},
                           [](Request& r, int v) {
                             r.gradients.reduced_as_compute = v >= 1;
                             r.plan.units.quantized_reduction = v == 2;
                           })
          .fallback_to("fp32")
          .value("bf16", "compute")
          .value("fp16", "compute")
          .value("float32", "fp32")
          .says("The type in which gradients are reduced; int4: those of units are exchanged in 4 "
                "bits (ZeRO++).")
          .probe("compute", kSharded)
          .probe("int4", kSharded)
          .idle_if(gradients_are_narrow, "gradients are of the type that computes",
                   {"gradients.dtype=compute"}),
  };
}

/// How gradients are cut into buckets.
PlanKeys bucket_keys() {
  return {
      idle_without_ranges(PlanKey::count("gradients.bucket_elements",
                                         [](Request& r, auto v) { r.plan.bucket_elements = v; })
                              .range(0, kMostElements)
                              .fallback_to(0)
                              .says("Parameters of a bucket; 0: one bucket.")
                              .alias({"reduce_bucket_size"})
                              .probe("10000000")),
      idle_without_ranges(
          PlanKey::count("gradients.bucket_elements_per_rank",
                         [](Request& r, auto v) { r.gradients.bucket_elements_per_rank = v; })
              .range(0, kMostCount)
              .fallback_to(0)
              .says("The same for each data-parallel rank; the larger of both counts.")
              .probe("100000000", {"gradients.bucket_elements=1000000"})),
      PlanKey::choice<Bucketing>("gradients.bucketing",
                                 {"ranges", "parameters", "ready", "contiguous"},
                                 [](Request& r, auto v) { r.plan.buckets.cut = v; })
          .fallback_to("ranges")
          .says("What a bucket holds: a range of elements, whole parameters (DDP), those that one "
                "layer makes ready (Horovod), or copies in one buffer.")
          .probe("ready", whole_parameters())
          .probe("contiguous", {"gradients.bucket_elements=10000000"})
          .idle_if(asks_for_contiguous,
                   "contiguous buckets are of decoders without experts whose optimizer is sharded "
                   "over more than one rank, each microbatch's gradients only without a pipeline "
                   "(docs/plans.md)",
                   {"sharding.level=none"}, "contiguous"),
      idle_without_whole(PlanKey::number("gradients.bucket_mib",
                                         [](Request& r, double v) {
                                           r.plan.buckets.bytes = static_cast<Bytes>(v * 1048576);
                                         })
                             .range(0, 1e9)
                             .fallback_to(0)
                             .says("Size of a bucket of whole parameters.")
                             .alias({"bucket_cap_mb"})
                             .probe("20", whole_parameters())),
      idle_without_whole(PlanKey::number("gradients.first_bucket_mib",
                                         [](Request& r, double v) {
                                           r.plan.buckets.first_bytes =
                                               static_cast<Bytes>(v * 1048576);
                                         })
                             .range(0, 1e9)
                             .fallback_to(0)
                             .says("Size of the first of them; 0: as the others.")
                             .probe("90", whole_parameters())),
      PlanKey::flag("gradients.bucket_copy", [](Request& r, bool v) { r.plan.buckets.copy = v; })
          .fallback_to(false)
          .says("Gradients are copied into buckets and back, where nothing is sharded.")
          .probe("true", whole_parameters()),
      PlanKey::flag("gradients.no_sync",
                    [](Request& r, bool v) { r.plan.buckets.last_pass_only = v; })
          .fallback_to(true)
          .says("Only the last microbatch's backward pass reduces gradients.")
          .probe("false", {"sharding.level=none", "parallel.pipeline=1", "parallel.tensor=1",
                           "batch.global=64"}),
      PlanKey::count("gradients.inner_group",
                     [](Request& r, auto v) { r.plan.buckets.inner_group = v; })
          .range(1, 1 << 20)
          .fallback_to(1)
          .says("Ranks of the first level of an all-reduce in two levels, or of int4's exchange.")
          .probe("2", whole_parameters())
          .probe("2", with(kSharded, {"gradients.reduce_dtype=int4"})),
      PlanKey::choice<Compression>("gradients.compression",
                                   {"none", "fp16", "bf16", "powersgd", "onebit"},
                                   [](Request& r, auto v) { r.plan.buckets.compression = v; })
          .fallback_to("none")
          .says("What travels in place of gradients that nobody shards.")
          .probe("fp16", whole_parameters())
          .probe("onebit", whole_parameters())
          .probe("onebit", of_deepspeed())
          .probe("powersgd",
                 with(of_deepspeed(), {"gradients.bucketing=parameters", "gradients.bucket_mib=5",
                                       "gradients.compression_rank=4"}))
          .idle_if(
              [](const KeyContext& c) { return c.plan.buckets.compression == Compression::kNone; },
              "gradients are of that type", {"gradients.dtype=compute"}, "bf16"),
      PlanKey::count("gradients.compression_rank",
                     [](Request& r, auto v) { r.plan.buckets.rank = v; })
          .range(0, 4096)
          .fallback_to(0)
          .says("Rank of the factors that powersgd sends.")
          .probe("8", {"sharding.level=none", "parallel.pipeline=1", "parallel.tensor=1",
                       "gradients.bucketing=parameters", "gradients.bucket_mib=5",
                       "gradients.compression=powersgd", "gradients.compression_rank=4"})
          .idle_if(
              [](const KeyContext& c) {
                return c.plan.buckets.compression != Compression::kPowerSgd;
              },
              "gradients.compression is not powersgd", {"sharding.level=none"}),
      time_key_of_cycle(),
      PlanKey::choice<int>("gradients.average", {"loss", "before"},
                           [](Request& r, int v) { r.plan.buckets.averages = v == 1; })
          .fallback_to("loss")
          .says("Who divides gradients by the ranks: the loss, or a kernel before the reduction.")
          .probe("before")
          .idle_if(
              [](const KeyContext& c) {
                return c.plan.data == 1 && c.asks("gradients", "average", Json("before"));
              },
              "one rank holds all gradients",
              {"parallel.pipeline=1", "parallel.tensor=4", "cluster.accelerators=4"})
          .idle_if(
              [](const KeyContext& c) {
                return c.plan.units.quantized_reduction &&
                       c.asks("gradients", "average", Json("before"));
              },
              "gradients.reduce_dtype is int4", with(kSharded, {"gradients.reduce_dtype=int4"})),
      PlanKey::flag("gradients.check_nan", [](Request& r, bool v) { r.plan.buckets.checks = v; })
          .fallback_to(false)
          .says("The host looks at the norm of every bucket before its reduction.")
          .probe("true")
          .idle(if_by_units())
          .idle_if([](const KeyContext& c) { return c.plan.contiguous(); },
                   "gradients.bucketing is contiguous", kContiguous),
      PlanKey::number("gradients.clip_norm", [](Request& r, double v) { r.plan.clip_norm = v; })
          .range(0, 1e9)
          .fallback_to(1.0)
          .says("The norm to which gradients are clipped; 0: they are not.")
          .probe("0"),
  };
}

}  // namespace

PlanKeys gradients_keys() {
  PlanKeys out = gradient_type_keys();
  for (PlanKey& key : bucket_keys()) out.push_back(std::move(key));
  return out;
}

}  // namespace foretrain
