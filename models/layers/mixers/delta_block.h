// A gated delta net's way from the packed inputs of a layer's mixer to what its linear back reads,
// as Megatron Core (ssm/gated_delta_net/) and flash-linear-attention (ops/gated_delta_rule/)
// compute it.
//
// The linear in and the linear back are the layer's own: a tensor rank has its key heads, its value
// heads and their channels. A token's packed inputs are z [values], queries, keys and values
// [2 keys + values], and two numbers a value head, for its decay and its strength. Between them
// stand a causal convolution over queries, keys and values; the lengths of queries and keys, which
// are divided by these and repeated for the value heads that share them; the delta rule; the norm
// of each value head times silu(z). Kept are the packed inputs, queries and keys of unit length,
// once and for each value head, values, sums of decays, the inverse of each chunk, what the rule
// gives and the norm's roots; keys and values of the chunks and states are computed again.
//
// With decays of every channel (Kimi's) the packed inputs are queries, keys and values, strengths,
// and two vectors of `gate_rank`, which matrices widen to decays and gates. Left out: context
// parallelism, and tensor parallelism of Kimi's (refused by the plan's
// rules).
#pragma once

#include "models/layers/block.h"

namespace foretrain {

class DeltaBlock : public Block {
 public:
  DeltaBlock(ProgramBuilder& builder, const Model& model, const Plan& plan,
             const LayerLayouts& layouts);

  /// Elements of a token's packed inputs on this rank, and of what the linear back reads.
  std::int64_t in_width() const { return x_model.hybrid.delta.in_width() / x_plan.tensor; }
  std::int64_t out_width() const { return x_sizes.values(); }
  /// How the packed inputs lie: as the linear's columns by what takes them.
  std::vector<std::int64_t> in_blocks() const;
  /// Declares what goes from forward to backward; `again`: computed again, so not kept.
  void declare(LayoutWriter& saved, LayoutWriter& local, bool again);
  /// From packed inputs `in` [tokens, in_width] to `out` [tokens, out_width].
  void forward(SegmentWriter& w, const Ref& in, const Ref& out);
  /// From the gradient of `out` to that of `in`; adds to those of the parameters.
  void backward(SegmentWriter& w, const Ref& d_out, const Ref& in, const Ref& d_in);

 private:
  /// The runs of packed inputs: of `gates` and `decays` those that are widened, if any are.
  struct Packed {
    Ref channels, gates, decays, strengths;
  };
  Packed parts_of(const Ref& in) const;
  /// Queries and keys behind the convolution, and values.
  struct Channels {
    Ref heads, values;
  };
  Channels channels_of(const Ref& all) const;
  Kernel repeat(KernelKind kind, std::int64_t width) const;
  Kernel gate_norm(KernelKind kind) const;
  bool repeats() const { return x_sizes.value_heads > x_sizes.key_heads; }
  const Ref& of_rule() const { return repeats() ? x_kept.repeated : x_kept.unit; }
  Scan scan(bool backward) const;
  /// What decays and gates are, from what the packed inputs hold of them.
  void widen(SegmentWriter& w, const Packed& packed);
  void widen_backward(SegmentWriter& w, const Packed& packed, const Packed& d_packed,
                      const Ref& d_gates, const Ref& d_decays);

  DeltaNet x_sizes;  ///< of this rank
  struct Kept {
    Ref unit, lengths, repeated, values, gates, decays, sums, inverse, mixed, roots;
  };
  Kept x_kept;
};

}  // namespace foretrain
