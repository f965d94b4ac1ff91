// Sharded gradients (ZeRO-2) and parameters (ZeRO-3, FSDP): which units are gathered and reduced
// when. With `persist_elements` the small parameters of a chunk are a unit that stays gathered
// (DeepSpeed's stage3_param_persistence_threshold): only the update makes them anew, and once a
// step they are gathered like parameters of which the gradients alone are sharded. Left out: small
// tables and experts stay sharded.
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
  if (tied_across()) {
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

/// The step's first segment: the host's own time, zeroes for what is added to; and with sharded
/// gradients alone, last step's parameters on their way.
void StageWriter::zero_units() {
  if (const Bytes page = x_plan.offload.page; page > 0 && x_plan.offload.states()) {
    FrameLayout rest = rest_of_pages(x_builder.program(), x_chunks, page);
    if (!rest.buffers.empty()) (void)x_builder.frame(x_builder.layout(std::move(rest)));
  }
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
  const StreamWait zeroed = call_marked(w, "zeroed", std::move(frames));
  if (x_plan.overlap.parameter_gather) gather_all_weights(zeroed);
  if (x_plan.offload.delayed_update) update_on_host(true);
}

/// Of what every rank holds whole, with sharded gradients alone everything, else what stays
/// gathered, it gathers what others updated: first what the forward pass needs first.
void StageWriter::gather_all_weights(StreamWait after) {
  for (Chunk& chunk : x_chunks) {
    Unit* const root = root_of(chunk);
    if (root != nullptr) gather_weights(*root, after);
    for (Unit& unit : chunk.units) {
      if (&unit != root) gather_weights(unit, after);
    }
  }
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

/// Gathers a unit's parameters unless they are there. A gather waits until an earlier one's are let
/// go where more must not be in flight; where that one's pass is still to come, as with a prefetch
/// beside a limit of one, until those before it are.
void StageWriter::open_unit(Unit& unit, bool backward) {
  if (!sharded_parameters() || unit.weights.valid()) return;
  const UnitShape& shape = x_shapes[unit.shape];
  unit.weights = x_builder.frame(shape.weights);
  unit.waited = false;
  const bool again = backward && shape.gather_again.valid();
  const SegmentId gather = again ? shape.gather_again : shape.gather;
  Call call{gather, -1, -1, {unit.weights, unit.states}, {}};
  if (!shape.root) {
    std::vector<StreamWait>& let_go = x_let_go[shape.holders.expert ? 1 : 0];
    unit.gather = let_go.size();
    const auto limit = static_cast<std::size_t>(x_plan.units.gathers_in_flight);
    std::size_t earlier = limit > 0 && unit.gather >= limit ? unit.gather - limit + 1 : 0;
    while (earlier > 0 && !let_go[earlier - 1].frame.valid()) --earlier;
    if (earlier > 0) {
      call.waits.push_back(let_go[earlier - 1]);
      // The copy from the host stands on a stream of its own.
      call.waits.back().stream = x_builder.program().segments[gather.index()].ops[0].stream;
    }
    let_go.emplace_back();
  }
  x_builder.call(std::move(call));
}

void StageWriter::close_unit(Unit& unit, FrameId frame, std::int16_t event) {
  const UnitShape& shape = x_shapes[unit.shape];
  if (stays_whole(shape)) return;
  if (!shape.root) {
    x_let_go[shape.holders.expert ? 1 : 0][unit.gather] =
        StreamWait{x_builder.stream(shape.holders.stream), frame, event};
  }
  unit.weights = FrameId();
}

/// Whether parameters stay gathered after a pass. The root's wait for its backward pass; in a
/// pipeline, whose microbatches overlap, they and what is never resharded stay for the whole step.
/// Breadth-first, a chunk's parameters stay while its microbatches follow each other.
bool StageWriter::keeps(const Chunk& chunk, const Unit& unit, bool backward) const {
  if (x_same_follows && x_plan.schedule == Schedule::kBreadthFirst) return true;
  const bool root = x_shapes[unit.shape].root;
  const bool pipeline = x_plan.pipeline > 1;
  if (backward) return pipeline && (root || !x_plan.units.reshard);
  const bool last = unit.last == chunk.layers && !pipeline;
  return root || !x_plan.units.reshard || (last && !x_plan.units.reshard_last) ||
         reused_soon(chunk, unit);
}

/// Whether the modules that run from a unit's forward to its backward pass have fewer elements than
/// `reuse_elements`: those behind it twice, three times where they are computed again (DeepSpeed's
/// stage3_max_reuse_distance, runtime/zero/partitioned_param_coordinator.py). Never in a pipeline:
/// other microbatches run in between.
bool StageWriter::reused_soon(const Chunk& chunk, const Unit& unit) const {
  const std::int64_t most = x_plan.units.reuse_elements;
  if (most == 0 || x_plan.pipeline > 1) return false;
  std::int64_t elements = 0;
  if (chunk.has_head) {
    elements = 2 * (x_head.parameters.cut_elements + x_head.parameters.shared_elements);
  }
  for (std::int64_t l = chunk.layers; l-- > unit.last && elements < most;) {
    const ParameterLayouts& p = kind_of(chunk, l).parameters;
    const std::int64_t passes = recomputed(chunk.layers_before + l) ? 3 : 2;
    elements += passes * (p.cut_elements + p.shared_elements + p.expert_elements);
  }
  return elements < most;
}

/// Gathers what the pass of `layer` needs: its unit, and that of its experts.
void StageWriter::open_units(Chunk& chunk, std::int64_t layer, bool backward) {
  open_unit(unit_of(chunk, layer), backward);
  if (Unit* experts = expert_unit(chunk, layer)) open_unit(*experts, backward);
}

/// Before the pass of `layer`.
void StageWriter::unit_opens(Chunk& chunk, std::int64_t layer, bool backward) {
  if (!sharded_parameters()) return;
  open_units(chunk, layer, backward);
  const Unit& unit = unit_of(chunk, layer);
  prefetch(chunk, backward ? unit.first - 1 : unit.last, backward, 1);
}

/// Gathers ahead of a pass the units from that of `layer` on, in the order in which the pass needs
/// them: the next one, or with `live_elements` until they have so many elements, in no more than
/// `gathers_in_flight` units, the `in_use` among them. Going by elements is DeepSpeed's
/// stage3_max_live_parameters (runtime/zero/partitioned_param_coordinator.py, fetch_sub_module):
/// each of a layer's modules gathers stage3_prefetch_bucket_size more, the last parameter whole, so
/// that what is ahead grows to that limit. Left out: that it counts what is in use too, begins with
/// the backward pass before the forward pass is over, and that its host waits for gathers a few
/// modules back.
void StageWriter::prefetch(Chunk& chunk, std::int64_t layer, bool backward, std::int64_t in_use) {
  const Units& u = x_plan.units;
  const bool next = backward ? u.backward_prefetch == Prefetch::kBefore : u.forward_prefetch;
  const bool by_elements = u.live_elements > 0;
  const std::int64_t most = by_elements ? u.live_elements : next ? 1 : 0;
  const bool limited = by_elements && u.gathers_in_flight > 0;
  std::int64_t elements = 0;
  for (std::int64_t l = layer; l >= 0 && l < chunk.layers && elements < most;) {
    if (limited && in_use >= u.gathers_in_flight) return;
    ++in_use;
    open_units(chunk, l, backward);
    const Unit& unit = unit_of(chunk, l);
    for (const Unit* ahead : {&unit, static_cast<const Unit*>(expert_unit(chunk, l))}) {
      if (ahead == nullptr || stays_whole(x_shapes[ahead->shape])) continue;
      elements += x_shapes[ahead->shape].filled;
    }
    l = backward ? unit.first - 1 : unit.last;
  }
}

/// After the pass of `layer`, which recorded `kReady` of `frame`.
void StageWriter::unit_ends(Chunk& chunk, std::int64_t layer, FrameId frame, bool backward,
                            bool last) {
  if (!by_units()) return;
  Unit& unit = unit_of(chunk, layer);
  if (layer != (backward ? unit.first : unit.last - 1)) return;
  Unit* experts = expert_unit(chunk, layer);
  for (Unit* ended : {&unit, experts}) {
    if (ended == nullptr) continue;
    if (!keeps(chunk, *ended, backward) || (backward && last)) close_unit(*ended, frame, kReady);
  }
  if (!backward) return;
  const bool after = x_plan.units.backward_prefetch == Prefetch::kAfter;
  if (after && x_plan.units.live_elements == 0 && unit.first > 0) {
    open_units(chunk, unit.first - 1, true);
  }
  if (x_plan.splits_backward()) return;
  reduce_unit(unit, StreamWait{StreamId(), frame, kReady}, last);
  if (experts != nullptr) reduce_unit(*experts, StreamWait{StreamId(), frame, kReady}, last);
}

void StageWriter::reduce_unit(Unit& unit, StreamWait after, bool last) {
  if (!x_plan.units.reduce_each && !last) return;
  const UnitShape& shape = x_shapes[unit.shape];
  const SegmentId segment = unit.reduced.valid() ? shape.reduce_next : shape.reduce_first;
  after.stream = x_builder.program().segments[segment.index()].ops.front().stream;
  x_builder.call(Call{segment, -1, -1, {unit.gradients, unit.shards}, {after}});
  unit.reduced = unit.gradients;
  if (x_plan.units.reduce_waits) {
    x_before_next.push_back(StreamWait{StreamId(std::size_t{0}), unit.reduced, kReduced});
  }
  if (x_plan.fresh_gradients()) unit.gradients = FrameId();
}

/// Binds the frames that own a unit's arrays to a call; its gathered weights must be there.
void StageWriter::bind_unit(Unit& unit, bool backward, Call& call) {
  call.frames.push_back(unit.weights);
  call.frames.push_back(backward ? unit.gradients : FrameId());
  if (unit.waited) return;
  unit.waited = true;
  const StreamWait gathered{StreamId(std::size_t{0}), unit.weights, kGatheredUnit};
  const SegmentId copy_out = x_shapes[unit.shape].copy_out;
  if (!copy_out.valid()) return call.waits.push_back(gathered);
  x_builder.call(Call{copy_out, -1, -1, {unit.weights}, {gathered}});
}

/// Frames of whole gradients come with the first backward pass that writes them.
void StageWriter::need_gradients(Unit& unit) {
  if (!unit.gradients.valid()) unit.gradients = x_builder.frame(x_shapes[unit.shape].gradients);
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
  if (backward) need_gradients(unit);
  if (backward && small != nullptr) need_gradients(*small);
  const Unit& of_shared = small == nullptr ? unit : *small;
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
    bind(kGradients, layouts.gradients, unit.gradients, local, part.cut_begin);
    bind(kSharedGradients, layouts.shared_gradients, of_shared.gradients, local, part.shared_begin);
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
  const bool again = recomputed(chunk.layers_before + layer);
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
