// The ends of the pipeline: the embedding before the first layer, the head and the loss after the
// last.
//
// The token table and the output matrix are cut along the vocabulary (Megatron-LM): each tensor
// rank looks up its own rows and a reduction joins them; the loss needs three small all-reduces
// (maximum, target's logit, sum of exponentials).
//
// Where all stages share the vocabulary, what they look up is reduced to the first stage, which
// goes on alone; the last stage's normed hidden states are broadcast to all, and the gradients of
// these reduced to it.
//
// With chunks (kernels.loss_chunks) the head's forward pass ends at its norm. The backward pass
// takes the rows in parts: logits, loss, the logits' gradient, and from that the gradients of the
// rows and of the table, which adds up over the parts. Liger Kernel's fused linear cross entropy
// does the same within the forward pass, and torchtitan's chunked loss at its end; the last stage's
// forward pass of a microbatch stands beside its backward pass, so it is the same work at the same
// time.
//
// Vocab-1 and Vocab-2 (Yeung et al., arXiv 2411.05288, algorithms 1 and 2), of rank r that holds
// the rows W_r, for tokens' hidden states X and one-hot labels G:
//   S  Y = X W_r^T, m_r = max Y, e = exp(Y - m_r), s_r = sum e; Vocab-2 also e W_r and G W_r
//   C  m = max m_r; s = sum over ranks of s_r exp(m_r - m); Vocab-2 also the sum of d X =
//      e W_r exp(m_r - m) / s - G W_r over ranks, which the last stage gets
//   T  d Y = e exp(m_r - m) / s - G, d W_r += d Y^T X; Vocab-1 also d X = d Y W_r and its sum
// C, with what it computes, goes beside the layers' passes.
#pragma once

#include "models/layers/layer.h"

namespace foretrain {

enum EmbeddingFrame : std::int16_t {
  kEmbeddingWeights,
  kEmbeddingGradients,
  kEmbeddingShared,
  kEmbeddingSharedGradients,
  kEmbeddingHidden,
  kEmbeddingHiddenGradient,
  kEmbeddingSaved,
  kEmbeddingLocal,
  kEmbeddingInputs,
  kEmbeddingFrames,  ///< with sharded units the owners follow
};

enum HeadFrame : std::int16_t {
  kHeadWeights,
  kHeadGradients,
  kHeadShared,
  kHeadSharedGradients,
  kHeadHidden,
  kHeadHiddenGradient,
  kHeadSaved,
  kHeadLocal,
  kHeadInputs,
  kHeadScalars,
  kHeadFrames,  ///< likewise
};

/// Buffers of a microbatch's input frame.
inline constexpr std::int16_t kTokens = 0;
inline constexpr std::int16_t kLabels = 1;
/// Buffers of the scalars frame.
inline constexpr std::int16_t kLoss = 0;
inline constexpr std::int16_t kNormSquare = 1;
inline constexpr std::int16_t kExpertNormSquare = 2;
// Where stages hand on what they know of the norm; without experts.
inline constexpr std::int16_t kNormBefore = 2;
inline constexpr std::int16_t kNormOfAll = 3;
inline constexpr std::int16_t kFinite = 4;

struct EndLayouts {
  LayoutId weights, gradients, shared, shared_gradients, hidden, hidden_gradient, inputs, scalars;
  std::vector<LayoutId> owners;  ///< as of layers
  /// The stage has this end of the pipeline; else, where all share the vocabulary, only a part of
  /// the table.
  bool at_end = true;
  ParameterLayouts parameters, parameter_gradients;
  /// Of the formal frames; the head has one more than the embedding.
  std::vector<LayoutId> frames(LayoutId saved, LayoutId local, bool head) const {
    std::vector<LayoutId> out = {weights, gradients,       shared, shared_gradients,
                                 hidden,  hidden_gradient, saved,  local,
                                 inputs};
    if (head) out.push_back(scalars);
    return out;
  }
};

struct EndSegments {
  SegmentId forward, backward;
  SegmentId weights;  ///< gradients of weights, where they have a pass of their own (head only)
  /// Where the vocabulary's passes are spread, what goes with those of the layers at this end of
  /// the pipeline: before the first forward pass and after its backward pass (embedding), before
  /// the last backward pass (head).
  SegmentId inner_forward, inner_backward;  ///< the embedding's with the frames of backward
  LayoutId saved, local_forward, local_backward;
  /// The event in the local frame that the last op of backward (embedding), of weights or, where
  /// all stages share the vocabulary, of the gradient of the output matrix records.
  std::int16_t done = -1;
};

EndSegments write_embedding(ProgramBuilder& builder, const Model& model, const Plan& plan,
                            const EndLayouts& layouts);
/// `table` names the output matrix: "head.output", or "embedding.tokens" when tied.
EndSegments write_head(ProgramBuilder& builder, const Model& model, const Plan& plan,
                       const EndLayouts& layouts, const std::string& table);

}  // namespace foretrain
