#include <algorithm>

#include "models/layers/optimizer.h"
#include "models/layers/quantizer.h"
#include "models/layers/tensor_grid.h"
#include "models/stage/stage_writer.h"
#include "sim/base/check.h"

namespace foretrain {
namespace {

FrameLayout one_buffer(const char* name, BufferKind kind, DType dtype, std::int64_t count) {
  FrameLayout layout;
  layout.name = name;
  layout.buffers.push_back(buffer_of(name, kind, dtype, count, true));
  return layout;
}

/// The parameters of a layout that lies from element `begin` of its chunk on.
void note_ranges(const FrameLayout& layout, std::int64_t begin, std::vector<ParameterRange>& out) {
  for (const Buffer& buffer : layout.buffers) {
    std::int64_t cols = 1;
    if (!buffer.pieces.empty()) {
      cols = buffer.pieces.front().col_count * buffer.pieces.front().col_part.of;
    }
    out.push_back({begin, buffer.count / cols, cols});
    begin += buffer.count;
  }
}

/// Rows and columns of matrices, elements of vectors.
std::int64_t factor_elements(const ParameterLayouts& parameters) {
  std::vector<ParameterRange> ranges;
  note_ranges(parameters.cut, 0, ranges);
  note_ranges(parameters.shared, 0, ranges);
  std::int64_t sum = 0;
  for (const ParameterRange& r : ranges) sum += r.cols > 1 ? r.rows + r.cols : r.rows;
  return sum;
}

}  // namespace

template <typename Layouts>
void StageWriter::parameter_frames(Layouts& out, const std::string& name,
                                   const std::vector<Parameter>& parameters) {
  out.parameters = parameter_layouts(x_builder, name, parameters, x_plan, false);
  out.parameter_gradients = parameter_layouts(x_builder, name, parameters, x_plan, true);
  out.weights = x_builder.layout(out.parameters.cut);
  out.gradients = x_builder.layout(out.parameter_gradients.cut);
  out.shared = x_builder.layout(out.parameters.shared);
  out.shared_gradients = x_builder.layout(out.parameter_gradients.shared);
}
template void StageWriter::parameter_frames(LayerLayouts&, const std::string&,
                                            const std::vector<Parameter>&);
template void StageWriter::parameter_frames(EndLayouts&, const std::string&,
                                            const std::vector<Parameter>&);
void StageWriter::write_layouts() {
  const auto hidden = [this](const char* name, bool saved) {
    LayoutWriter writer(name, 0);
    writer.add(name, BufferKind::kActivations, x_plan.precision.compute,
               hidden_elements(x_model, x_plan), saved);
    writer.event("ready");
    writer.event("sent");
    if (x_plan.scatters_messages()) writer.event("arrived");
    return x_builder.layout(writer.layout());
  };
  if (!x_model.is_network()) {  // whose blocks have their own
    x_layer.hidden = x_layer.output = hidden("hidden", true);
    x_layer.hidden_gradient = x_layer.output_gradient = hidden("hidden gradient", false);
  }
  LayoutWriter inputs("inputs", 0);
  inputs.add("tokens", BufferKind::kInputs, DType::kInt64, x_plan.tokens());
  inputs.add("labels", BufferKind::kInputs, DType::kInt64, x_plan.tokens());
  x_inputs = x_model.is_network()           ? image_inputs()
             : x_model.is_encoder_decoder() ? paired_inputs()
                                            : x_builder.layout(inputs.layout());
  LayoutWriter scalars("scalars", 0);
  scalars.add("loss", BufferKind::kWorkspace, DType::kFp32, 1);
  scalars.add("gradient square norm", BufferKind::kWorkspace, DType::kFp32, 1);
  if (own_expert_norm()) {
    scalars.add("expert gradient square norm", BufferKind::kWorkspace, DType::kFp32, 1);
  }
  if (x_plan.validates_later()) {
    for (const char* name : {"norm of stages before", "norm of all stages", "finite"}) {
      scalars.add(name, BufferKind::kWorkspace, DType::kFp32, 1);
    }
  }
  for (Buffer& buffer : scalars.layout().buffers) buffer.persistent = true;
  scalars.event("update done");
  if (x_plan.validates_later()) {
    scalars.event("norm passed");
    scalars.event("finite passed");
  }
  if (x_plan.updates_on_host()) {
    scalars.event("norms done");
    scalars.event("update on the device done");
  }
  if (x_plan.in_grid()) {
    scalars.layout().events.resize(kLossSummed);
    scalars.event("loss summed");
  }
  x_scalars = x_builder.layout(scalars.layout());
  LayoutWriter bucket("bucket", 0);
  bucket.event("reduced");
  bucket.event("gathered");
  const bool copies = x_plan.sharding != Sharding::kNone && x_plan.replicas() > 1;
  if (!by_units() && copies) bucket.event("scattered");
  const bool turns = x_plan.buckets.cycle.ps > 0;
  if (copies_on_compute(x_plan) || x_plan.contiguous() || turns) bucket.event("copied");
  if (x_plan.contiguous() || turns) bucket.event(turns ? "turn" : "summed");
  if (x_plan.updates_on_host()) {
    bucket.layout().events.resize(kAtHost);
    bucket.event("at host");
    bucket.event("summed at host");
  }
  x_bucket = x_builder.layout(bucket.layout());
  LayoutWriter marks("chunk marks", 0);
  marks.event("shared gradients reduced");
  marks.event("tied gradients reduced");
  if (x_plan.in_grid()) marks.event("gradients reduced over the grid");
  x_marks = x_builder.layout(marks.layout());
}

void StageWriter::write_segments() {
  if (x_model.is_network()) return write_blocks();
  if (x_model.is_encoder_decoder()) return write_stacks();
  x_sparse_layer.hidden = x_layer.hidden;
  x_sparse_layer.hidden_gradient = x_layer.hidden_gradient;
  x_sparse_layer.output = x_layer.output;
  x_sparse_layer.output_gradient = x_layer.output_gradient;
  x_sparse_layer.sparse = true;
  for (LayerLayouts* layer : {&x_layer, &x_sparse_layer}) {
    const std::int64_t sparse = x_model.sparse_layers();
    const std::int64_t predict = x_model.predict_layers;
    if (layer->sparse ? sparse + predict == 0 : sparse == x_model.layers) continue;
    parameter_frames(*layer, "layer", layer_parameters(x_model, layer->sparse));
    if (layer->sparse) {
      layer->experts = x_builder.layout(layer->parameters.experts);
      layer->expert_gradients = x_builder.layout(layer->parameter_gradients.experts);
    }
    if (x_plan.precision.low() && !by_units()) {
      FrameLayout copies = quantized_layout(layer->parameters, x_plan.precision);
      if (!copies.buffers.empty()) layer->quantized = x_builder.layout(std::move(copies));
    }
    write_layer_kinds(*layer);
  }
  for (EndLayouts* end : {&x_embedding, &x_head}) {
    end->hidden = x_layer.hidden;
    end->hidden_gradient = x_layer.hidden_gradient;
    end->inputs = x_inputs;
    end->scalars = x_scalars;
  }
  write_end_parameters();
}

void StageWriter::write_end_parameters() {
  x_embedding.at_end = holds(0);
  x_head.at_end = holds(x_plan.chunks() - 1);
  const bool shares = x_plan.shares_vocabulary();
  const bool own_table = !x_model.tied_embeddings;
  const auto tables_alone = [](std::vector<Parameter>& parameters) {
    std::erase_if(parameters, [](const Parameter& p) { return !p.is_table(); });
  };
  if (x_embedding.at_end || shares) {
    std::vector<Parameter> parameters = embedding_parameters(x_model);
    if (!x_embedding.at_end) tables_alone(parameters);
    parameter_frames(x_embedding, "model", parameters);
    if (x_plan.contiguous_passes() && !own_table) {
      FrameLayout ends = one_buffer("gradients of the ends", BufferKind::kGradients,
                                    x_plan.local_gradients(), x_embedding.parameters.cut_elements);
      ends.buffers.front().persistent = false;
      x_ends = x_builder.layout(std::move(ends));
      x_embedding.owners = x_head.owners = {x_ends};
    }
    if (!by_units()) write_ends(true, false);
  }
  if (x_head.at_end || shares) {
    std::vector<Parameter> parameters = head_parameters(x_model);
    if (!x_head.at_end) tables_alone(parameters);
    for (Parameter& p : prediction_parameters(x_model)) parameters.push_back(std::move(p));
    // A tied matrix is the token table itself on a stage that has both ends, a copy of it
    // elsewhere.
    if (!own_table) parameters.push_back(embedding_parameters(x_model).front());
    parameter_frames(x_head, "model", parameters);
    if (!by_units()) write_ends(false, true);
  }
}

/// The segments of a kind of layer: recomputed or not, with the window or not.
void StageWriter::write_layer_kinds(LayerLayouts& layer) {
  for (const bool again : {false, true}) {
    if (again && x_plan.recompute.in_blocks()) continue;
    if (again != x_plan.recompute.any() && (again || x_plan.recompute.parts > 1)) continue;
    if (by_units()) continue;  // see layer_segments
    for (const bool windowed : {false, true}) {
      if (!x_model.has_windowed(windowed)) continue;
      layer.windowed = windowed;
      x_layer_segments[{layer.sparse, windowed, again, 0, 0}] =
          write_layer(x_builder, x_model, x_plan, layer, again);
    }
  }
}

void StageWriter::write_ends(bool embedding, bool head) {
  if (x_model.is_encoder_decoder()) return write_stack_ends();
  if (embedding) {
    x_embedding_segments = write_embedding(x_builder, x_model, x_plan, x_embedding);
  }
  if (head) {
    x_head_segments = write_head(x_builder, x_model, x_plan, x_head,
                                 x_model.tied_embeddings ? "embedding.tokens" : "head.output");
  }
}

PartFrames StageWriter::place(const ParameterLayouts& parameters, LayoutId weights,
                              LayoutId gradients, LayoutId shared, LayoutId shared_gradients,
                              std::int32_t layer) {
  Chunk& chunk = x_chunks.back();
  PartFrames part;
  const auto alias = [&](LayoutId layout, FrameId owner, DType type, std::int64_t element) {
    return x_builder.alias(layout, owner, 0, bytes_of(type, element), layer);
  };
  const auto of_weights = [&](LayoutId layout, std::int64_t element) {
    return x_builder.alias(layout, chunk.parameters, 0, weight_byte(chunk, element), layer);
  };
  const DType gradient_type = x_plan.local_gradients();
  part.cut_begin = chunk.elements;
  part.cut_end = chunk.elements + parameters.cut_elements;
  part.weights = of_weights(weights, part.cut_begin);
  if (!x_plan.contiguous_passes()) {  // else every pass has its own
    part.gradients = alias(gradients, chunk.written, gradient_type, part.cut_begin);
  }
  part.shared = of_weights(shared, chunk.shared_elements);
  part.shared_gradients =
      alias(shared_gradients, chunk.written, gradient_type, chunk.shared_elements);
  note_ranges(parameters.cut, part.cut_begin, chunk.ranges);
  note_ranges(parameters.shared, chunk.shared_elements, chunk.ranges);
  chunk.elements = part.cut_end;
  chunk.shared_elements += parameters.shared_elements;
  return part;
}

void StageWriter::make_chunk(std::int64_t index) {
  const std::int64_t global = x_plan.chunk_at(x_stage, index);
  Chunk chunk;
  chunk.layers = x_plan.pipeline_layout[static_cast<std::size_t>(global)];
  for (std::int64_t c = 0; c < global; ++c) {
    chunk.first_layer += x_plan.pipeline_layout[static_cast<std::size_t>(c)];
  }
  for (const Chunk& earlier : x_chunks) chunk.layers_before += earlier.layers;
  chunk.marks = x_builder.frame(x_marks);
  chunk.holders = Holders{kDataGroup,      shard_group(), "data",       x_plan.data,
                          x_plan.shards(), false,         kReplicaGroup};
  if (x_plan.ways() == 2) {
    const char* group = kWayGroups[index];
    chunk.holders = Holders{group, group, group, x_plan.holders(), x_plan.shards(), false, nullptr};
  }
  chunk.first = global == 0;
  chunk.last = global == x_plan.chunks() - 1;
  chunk.has_embedding = chunk.first || x_plan.shares_vocabulary();
  chunk.has_head = chunk.last || x_plan.shares_vocabulary();
  if (chunk.has_head) chunk.layers += x_model.predict_layers;
  x_chunks.push_back(std::move(chunk));
  if (by_units()) return make_units(x_chunks.back());
  place_parts(x_chunks.back());
  make_buckets(x_chunks.back());
  Chunk& made = x_chunks.back();
  for (const GridPart& part : grid_parts(made, made.shared_elements, made.elements)) {
    std::vector<const char*>& groups = made.grid_groups;
    if (std::find(groups.begin(), groups.end(), part.group) == groups.end()) {
      groups.push_back(part.group);
    }
  }
  FT_CHECK(made.grid_groups.size() <= 2, "a grid with more than two groups of holders");
}

/// What other ranks hold too: the norms and biases of a tensor-parallel group, a table that is tied
/// to the one of another stage. `cut_begin`, `cut_end`: where the cut parameters lie.
std::vector<Replica> StageWriter::replicas(const Chunk& chunk, std::int64_t cut_begin,
                                           std::int64_t cut_end) {
  std::vector<Replica> out;
  const bool tied_end = tied_across(x_model, x_plan) && (chunk.has_embedding || chunk.has_head);
  // The table is the embedding's only cut parameter and the first, or the head's and the last.
  const std::int64_t elements = !tied_end             ? 0
                                : chunk.has_embedding ? x_embedding.parameters.cut_elements
                                                      : x_head.parameters.cut_elements;
  const std::int64_t table = chunk.has_embedding ? cut_begin : cut_end - elements;
  const bool deep = x_plan.tensor_depth > 1;
  for (GridPart part : grid_parts(chunk, cut_begin, cut_end)) {
    if (tied_end && deep && part.begin == cut_begin && chunk.has_embedding) part.begin += elements;
    if (tied_end && deep && part.end == cut_end && !chunk.has_embedding) part.end -= elements;
    out.push_back({part.begin, part.end, x_builder.group(part.group)});
  }
  const bool twins = x_plan.ways() == 2 && !sharded(chunk.holders);
  if (twins) out.push_back({cut_begin, cut_end, x_builder.group(kTwinGroup)});
  const char* alike = twins && x_plan.tensor > 1 ? kTensorTwinGroup : kTwinGroup;
  if (!twins) alike = kTensorGroup;
  if ((twins || (x_plan.tensor > 1 && !x_plan.in_grid())) && cut_begin > 0) {
    out.push_back({0, cut_begin, x_builder.group(alike)});
  }
  if (!tied_end) return out;
  out.push_back({table, table + elements, x_builder.group(deep ? kTiedDepthGroup : kTiedGroup)});
  return out;
}

/// On a grid: what several tensor ranks hold, each with a part of its gradient. Vectors, by the
/// columns that they are cut by; with depth everything.
std::vector<StageWriter::GridPart> StageWriter::grid_parts(const Chunk& chunk,
                                                           std::int64_t cut_begin,
                                                           std::int64_t cut_end) {
  std::vector<GridPart> out;
  if (!x_plan.in_grid()) return out;
  const GridAxes residual = residual_axes(x_plan);
  const GridAxes inner = inner_axes(x_plan);
  const GroupSlot inner_columns = x_builder.group(inner.columns);
  std::int64_t begin = 0;
  const auto add = [&](const FrameLayout& shared) {
    for (const Buffer& buffer : shared.buffers) {
      const Piece& piece = buffer.pieces.front();
      const GroupSlot columns =
          piece.rows_split_over.valid() ? piece.rows_split_over : piece.cols_split_over;
      const char* group = columns == inner_columns ? inner.tokens : residual.tokens;
      if (out.empty() || out.back().group != group) out.push_back({begin, begin, group});
      begin = out.back().end = begin + buffer.count;
    }
  };
  if (chunk.has_embedding) add(x_embedding.parameters.shared);
  for (std::int64_t l = 0; l < chunk.layers; ++l) add(kind_of(chunk, l).parameters.shared);
  if (chunk.has_head) add(x_head.parameters.shared);
  if (x_plan.tensor_depth > 1 && cut_begin < cut_end) {
    out.push_back({cut_begin, cut_end, kGridDepth});
  }
  return out;
}

void StageWriter::place_parts(Chunk& chunk) {
  const bool own_table = !x_model.tied_embeddings;
  const bool both_ends = chunk.has_embedding && chunk.has_head;
  std::int64_t cut = 0;
  std::int64_t shared = 0;
  for (std::int64_t l = 0; l < chunk.layers; ++l) {
    cut += kind_of(chunk, l).parameters.cut_elements;
    shared += kind_of(chunk, l).parameters.shared_elements;
    chunk.factor_elements += factor_elements(kind_of(chunk, l).parameters);
  }
  if (chunk.has_embedding) {
    cut += x_embedding.parameters.cut_elements;
    shared += x_embedding.parameters.shared_elements;
    chunk.factor_elements += factor_elements(x_embedding.parameters);
  }
  // In zb-v a tied table lies in the stage's first chunk, the head in its second.
  const bool borrowed = chunk.has_head && !own_table && !both_ends && !tied_across(x_model, x_plan);
  const bool head_table = chunk.has_head && !borrowed && (own_table || !both_ends);
  if (chunk.has_head) {
    chunk.factor_elements += factor_elements(x_head.parameters);
    cut += head_table ? x_head.parameters.cut_elements : 0;
    shared += x_head.parameters.shared_elements;
  }
  chunk.shared_elements = shared;
  map_weights(chunk, head_table);
  own_buffers(chunk, cut + shared, replicas(chunk, shared, shared + cut));
  const std::int64_t total = chunk.elements;

  chunk.elements = shared;  // the cut parts follow the shared ones
  chunk.shared_elements = 0;
  const auto put = [this](const auto& l, std::int32_t layer) {
    return place(l.parameters, l.weights, l.gradients, l.shared, l.shared_gradients, layer);
  };
  if (chunk.has_embedding) chunk.embedding = put(x_embedding, -1);
  for (std::int64_t l = 0; l < chunk.layers; ++l) {
    chunk.parts.push_back(put(kind_of(chunk, l), static_cast<std::int32_t>(chunk.first_layer + l)));
  }
  if (borrowed) {
    chunk.head = head_with_table_of(x_chunks.front(), total);
  } else if (chunk.has_head) {
    // A table that is not the head's own is its only cut parameter and stands first in the
    // embedding's part.
    if (!head_table) chunk.elements = chunk.embedding.cut_begin;
    chunk.head = put(x_head, -1);
  }
  chunk.elements = total;
}

/// The head of the last chunk, whose table is that of `owner`. Nothing of its own is cut, so what
/// it has ends where the chunk does, at `total`. The owner's last pass for gradients of weights
/// comes after this chunk's.
PartFrames StageWriter::head_with_table_of(const Chunk& owner, std::int64_t total) {
  Chunk& chunk = x_chunks.back();
  const DType gradient_type = x_plan.precision.gradients;
  const std::int64_t table = owner.embedding.cut_begin;
  PartFrames part;
  part.cut_begin = part.cut_end = total;
  part.weights =
      x_builder.alias(x_head.weights, owner.parameters, 0, weight_byte(owner, table), -1);
  part.gradients =
      x_builder.alias(x_head.gradients, owner.gradients, 0, bytes_of(gradient_type, table), -1);
  part.shared = x_builder.alias(x_head.shared, chunk.parameters, 0,
                                weight_byte(chunk, chunk.shared_elements), -1);
  part.shared_gradients = x_builder.alias(x_head.shared_gradients, chunk.gradients, 0,
                                          bytes_of(gradient_type, chunk.shared_elements), -1);
  chunk.shared_elements += x_head.parameters.shared_elements;
  return part;
}

/// The contiguous buffers of a chunk with so many parameters, padded to what its ranks share.
void StageWriter::own_buffers(Chunk& chunk, std::int64_t elements, std::vector<Replica> replicas) {
  const bool split = sharded(chunk.holders);
  const std::int64_t total = round_up(elements, split ? chunk.holders.shards * 128 : 1);
  chunk.filled = elements;
  chunk.elements = total;
  const Precision& precision = x_plan.precision;
  FrameLayout weights{"parameters", {weight_buffer(chunk, total)}, {}};
  chunk.parameters = x_builder.frame(x_builder.layout(std::move(weights)));
  const bool passes = x_plan.contiguous_passes();
  FrameLayout gradients = one_buffer("gradients", BufferKind::kGradients,
                                     passes ? x_plan.local_gradients() : precision.gradients,
                                     passes ? chunk.shared_elements : total);
  chunk.replicas = replicas;
  if (!passes) gradients.buffers.front().replicas = std::move(replicas);
  chunk.gradients = chunk.written = x_builder.frame(x_builder.layout(std::move(gradients)));
  if (x_plan.sums_after_pass) {
    chunk.written = x_builder.frame(x_builder.layout(
        one_buffer("gradients of a pass", BufferKind::kGradients, precision.compute, total)));
  }
  if (x_plan.reduces_each_pass() && chunk.holders.ranks > 1) {
    chunk.summed = x_builder.frame(x_builder.layout(
        one_buffer("gradient sum", BufferKind::kGradients, precision.gradients, total)));
  }
  chunk.state_elements = total / (split ? chunk.holders.shards : 1);
  if (x_plan.updates_on_host()) return;  // where every bucket has its own
  FrameLayout states;
  states.name = "optimizer";
  for (const OptimizerState& state : optimizer_states(x_plan.optimizer, precision.master)) {
    const std::int64_t count =
        state.factored ? chunk.factor_elements : state.elements(chunk.state_elements);
    states.buffers.push_back(
        one_buffer(state.name.c_str(), BufferKind::kOptimizer, state.type, count).buffers.front());
  }
  chunk.optimizer = x_builder.frame(x_builder.layout(std::move(states)));
}

/// What this rank trains on.
Batch StageWriter::batch() {
  Batch out;
  out.sequences = x_plan.micro_batch;
  out.length = x_plan.sequence_length;
  out.microbatches = x_plan.microbatches();
  out.vocabulary = x_model.vocabulary;
  const bool cut = x_plan.context > 1;
  if (x_plan.data > 1) out.split_over = x_builder.group(cut ? kBatchGroup : kDataGroup);
  if (cut) out.context = x_builder.group(kContextGroup);
  out.contiguous = cut && x_plan.context_exchange == ContextExchange::kRingSelf;
  if (cut && x_plan.context_exchange == ContextExchange::kRing) out.documents = x_plan.documents;
  return out;
}

}  // namespace foretrain
