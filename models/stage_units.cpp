// Sharded gradients (ZeRO-2) and parameters (ZeRO-3, FSDP): which units are gathered and reduced
// when.
#include <algorithm>

#include "models/stage_writer.h"
#include "sim/base/check.h"

namespace foretrain {

void append_pieces(const FrameLayout& layout, std::int64_t begin, std::int64_t layer,
                   std::vector<Piece>& out) {
  for (const Buffer& buffer : layout.buffers) {
    for (Piece piece : buffer.pieces) {
      piece.offset += begin;
      piece.layer = static_cast<std::int32_t>(layer);
      out.push_back(piece);
    }
    begin += buffer.count;
  }
}

void StageWriter::make_units(Chunk& chunk) {
  for (std::int64_t l = 0; l < chunk.layers; l += x_plan.units.layers) {
    add_unit(chunk, l, std::min(l + x_plan.units.layers, chunk.layers));
  }
  if (chunk.has_embedding || chunk.has_head) add_root(chunk);
}

/// [ shared by tensor ranks, by layers | cut, by layers ].
void StageWriter::add_unit(Chunk& chunk, std::int64_t first, std::int64_t last) {
  std::int64_t shared = 0;
  std::int64_t cut = 0;
  for (std::int64_t l = first; l < last; ++l) {
    shared += kind_of(chunk, l).parameters.shared_elements;
    cut += kind_of(chunk, l).parameters.cut_elements;
  }
  std::vector<Piece> pieces;
  PartFrames part;
  part.cut_end = shared;
  for (std::int64_t l = first; l < last; ++l) {
    const ParameterLayouts& p = kind_of(chunk, l).parameters;
    part.cut_begin = part.cut_end;
    part.cut_end = part.cut_begin + p.cut_elements;
    chunk.parts.push_back(part);
    append_pieces(p.shared, part.shared_begin, l - first, pieces);
    append_pieces(p.cut, part.cut_begin, l - first, pieces);
    part.shared_begin += p.shared_elements;
  }
  const std::size_t shape = shape_of(chunk.holders, false, last - first, shared, cut, pieces);
  push_unit(chunk, shape, first, last);
}

void StageWriter::add_root(Chunk& chunk) {
  std::int64_t shared = 0;
  std::int64_t cut = 0;
  if (chunk.has_embedding) {
    shared += x_embedding.parameters.shared_elements;
    cut += x_embedding.parameters.cut_elements;
  }
  // A tied table is the embedding's: the head finds it at the same place.
  const bool own_table = chunk.has_head && !(x_model.tied_embeddings && chunk.has_embedding);
  if (chunk.has_head) {
    chunk.head.shared_begin = shared;
    shared += x_head.parameters.shared_elements;
  }
  chunk.embedding.cut_begin = shared;
  chunk.head.cut_begin = own_table ? shared + cut : shared;
  if (own_table) cut += x_head.parameters.cut_elements;
  std::vector<Piece> pieces;
  if (chunk.has_embedding) {
    append_pieces(x_embedding.parameters.shared, 0, 0, pieces);
    append_pieces(x_embedding.parameters.cut, chunk.embedding.cut_begin, 0, pieces);
  }
  if (chunk.has_head) append_pieces(x_head.parameters.shared, chunk.head.shared_begin, 0, pieces);
  if (own_table) append_pieces(x_head.parameters.cut, chunk.head.cut_begin, 0, pieces);
  const std::size_t shape = shape_of(chunk.holders, true, 0, shared, cut, pieces);
  for (EndLayouts* end : {&x_embedding, &x_head}) {
    end->unit_weights = x_shapes[shape].weights;
    end->unit_gradients = x_shapes[shape].gradients;
  }
  write_ends(chunk.has_embedding, chunk.has_head);
  push_unit(chunk, shape, 0, 0);
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
  if (!sharded_parameters()) unit.weights = x_builder.frame(s.weights);
  if (!x_plan.fresh_gradients()) unit.gradients = x_builder.frame(s.gradients);
  chunk.units.push_back(unit);
}

Unit& StageWriter::unit_of(Chunk& chunk, std::int64_t layer) const {
  return chunk.units[static_cast<std::size_t>(layer / x_plan.units.layers)];
}

Unit* StageWriter::root_of(Chunk& chunk) {
  if (chunk.units.empty() || !x_shapes[chunk.units.back().shape].root) return nullptr;
  return &chunk.units.back();
}

/// The step's first segment: the host's own time, zeroes for what is added to; and with sharded
/// gradients alone, last step's parameters on their way.
void StageWriter::zero_units() {
  LayoutWriter events("zero", 1);
  SegmentWriter w(x_builder, "zero", events);
  w.phase = Phase::kGradients;
  w.segment().frames = {x_scalars};
  Call call;
  call.frames = {x_scalar_frame};
  if (x_plan.step_time.ps > 0) {
    w.compute("host", HostDelay{x_plan.step_time}, {}, {});
    w.segment().ops.back().category = Category::kHost;
  }
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
      const auto frame = static_cast<std::int16_t>(call.frames.size());
      w.segment().frames.push_back(shape.gradients);
      call.frames.push_back(unit.gradients);
      zero("gradients.zero", Ref{frame, 0, x_plan.local_gradients(), shape.elements});
    }
  }
  call.segment = x_builder.segment(std::move(w.segment()));
  x_builder.call(std::move(call));
  if (x_plan.overlap.parameter_gather) gather_all_weights(StreamWait{});
  if (x_plan.offload.delayed_update) update_on_host(true);
}

