// What stands beside the core of attention, between a layer's linear in and its linear back: a gate
// of the core's result, values that are the keys, a Mamba-2 mixer that reads the same input.
//
// The linear in gives queries, keys and values, then the gates or the packed inputs of Mamba-2; the
// linear back reads the gated result, or both results side by side, so that its product is their
// sum. Falcon-H1 has linears of its own for either; here they are one GEMM in and one back, of the
// same FLOPs. Kept: the linear's outputs, the core's result and the gated one (Megatron Core's
// attention_output_gate). Left out: the multipliers of either result.
#pragma once

#include <optional>

#include "models/layers/mixers/mamba_block.h"

namespace foretrain {

class BesideCore : public Block {
 public:
  static bool used(const Model& model, LayerKind kind) {
    return kind.attends() && (kind.mixer == Mixer::kBeside || !model.attention.plain());
  }
  BesideCore(ProgramBuilder& builder, const Model& model, const Plan& plan,
             const LayerLayouts& layouts);

  /// Outputs of the linear in, and columns of the linear back beside the core's result.
  std::int64_t in_width() const;
  std::int64_t more_columns() const { return x_mamba ? x_mamba->out_width() : 0; }
  /// How its outputs lie: by what takes them.
  std::vector<std::int64_t> in_blocks() const;
  /// Declares what the linear back reads; the core's result goes to the Ref that is returned.
  Ref declare(LayoutWriter& saved, LayoutWriter& local, bool again);
  /// Queries, keys and values among the outputs of the linear in, as it gives them.
  Ref heads(const Ref& raw) const;
  const Ref& mixed() const { return x_mixed; }
  /// From the core's result to what the linear back reads.
  void forward(SegmentWriter& w, const Ref& raw, const Ref& context);
  /// From the gradient of what the linear back reads to that of the core's result, which is
  /// returned, and of the gates or the packed inputs in `d_raw`.
  Ref backward(SegmentWriter& w, const Ref& d_mixed, const Ref& raw, const Ref& context,
               const Ref& d_raw);
  void write_to(LayoutWriter& local, Quantizer& quantizer) {
    Block::write_to(local, quantizer);
    if (x_mamba) x_mamba->write_to(local, quantizer);
  }

 private:
  bool gates() const { return x_model.attention.gate != OutputGate::kNone; }
  /// What follows queries, keys and values.
  Ref rest(const Ref& raw) const;
  /// The part of `all` that is Mamba-2's.
  Ref scanned(const Ref& all) const;

  std::int64_t x_heads_width, x_core_width;
  std::optional<MambaBlock> x_mamba;
  Ref x_mixed;
};

}  // namespace foretrain
