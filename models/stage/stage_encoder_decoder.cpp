// A stage of an encoder-decoder: its kinds of layers, and the encoder's output that all
// cross-attention reads.
#include "models/layers/encoder_decoder.h"
#include "models/stage/stage_writer.h"

namespace foretrain {

/// Tokens of both stacks and the decoder's labels.
LayoutId StageWriter::paired_inputs() {
  const std::int64_t targets = x_plan.micro_batch * x_plan.target();
  LayoutWriter inputs("inputs", 0);
  inputs.add("tokens", BufferKind::kInputs, DType::kInt64, x_plan.tokens());
  inputs.add("labels", BufferKind::kInputs, DType::kInt64, targets);
  inputs.add("targets", BufferKind::kInputs, DType::kInt64, targets);
  return x_builder.layout(inputs.layout());
}

/// Layouts of encoder layers, the turn, cross-attention and decoder layers, and both ends.
void StageWriter::write_stacks() {
  const Plan later = decoder_plan(x_plan);
  const auto residual = [this](const char* name, std::int64_t tokens, bool saved) {
    LayoutWriter writer(name, 0);
    writer.add(name, BufferKind::kActivations, x_plan.precision.compute, tokens * x_model.hidden,
               saved);
    writer.event("ready");
    writer.event("sent");
    return x_builder.layout(writer.layout());
  };
  const LayoutId targets = residual("decoder hidden", later.tokens(), true);
  const LayoutId targets_gradient = residual("decoder hidden gradient", later.tokens(), false);
  x_memory = {residual("encoder output", x_plan.tokens(), true),
              residual("encoder output gradient", x_plan.tokens(), false)};
  parameter_frames(x_layer, "layer", layer_parameters(x_model));
  x_decoder = x_layer;
  x_turn.hidden = x_layer.hidden;
  x_turn.hidden_gradient = x_layer.hidden_gradient;
  for (LayerLayouts* l : {&x_turn, &x_cross, &x_decoder}) {
    l->output = targets;
    l->output_gradient = targets_gradient;
    if (l == &x_turn) continue;
    l->hidden = targets;
    l->hidden_gradient = targets_gradient;
  }
  parameter_frames(x_turn, "turn", turn_parameters(x_model));
  parameter_frames(x_cross, "layer", cross_parameters(x_model));
  for (EndLayouts* end : {&x_embedding, &x_head}) {
    const bool head = end == &x_head;
    end->hidden = head ? targets : x_layer.hidden;
    end->hidden_gradient = head ? targets_gradient : x_layer.hidden_gradient;
    end->inputs = x_inputs;
    end->scalars = x_scalars;
  }
  std::vector<Parameter> last = head_parameters(x_model);
  if (x_model.tied_embeddings) last.push_back(embedding_parameters(x_model).front());
  parameter_frames(x_embedding, "model", embedding_parameters(x_model));
  parameter_frames(x_head, "model", last);
  if (!by_units()) write_stack_ends();
}

/// The embedding with the encoder's tokens, the head with the decoder's.
void StageWriter::write_stack_ends() {
  const Plan later = decoder_plan(x_plan);
  const Model encoder = stack_model(x_model, true);
  const Model decoder = stack_model(x_model, false);
  x_embedding_segments = write_embedding(x_builder, encoder, x_plan, x_embedding);
  x_head_segments = write_head(x_builder, decoder, later, x_head,
                               x_model.tied_embeddings ? "embedding.tokens" : "head.output");
}

LayerSegments StageWriter::write_stack_layer(Stack stack, bool first, bool again,
                                             const LayerLayouts& layouts) {
  const bool encodes = stack == Stack::kEncoder || stack == Stack::kTurn;
  const Plan plan = encodes ? x_plan : decoder_plan(x_plan);
  const Model model = stack_model(x_model, encodes);
  if (stack == Stack::kTurn) {
    return write_turn(x_builder, model, plan, layouts, x_memory, x_embedding);
  }
  if (stack == Stack::kCross) {
    return write_cross(x_builder, model, plan, x_plan.tokens(), layouts, x_memory,
                       CrossForm{first, again});
  }
  return write_layer(x_builder, model, plan, layouts, again);
}

/// The backward pass comes to the last cross-attention first.
const LayerSegments& StageWriter::stack_segments(Chunk& chunk, std::int64_t l) {
  const std::int64_t layer = chunk.first_layer + l;
  const Stack stack = x_model.stack(layer);
  const bool first = stack == Stack::kCross && layer == x_model.layers - 2;
  const std::size_t shape = by_units() ? unit_of(chunk, l).shape : 0;
  const bool again = recomputes(x_plan, chunk.layers_before + l);
  const auto [it, fresh] = x_stack_segments.try_emplace({stack, first, again, shape});
  if (!fresh) return it->second;
  LayerLayouts layouts = stack_layouts(layer);
  if (by_units()) layouts.owners = owners_of(chunk, l);
  return it->second = write_stack_layer(stack, first, again, layouts);
}

const LayerLayouts& StageWriter::stack_layouts(std::int64_t layer) const {
  switch (x_model.stack(layer)) {
    case Stack::kEncoder:
      return x_layer;
    case Stack::kTurn:
      return x_turn;
    case Stack::kCross:
      return x_cross;
    case Stack::kDecoder:
      break;
  }
  return x_decoder;
}

/// The turn writes the encoder's output and reads the token table; cross-attention reads the
/// former.
void StageWriter::bind_memory(Chunk& chunk, Passage& passage, std::int64_t l, bool backward,
                              Call& call) {
  if (!x_model.is_encoder_decoder()) return;
  const Stack stack = x_model.stack(chunk.first_layer + l);
  if (stack == Stack::kEncoder || stack == Stack::kDecoder) return;
  if (!passage.memory.valid()) {
    passage.memory = x_builder.frame(x_memory.memory, -1, call.microbatch);
  }
  if (backward && !passage.memory_gradient.valid()) {
    passage.memory_gradient = x_builder.frame(x_memory.gradient, -1, call.microbatch);
  }
  call.frames.push_back(passage.memory);
  call.frames.push_back(passage.memory_gradient);
  if (stack == Stack::kCross) return;
  call.frames.push_back(inputs_of(call.microbatch));
  if (!by_units()) {
    call.frames.push_back(chunk.embedding.weights);
    call.frames.push_back(chunk.embedding.gradients);
    return;
  }
  // The table lies in the root, which stays gathered until the backward pass is over.
  Unit& root = *root_of(chunk);
  const std::int64_t begin = chunk.embedding.cut_begin;
  Unit* const small = small_unit(chunk);
  call.frames.push_back(x_builder.alias(x_embedding.weights, root.weights, 0,
                                        bytes_of(x_plan.precision.compute, begin), call.layer));
  call.frames.push_back(
      backward ? x_builder.alias(x_embedding.gradients, gradients_of(root, call.microbatch), 0,
                                 bytes_of(x_plan.local_gradients(), begin), call.layer)
               : FrameId());
  bind_unit(root, backward, call);
  if (small != nullptr) bind_unit(*small, backward, call);
}

}  // namespace foretrain