/// With sharded gradients alone every rank holds all parameters and gathers what others updated:
/// first what the forward pass needs first.
void StageWriter::gather_all_weights(StreamWait after) {
  if (sharded_parameters()) return;
  for (Chunk& chunk : x_chunks) {
    if (chunk.holders.shards == 1) continue;
    if (Unit* root = root_of(chunk)) gather_weights(*root, after);
    for (Unit& unit : chunk.units) {
      if (unit.last > unit.first) gather_weights(unit, after);
    }
  }
}

void StageWriter::gather_weights(Unit& unit, StreamWait after) {
  Call call{x_shapes[unit.shape].gather, -1, -1, {unit.weights, unit.states}, {}};
  after.stream = x_builder.stream(x_shapes[unit.shape].holders.stream);
  if (after.frame.valid()) call.waits.push_back(after);
  unit.waited = after.frame.valid();
  x_builder.call(std::move(call));
}

/// Gathers a unit's parameters unless they are there. A gather waits until an earlier one's are let
/// go where more must not be in flight.
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
    if (limit > 0 && unit.gather >= limit) {
      const StreamWait& wait = let_go[unit.gather - limit];
      if (wait.frame.valid()) {
        call.waits.push_back(wait);
        // The copy from the host stands on a stream of its own.
        call.waits.back().stream = x_builder.program().segments[gather.index()].ops[0].stream;
      }
    }
    let_go.emplace_back();
  }
  x_builder.call(std::move(call));
}

void StageWriter::close_unit(Unit& unit, FrameId frame, std::int16_t event) {
  if (!sharded_parameters()) return;
  if (const UnitShape& shape = x_shapes[unit.shape]; !shape.root) {
    x_let_go[shape.holders.expert ? 1 : 0][unit.gather] =
        StreamWait{x_builder.stream(shape.holders.stream), frame, event};
  }
  unit.weights = FrameId();
}

