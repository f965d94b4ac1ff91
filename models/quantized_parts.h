// Linears in fp8 or fp4: their operands are cast before the GEMMs and scaled by tensor or by block.
//
// An activation is cast once into two copies: by rows for the forward GEMM (and, with sequence
// parallelism, for the gather before it), by columns for the GEMM of the weight gradient; the
// latter is what is kept for the backward pass. A gradient is cast likewise. Weights are cast once
// a step into two copies that stay, or, where they are gathered for every pass, in every pass.
// Scaling by the tensor's current maximum reads the tensor once more before the cast.
//
// Left out: the scales themselves (4 bytes for 128 elements by block, 1 byte for 16 or 32 in the
// mx formats), the history of maxima of delayed scaling and its reduction, which is a few kilobytes
// a step.
#pragma once

#include <string>

#include "models/context_parts.h"

namespace foretrain {

class QuantizedParts : protected ContextParts {
 public:
  QuantizedParts(ProgramBuilder& builder, const Model& model, const Plan& plan,
                 const LayerLayouts& layouts, bool recompute);

 protected:
  bool low() const { return x_plan.precision.low(); }
  /// Weights are cast in every pass.
  bool by_pass() const { return low() && x_plan.by_units(); }
  /// Casts `x` of `rows` rows into those of the two copies that are valid.
  void quantize(SegmentWriter& w, const std::string& name, const Ref& x, std::int64_t rows,
                const Ref& by_rows, const Ref& by_columns);
  /// The gradient that a linear's two backward GEMMs read: by rows, and by columns.
  struct Copies {
    Ref rows, columns;
  };
  Copies quantized_gradient(SegmentWriter& w, const std::string& name, const Ref& d,
                            std::int64_t rows);
  /// Of a gradient that ranks hold by tokens: cast, gathered over them, then turned by columns.
  Copies gathered_gradient(SegmentWriter& w, const std::string& name, const Ref& d);
  Collective gather_of(const Ref& full) const {
    return Collective{CollectiveKind::kAllGather, x_tensor, full.count, full.dtype, false};
  }
  /// Copies of weights that live as long as a pass. Both layouts of a layer's temporary buffers
  /// must have grown alike so far.
  void declare_weights();
  /// Casts the weights into them: for the forward GEMMs, for those of the input gradients.
  void quantize_weights(SegmentWriter& w, bool forward, bool backward);
  Ref local(SegmentWriter& w, const std::string& name, DType type, std::int64_t count);
  Gemm in_low(Gemm gemm) const;

 private:
  Linear* const x_linears[4];
};

/// Copies of a layer's weights that stay: kQuantized.
FrameLayout quantized_layout(const ParameterLayouts& parameters, DType type);

}  // namespace foretrain
