// Mamba-2's way from the packed inputs of a layer's mixer to what its linear back reads, as
// Megatron Core (ssm/mamba_mixer.py) and mamba_ssm (ops/triton/ssd_combined.py) compute it.
//
// The linear in and the linear back are the layer's own, cut by columns and by rows over tensor
// ranks as those of attention are: a rank has its heads, its groups and their channels. A token's
// packed inputs are z [width], x, B, C [width + 2 groups state] and steps [heads]. Between them
// stand a causal convolution over x, B and C, the scan of the state and the gated norm of each
// group, y silu(z), or that product alone. Kept for the backward pass are the packed inputs, y and
// the norm's roots; the convolution and the states are computed again there. Left out: context
// parallelism (refused by the plan's rules), parameters that stay in fp32.
#pragma once

#include "models/layers/block.h"

namespace foretrain {

class MambaBlock : public Block {
 public:
  MambaBlock(ProgramBuilder& builder, const Model& model, const Plan& plan,
             const LayerLayouts& layouts);

  /// Elements of a token's packed inputs on this rank, and of what the linear back reads.
  std::int64_t in_width() const { return x_model.hybrid.state_space.in_width() / x_plan.tensor; }
  std::int64_t out_width() const { return x_model.hybrid.state_space.width() / x_plan.tensor; }
  /// How the packed inputs lie: as the linear's columns by what takes them.
  std::vector<std::int64_t> in_blocks() const { return {out_width(), x_channels, x_heads}; }
  /// Declares what goes from forward to backward; `again`: computed again, so not kept.
  void declare(LayoutWriter& saved, LayoutWriter& local, bool again);
  /// From packed inputs `in` [tokens, in_width] to `out` [tokens, out_width].
  void forward(SegmentWriter& w, const Ref& in, const Ref& out);
  /// From the gradient of `out` to that of `in`; adds to those of the parameters.
  void backward(SegmentWriter& w, const Ref& d_out, const Ref& in, const Ref& d_in);

 private:
  /// The runs of packed inputs, one after the other.
  struct Packed {
    View gate, channels, steps;
  };
  Packed parts_of(const Ref& in) const;
  Scan scan(bool backward) const;
  Ref gate_backward(SegmentWriter& w, const Ref& d_out, const Packed& packed,
                    const Packed& d_packed);
  Ref convolve(SegmentWriter& w, const std::string& name, const Ref& in);

  std::int64_t x_heads, x_groups, x_channels;  ///< of this rank; channels of the convolution
  Ref x_scanned, x_roots;
};

}  // namespace foretrain
