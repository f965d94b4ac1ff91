// Sharded gradients (ZeRO-2) and parameters (ZeRO-3, FSDP): what the units of a chunk are, and the
// frames that their parameters and gradients have. When they are gathered and reduced:
// models/step/passes/gather_units.cpp, reduce_units.cpp.
#include <algorithm>
#include <map>

#include "models/stage/stage_writer.h"
#include "sim/base/check.h"

namespace foretrain {
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

void StageWriter::make_units(Chunk& chunk) {
  UnitContent small;
  for (std::int64_t l = 0; l < chunk.layers; l += x_plan.units.layers) {
    add_unit(chunk, l, std::min(l + x_plan.units.layers, chunk.layers), small);
  }
  std::vector<std::size_t> ends;
  if (chunk.has_embedding || chunk.has_head) ends.push_back(root_shape(chunk, small));
  if (small.elements > 0) {
    UnitShape shape;
    shape.holders = chunk.holders;
    shape.whole = true;
    shape.on_host = kept_on_host(chunk, 0);
    ends.push_back(shape_of(shape, small));
  }
  x_embedding.owners.clear();
  for (const std::size_t shape : ends) append_owners(shape, x_embedding.owners);
  x_head.owners = x_embedding.owners;
  if (chunk.has_embedding || chunk.has_head) write_ends(chunk.has_embedding, chunk.has_head);
  for (const std::size_t shape : ends) push_unit(chunk, shape, 0, 0);
  if (small.elements > 0) chunk.small = static_cast<int>(chunk.units.size()) - 1;
}

/// [ shared by tensor ranks, by layers | cut, by layers ]; what stays gathered goes to `small`.
void StageWriter::add_unit(Chunk& chunk, std::int64_t first, std::int64_t last,
                           UnitContent& small) {
  UnitContent shared;
  UnitContent cut;
  std::size_t tensors = 0;
  const bool apart = x_plan.persists();
  bool whole = apart;
  const std::size_t begin = chunk.parts.size();
  for (std::int64_t l = first; l < last; ++l) {
    const ParameterLayouts& p = kind_of(chunk, l).parameters;
    PartFrames part;
    part.shared_begin = apart ? small.elements : shared.elements;
    part.cut_begin = cut.elements;
    append_layout(apart ? small : shared, p.shared, apart ? chunk.first_layer + l + 1 : l - first);
    append_layout(cut, p.cut, l - first);
    part.cut_end = cut.elements;
    tensors += p.shared.buffers.size() + p.cut.buffers.size();
    chunk.parts.push_back(part);
    whole = whole && p.small;
  }
  for (std::size_t p = begin; p < chunk.parts.size(); ++p) {
    chunk.parts[p].cut_begin += shared.elements;
    chunk.parts[p].cut_end += shared.elements;
  }
  UnitShape shape;
  shape.holders = chunk.holders;
  shape.whole = whole;
  shape.on_host = kept_on_host(chunk, last);
  shape.layers = last - first;
  shape.tensors = static_cast<std::int64_t>(tensors);
  shared.append(cut);
  push_unit(chunk, shape_of(shape, shared), first, last);
}

/// Adds the frames that own the parameters of a unit and their gradients.
void StageWriter::append_owners(std::size_t shape, std::vector<LayoutId>& out) const {
  out.push_back(x_shapes[shape].weights);
  out.push_back(x_shapes[shape].gradients);
}

std::vector<LayoutId> StageWriter::owners_of(Chunk& chunk, std::int64_t layer) {
  std::vector<LayoutId> out;
  append_owners(unit_of(chunk, layer).shape, out);
  if (const Unit* small = small_unit(chunk)) append_owners(small->shape, out);
  if (const Unit* experts = expert_unit(chunk, layer)) append_owners(experts->shape, out);
  return out;
}

/// Places the ends of a chunk in a unit of their own; what stays gathered goes to `small`.
std::size_t StageWriter::root_shape(Chunk& chunk, UnitContent& small) {
  UnitContent own;
  UnitContent cut;
  UnitContent& shared = x_plan.persists() ? small : own;
  // A tied table is the embedding's: the head finds it at the same place.
  const bool own_table = chunk.has_head && !(x_model.tied_embeddings && chunk.has_embedding);
  std::size_t tensors = 0;
  chunk.embedding.shared_begin = shared.elements;
  if (chunk.has_embedding) {
    tensors += x_embedding.parameters.shared.buffers.size();
    tensors += x_embedding.parameters.cut.buffers.size();
    append_layout(shared, x_embedding.parameters.shared, 0);
    append_layout(cut, x_embedding.parameters.cut, 0);
  }
  if (chunk.has_head) {
    chunk.head.shared_begin = shared.elements;
    chunk.head.cut_begin = own_table ? cut.elements : 0;
    tensors += x_head.parameters.shared.buffers.size();
    if (own_table) tensors += x_head.parameters.cut.buffers.size();
    append_layout(shared, x_head.parameters.shared, 0);
    if (own_table) append_layout(cut, x_head.parameters.cut, 0);
  }
  chunk.embedding.cut_begin = own.elements;
  chunk.head.cut_begin += own.elements;
  UnitShape shape;
  shape.holders = chunk.holders;
  shape.root = true;
  shape.tensors = static_cast<std::int64_t>(tensors);
  shape.on_host = kept_on_host(chunk, 0);
  if (tied_across(x_model, x_plan)) {
    shape.tied = tied_table(chunk.has_embedding ? x_embedding.parameters : x_head.parameters);
    shape.tied.first += own.elements;
    shape.tied.second += own.elements;
  }
  own.append(cut);
  return shape_of(shape, own);
}

void StageWriter::push_unit(Chunk& chunk, std::size_t shape, std::int64_t first,
                            std::int64_t last) {
  const UnitShape& s = x_shapes[shape];
  Unit unit;
  unit.shape = shape;
  unit.first = first;
  unit.last = last;
  const bool layers = last > first;
  unit.states =
      x_builder.frame(s.states, layers ? static_cast<std::int32_t>(chunk.first_layer + first) : -1);
  unit.shards = x_builder.frame(s.shards);
  if (x_plan.offload.delayed_update) unit.previous = x_builder.frame(s.shards);
  unit.waited = true;
  if (stays_whole(s)) unit.weights = x_builder.frame(s.weights);
  if (!x_plan.fresh_gradients()) unit.gradients = x_builder.frame(s.gradients);
  chunk.units.push_back(unit);
}

Unit& StageWriter::unit_of(Chunk& chunk, std::int64_t layer) const {
  return chunk.units[static_cast<std::size_t>(layer / x_plan.units.layers)];
}

Unit* StageWriter::root_of(Chunk& chunk) {
  const auto found = std::find_if(chunk.units.begin(), chunk.units.end(),
                                  [this](const Unit& u) { return x_shapes[u.shape].root; });
  return found == chunk.units.end() ? nullptr : &*found;
}

Unit* StageWriter::small_unit(Chunk& chunk) const {
  return chunk.small < 0 ? nullptr : &chunk.units[static_cast<std::size_t>(chunk.small)];
}

void StageWriter::fill_last_pages(Bytes page) {
  FrameLayout rest = rest_of_pages(x_builder.program(), x_chunks, page);
  if (!rest.buffers.empty()) (void)x_builder.frame(x_builder.layout(std::move(rest)));
}

/// The step's first segment: the host's own time, zeroes for what is added to.
StreamWait StageWriter::zero_units() {
  LayoutWriter events("zero", 0);
  SegmentWriter w(x_builder, "zero", events);
  w.phase = Phase::kGradients;
  std::vector<FrameId> frames = {x_scalar_frame};
  w.pause("host", x_plan.step_time);
  const auto zero = [&w](const char* name, const Ref& ref) {
    Kernel fill;
    fill.rows = 1;
    fill.cols = ref.count;
    fill.dtype = ref.dtype;
    w.compute(name, fill, {}, {ref.view()});
  };
  zero("loss.zero", Ref{0, kLoss, DType::kFp32, 1});
  for (const Chunk& chunk : x_chunks) {
    for (const Unit& unit : chunk.units) {
      if (x_plan.fresh_gradients()) continue;
      const UnitShape& shape = x_shapes[unit.shape];
      const auto frame = static_cast<std::int16_t>(frames.size());
      frames.push_back(unit.gradients);
      zero("gradients.zero", Ref{frame, 0, x_plan.local_gradients(), shape.elements});
    }
  }
  return call_marked(w, "zeroed", std::move(frames));
}

/// Gathers a unit's parameters for a pass.
void StageWriter::open_unit(Unit& unit, const Task& task) {
  const UnitShape& shape = x_shapes[unit.shape];
  unit.weights = x_builder.frame(shape.weights);
  unit.waited = false;
  const bool again = task.direction == Direction::kBackward && shape.gather_again.valid();
  const SegmentId gather = again ? shape.gather_again : shape.gather;
  x_builder.call(Call{gather, -1, -1, {unit.weights, unit.states}, waits_of(task, gather)});
}

void StageWriter::gather_weights(Unit& unit, StreamWait after) {
  const UnitShape& shape = x_shapes[unit.shape];
  if (!stays_whole(shape) || !shape.gather.valid()) return;
  Call call{shape.gather, -1, -1, {unit.weights, unit.states}, {}};
  after.stream = x_builder.program().segments[shape.gather.index()].ops.front().stream;
  call.waits.push_back(after);
  unit.waited = !x_plan.overlap.parameter_gather;
  x_builder.call(std::move(call));
}
void StageWriter::reduce_unit(Unit& unit, std::int32_t mb, StreamWait after) {
  const UnitShape& shape = x_shapes[unit.shape];
  const SegmentId segment = unit.reduced.valid() ? shape.reduce_next : shape.reduce_first;
  after.stream = x_builder.program().segments[segment.index()].ops.front().stream;
  const FrameId gradients = gradients_of(unit, mb);
  x_builder.call(Call{segment, -1, -1, {gradients, unit.shards}, {after}});
  unit.reduced = gradients;
  unit.fresh.erase(mb);
}

/// Binds the frames that own a unit's arrays to a call; its gathered weights must be there.
void StageWriter::bind_unit(Unit& unit, bool backward, Call& call) {
  call.frames.push_back(unit.weights);
  call.frames.push_back(backward ? gradients_of(unit, call.microbatch) : FrameId());
  if (unit.waited) return;
  unit.waited = true;
  const StreamWait gathered{StreamId(std::size_t{0}), unit.weights, kGatheredUnit};
  const SegmentId copy_out = x_shapes[unit.shape].copy_out;
  if (!copy_out.valid()) return call.waits.push_back(gathered);
  x_builder.call(Call{copy_out, -1, -1, {unit.weights}, {gathered}});
}

/// Whole gradients: one array, or one of every microbatch that comes with the first backward pass
/// that writes it and lives until it is reduced.
FrameId StageWriter::gradients_of(Unit& unit, std::int32_t mb) {
  if (!x_plan.fresh_gradients()) return unit.gradients;
  FrameId& frame = unit.fresh[mb];
  if (!frame.valid()) frame = x_builder.frame(x_shapes[unit.shape].gradients);
  return frame;
}

/// Binds the parameters that a call of a layer's or an end's segment uses; a part's frames of
/// shared parameters lie before those of cut ones in the unit.
void StageWriter::bind_part(Chunk& chunk, std::int64_t layer, const EndLayouts* end, bool backward,
                            Call& call) {
  if (!by_units()) return;
  Unit* const found = end == nullptr ? &unit_of(chunk, layer) : root_of(chunk);
  FT_CHECK(found != nullptr, "an end whose parameters are in no unit");
  Unit& unit = *found;
  Unit* const small = small_unit(chunk);
  Unit& of_shared = small == nullptr ? unit : *small;
  const PartFrames& part = end == &x_embedding ? chunk.embedding
                           : end == &x_head    ? chunk.head
                                               : chunk.parts[static_cast<std::size_t>(layer)];
  const auto bind = [&](std::size_t formal, LayoutId layout, FrameId owner, DType type,
                        std::int64_t element) {
    call.frames[formal] = x_builder.alias(layout, owner, 0, bytes_of(type, element), call.layer);
  };
  const auto all = [&](const auto& layouts) {
    const DType type = x_plan.precision.compute;
    bind(kWeights, layouts.weights, unit.weights, type, part.cut_begin);
    bind(kShared, layouts.shared, of_shared.weights, type, part.shared_begin);
    if (!backward) return;
    const DType local = x_plan.local_gradients();
    const std::int32_t mb = call.microbatch;
    bind(kGradients, layouts.gradients, gradients_of(unit, mb), local, part.cut_begin);
    bind(kSharedGradients, layouts.shared_gradients, gradients_of(of_shared, mb), local,
         part.shared_begin);
  };
  if (end == nullptr) {
    all(kind_of(chunk, layer));
  } else {
    all(*end);
  }
  bind_unit(unit, backward, call);
  if (small != nullptr) bind_unit(*small, backward, call);
  if (end != nullptr) return;
  if (Unit* experts = expert_unit(chunk, layer)) bind_unit(*experts, backward, call);
}

const LayerSegments& StageWriter::layer_segments(Chunk& chunk, std::int64_t layer) {
  if (x_model.is_encoder_decoder()) return stack_segments(chunk, layer);
  if (x_model.is_network()) return x_block_segments[block_kind(chunk, layer)];
  const bool again = recomputes(x_plan, chunk.layers_before + layer);
  const LayerLayouts& kind = kind_of(chunk, layer);
  const bool windowed = x_model.windowed(chunk.first_layer + layer);
  if (!by_units()) return x_layer_segments.at({kind.sparse, windowed, again, 0, 0});
  const Unit* small = small_unit(chunk);
  const std::tuple key(kind.sparse, windowed, again, unit_of(chunk, layer).shape,
                       small == nullptr ? std::size_t{0} : small->shape);
  const auto known = x_layer_segments.find(key);
  if (known != x_layer_segments.end()) return known->second;
  LayerLayouts layouts = kind;
  layouts.windowed = windowed;
  layouts.owners = owners_of(chunk, layer);
  return x_layer_segments[key] = write_layer(x_builder, x_model, x_plan, layouts, again);
}

/// Formal frames of every unit in the device's update: whole weights where they are updated in
/// place, the gradients' shard, the states.
void StageWriter::bind_units(SegmentWriter& w, Call& call, std::vector<Updated>& out) {
  const auto bind = [&](LayoutId layout, FrameId frame) {
    w.segment().frames.push_back(layout);
    call.frames.push_back(frame);
    return static_cast<std::int16_t>(call.frames.size() - 1);
  };
  for (const Chunk& chunk : x_chunks) {
    for (const Unit& unit : chunk.units) {
      const UnitShape& shape = x_shapes[unit.shape];
      if (shape.on_host) continue;
      const std::int64_t own = shape.elements / shape.holders.shards;
      Updated u;
      u.expert = shape.holders.expert;
      u.count = own;
      u.master = x_plan.master_shards();
      u.gradient = Ref{bind(shape.shards, unit.shards), 0, x_plan.precision.gradients, own}.view();
      u.states = bind(shape.states, unit.states);
      if (sharded_parameters()) {
        u.weights = Ref{u.states, 0, x_plan.shard_type(), own}.view();
        u.first = 1;
      } else {
        u.weights =
            own_shard(bind(shape.weights, unit.weights), 0, shape, x_plan.precision.compute);
      }
      out.push_back(u);
      FT_CHECK(unit.reduced.valid(), "a unit without gradients");
      call.waits.push_back(StreamWait{StreamId(std::size_t{0}), unit.reduced, kReduced});
    }
  }
}

}  // namespace foretrain
