#include "models/plan/keys/keys.h"

namespace foretrain {
namespace {

/// A number of ranks; null is as if the key were not there.
PlanKey ranks_key(const std::string& path, PlanKey::Setter<std::int64_t> set) {
  const auto read = [set = std::move(set)](const PlanKey& key, JsonReader& reader, Request& out) {
    const Json* json = reader.take(key.name);
    if (json == nullptr) return;
    const auto* size = std::get_if<std::int64_t>(&json->value);
    if (size != nullptr && *size >= 1) return set(out, *size);
    reader.fail(key.name, "found " + describe(*json) + ", expected a number of ranks or null");
  };
  return PlanKey(path, KeyType::kCount, read).range(1, kNoLimit);
}

PlanKey elements_key(const std::string& path, PlanKey::Setter<std::int64_t> set) {
  return PlanKey::count(path, std::move(set)).range(0, kMostElements).fallback_to(0);
}

PlanKey::Idle if_live_elements() {
  PlanKey::Idle out;
  out.why = "sharding.live_elements is above 0";
  out.base = with(kSharded, {"sharding.live_elements=10000"});
  out.holds = [](const KeyContext& c) { return c.plan.units.live_elements > 0; };
  return out;
}

bool by_whole_units(const KeyContext& c) {
  return c.plan.shards_parameters() && !c.plan.shards_by_parameter() &&
         c.plan.units.gather_elements > 0;
}

enum class GatherType : std::uint8_t { kCompute, kInt8, kFp8 };

}  // namespace

PlanKey::Idle if_gathered_by_units(GatheredBy what, Sets base) {
  PlanKey::Idle out;
  const std::string of = "parameters are gathered by units with ";
  switch (what) {
    case GatheredBy::kLevels:
      out.why = of + "sharding.inner_group";
      out.base = with(std::move(base), {"sharding.inner_group=2"});
      out.holds = [](const KeyContext& c) {
        return by_whole_units(c) && c.plan.units.inner_group > 1;
      };
      break;
    case GatheredBy::kSecondary:
      out.why = of + "sharding.secondary_group";
      out.base = with(std::move(base), {"sharding.secondary_group=2"});
      out.holds = [](const KeyContext& c) {
        return by_whole_units(c) && c.plan.units.secondary > 0;
      };
      break;
    case GatheredBy::kInt4:
      out.why = of + "gradients.reduce_dtype int4";
      out.base = with(std::move(base), {"gradients.reduce_dtype=int4"});
      out.holds = [](const KeyContext& c) {
        return by_whole_units(c) && c.plan.units.quantized_reduction;
      };
      break;
    case GatheredBy::kNarrow:
      out.why = of + "sharding.gather_dtype int8 and fp8";
      out.base = with(std::move(base), {"sharding.gather_dtype=int8"});
      out.holds = by_whole_units;
      break;
  }
  return out;
}

PlanKeys sharding_keys() {
  const auto set_level = [](Request& r, int v) {
    r.plan.sharding = static_cast<Sharding>(v < 4 ? v : v - 3);
  };
  return {
      PlanKey::choice<int>(
          "sharding.level",
          {"none", "optimizer", "gradients", "parameters", "zero1", "zero2", "zero3"}, set_level)
          .fallback_to("none")
          .says("What the ranks of a group hold in parts: nothing, optimizer states (ZeRO-1), "
                "gradients too (ZeRO-2), parameters too (ZeRO-3, FSDP).")
          .alias({"fsdp"}, ": parameters")
          .alias({"sharding_strategy"},
                 ": parameters for FULL_SHARD, gradients for SHARD_GRAD_OP, none for NO_SHARD; "
                 "HYBRID_SHARD: sharding.group_size of a node")
          .alias({"stage", "zero_optimization", "zero_stage"}, ": zero1, zero2, zero3")
          .alias({"use_distributed_optimizer"}, ": optimizer")
          .value("fsdp", "parameters")
          .value("FULL_SHARD", "parameters")
          .value("full_shard", "parameters")
          .value("SHARD_GRAD_OP", "gradients")
          .value("NO_SHARD", "none")
          .value("ddp", "none")
          .probe("none")
          .probe("gradients", {"parallel.pipeline=1"})
          .probe("parameters", {"parallel.pipeline=1"}),
      ranks_key("sharding.group_size", [](Request& r, auto v) { r.plan.shard_group = v; })
          .fallback_to(nullptr)
          .else_("all data-parallel ranks")
          .says("Data-parallel ranks that share one copy of what is sharded (HSDP, MiCS).")
          .alias({"hybrid_shard"})
          .alias({"data_parallel_shard_degree"}, ": that times context")
          .probe("2", kSharded),
      PlanKey::count("sharding.unit_layers", [](Request& r, auto v) { r.plan.units.layers = v; })
          .fallback_to(1)
          .says("Layers of a unit, which is gathered and reduced as a whole.")
          .probe("3", kSharded)
          .idle(if_contiguous_passes())
          .idle(if_not_by_units()),
      PlanKey::flag("sharding.reshard_after_forward",
                    [](Request& r, bool v) { r.plan.units.reshard = v; })
          .fallback_to(true)
          .says("Parameters are let go after the forward pass.")
          .probe("false", kSharded)
          .idle(if_not_parameters())
          .idle(if_not_parameters(kShardedGradients)),
      PlanKey::flag("sharding.reshard_last_unit",
                    [](Request& r, bool v) { r.plan.units.reshard_last = v; })
          .fallback_to(true)
          .says("So are those of the last unit of a chunk.")
          .probe("false", kSharded)
          .idle(if_not_parameters(kShardedGradients)),
      PlanKey::flag("sharding.reshard_in_pipeline",
                    [](Request& r, bool v) { r.plan.units.reshard_in_pipeline = v; })
          .fallback_to(true)
          .says("Pipeline stages gather and reduce for every microbatch, else once a step.")
          .probe("false", {"sharding.level=parameters"})
          .idle(if_contiguous_passes())
          .idle(if_not_by_units())
          .idle(if_no_pipeline(kShardedGradients)),
      PlanKey::count("sharding.inner_group",
                     [](Request& r, auto v) { r.plan.units.inner_group = v; })
          .range(1, 1 << 20)
          .fallback_to(1)
          .says("Ranks of a node that gather parameters in a second stage; 1: all at once.")
          .probe("2", kSharded),
      elements_key("sharding.chunk_elements",
                   [](Request& r, auto v) { r.plan.units.chunk_elements = v; })
          .says("Units travel in equal chunks of at least so many elements (Gemini), smaller "
                "layers share a unit; 0: a unit at once.")
          .probe("2000000", kSharded)
          .idle(if_not_parameters(kShardedGradients)),
      elements_key("sharding.gather_elements",
                   [](Request& r, auto v) { r.plan.units.gather_elements = v; })
          .says("Every parameter is cut by itself; those that make up so many elements are "
                "gathered in one call (DeepSpeed); 0: a unit at once.")
          .alias({"stage3_prefetch_bucket_size"})
          .probe("10000", kSharded)
          .idle(if_not_parameters(kShardedGradients))
          .idle(if_gathered_by_units(GatheredBy::kLevels, kSharded))
          .idle(if_gathered_by_units(GatheredBy::kSecondary, kSharded))
          .idle(if_gathered_by_units(GatheredBy::kInt4, kSharded))
          .idle(if_gathered_by_units(GatheredBy::kNarrow, kSharded)),
      elements_key("sharding.persist_elements",
                   [](Request& r, auto v) { r.plan.units.persist_elements = v; })
          .says("Parameters of at most so many elements stay gathered; 0: none.")
          .alias({"stage3_param_persistence_threshold"})
          .probe("10000", kSharded)
          .idle(if_not_parameters())
          .idle(if_not_parameters(kShardedGradients)),
      elements_key("sharding.reuse_elements",
                   [](Request& r, auto v) { r.plan.units.reuse_elements = v; })
          .says("Parameters that the backward pass needs again after fewer others than this stay "
                "gathered, without a pipeline; 0: none.")
          .alias({"stage3_max_reuse_distance"})
          .probe("1000000000", kSharded)
          .idle(if_not_parameters())
          .idle(if_not_parameters(kShardedGradients))
          .idle_if([](const KeyContext& c) { return c.plan.pipeline > 1; },
                   "in a pipeline other microbatches run before the backward pass",
                   {"sharding.level=parameters", "model=llama-3-8b"})
          .idle_if([](const KeyContext& c) { return !c.plan.units.reshard; },
                   "sharding.reshard_after_forward is false",
                   with(kSharded, {"sharding.reshard_after_forward=false"})),
      PlanKey::flag("sharding.forward_prefetch",
                    [](Request& r, bool v) { r.plan.units.forward_prefetch = v; })
          .fallback_to(false)
          .says("The next unit's gather is issued before this one's forward pass.")
          .probe("true", with(kSharded, {"launch.dispatch_us=5"}))
          .idle(if_not_parameters())
          .idle(if_not_parameters(kShardedGradients))
          .idle(if_live_elements()),
      PlanKey::choice<Prefetch>("sharding.backward_prefetch", {"none", "post", "pre"},
                                [](Request& r, auto v) { r.plan.units.backward_prefetch = v; })
          .fallback_to("pre")
          .says("When the backward pass issues the next gather: as it gets there, after the "
                "current unit's gradients, before them.")
          .probe("post", kSharded)
          .idle(if_not_parameters())
          .idle(if_not_parameters(kShardedGradients))
          .idle(if_live_elements()),
      elements_key("sharding.live_elements",
                   [](Request& r, auto v) { r.plan.units.live_elements = v; })
          .says("Instead of both, units are gathered ahead until they have so many elements; 0: "
                "by those keys.")
          .alias({"stage3_max_live_parameters"})
          .probe("1000000000", with(kSharded, {"launch.dispatch_us=5"}))
          .idle(if_not_parameters({"sharding.reshard_in_pipeline=false"}))
          .idle_if([](const KeyContext& c) { return c.plan.pipeline > 1 && !c.plan.units.reshard; },
                   "stages gather once a step",
                   {"sharding.level=parameters", "sharding.reshard_in_pipeline=false"}),
      PlanKey::flag("sharding.copy_out", [](Request& r, bool v) { r.plan.units.copies_out = v; })
          .fallback_to(false)
          .says("Parameters are copied out of the array that they were gathered in (FSDP2).")
          .probe("true", kSharded)
          .idle(if_not_parameters())
          .idle_if(
              [](const KeyContext& c) { return c.plan.units.copies_out && !c.plan.copies_out(); },
              "it does not go with inner_group, secondary_group, int8 and fp8",
              with(kSharded, {"sharding.inner_group=2"})),
      PlanKey::count("sharding.gathers_in_flight",
                     [](Request& r, auto v) { r.plan.units.gathers_in_flight = v; })
          .range(0, 1 << 20)
          .fallback_to(2)
          .says("Units that may be gathered at a time; 0: no limit.")
          .probe("1", with(kSharded, {"sharding.forward_prefetch=true", "launch.dispatch_us=1"}))
          .idle(if_not_parameters())
          .idle(if_not_parameters(kShardedGradients)),
      PlanKey::choice<int>("sharding.shard_dtype", {"fp32", "compute"},
                           [](Request& r, int v) { r.plan.units.narrow_shards = v == 1; })
          .fallback_to("fp32")
          .says("The type of shards of parameters; those in fp32 are cast to be gathered.")
          .probe("compute", kSharded)
          .idle(if_not_parameters())
          .idle(if_not_parameters(kShardedGradients)),
      PlanKey::choice<GatherType>("sharding.gather_dtype", {"compute", "int8", "fp8"},
                                  [](Request& r, GatherType v) {
                                    r.plan.units.quantized_gathers = v != GatherType::kCompute;
                                    r.plan.units.casts_shards = v == GatherType::kFp8;
                                  })
          .else_("compute")
          .says("The type in which parameters travel; fp8: those of fp8 linears as they read "
                "them.")
          .probe("int8", kSharded)
          .probe("fp8", with(kSharded, {"cluster.preset=dgx-h100", "precision=fp8",
                                        "kernels.fp8_recipe=current"}))
          .idle_if([](const KeyContext& c) { return !c.plan.shards_parameters(); },
                   "sharding.level is not parameters", {}, "compute")
          .idle_if([](const KeyContext& c) { return c.plan.shards() == 1; },
                   "one rank holds all parameters",
                   with(kSharded, {"parallel.tensor=4", "cluster.accelerators=4"}), "compute"),
      ranks_key("sharding.secondary_group", [](Request& r, auto v) { r.plan.units.secondary = v; })
          .else_("none")
          .says("Ranks that share one more copy of the parameters for backward passes (ZeRO++).")
          .alias({"zero_hpz_partition_size"})
          .probe("4", kSharded),
  };
}

}  // namespace foretrain
