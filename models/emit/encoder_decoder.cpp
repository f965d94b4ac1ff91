// A stage of an encoder-decoder: its kinds of layers, and the encoder's output that all
// cross-attention reads.
#include "models/layers/encoder_decoder.h"
#include "models/emit/frames.h"
#include "models/emit/tasks.h"
#include "models/gradients/buckets.h"
#include "models/units/units.h"

namespace foretrain {

static LayerSegments write_stack_layer(Stage& stage, Stack stack, bool first, bool again,
                                       const LayerLayouts& layouts);

/// Tokens of both stacks and the decoder's labels.
LayoutId paired_inputs(Stage& stage) {
  const std::int64_t targets = stage.plan.micro_batch * stage.plan.target();
  LayoutWriter inputs("inputs", 0);
  inputs.add("tokens", BufferKind::kInputs, DType::kInt64, stage.plan.tokens());
  inputs.add("labels", BufferKind::kInputs, DType::kInt64, targets);
  inputs.add("targets", BufferKind::kInputs, DType::kInt64, targets);
  return stage.builder.layout(inputs.layout());
}

/// Layouts of encoder layers, the turn, cross-attention and decoder layers, and both ends.
void write_stacks(Stage& stage) {
  const Plan later = decoder_plan(stage.plan);
  const auto residual = [&stage](const char* name, std::int64_t tokens, bool saved) {
    LayoutWriter writer(name, 0);
    writer.add(name, BufferKind::kActivations, stage.plan.precision.compute,
               tokens * stage.model.hidden, saved);
    writer.event("ready");
    writer.event("sent");
    return stage.builder.layout(writer.layout());
  };
  const LayoutId targets = residual("decoder hidden", later.tokens(), true);
  const LayoutId targets_gradient = residual("decoder hidden gradient", later.tokens(), false);
  stage.holds.memory = {residual("encoder output", stage.plan.tokens(), true),
                        residual("encoder output gradient", stage.plan.tokens(), false)};
  parameter_frames(stage, stage.holds.layer, "layer", layer_parameters(stage.model));
  stage.holds.decoder = stage.holds.layer;
  stage.holds.turn.hidden = stage.holds.layer.hidden;
  stage.holds.turn.hidden_gradient = stage.holds.layer.hidden_gradient;
  for (LayerLayouts* l : {&stage.holds.turn, &stage.holds.cross, &stage.holds.decoder}) {
    l->output = targets;
    l->output_gradient = targets_gradient;
    if (l == &stage.holds.turn) continue;
    l->hidden = targets;
    l->hidden_gradient = targets_gradient;
  }
  parameter_frames(stage, stage.holds.turn, "turn", turn_parameters(stage.model));
  parameter_frames(stage, stage.holds.cross, "layer", cross_parameters(stage.model));
  for (EndLayouts* end : {&stage.holds.embedding, &stage.holds.head}) {
    const bool head = end == &stage.holds.head;
    end->hidden = head ? targets : stage.holds.layer.hidden;
    end->hidden_gradient = head ? targets_gradient : stage.holds.layer.hidden_gradient;
    end->inputs = stage.holds.inputs;
    end->scalars = stage.holds.scalars;
  }
  std::vector<Parameter> last = head_parameters(stage.model);
  if (stage.model.tied_embeddings) last.push_back(embedding_parameters(stage.model).front());
  parameter_frames(stage, stage.holds.embedding, "model", embedding_parameters(stage.model));
  parameter_frames(stage, stage.holds.head, "model", last);
  if (!by_units(stage)) write_stack_ends(stage);
}

/// The embedding with the encoder's tokens, the head with the decoder's.
void write_stack_ends(Stage& stage) {
  const Plan later = decoder_plan(stage.plan);
  const Model encoder = stack_model(stage.model, true);
  const Model decoder = stack_model(stage.model, false);
  stage.segments.embedding =
      write_embedding(stage.builder, encoder, stage.plan, stage.holds.embedding);
  stage.segments.head =
      write_head(stage.builder, decoder, later, stage.holds.head,
                 stage.model.tied_embeddings ? "embedding.tokens" : "head.output");
}

LayerSegments write_stack_layer(Stage& stage, Stack stack, bool first, bool again,
                                const LayerLayouts& layouts) {
  const bool encodes = stack == Stack::kEncoder || stack == Stack::kTurn;
  const Plan plan = encodes ? stage.plan : decoder_plan(stage.plan);
  const Model model = stack_model(stage.model, encodes);
  if (stack == Stack::kTurn) {
    return write_turn(stage.builder, model, plan, layouts, stage.holds.memory,
                      stage.holds.embedding);
  }
  if (stack == Stack::kCross) {
    return write_cross(stage.builder, model, plan, stage.plan.tokens(), layouts, stage.holds.memory,
                       CrossForm{first, again});
  }
  return write_layer(stage.builder, model, plan, layouts, again);
}

/// The backward pass comes to the last cross-attention first.
const LayerSegments& stack_segments(Stage& stage, Chunk& chunk, std::int64_t l) {
  const std::int64_t layer = chunk.first_layer + l;
  const Stack stack = stage.model.stack(layer);
  const bool first = stack == Stack::kCross && layer == stage.model.layers - 2;
  const std::size_t shape = by_units(stage) ? unit_of(chunk, l).shape : 0;
  const bool again = recomputes(stage.plan, chunk.layers_before + l);
  const auto [it, fresh] = stage.segments.of_stacks.try_emplace({stack, first, again, shape});
  if (!fresh) return it->second;
  LayerLayouts layouts = stack_layouts(stage, layer);
  if (by_units(stage)) layouts.owners = owners_of(stage, chunk, l);
  return it->second = write_stack_layer(stage, stack, first, again, layouts);
}

const LayerLayouts& stack_layouts(const Stage& stage, std::int64_t layer) {
  switch (stage.model.stack(layer)) {
    case Stack::kEncoder:
      return stage.holds.layer;
    case Stack::kTurn:
      return stage.holds.turn;
    case Stack::kCross:
      return stage.holds.cross;
    case Stack::kDecoder:
      break;
  }
  return stage.holds.decoder;
}

/// The turn writes the encoder's output and reads the token table; cross-attention reads the
/// former.
void bind_memory(Stage& stage, Chunk& chunk, MicrobatchState& passage, std::int64_t l,
                 bool backward, Call& call) {
  if (!stage.model.is_encoder_decoder()) return;
  const Stack stack = stage.model.stack(chunk.first_layer + l);
  if (stack == Stack::kEncoder || stack == Stack::kDecoder) return;
  if (!passage.memory.valid()) {
    passage.memory = stage.builder.frame(stage.holds.memory.memory, -1, call.microbatch);
  }
  if (backward && !passage.memory_gradient.valid()) {
    passage.memory_gradient = stage.builder.frame(stage.holds.memory.gradient, -1, call.microbatch);
  }
  call.frames.push_back(passage.memory);
  call.frames.push_back(passage.memory_gradient);
  if (stack == Stack::kCross) return;
  call.frames.push_back(inputs_of(stage, call.microbatch));
  if (!by_units(stage)) {
    call.frames.push_back(chunk.embedding.weights);
    call.frames.push_back(chunk.embedding.gradients);
    return;
  }
  // The table lies in the root, which stays gathered until the backward pass is over.
  Unit& root = *root_of(chunk);
  const std::int64_t begin = chunk.embedding.cut_begin;
  Unit* const small = small_unit(chunk);
  call.frames.push_back(stage.builder.alias(stage.holds.embedding.weights, root.weights, 0,
                                            bytes_of(stage.plan.precision.compute, begin),
                                            call.layer));
  call.frames.push_back(
      backward ? stage.builder.alias(stage.holds.embedding.gradients,
                                     gradients_of(stage, root, call.microbatch), 0,
                                     bytes_of(stage.plan.local_gradients(), begin), call.layer)
               : FrameId());
  bind_unit(stage, root, backward, call);
  if (small != nullptr) bind_unit(stage, *small, backward, call);
}

}  // namespace foretrain