/// Whether parameters stay gathered after a pass. The root's wait for its backward pass; in a
/// pipeline, whose microbatches overlap, they and what is never resharded stay for the whole step.
bool StageWriter::keeps(const Chunk& chunk, const Unit& unit, bool backward) const {
  const bool root = x_shapes[unit.shape].root;
  const bool pipeline = x_plan.pipeline > 1;
  if (backward) return pipeline && (root || !x_plan.units.reshard);
  const bool last = unit.last == chunk.layers && !pipeline;
  return root || !x_plan.units.reshard || (last && !x_plan.units.reshard_last);
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
  if (!backward && x_plan.units.forward_prefetch && unit.last < chunk.layers) {
    open_units(chunk, unit.last, false);
  }
  if (backward && x_plan.units.backward_prefetch == Prefetch::kBefore && unit.first > 0) {
    open_units(chunk, unit.first - 1, true);
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
  if (x_plan.units.backward_prefetch == Prefetch::kAfter && unit.first > 0) {
    open_units(chunk, unit.first - 1, true);
  }
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
  if (x_plan.fresh_gradients()) unit.gradients = FrameId();
}

/// Binds the frames that own a unit's arrays to a call; its gathered weights must be there.
void StageWriter::bind_unit(Unit& unit, bool backward, Call& call) const {
  call.frames.push_back(unit.weights);
  call.frames.push_back(backward ? unit.gradients : FrameId());
  if (unit.waited) return;
  unit.waited = true;
  call.waits.push_back(StreamWait{StreamId(std::size_t{0}), unit.weights, kGatheredUnit});
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
  if (backward) need_gradients(unit);
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
    bind(kShared, layouts.shared, unit.weights, type, part.shared_begin);
    if (!backward) return;
    const DType local = x_plan.local_gradients();
    bind(kGradients, layouts.gradients, unit.gradients, local, part.cut_begin);
    bind(kSharedGradients, layouts.shared_gradients, unit.gradients, local, part.shared_begin);
  };
  if (end == nullptr) {
    all(kind_of(chunk, layer));
  } else {
    all(*end);
  }
  bind_unit(unit, backward, call);
  if (end != nullptr) return;
  if (Unit* experts = expert_unit(chunk, layer)) bind_unit(*experts, backward, call);
}

const LayerSegments& StageWriter::layer_segments(Chunk& chunk, std::int64_t layer) {
  if (x_model.is_encoder_decoder()) return stack_segments(chunk, layer);
  if (x_model.is_network()) return x_block_segments[block_kind(chunk, layer)];
  const bool again = recomputed(chunk.layers_before + layer);
  const LayerLayouts& kind = kind_of(chunk, layer);
  const bool windowed = x_model.windowed(chunk.first_layer + layer);
  if (!by_units()) return x_layer_segments.at({kind.sparse, windowed, again, 0});
  const std::size_t shape = unit_of(chunk, layer).shape;
  const auto known = x_layer_segments.find({kind.sparse, windowed, again, shape});
  if (known != x_layer_segments.end()) return known->second;
  LayerLayouts layouts = kind;
  layouts.windowed = windowed;
  layouts.unit_weights = x_shapes[shape].weights;
  layouts.unit_gradients = x_shapes[shape].gradients;
  if (const Unit* experts = expert_unit(chunk, layer)) {
    layouts.expert_unit_weights = x_shapes[experts->shape].weights;
    layouts.expert_unit_gradients = x_shapes[experts->shape].gradients;
  }
  return x_layer_segments[{kind.sparse, windowed, again, shape}] =
             write_layer(x_builder, x_model, x_plan, layouts, again);
}

/// Formal frames of every unit in the update: whole weights where they are updated in place, the
/// gradients' shard, the states.
void StageWriter::bind_units(SegmentWriter& w, Call& call, std::vector<Updated>& out) {
  const auto bind = [&](LayoutId layout, FrameId frame) {
    w.segment().frames.push_back(layout);
    call.frames.push_back(frame);
    return static_cast<std::int16_t>(call.frames.size() - 1);
  };
  for (const Chunk& chunk : x_chunks) {
    for (const Unit& unit : chunk.units) {
      const UnitShape& shape = x_shapes[unit.shape];
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
