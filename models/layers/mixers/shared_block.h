// A transformer block that several layers share, in front of the mixers of those layers (Zamba,
// arXiv 2405.16712; Zamba2, arXiv 2411.15242; Hugging Face's modeling_zamba2.py):
//
//   p = [ x ; x0 ]                         the stream beside the embedding, 2 h columns
//   a = W_o attention(W_qkv norm(p))       with low-rank adapters of queries, keys and values
//   m = W_down act(W_up norm(a))           with a low-rank adapter of W_up
//   x' = x + W m                           what the layer's own mixer reads
//
// W and the adapters are each layer's own; all else lies with the token table, whose gradients are
// complete when the block's are. x0 is the residual stream before the first layer; its gradient
// adds up over the layers and joins that of the embedding. Kept for the backward pass: p, both
// norms' results, queries, keys and values, the core's result, a, what W_up gives, the activation,
// m, and the adapters' inner numbers. Left out: Hugging Face adds W m to what the mixer's norm
// reads and not to the stream behind the mixer, which is the same work and another number, so
// executors refuse such models; more than one tensor rank and stage, sharded gradients and
// parameters, types of less than 16 bits (refused by the plan's rules).
#pragma once

#include <array>
#include <string>

#include "models/layers/block.h"

namespace foretrain {

/// Formal frames of a layer with such a block, behind those of every layer.
enum SharedBlockFrame : std::int16_t {
  kBlockWeights = kLayerFrames,
  kBlockGradients,
  kEmbedded,
  kEmbeddedGradient,
};

class SharedBlockPart : public Block {
 public:
  SharedBlockPart(ProgramBuilder& builder, const Model& model, const Plan& plan,
                  const LayerLayouts& layouts);

  /// Declares what goes from forward to backward; `again`: computed again, so not kept. Returns x'.
  Ref declare(LayoutWriter& saved, LayoutWriter& local, bool again);
  /// From the layer's input to x'.
  void forward(SegmentWriter& w);
  /// From the gradient of x' to those of the layer's input, the embedding and the parameters.
  void backward(SegmentWriter& w, const Ref& d_sum);

 private:
  /// Two matrices, h to the rank and on.
  struct Adapter {
    std::string name;
    Matrix down, up;
    Ref low;
  };
  Adapter adapter(const std::string& name, std::int64_t out, std::int64_t in) const;
  Matrix of_block(const std::string& name, std::int64_t out, std::int64_t in) const;
  Kernel norm(bool backward, std::int64_t width) const;
  Attention core(bool backward) const;
  Kernel rope(bool backward) const;
  Ref stream(std::int16_t frame) const {
    return {frame, kHiddenBuffer, x_plan.precision.compute, x_tokens * x_model.hidden};
  }
  void adapt(SegmentWriter& w, const Adapter& a, const Ref& in, const Ref& out);
  /// Adds to `d_in`.
  void adapt_backward(SegmentWriter& w, const Adapter& a, const Ref& d_out, const Ref& in,
                      const Ref& d_in);
  Ref norm_backward(SegmentWriter& w, const std::string& name, const Ref& d, const Ref& in,
                    const Ref& statistics);
  Ref attention_backward(SegmentWriter& w, const Ref& d_attended);

  std::string x_name;  ///< of the block's parameters
  std::int64_t x_wide = 2 * x_model.hidden;
  std::array<Adapter, 3> x_heads;  ///< of queries, keys and values
  Adapter x_inner;                 ///< of W_up
  struct Attended {
    Ref pair, statistics, normed, qkv, context, row_sums, out;
  };
  struct Fed {
    Ref statistics, normed, up, activated, out;
  };
  Attended x_attended;
  Fed x_fed;
  Ref x_sum;
};

}  // namespace foretrain
