// Linears in fp8 or fp4: their operands are cast before the GEMMs and scaled by tensor or by block.
//
// An activation is cast once into two copies: by rows for the forward GEMM (and, with sequence
// parallelism, for the gather before it), by columns for the GEMM of the weight gradient; the
// latter is what is kept for the backward pass. A gradient is cast likewise. Weights are cast once
// a step into two copies that stay, or, where they are gathered for every pass, in every pass;
// weights that have no 16-bit values (models/emit/fp8_weights.cpp) are transposed into the second
// copy. Where products take operands in either order (Precision::one_copy) one copy does for both.
// Scaling by the tensor's current maximum (nvfp4's second scale too) reads the tensor once more
// before the cast. Scaled by tensor, one copy of a gradient is gathered and turned into the other;
// blocks run along what a GEMM sums over, so both copies are gathered (Transformer Engine). The
// router of experts is not cast; the experts' tokens are, once they lie by experts: dispatch
// carries them in the compute type.
//
// int8 is quantisation-aware: activations and weights are cast by rows for the forward GEMM alone,
// by clipping values that are learned (LightSeq); what is kept, and all backward GEMMs, stay in the
// compute type. Left out of it: the gradients of clipping values and the masks of what was clipped.
//
// Left out: the scales themselves (4 bytes for 128 elements by block, 1 byte for 16 or 32 in the
// mx formats), the history of maxima of delayed scaling and its reduction, which is a few kilobytes
// a step; experts' rows padded to the multiple that the GEMM needs.
#pragma once

#include <string>
#include <vector>

#include "models/layers/layer.h"

namespace foretrain {

/// What a linear's forward GEMM reads, and what is kept for its weight gradient: two quantized
/// copies, one for both, or the activation itself.
struct LinearOperand {
  Ref in, kept;
};

class Quantizer {
 public:
  Quantizer(ProgramBuilder& builder, const Plan& plan, const LayerLayouts& layouts);

  /// Temporary buffers made from now on belong to `local`.
  void write_to(LayoutWriter& local) { x_local = &local; }
  bool low() const { return x_plan.precision.low(); }
  /// Weights are cast in every pass.
  bool by_pass() const { return low() && x_plan.by_units(); }
  /// What forward GEMMs and those of input gradients read in place of `weight`: its copy, or
  /// itself.
  Ref by_rows(const Ref& weight) const;
  Ref by_columns(const Ref& weight) const;
  /// The GEMM in the type of its operands: `weight` has copies or not. Backward GEMMs of
  /// Transformer Engine and torchao use the split accumulator by default.
  Gemm typed(Gemm gemm, const Ref& weight, bool backward) const;

  /// Casts `x` of `rows` rows into those of the two copies that are valid.
  void quantize(SegmentWriter& w, const std::string& name, const Ref& x, std::int64_t rows,
                const Ref& by_rows, const Ref& by_columns);
  void quantize(SegmentWriter& w, const std::string& name, const Ref& x, std::int64_t rows,
                const LinearOperand& to) {
    quantize(w, name, x, rows, to.in, to.kept);
  }
  /// The gradient that the two backward GEMMs of `weight` read: by rows, and by columns.
  struct Copies {
    Ref rows, columns;
  };
  Copies gradient(SegmentWriter& w, const std::string& name, const Ref& weight, const Ref& d,
                  std::int64_t rows);
  /// Of a gradient of `rows` rows that ranks hold by tokens: cast and gathered.
  Copies gathered_gradient(SegmentWriter& w, const std::string& name, const Ref& d,
                           std::int64_t rows);
  /// The steps before and after the gather of the copy by rows: the casts of the rank's own rows,
  /// and the copy by columns of all `rows`, gathered or turned from `full`. In 16 bits and more
  /// they are what is given.
  Copies cast_own(SegmentWriter& w, const std::string& name, const Ref& d, std::int64_t rows);
  Ref all_columns(SegmentWriter& w, const std::string& name, const Copies& own, const Ref& full,
                  std::int64_t rows);
  Collective gather_of(const Ref& full) const {
    return Collective{CollectiveKind::kAllGather, x_tensor, full.count, full.dtype, false};
  }
  /// The copy by columns of `rows` rows that are cast by rows.
  void turn(SegmentWriter& w, const std::string& name, const Ref& by_rows, std::int64_t rows,
            const Ref& by_columns) const;
  /// Copies of weights that live as long as a pass. Both layouts of a layer's temporary buffers
  /// must have grown alike so far.
  void declare_weights(LayoutWriter& forward, LayoutWriter& backward);
  /// Casts the weights into them, or turns those that came in fp8: for the forward GEMMs, for those
  /// of the input gradients.
  void quantize_weights(SegmentWriter& w, bool forward, bool backward);

 private:
  struct Cast {
    std::string name;
    Ref weight, by_rows, by_columns;
    std::int64_t rows = 0;
  };
  const Cast* find(const Ref& weight) const;
  Ref local(const std::string& name, DType type, std::int64_t count) {
    return x_local->add(name, BufferKind::kActivations, type, count);
  }

  const Plan& x_plan;
  GroupSlot x_tensor;
  std::vector<Cast> x_casts;
  LayoutWriter* x_local = nullptr;
};

/// Whether `parameter` is a matrix that linears read in fewer bits.
bool is_cast(const std::string& parameter);

/// Copies of a layer's weights that stay: the frame `quantized_frame`. Without any there is none.
FrameLayout quantized_layout(const ParameterLayouts& parameters, const Precision& precision);

}  // namespace foretrain
