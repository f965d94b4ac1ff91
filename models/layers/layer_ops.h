// What every way to write a layer's passes is made of: norms, the core of attention, activations
// and the residual stream, each with its gradient.
#pragma once

#include <string>

#include "models/layers/linear_parts.h"

namespace foretrain {

/// Of the slice `x_slice` of a microbatch, or of the part `x_part` of the heads and of the MLP: the
/// buffers are those that `x_b` names.
class LayerOps : public LinearParts {
 protected:
  using LinearParts::LinearParts;

  /// Where casts, the experts and latent attention put their temporary buffers from now on.
  void blocks_write_to(LayoutWriter& local);
  SegmentId finish(SegmentWriter& writer, LayoutId saved, LayoutId local);
  /// A buffer of the backward pass, in the type of what linears give.
  Ref scratch(const std::string& name, std::int64_t count) {
    return scratch(name, count, x_plan.precision.branch());
  }
  Ref scratch(const std::string& name, std::int64_t count, DType type) {
    return x_backward.add(name, BufferKind::kActivations, type, count);
  }
  /// Under autocast: the input `x` of linears, cast for each of them.
  void cast_input(SegmentWriter& w, const std::string& name, const Linear& l, const Ref& x,
                  const Ref& copy, const std::vector<Ref>& more);
  /// Of the gradient `d` of that input, summed over them; else `d` itself.
  Ref cast_input_gradient(SegmentWriter& w, const std::string& name, const Linear& l, const Ref& d,
                          const std::vector<Ref>& more);

  void forward_norm(SegmentWriter& w, const char* name, const NormRefs& norm, const Ref& in,
                    const Ref& out, const Ref& stats);
  /// What is added to the stream: what a branch gives, or with norms behind branches its norm.
  Ref norm_after(SegmentWriter& w, const std::string& block, const BranchNorms& norms,
                 const Ref& in);
  /// From the gradient of that to the gradient of what the branch gives.
  Ref norm_after_gradient(SegmentWriter& w, const std::string& block, const BranchNorms& norms,
                          const Ref& in, const Ref& d_out);
  /// From what the linear gives, `raw`, to queries, keys and values as attention reads them.
  void forward_positions(SegmentWriter& w, std::vector<Ref> raw);
  void forward_core(SegmentWriter& w);
  void forward_activation(SegmentWriter& w);
  /// `stream` and the branch's output, with dropout, whose mask goes to `mask`.
  void residual(SegmentWriter& w, const char* name, const Ref& stream, const Ref& branch,
                const Ref& bias, const Ref& mask, const Ref& out);
  /// The layer's input and the sum of both branches, which `x_b.down` holds; dropout is drawn once,
  /// for the sum.
  void residual_of_both(SegmentWriter& w);

  /// The gradient of a branch's output: before dropout, and under autocast in 16 bits.
  Ref dropped(SegmentWriter& w, const std::string& name, const Ref& d_out, const Ref& mask);
  void backward_activation(SegmentWriter& w, const Ref& d_act, const Ref& d_up);
  /// d_in = d_residual + norm'(d_out): the residual's gradient is added by the same kernel.
  void backward_norm(SegmentWriter& w, const std::string& name, const NormRefs& norm, const Ref& in,
                     const Ref& stats, const Ref& d_out, const Ref& d_residual, const Ref& d_in);
  /// Returns the gradient of what the linear in gives: d_qkv, where that is queries, keys and
  /// values alone.
  Ref backward_core(SegmentWriter& w, const Ref& d_mixed, const Ref& d_qkv);

  std::int64_t x_slice = 0;

 private:
  Attention core_of_slice(bool backward) const;
  Kernel dropout(KernelKind kind) const;
  /// To `d_raw`, or in place.
  void backward_positions(SegmentWriter& w, const Ref& d_qkv, const Ref& d_raw);
};

}  // namespace foretrain
