#include "models/emit/frames.h"
#include "models/emit/update.h"
#include "models/gradients/buckets.h"
#include "models/units/units.h"

namespace foretrain {

static void make_expert_units(Stage& stage, Chunk& experts, const Chunk& owner);

void make_experts(Stage& stage, std::size_t index) {
  std::int64_t elements = 0;
  for (std::int64_t l = 0; l < stage.holds.chunks[index].layers; ++l) {
    elements += kind_of(stage, stage.holds.chunks[index], l).parameters.expert_elements;
  }
  if (elements == 0) return;
  Chunk chunk;
  const std::int64_t ranks = stage.plan.expert_data() * stage.plan.directions();
  const std::int64_t shards = stage.plan.expert_shards();
  const char* shard_group = shards < ranks ? kExpertShardGroup : kExpertDataGroup;
  chunk.holders = ReplicaGroup{kExpertDataGroup, shard_group, "expert data",      ranks,
                               shards,           true,        kExpertReplicaGroup};
  std::vector<Replica> replicas;
  if (stage.plan.directions() == 2) {
    const char* group = kExpertWayGroups[index];
    chunk.holders = ReplicaGroup{group, group, group, ranks, shards, true, nullptr};
    if (shards == 1) replicas.push_back({0, elements, stage.builder.group(kMirrorGroup)});
  }
  chunk.first_layer = stage.holds.chunks[index].first_layer;
  chunk.marks = stage.builder.frame(stage.holds.marks);
  stage.holds.chunks[index].experts = static_cast<int>(stage.holds.chunks.size());
  if (by_units(stage)) {
    make_expert_units(stage, chunk, stage.holds.chunks[index]);
    stage.holds.chunks.push_back(std::move(chunk));
    return;
  }
  const Chunk& owner = stage.holds.chunks[index];
  map_expert_weights(stage, chunk, owner);
  own_buffers(stage, chunk, elements, std::move(replicas));
  std::int64_t at = 0;
  for (std::int64_t l = 0; l < owner.layers; ++l) {
    PartFrames part;
    part.cut_begin = at;
    if (const LayerLayouts& kind = kind_of(stage, owner, l); kind.kind.sparse()) {
      const auto alias = [&](LayoutId layout, FrameId of, Bytes offset) {
        return stage.builder.alias(layout, of, 0, offset,
                                   static_cast<std::int32_t>(owner.first_layer + l));
      };
      part.weights = alias(kind.experts, chunk.parameters, weight_byte(stage, chunk, at));
      part.gradients =
          alias(kind.expert_gradients, chunk.written, bytes_of(stage.plan.local_gradients(), at));
      at += kind.parameters.expert_elements;
    }
    part.cut_end = at;
    chunk.parts.push_back(part);
  }
  make_buckets(stage, chunk);
  stage.holds.chunks.push_back(std::move(chunk));
}

/// The experts of every unit of the owner, where it has any.
void make_expert_units(Stage& stage, Chunk& experts, const Chunk& owner) {
  experts.parts.resize(static_cast<std::size_t>(owner.layers));
  for (std::int64_t first = 0; first < owner.layers; first += stage.plan.units.layers) {
    const Unit& unit = owner.units[static_cast<std::size_t>(first / stage.plan.units.layers)];
    UnitContent content;
    content.experts = stage.model.experts.count / stage.plan.experts.expert;
    for (std::int64_t l = unit.first; l < unit.last; ++l) {
      experts.parts[static_cast<std::size_t>(l)].cut_begin = content.elements;
      append_layout(stage, content, kind_of(stage, owner, l).parameters.experts, l - unit.first);
    }
    if (content.elements == 0) continue;
    ShardLayout shape;
    shape.holders = experts.holders;
    shape.layers = unit.last - unit.first;
    shape.tensors = static_cast<std::int64_t>(content.ends.size());
    shape.on_host = kept_on_host(stage, owner, unit.last);
    push_unit(stage, experts, shape_of(stage, shape, content), unit.first, unit.last);
  }
}

Unit* expert_unit(Stage& stage, const Chunk& chunk, std::int64_t layer) {
  if (chunk.experts < 0) return nullptr;
  Chunk& experts = stage.holds.chunks[static_cast<std::size_t>(chunk.experts)];
  const std::int32_t unit = unit_of_layer(experts, layer);
  return unit < 0 ? nullptr : &experts.units[static_cast<std::size_t>(unit)];
}

/// Binds the experts of layer `l` to its call; in the first pass they must have been gathered.
void bind_experts(Stage& stage, const Chunk& chunk, std::int64_t l, bool backward, Call& call) {
  const LayerLayouts& kind = kind_of(stage, chunk, l);
  if (!kind.kind.sparse()) return;
  const Chunk& experts = stage.holds.chunks[static_cast<std::size_t>(chunk.experts)];
  const PartFrames& part = experts.parts[static_cast<std::size_t>(l)];
  if (!by_units(stage)) {
    call.frames.push_back(part.weights);
    call.frames.push_back(part.gradients);
    return;
  }
  Unit& unit = *expert_unit(stage, chunk, l);
  FrameId gradients;
  if (backward) gradients = gradients_of(stage, unit, call.microbatch);
  const auto bind = [&](LayoutId layout, FrameId owner, DType type) {
    return stage.builder.alias(layout, owner, 0, bytes_of(type, part.cut_begin), call.layer);
  };
  call.frames.push_back(bind(kind.experts, unit.weights, stage.plan.precision.compute));
  call.frames.push_back(
      backward ? bind(kind.expert_gradients, gradients, stage.plan.local_gradients()) : FrameId());
}

/// Without a sharded optimizer the experts' squares are summed over the ranks that hold different
/// ones, which are not those over which the others' are.
void add_expert_norm(Stage& stage, SegmentWriter& w) {
  const Ref norm{0, kNormSquare, DType::kFp32, 1};
  const Ref experts{0, kExpertNormSquare, DType::kFp32, 1};
  w.compute("gradients.norm.experts.reduce",
            Collective{CollectiveKind::kAllReduce, stage.builder.group(kExpertNormGroup), 1,
                       DType::kFp32, false},
            {experts.view()}, {experts.view()});
  w.segment().ops.back().category = Category::kData;
  Kernel add;
  add.kind = KernelKind::kAdd;
  add.rows = add.cols = 1;
  add.dtype = DType::kFp32;
  w.compute("gradients.norm.add", add, {experts.view(), norm.view()}, {norm.view()});
}

}  // namespace foretrain
