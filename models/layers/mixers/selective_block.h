// Mamba's way from the packed inputs of a layer's mixer to what its linear back reads, as
// mamba_ssm (ops/selective_scan_interface.py) computes it.
//
// The linear in and the linear back are the layer's own. A token's packed inputs are x and z, each
// of the mixer's width. Between them stand a causal convolution over x, a linear from it to the
// inputs of steps, B and C (whose norms, where there are some, are one kernel), a linear to a step
// for every channel, and the scan with the product y silu(z). Kept are the packed inputs, x behind
// the convolution, the second linear's outputs and the steps. Left out: tensor and context
// parallelism (refused by the plan's rules), the states that the scan keeps of every 2048 tokens.
#pragma once

#include "models/layers/block.h"

namespace foretrain {

class SelectiveBlock : public Block {
 public:
  using Block::Block;

  /// Elements of a token's packed inputs on this rank, and of what the linear back reads.
  std::int64_t in_width() const { return 2 * x_sizes.width; }
  std::int64_t out_width() const { return x_sizes.width; }
  /// How the packed inputs lie: as the linear's columns by what takes them.
  std::vector<std::int64_t> in_blocks() const { return {x_sizes.width, x_sizes.width}; }
  /// Declares what goes from forward to backward; `again`: computed again, so not kept.
  void declare(LayoutWriter& saved, LayoutWriter& local, bool again);
  /// From packed inputs `in` [tokens, in_width] to `out` [tokens, out_width].
  void forward(SegmentWriter& w, const Ref& in, const Ref& out);
  /// From the gradient of `out` to that of `in`; adds to those of the parameters.
  void backward(SegmentWriter& w, const Ref& d_out, const Ref& in, const Ref& d_in);

 private:
  Scan scan(bool backward) const;
  Matrix select() const { return matrix("mamba1.select", x_sizes.selected(), x_sizes.width); }
  Matrix steps() const { return matrix("mamba1.steps", x_sizes.width, x_sizes.step_rank); }
  /// The inputs of steps, and B and C, of `all` outputs of the second linear.
  Ref step_inputs(const Ref& all) const;
  Ref b_and_c(const Ref& all) const;

  SelectiveScan x_sizes = x_model.hybrid.selective;
  Ref x_channels, x_raw, x_selected, x_steps, x_roots;
};

}  // namespace foretrain
