// A gated short convolution (LFM2): from a token's packed b, c and x, each of the hidden width, to
// c conv(b x), where conv is causal over a few taps, channel by channel.
//
// The linear in and the linear back are the layer's own; a tensor rank has its channels of all
// three. Autograd keeps the packed inputs, b x and the convolution of it. Left out: context
// parallelism (refused by the plan's rules).
#pragma once

#include "models/layers/block.h"

namespace foretrain {

class ConvBlock : public Block {
 public:
  using Block::Block;

  /// Elements of a token's packed inputs on this rank, and of what the linear back reads.
  std::int64_t in_width() const { return 3 * x_channels; }
  std::int64_t out_width() const { return x_channels; }
  /// How the packed inputs lie: by token.
  std::vector<std::int64_t> in_blocks() const { return {}; }
  /// Declares what goes from forward to backward; `again`: computed again, so not kept.
  void declare(LayoutWriter& saved, LayoutWriter& local, bool again);
  /// From packed inputs `in` [tokens, in_width] to `out` [tokens, out_width].
  void forward(SegmentWriter& w, const Ref& in, const Ref& out);
  /// From the gradient of `out` to that of `in`; adds to those of the parameters.
  void backward(SegmentWriter& w, const Ref& d_out, const Ref& in, const Ref& d_in);

 private:
  Kernel convolution(KernelKind kind, std::int64_t passes) const;
  Ref taps() const { return weight("conv.taps"); }

  std::int64_t x_channels = x_model.hidden / x_plan.tensor;  ///< of this rank
  Ref x_gated, x_convolved;
};

}  // namespace foretrain
