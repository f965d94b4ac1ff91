#include <algorithm>

#include "models/emit/frames.h"
#include "models/gradients/buckets.h"
#include "models/layers/optimizer.h"
#include "models/layers/quantizer.h"
#include "models/layers/tensor_grid.h"
#include "models/units/units.h"
#include "sim/base/check.h"

namespace foretrain {

static void write_end_parameters(Stage& stage);
static void write_layer_kinds(Stage& stage, LayerLayouts& layer);
static PartFrames place(Stage& stage, const ParameterLayouts& parameters, LayoutId weights,
                        LayoutId gradients, LayoutId shared, LayoutId shared_gradients,
                        std::int32_t layer);
static std::vector<Replica> replicas(Stage& stage, const Chunk& chunk, std::int64_t cut_begin,
                                     std::int64_t cut_end);
static void place_parts(Stage& stage, Chunk& chunk);
static PartFrames head_with_table_of(Stage& stage, const Chunk& owner, std::int64_t total);

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

std::size_t block_kind(const Stage& stage, const Chunk& chunk, std::int64_t l) {
  return stage.holds.block_kinds[static_cast<std::size_t>(chunk.first_layer + l)];
}

const LayerLayouts& kind_of(const Stage& stage, const Chunk& chunk, std::int64_t l) {
  const Model& model = stage.model;
  if (model.is_network()) return stage.holds.blocks[block_kind(stage, chunk, l)];
  if (model.is_encoder_decoder()) return stack_layouts(stage, chunk.first_layer + l);
  const LayerKind kind = model.kind(chunk.first_layer + l);
  return *std::find_if(stage.holds.kinds.begin(), stage.holds.kinds.end(),
                       [&kind](const LayerLayouts& one) { return one.kind == kind; });
}

/// Layers that hold parameters: all, or the first alone where all have its.
static std::int64_t holding_layers(const Stage& stage, const Chunk& chunk) {
  return stage.model.hybrid.one_layer ? std::min<std::int64_t>(1, chunk.layers) : chunk.layers;
}

std::vector<const LayerLayouts*> kinds_of(const Stage& stage, const Chunk& chunk) {
  std::vector<const LayerLayouts*> out;
  if (chunk.holders.expert) return out;
  for (std::int64_t l = 0; l < holding_layers(stage, chunk); ++l)
    out.push_back(&kind_of(stage, chunk, l));
  return out;
}

/// Whether a chunk of the pipeline stands on this stage.
static bool holds_chunk(const Stage& stage, std::int64_t chunk) {
  return stage.number == stage.plan.stage_of(chunk) ||
         (stage.plan.directions() == 2 && stage.number == stage.plan.stage_of(chunk, 1));
}

template <typename Layouts>
void parameter_frames(Stage& stage, Layouts& out, const std::string& name,
                      const std::vector<Parameter>& parameters) {
  out.parameters = parameter_layouts(stage.builder, name, parameters, stage.plan, false);
  out.parameter_gradients = parameter_layouts(stage.builder, name, parameters, stage.plan, true);
  out.weights = stage.builder.layout(out.parameters.cut);
  out.gradients = stage.builder.layout(out.parameter_gradients.cut);
  out.shared = stage.builder.layout(out.parameters.shared);
  out.shared_gradients = stage.builder.layout(out.parameter_gradients.shared);
}
template void parameter_frames(Stage&, LayerLayouts&, const std::string&,
                               const std::vector<Parameter>&);
template void parameter_frames(Stage&, EndLayouts&, const std::string&,
                               const std::vector<Parameter>&);
/// Tokens or patches of a microbatch, and their labels.
static LayoutId inputs_layout(Stage& stage) {
  if (stage.model.is_network()) return image_inputs(stage);
  if (stage.model.is_encoder_decoder()) return paired_inputs(stage);
  const Plan& plan = stage.plan;
  LayoutWriter inputs("inputs", 0);
  if (const std::int64_t patch = stage.model.ends.patch; patch > 0) {
    inputs.add("patches", BufferKind::kInputs, plan.precision.compute,
               (plan.tokens() - plan.micro_batch) * patch);
  } else {
    inputs.add("tokens", BufferKind::kInputs, DType::kInt64, plan.tokens());
  }
  inputs.add("labels", BufferKind::kInputs, DType::kInt64, plan.tokens());
  return stage.builder.layout(inputs.layout());
}

void write_layouts(Stage& stage) {
  const auto hidden = [&stage](const char* name, bool saved) {
    LayoutWriter writer(name, 0);
    writer.add(name, BufferKind::kActivations, stage.plan.precision.compute,
               hidden_elements(stage.model, stage.plan), saved);
    writer.event("ready");
    writer.event("sent");
    if (stage.plan.scatters_messages()) writer.event("arrived");
    return stage.builder.layout(writer.layout());
  };
  if (!stage.model.is_network()) {  // whose blocks have their own
    stage.holds.layer.hidden = stage.holds.layer.output = hidden("hidden", true);
    stage.holds.layer.hidden_gradient = stage.holds.layer.output_gradient =
        hidden("hidden gradient", false);
  }
  stage.holds.inputs = inputs_layout(stage);
  LayoutWriter scalars("scalars", 0);
  scalars.add("loss", BufferKind::kWorkspace, DType::kFp32, 1);
  scalars.add("gradient square norm", BufferKind::kWorkspace, DType::kFp32, 1);
  if (own_expert_norm(stage)) {
    scalars.add("expert gradient square norm", BufferKind::kWorkspace, DType::kFp32, 1);
  }
  if (stage.plan.validates_later()) {
    for (const char* name : {"norm of stages before", "norm of all stages", "finite"}) {
      scalars.add(name, BufferKind::kWorkspace, DType::kFp32, 1);
    }
  }
  for (Buffer& buffer : scalars.layout().buffers) buffer.persistent = true;
  scalars.event("update done");
  if (stage.plan.validates_later()) {
    scalars.event("norm passed");
    scalars.event("finite passed");
  }
  if (stage.plan.updates_on_host()) {
    scalars.event("norms done");
    scalars.event("update on the device done");
  }
  if (stage.plan.in_grid()) {
    scalars.layout().events.resize(kLossSummed);
    scalars.event("loss summed");
  }
  stage.holds.scalars = stage.builder.layout(scalars.layout());
  LayoutWriter bucket("bucket", 0);
  bucket.event("reduced");
  bucket.event("gathered");
  const bool copies = stage.plan.sharding != Sharding::kNone && stage.plan.replicas() > 1;
  if (!by_units(stage) && copies) bucket.event("scattered");
  const bool turns = stage.plan.buckets.cycle.ps > 0;
  if (copies_on_compute(stage.plan) || stage.plan.contiguous() || turns) bucket.event("copied");
  if (stage.plan.contiguous() || turns) bucket.event(turns ? "turn" : "summed");
  if (stage.plan.updates_on_host()) {
    bucket.layout().events.resize(kAtHost);
    bucket.event("at host");
    bucket.event("summed at host");
  }
  stage.holds.bucket = stage.builder.layout(bucket.layout());
  LayoutWriter marks("chunk marks", 0);
  marks.event("shared gradients reduced");
  marks.event("tied gradients reduced");
  if (stage.plan.in_grid()) marks.event("gradients reduced over the grid");
  stage.holds.marks = stage.builder.layout(marks.layout());
}

void write_segments(Stage& stage) {
  if (stage.model.is_network()) return write_blocks(stage);
  if (stage.model.is_encoder_decoder()) return write_stacks(stage);
  const bool shares = stage.model.hybrid.shared.blocks > 0;
  for (const LayersOfKind& of : stage.model.kinds(true)) {
    LayerLayouts& layer = stage.holds.kinds.emplace_back(stage.holds.layer);
    layer.kind = of.kind;
    const std::string shape = of.kind.shape > 0 ? " of shape " + std::to_string(of.kind.shape) : "";
    parameter_frames(stage, layer, "layer" + shape, layer_parameters(stage.model, of.kind));
    if (of.kind.sparse()) {
      layer.experts = stage.builder.layout(layer.parameters.experts);
      layer.expert_gradients = stage.builder.layout(layer.parameter_gradients.experts);
    }
    if (stage.plan.precision.low() && !by_units(stage)) {
      FrameLayout copies = quantized_layout(layer.parameters, stage.plan.precision);
      if (!copies.buffers.empty()) layer.quantized = stage.builder.layout(std::move(copies));
    }
    if (!shares) write_layer_kinds(stage, layer);
  }
  for (EndLayouts* end : {&stage.holds.embedding, &stage.holds.head}) {
    end->hidden = stage.holds.layer.hidden;
    end->hidden_gradient = stage.holds.layer.hidden_gradient;
    end->inputs = stage.holds.inputs;
    end->scalars = stage.holds.scalars;
  }
  if (shares) stage.holds.embedding.owners = {stage.holds.layer.hidden_gradient};
  write_end_parameters(stage);
  if (!shares) return;
  add_block_frames(stage);
  for (LayerLayouts& layer : stage.holds.kinds) write_layer_kinds(stage, layer);
}

void write_end_parameters(Stage& stage) {
  stage.holds.embedding.at_end = holds_chunk(stage, 0);
  stage.holds.head.at_end = holds_chunk(stage, stage.plan.chunks() - 1);
  const bool shares = stage.plan.shares_vocabulary();
  const bool own_table = !stage.model.tied_embeddings;
  const auto tables_alone = [](std::vector<Parameter>& parameters) {
    std::erase_if(parameters, [](const Parameter& p) { return !p.is_table(); });
  };
  if (stage.holds.embedding.at_end || shares) {
    std::vector<Parameter> parameters = embedding_parameters(stage.model);
    if (!stage.holds.embedding.at_end) tables_alone(parameters);
    parameter_frames(stage, stage.holds.embedding, "model", parameters);
    if (stage.plan.contiguous_passes() && !own_table) {
      FrameLayout ends =
          one_buffer("gradients of the ends", BufferKind::kGradients, stage.plan.local_gradients(),
                     stage.holds.embedding.parameters.cut_elements);
      ends.buffers.front().persistent = false;
      stage.holds.ends = stage.builder.layout(std::move(ends));
      stage.holds.embedding.owners = stage.holds.head.owners = {stage.holds.ends};
    }
    if (!by_units(stage)) write_ends(stage, true, false);
  }
  if (stage.holds.head.at_end || shares) {
    std::vector<Parameter> parameters = head_parameters(stage.model);
    if (!stage.holds.head.at_end) tables_alone(parameters);
    for (Parameter& p : prediction_parameters(stage.model)) parameters.push_back(std::move(p));
    // A tied matrix is the token table itself on a stage that has both ends, a copy of it
    // elsewhere.
    if (!own_table) parameters.push_back(embedding_parameters(stage.model).front());
    parameter_frames(stage, stage.holds.head, "model", parameters);
    if (!by_units(stage)) write_ends(stage, false, true);
  }
}

/// The segments of a kind of layer: recomputed or not, with the window or not.
void write_layer_kinds(Stage& stage, LayerLayouts& layer) {
  for (const bool again : {false, true}) {
    if (again && stage.plan.recompute.in_blocks()) continue;
    if (again != stage.plan.recompute.any() && (again || stage.plan.recompute.parts > 1)) continue;
    if (by_units(stage)) continue;  // see layer_segments
    for (const bool windowed : {false, true}) {
      if (!stage.model.has_windowed(windowed)) continue;
      layer.windowed = windowed;
      stage.segments.of_layers[{layer.kind, windowed, again, 0, 0}] =
          write_layer(stage.builder, stage.model, stage.plan, layer, again);
    }
  }
}

void write_ends(Stage& stage, bool embedding, bool head) {
  if (stage.model.is_encoder_decoder()) return write_stack_ends(stage);
  if (embedding) {
    stage.segments.embedding =
        write_embedding(stage.builder, stage.model, stage.plan, stage.holds.embedding);
  }
  if (head) {
    stage.segments.head = write_head(stage.builder, stage.model, stage.plan, stage.holds.head,
                                     stage.model.ends.classes > 0  ? "head.classes.weight"
                                     : stage.model.tied_embeddings ? "embedding.tokens"
                                                                   : "head.output");
  }
}

PartFrames place(Stage& stage, const ParameterLayouts& parameters, LayoutId weights,
                 LayoutId gradients, LayoutId shared, LayoutId shared_gradients,
                 std::int32_t layer) {
  Chunk& chunk = stage.holds.chunks.back();
  PartFrames part;
  const auto alias = [&](LayoutId layout, FrameId owner, DType type, std::int64_t element) {
    return stage.builder.alias(layout, owner, 0, bytes_of(type, element), layer);
  };
  const auto of_weights = [&](LayoutId layout, std::int64_t element) {
    return stage.builder.alias(layout, chunk.parameters, 0, weight_byte(stage, chunk, element),
                               layer);
  };
  const DType gradient_type = stage.plan.local_gradients();
  part.cut_begin = chunk.elements;
  part.cut_end = chunk.elements + parameters.cut_elements;
  part.weights = of_weights(weights, part.cut_begin);
  if (!stage.plan.contiguous_passes()) {  // else every pass has its own
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

void make_chunk(Stage& stage, std::int64_t index) {
  const std::int64_t global = stage.plan.chunk_at(stage.number, index);
  Chunk chunk;
  chunk.layers = stage.plan.pipeline_layout[static_cast<std::size_t>(global)];
  for (std::int64_t c = 0; c < global; ++c) {
    chunk.first_layer += stage.plan.pipeline_layout[static_cast<std::size_t>(c)];
  }
  for (const Chunk& earlier : stage.holds.chunks) chunk.layers_before += earlier.layers;
  chunk.marks = stage.builder.frame(stage.holds.marks);
  chunk.holders =
      ReplicaGroup{kDataGroup, shard_group(stage), "data", stage.plan.data, stage.plan.shards(),
                   false,      kReplicaGroup};
  if (stage.plan.directions() == 2) {
    const char* group = kWayGroups[index];
    chunk.holders = ReplicaGroup{
        group, group, group, stage.plan.replica_ranks(), stage.plan.shards(), false, nullptr};
  }
  chunk.first = global == 0;
  chunk.last = global == stage.plan.chunks() - 1;
  chunk.has_embedding = chunk.first || stage.plan.shares_vocabulary();
  chunk.has_head = chunk.last || stage.plan.shares_vocabulary();
  if (chunk.has_head) chunk.layers += stage.model.predict_layers;
  stage.holds.chunks.push_back(std::move(chunk));
  if (by_units(stage)) return make_units(stage, stage.holds.chunks.back());
  place_parts(stage, stage.holds.chunks.back());
  make_buckets(stage, stage.holds.chunks.back());
  Chunk& made = stage.holds.chunks.back();
  for (const GridPart& part : grid_parts(stage, made, made.shared_elements, made.elements)) {
    std::vector<const char*>& groups = made.grid_groups;
    if (std::find(groups.begin(), groups.end(), part.group) == groups.end()) {
      groups.push_back(part.group);
    }
  }
  FT_CHECK(made.grid_groups.size() <= 2, "a grid with more than two groups of holders");
}

/// What other ranks hold too: the norms and biases of a tensor-parallel group, a table that is tied
/// to the one of another stage. `cut_begin`, `cut_end`: where the cut parameters lie.
std::vector<Replica> replicas(Stage& stage, const Chunk& chunk, std::int64_t cut_begin,
                              std::int64_t cut_end) {
  std::vector<Replica> out;
  const bool tied_end =
      tied_across(stage.model, stage.plan) && (chunk.has_embedding || chunk.has_head);
  // The table is the embedding's only cut parameter and the first, or the head's and the last.
  const std::int64_t elements = !tied_end ? 0
                                : chunk.has_embedding
                                    ? stage.holds.embedding.parameters.cut_elements
                                    : stage.holds.head.parameters.cut_elements;
  const std::int64_t table = chunk.has_embedding ? cut_begin : cut_end - elements;
  const bool deep = stage.plan.tensor_depth > 1;
  for (GridPart part : grid_parts(stage, chunk, cut_begin, cut_end)) {
    if (tied_end && deep && part.begin == cut_begin && chunk.has_embedding) part.begin += elements;
    if (tied_end && deep && part.end == cut_end && !chunk.has_embedding) part.end -= elements;
    out.push_back({part.begin, part.end, stage.builder.group(part.group)});
  }
  const bool twins = stage.plan.directions() == 2 && !sharded(stage, chunk.holders);
  if (twins) out.push_back({cut_begin, cut_end, stage.builder.group(kMirrorGroup)});
  const char* alike = twins && stage.plan.tensor > 1 ? kTensorMirrorGroup : kMirrorGroup;
  if (!twins) alike = kTensorGroup;
  if ((twins || (stage.plan.tensor > 1 && !stage.plan.in_grid())) && cut_begin > 0) {
    out.push_back({0, cut_begin, stage.builder.group(alike)});
  }
  if (!tied_end) return out;
  out.push_back(
      {table, table + elements, stage.builder.group(deep ? kTiedDepthGroup : kTiedGroup)});
  return out;
}

/// On a grid: what several tensor ranks hold, each with a part of its gradient. Vectors, by the
/// columns that they are cut by; with depth everything.
std::vector<GridPart> grid_parts(Stage& stage, const Chunk& chunk, std::int64_t cut_begin,
                                 std::int64_t cut_end) {
  std::vector<GridPart> out;
  if (!stage.plan.in_grid()) return out;
  const GridAxes residual = residual_axes(stage.plan);
  const GridAxes inner = inner_axes(stage.plan);
  const GroupSlot inner_columns = stage.builder.group(inner.columns);
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
  if (chunk.has_embedding) add(stage.holds.embedding.parameters.shared);
  for (std::int64_t l = 0; l < chunk.layers; ++l) add(kind_of(stage, chunk, l).parameters.shared);
  if (chunk.has_head) add(stage.holds.head.parameters.shared);
  if (stage.plan.tensor_depth > 1 && cut_begin < cut_end) {
    out.push_back({cut_begin, cut_end, kGridDepth});
  }
  return out;
}

void place_parts(Stage& stage, Chunk& chunk) {
  const bool own_table = !stage.model.tied_embeddings;
  const bool both_ends = chunk.has_embedding && chunk.has_head;
  std::int64_t cut = 0;
  std::int64_t shared = 0;
  for (std::int64_t l = 0; l < holding_layers(stage, chunk); ++l) {
    cut += kind_of(stage, chunk, l).parameters.cut_elements;
    shared += kind_of(stage, chunk, l).parameters.shared_elements;
    chunk.factor_elements += factor_elements(kind_of(stage, chunk, l).parameters);
  }
  if (chunk.has_embedding) {
    cut += stage.holds.embedding.parameters.cut_elements;
    shared += stage.holds.embedding.parameters.shared_elements;
    chunk.factor_elements += factor_elements(stage.holds.embedding.parameters);
  }
  // In zb-v a tied table lies in the stage's first chunk, the head in its second.
  const bool borrowed =
      chunk.has_head && !own_table && !both_ends && !tied_across(stage.model, stage.plan);
  const bool head_table = chunk.has_head && !borrowed && (own_table || !both_ends);
  if (chunk.has_head) {
    chunk.factor_elements += factor_elements(stage.holds.head.parameters);
    cut += head_table ? stage.holds.head.parameters.cut_elements : 0;
    shared += stage.holds.head.parameters.shared_elements;
  }
  chunk.shared_elements = shared;
  map_weights(stage, chunk, head_table);
  own_buffers(stage, chunk, cut + shared, replicas(stage, chunk, shared, shared + cut));
  const std::int64_t total = chunk.elements;

  chunk.elements = shared;  // the cut parts follow the shared ones
  chunk.shared_elements = 0;
  const auto put = [&stage](const auto& l, std::int32_t layer) {
    return place(stage, l.parameters, l.weights, l.gradients, l.shared, l.shared_gradients, layer);
  };
  if (chunk.has_embedding) chunk.embedding = put(stage.holds.embedding, -1);
  for (std::int64_t l = 0; l < holding_layers(stage, chunk); ++l) {
    chunk.parts.push_back(
        put(kind_of(stage, chunk, l), static_cast<std::int32_t>(chunk.first_layer + l)));
  }
  if (stage.model.hybrid.one_layer) {
    // The first layer's backward pass is the last, so that it completes the gradients of all.
    PartFrames again = chunk.parts.front();
    again.cut_begin = again.cut_end;
    chunk.parts.resize(static_cast<std::size_t>(chunk.layers), again);
  }
  if (borrowed) {
    chunk.head = head_with_table_of(stage, stage.holds.chunks.front(), total);
  } else if (chunk.has_head) {
    // A table that is not the head's own is its only cut parameter and stands first in the
    // embedding's part.
    if (!head_table) chunk.elements = chunk.embedding.cut_begin;
    chunk.head = put(stage.holds.head, -1);
  }
  chunk.elements = total;
}

/// The head of the last chunk, whose table is that of `owner`. Nothing of its own is cut, so what
/// it has ends where the chunk does, at `total`. The owner's last pass for gradients of weights
/// comes after this chunk's.
PartFrames head_with_table_of(Stage& stage, const Chunk& owner, std::int64_t total) {
  Chunk& chunk = stage.holds.chunks.back();
  const DType gradient_type = stage.plan.precision.gradients;
  const std::int64_t table = owner.embedding.cut_begin;
  PartFrames part;
  part.cut_begin = part.cut_end = total;
  part.weights = stage.builder.alias(stage.holds.head.weights, owner.parameters, 0,
                                     weight_byte(stage, owner, table), -1);
  part.gradients = stage.builder.alias(stage.holds.head.gradients, owner.gradients, 0,
                                       bytes_of(gradient_type, table), -1);
  part.shared = stage.builder.alias(stage.holds.head.shared, chunk.parameters, 0,
                                    weight_byte(stage, chunk, chunk.shared_elements), -1);
  part.shared_gradients = stage.builder.alias(stage.holds.head.shared_gradients, chunk.gradients, 0,
                                              bytes_of(gradient_type, chunk.shared_elements), -1);
  chunk.shared_elements += stage.holds.head.parameters.shared_elements;
  return part;
}

/// The contiguous buffers of a chunk with so many parameters, padded to what its ranks share.
void own_buffers(Stage& stage, Chunk& chunk, std::int64_t elements, std::vector<Replica> replicas) {
  const bool split = sharded(stage, chunk.holders);
  const std::int64_t total = round_up(elements, split ? chunk.holders.shards * 128 : 1);
  chunk.filled = elements;
  chunk.elements = total;
  const Precision& precision = stage.plan.precision;
  FrameLayout weights{"parameters", {weight_buffer(stage, chunk, total)}, {}};
  chunk.parameters = stage.builder.frame(stage.builder.layout(std::move(weights)));
  const bool passes = stage.plan.contiguous_passes();
  FrameLayout gradients = one_buffer("gradients", BufferKind::kGradients,
                                     passes ? stage.plan.local_gradients() : precision.gradients,
                                     passes ? chunk.shared_elements : total);
  chunk.replicas = replicas;
  if (!passes) gradients.buffers.front().replicas = std::move(replicas);
  chunk.gradients = chunk.written = stage.builder.frame(stage.builder.layout(std::move(gradients)));
  if (stage.plan.sums_after_pass) {
    chunk.written = stage.builder.frame(stage.builder.layout(
        one_buffer("gradients of a pass", BufferKind::kGradients, precision.compute, total)));
  }
  if (stage.plan.reduces_each_pass() && chunk.holders.ranks > 1) {
    chunk.summed = stage.builder.frame(stage.builder.layout(
        one_buffer("gradient sum", BufferKind::kGradients, precision.gradients, total)));
  }
  if (stage.plan.updates_on_host()) return;  // where every bucket has its own
  const std::int64_t own = total / (split ? chunk.holders.shards : 1);  // what this rank updates
  FrameLayout states;
  states.name = "optimizer";
  for (const OptimizerState& state : optimizer_states(stage.plan.optimizer, precision.master)) {
    const std::int64_t count = state.factored ? chunk.factor_elements : state.elements(own);
    states.buffers.push_back(
        one_buffer(state.name.c_str(), BufferKind::kOptimizer, state.type, count).buffers.front());
  }
  chunk.optimizer = stage.builder.frame(stage.builder.layout(std::move(states)));
}

/// What this rank trains on.
Batch batch(Stage& stage) {
  Batch out;
  out.sequences = stage.plan.micro_batch;
  out.length = stage.plan.sequence_length;
  out.microbatches = stage.plan.microbatches();
  out.vocabulary = stage.model.vocabulary;
  const bool cut = stage.plan.context > 1;
  if (stage.plan.data > 1) out.split_over = stage.builder.group(cut ? kBatchGroup : kDataGroup);
  if (cut) out.context = stage.builder.group(kContextGroup);
  out.contiguous = cut && stage.plan.context_exchange == ContextExchange::kRingSelf;
  if (cut && stage.plan.context_exchange == ContextExchange::kRing)
    out.documents = stage.plan.documents;
  return out;
}

}  // namespace foretrain
