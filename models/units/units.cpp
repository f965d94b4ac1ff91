// Sharded gradients (ZeRO-2) and parameters (ZeRO-3, FSDP): what the units of a chunk are, and the
// frames that their parameters and gradients have. When they are gathered and reduced:
// models/step/passes/gather_units.cpp, reduce_units.cpp.
#include <algorithm>
#include <map>

#include "models/emit/frames.h"
#include "models/emit/tasks.h"
#include "models/emit/update.h"
#include "models/gradients/buckets.h"
#include "models/units/units.h"
#include "sim/base/check.h"

namespace foretrain {

static void add_unit(Stage& stage, Chunk& chunk, std::int64_t first, std::int64_t last,
                     UnitContent& small);
static void append_owner_reductions(Stage& stage, std::size_t shape, std::vector<LayoutId>& out);
static std::size_t root_shape(Stage& stage, Chunk& chunk, UnitContent& small);

namespace {

/// What stays empty of the last page in each memory: states follow one another in pages that two
/// may share.
FrameLayout rest_of_pages(const Program& program, const std::vector<Chunk>& chunks, Bytes page) {
  std::map<Memory, Bytes> filled;
  for (const Chunk& chunk : chunks) {
    for (const Unit& unit : chunk.units) {
      for (const FrameId frame : {unit.states, unit.shards}) {
        const LayoutId layout = program.frames[frame.index()].layout;
        for (const Buffer& buffer : program.layouts[layout.index()].buffers) {
          if (buffer.persistent) filled[buffer.memory] += buffer.bytes();
        }
      }
    }
  }
  FrameLayout out;
  out.name = "pages";
  for (const auto& [memory, bytes] : filled) {
    const Bytes rest = (page - bytes % page) % page;
    if (rest == 0) continue;
    out.buffers.push_back(
        buffer_of("rest of the last page", BufferKind::kWorkspace, DType::kUint8, rest, true));
    out.buffers.back().memory = memory;
  }
  return out;
}

}  // namespace

void make_units(Stage& stage, Chunk& chunk) {
  UnitContent small;
  for (std::int64_t l = 0; l < chunk.layers; l += stage.plan.units.layers) {
    add_unit(stage, chunk, l, std::min(l + stage.plan.units.layers, chunk.layers), small);
  }
  std::vector<std::size_t> ends;
  if (chunk.has_embedding || chunk.has_head) ends.push_back(root_shape(stage, chunk, small));
  if (small.elements > 0) {
    ShardLayout shape;
    shape.holders = chunk.holders;
    shape.whole = true;
    shape.on_host = kept_on_host(stage, chunk, 0);
    ends.push_back(shape_of(stage, shape, small));
  }
  stage.holds.embedding.owners.clear();
  for (const std::size_t shape : ends)
    append_owner_reductions(stage, shape, stage.holds.embedding.owners);
  stage.holds.head.owners = stage.holds.embedding.owners;
  if (chunk.has_embedding || chunk.has_head) write_ends(stage, chunk.has_embedding, chunk.has_head);
  for (const std::size_t shape : ends) push_unit(stage, chunk, shape, 0, 0);
  if (small.elements > 0) chunk.small = static_cast<int>(chunk.units.size()) - 1;
}

/// [ shared by tensor ranks, by layers | cut, by layers ]; what stays gathered goes to `small`.
void add_unit(Stage& stage, Chunk& chunk, std::int64_t first, std::int64_t last,
              UnitContent& small) {
  UnitContent shared;
  UnitContent cut;
  std::size_t tensors = 0;
  const bool apart = stage.plan.persists();
  bool whole = apart;
  const std::size_t begin = chunk.parts.size();
  for (std::int64_t l = first; l < last; ++l) {
    const ParameterLayouts& p = kind_of(stage, chunk, l).parameters;
    PartFrames part;
    part.shared_begin = apart ? small.elements : shared.elements;
    part.cut_begin = cut.elements;
    append_layout(stage, apart ? small : shared, p.shared,
                  apart ? chunk.first_layer + l + 1 : l - first);
    append_layout(stage, cut, p.cut, l - first);
    part.cut_end = cut.elements;
    tensors += p.shared.buffers.size() + p.cut.buffers.size();
    chunk.parts.push_back(part);
    whole = whole && p.small;
  }
  for (std::size_t p = begin; p < chunk.parts.size(); ++p) {
    chunk.parts[p].cut_begin += shared.elements;
    chunk.parts[p].cut_end += shared.elements;
  }
  ShardLayout shape;
  shape.holders = chunk.holders;
  shape.whole = whole;
  shape.on_host = kept_on_host(stage, chunk, last);
  shape.layers = last - first;
  shape.tensors = static_cast<std::int64_t>(tensors);
  shared.append(cut);
  push_unit(stage, chunk, shape_of(stage, shape, shared), first, last);
}

/// Adds the frames that own the parameters of a unit and their gradients.
void append_owner_reductions(Stage& stage, std::size_t shape, std::vector<LayoutId>& out) {
  out.push_back(stage.holds.shapes[shape].weights);
  out.push_back(stage.holds.shapes[shape].gradients);
}

std::vector<LayoutId> owners_of(Stage& stage, Chunk& chunk, std::int64_t layer) {
  std::vector<LayoutId> out;
  append_owner_reductions(stage, unit_of(chunk, layer).shape, out);
  if (const Unit* small = small_unit(chunk)) append_owner_reductions(stage, small->shape, out);
  if (const Unit* experts = expert_unit(stage, chunk, layer))
    append_owner_reductions(stage, experts->shape, out);
  return out;
}

/// Places the ends of a chunk in a unit of their own; what stays gathered goes to `small`.
std::size_t root_shape(Stage& stage, Chunk& chunk, UnitContent& small) {
  UnitContent own;
  UnitContent cut;
  UnitContent& shared = stage.plan.persists() ? small : own;
  // A tied table is the embedding's: the head finds it at the same place.
  const bool own_table = chunk.has_head && !(stage.model.tied_embeddings && chunk.has_embedding);
  std::size_t tensors = 0;
  chunk.embedding.shared_begin = shared.elements;
  if (chunk.has_embedding) {
    tensors += stage.holds.embedding.parameters.shared.buffers.size();
    tensors += stage.holds.embedding.parameters.cut.buffers.size();
    append_layout(stage, shared, stage.holds.embedding.parameters.shared, 0);
    append_layout(stage, cut, stage.holds.embedding.parameters.cut, 0);
  }
  if (chunk.has_head) {
    chunk.head.shared_begin = shared.elements;
    chunk.head.cut_begin = own_table ? cut.elements : 0;
    tensors += stage.holds.head.parameters.shared.buffers.size();
    if (own_table) tensors += stage.holds.head.parameters.cut.buffers.size();
    append_layout(stage, shared, stage.holds.head.parameters.shared, 0);
    if (own_table) append_layout(stage, cut, stage.holds.head.parameters.cut, 0);
  }
  chunk.embedding.cut_begin = own.elements;
  chunk.head.cut_begin += own.elements;
  ShardLayout shape;
  shape.holders = chunk.holders;
  shape.root = true;
  shape.tensors = static_cast<std::int64_t>(tensors);
  shape.on_host = kept_on_host(stage, chunk, 0);
  if (tied_across(stage.model, stage.plan)) {
    shape.tied = tied_table(chunk.has_embedding ? stage.holds.embedding.parameters
                                                : stage.holds.head.parameters);
    shape.tied.first += own.elements;
    shape.tied.second += own.elements;
  }
  own.append(cut);
  return shape_of(stage, shape, own);
}

void push_unit(Stage& stage, Chunk& chunk, std::size_t shape, std::int64_t first,
               std::int64_t last) {
  const ShardLayout& s = stage.holds.shapes[shape];
  Unit unit;
  unit.shape = shape;
  unit.first = first;
  unit.last = last;
  const bool layers = last > first;
  unit.states = stage.builder.frame(
      s.states, layers ? static_cast<std::int32_t>(chunk.first_layer + first) : -1);
  unit.shards = stage.builder.frame(s.shards);
  if (stage.plan.offload.delayed_update) unit.previous = stage.builder.frame(s.shards);
  unit.waited = true;
  if (stays_whole(stage.plan, s)) unit.weights = stage.builder.frame(s.weights);
  if (!stage.plan.fresh_gradients()) unit.gradients = stage.builder.frame(s.gradients);
  if (s.root) chunk.root = static_cast<int>(chunk.units.size());
  chunk.units.push_back(unit);
}

Unit& unit_of(Chunk& chunk, std::int64_t layer) {
  return chunk.units[static_cast<std::size_t>(unit_of_layer(chunk, layer))];
}

Unit* root_of(Chunk& chunk) {
  return chunk.root < 0 ? nullptr : &chunk.units[static_cast<std::size_t>(chunk.root)];
}

Unit* small_unit(Chunk& chunk) {
  return chunk.small < 0 ? nullptr : &chunk.units[static_cast<std::size_t>(chunk.small)];
}

void fill_last_pages(Stage& stage, Bytes page) {
  FrameLayout rest = rest_of_pages(stage.builder.program(), stage.holds.chunks, page);
  if (!rest.buffers.empty()) (void)stage.builder.frame(stage.builder.layout(std::move(rest)));
}

/// The step's first segment: the host's own time, zeroes for what is added to.
StreamWait zero_units(Stage& stage) {
  LayoutWriter events("zero", 0);
  SegmentWriter w(stage.builder, "zero", events);
  w.phase = Phase::kGradients;
  std::vector<FrameId> frames = {stage.holds.scalar_values};
  w.pause("host", stage.plan.step_time);
  const auto zero = [&w](const char* name, const Ref& ref) {
    Kernel fill;
    fill.rows = 1;
    fill.cols = ref.count;
    fill.dtype = ref.dtype;
    w.compute(name, fill, {}, {ref.view()});
  };
  zero("loss.zero", Ref{formal::kScalars, kLoss, DType::kFp32, 1});
  for (const Chunk& chunk : stage.holds.chunks) {
    for (const Unit& unit : chunk.units) {
      if (stage.plan.fresh_gradients()) continue;
      const ShardLayout& shape = stage.holds.shapes[unit.shape];
      const auto frame = static_cast<std::int16_t>(frames.size());
      frames.push_back(unit.gradients);
      zero("gradients.zero", Ref{frame, kOnlyBuffer, stage.plan.local_gradients(), shape.elements});
    }
  }
  return call_marked(stage, w, "zeroed", std::move(frames));
}

/// Gathers a unit's parameters for a pass.
void open_unit(Stage& stage, Unit& unit, const Task& task) {
  const ShardLayout& shape = stage.holds.shapes[unit.shape];
  const bool parts = unit.begun > 0 || task.form > 0;
  if (unit.begun == 0) unit.weights = stage.builder.frame(shape.weights);
  unit.waited = false;
  const bool again = task.direction == Direction::kBackward && shape.gather.again.valid();
  const SegmentId gather = parts   ? gather_part(stage, unit.shape, unit.begun, task.form)
                           : again ? shape.gather.again
                                   : shape.gather.all;
  unit.begun = task.form;
  stage.builder.call(
      Call{gather, -1, -1, {unit.weights, unit.states}, waits_of(stage, task, gather)});
}

void gather_weights(Stage& stage, Unit& unit, StreamWait after) {
  const ShardLayout& shape = stage.holds.shapes[unit.shape];
  if (!stays_whole(stage.plan, shape) || !shape.gather.all.valid()) return;
  Call call{shape.gather.all, -1, -1, {unit.weights, unit.states}, {}};
  after.stream = stage.builder.program().segments[shape.gather.all.index()].ops.front().stream;
  call.waits.push_back(after);
  unit.waited = !stage.plan.overlap.parameter_gather;
  stage.builder.call(std::move(call));
}
void reduce_unit(Stage& stage, Unit& unit, std::int32_t mb, StreamWait after) {
  const ShardLayout& shape = stage.holds.shapes[unit.shape];
  const SegmentId segment = unit.reduced.valid() ? shape.reduce_next : shape.reduce_first;
  after.stream = stage.builder.program().segments[segment.index()].ops.front().stream;
  const FrameId gradients = gradients_of(stage, unit, mb);
  stage.builder.call(Call{segment, -1, -1, {gradients, unit.shards}, {after}});
  unit.reduced = gradients;
  unit.fresh.erase(mb);
}

/// Binds the frames that own a unit's arrays to a call; its gathered weights must be there.
void bind_unit(Stage& stage, Unit& unit, bool backward, Call& call) {
  call.frames.push_back(unit.weights);
  call.frames.push_back(backward ? gradients_of(stage, unit, call.microbatch) : FrameId());
  if (unit.waited) return;
  unit.waited = true;
  const StreamWait gathered{StreamId(std::size_t{0}), unit.weights, kGatheredUnit};
  const SegmentId copy_out = stage.holds.shapes[unit.shape].copy_out;
  if (!copy_out.valid()) return call.waits.push_back(gathered);
  stage.builder.call(Call{copy_out, -1, -1, {unit.weights}, {gathered}});
}

/// Whole gradients: one array, or one of every microbatch that comes with the first backward pass
/// that writes it and lives until it is reduced.
FrameId gradients_of(Stage& stage, Unit& unit, std::int32_t mb) {
  if (!stage.plan.fresh_gradients()) return unit.gradients;
  FrameId& frame = unit.fresh[mb];
  if (!frame.valid()) frame = stage.builder.frame(stage.holds.shapes[unit.shape].gradients);
  return frame;
}

/// Binds the parameters that a call of a layer's or an end's segment uses; a part's frames of
/// shared parameters lie before those of cut ones in the unit.
void bind_part(Stage& stage, Chunk& chunk, std::int64_t layer, const EndLayouts* end, bool backward,
               Call& call) {
  if (!by_units(stage)) return;
  Unit* const found = end == nullptr ? &unit_of(chunk, layer) : root_of(chunk);
  FT_CHECK(found != nullptr, "an end whose parameters are in no unit");
  Unit& unit = *found;
  Unit* const small = small_unit(chunk);
  Unit& of_shared = small == nullptr ? unit : *small;
  const PartFrames& part = end == &stage.holds.embedding ? chunk.embedding
                           : end == &stage.holds.head
                               ? chunk.head
                               : chunk.parts[static_cast<std::size_t>(layer)];
  const auto bind = [&](std::size_t formal, LayoutId layout, FrameId owner, DType type,
                        std::int64_t element) {
    call.frames[formal] =
        stage.builder.alias(layout, owner, 0, bytes_of(type, element), call.layer);
  };
  const auto all = [&](const auto& layouts) {
    const DType type = stage.plan.precision.compute;
    bind(kWeights, layouts.weights, unit.weights, type, part.cut_begin);
    bind(kShared, layouts.shared, of_shared.weights, type, part.shared_begin);
    if (!backward) return;
    const DType local = stage.plan.local_gradients();
    const std::int32_t mb = call.microbatch;
    bind(kGradients, layouts.gradients, gradients_of(stage, unit, mb), local, part.cut_begin);
    bind(kSharedGradients, layouts.shared_gradients, gradients_of(stage, of_shared, mb), local,
         part.shared_begin);
  };
  if (end == nullptr) {
    all(kind_of(stage, chunk, layer));
  } else {
    all(*end);
  }
  bind_unit(stage, unit, backward, call);
  if (small != nullptr) bind_unit(stage, *small, backward, call);
  if (end != nullptr) return;
  if (Unit* experts = expert_unit(stage, chunk, layer)) bind_unit(stage, *experts, backward, call);
}

const LayerSegments& layer_segments(Stage& stage, Chunk& chunk, std::int64_t layer) {
  if (stage.model.is_encoder_decoder()) return stack_segments(stage, chunk, layer);
  if (stage.model.is_network()) return stage.segments.of_blocks[block_kind(stage, chunk, layer)];
  const bool again = recomputes(stage.plan, chunk.layers_before + layer);
  const LayerLayouts& kind = kind_of(stage, chunk, layer);
  const bool windowed = stage.model.windowed(chunk.first_layer + layer);
  if (!by_units(stage)) return stage.segments.of_layers.at({kind.kind, windowed, again, 0, 0});
  const Unit* small = small_unit(chunk);
  const std::tuple key(kind.kind, windowed, again, unit_of(chunk, layer).shape,
                       small == nullptr ? std::size_t{0} : small->shape);
  const auto known = stage.segments.of_layers.find(key);
  if (known != stage.segments.of_layers.end()) return known->second;
  LayerLayouts layouts = kind;
  layouts.windowed = windowed;
  layouts.owners = owners_of(stage, chunk, layer);
  return stage.segments.of_layers[key] =
             write_layer(stage.builder, stage.model, stage.plan, layouts, again);
}

/// Formal frames of every unit in the device's update: whole weights where they are updated in
/// place, the gradients' shard, the states.
void bind_units(Stage& stage, SegmentWriter& w, Call& call, std::vector<UpdatedArrays>& out) {
  const auto bind = [&](LayoutId layout, FrameId frame) {
    w.segment().frames.push_back(layout);
    call.frames.push_back(frame);
    return static_cast<std::int16_t>(call.frames.size() - 1);
  };
  for (const Chunk& chunk : stage.holds.chunks) {
    for (const Unit& unit : chunk.units) {
      const ShardLayout& shape = stage.holds.shapes[unit.shape];
      if (shape.on_host) continue;
      const std::int64_t own = shape.elements / shape.holders.shards;
      UpdatedArrays u;
      u.expert = shape.holders.expert;
      u.count = own;
      u.master = stage.plan.master_shards();
      u.gradient =
          Ref{bind(shape.shards, unit.shards), 0, stage.plan.precision.gradients, own}.view();
      u.states = bind(shape.states, unit.states);
      if (sharded_parameters(stage)) {
        u.weights = Ref{u.states, kOnlyBuffer, stage.plan.shard_type(), own}.view();
        u.first = 1;
      } else {
        u.weights = own_shard(stage, bind(shape.weights, unit.weights), 0, shape,
                              stage.plan.precision.compute);
      }
      out.push_back(u);
      FT_CHECK(unit.reduced.valid(), "a unit without gradients");
      call.waits.push_back(StreamWait{StreamId(std::size_t{0}), unit.reduced, kReduced});
    }
  }
}

}  // namespace foretrain
