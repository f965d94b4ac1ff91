// What an encoder-decoder (T5, Vaswani et al. 2017) has besides the layers of both stacks: the
// turn, where the encoder's output is normed and the decoder's tokens come in, and cross-attention.
//
// Layers of the model: the encoder's, the turn, then for each layer of the decoder its
// cross-attention and the rest. Every cross-attention reads the encoder's output ("memory") and
// adds to its gradient.
//
// Tensor ranks cut heads, MLPs and the token table, and hold the residual streams whole: the way
// out of cross-attention, the gradients of its queries' input and of the memory, and the looked-up
// targets are all-reduced.
//
// Left out: cross-attention stands before its layer instead of between self-attention and MLP (the
// same work, only simulated); the addition of relative position biases to scores (their parameters
// are counted); dropout behind the encoder's last norm; padding; that a layer of the decoder which
// is computed again is one with its cross-attention (here each keeps its input).
#pragma once

#include "models/layers/ends.h"
#include "models/layers/layer.h"

namespace foretrain {

/// Formal frames after those of a layer: of cross-attention the first two, of the turn all.
enum MemoryFrame : std::int16_t {
  kMemory = kLayerFrames,
  kMemoryGradient,
  kTurnInputs,
  kTurnTable,  ///< what the token table lies in
  kTurnTableGradient,
};
/// Buffer of the input frame with the decoder's tokens, after `kTokens` and `kLabels`.
inline constexpr std::int16_t kTargets = 2;

/// Plan and model of one stack, as its layers see them.
Plan decoder_plan(const Plan& plan);
Model stack_model(const Model& model, bool encoder);

struct MemoryLayouts {
  LayoutId memory, gradient;
};

struct CrossForm {
  bool first = false;  ///< its backward pass is the first to write the memory's gradient
  bool again = false;  ///< keeps its input alone, and the backward pass computes the rest again
};

/// `plan` is the decoder's, `source` the tokens of the encoder.
LayerSegments write_cross(ProgramBuilder& builder, const Model& model, const Plan& plan,
                          std::int64_t source, const LayerLayouts& layouts,
                          const MemoryLayouts& memory, CrossForm form);

/// `plan` is the encoder's.
LayerSegments write_turn(ProgramBuilder& builder, const Model& model, const Plan& plan,
                         const LayerLayouts& layouts, const MemoryLayouts& memory,
                         const EndLayouts& embedding);

}  // namespace foretrain
