// A stage of an encoder-decoder: its kinds of layers, and the encoder's output that all
// cross-attention reads.
#include "models/encoder_decoder.h"
#include "models/stage_writer.h"

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

/// Layouts and segments of encoder layers, the turn, cross-attention and decoder layers, and of
/// both ends: the embedding with the encoder's tokens, the head with the decoder's.
void StageWriter::write_stacks() {
  const Plan later = decoder_plan(x_plan);
  const Model encoder = stack_model(x_model, true);
  const Model decoder = stack_model(x_model, false);
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
  x_embedding_segments = write_embedding(x_builder, encoder, x_plan, x_embedding);
  x_head_segments = write_head(x_builder, decoder, later, x_head,
                               x_model.tied_embeddings ? "embedding.tokens" : "head.output");
  const auto at = [this](Stack stack, bool first) -> LayerSegments& {
    return x_stack_segments.at(2 * static_cast<std::size_t>(stack) + (first ? 1 : 0));
  };
  at(Stack::kEncoder, false) = write_layer(x_builder, encoder, x_plan, x_layer, false);
  at(Stack::kTurn, false) = write_turn(x_builder, encoder, x_plan, x_turn, x_memory, x_embedding);
  for (const bool first : {false, true}) {
    at(Stack::kCross, first) =
        write_cross(x_builder, decoder, later, x_plan.tokens(), x_cross, x_memory, first);
  }
  at(Stack::kDecoder, false) = write_layer(x_builder, decoder, later, x_decoder, false);
}

/// The backward pass comes to the last cross-attention first.
const LayerSegments& StageWriter::stack_segments(std::int64_t layer) const {
  const Stack stack = x_model.stack(layer);
  const bool first = stack == Stack::kCross && layer == x_model.layers - 2;
  return x_stack_segments.at(2 * static_cast<std::size_t>(stack) + (first ? 1 : 0));
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
void StageWriter::bind_memory(const Chunk& chunk, Passage& passage, std::int64_t l, bool backward,
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
  call.frames.push_back(passage.inputs);
  call.frames.push_back(chunk.embedding.weights);
  call.frames.push_back(chunk.embedding.gradients);
}

}  // namespace foretrain
