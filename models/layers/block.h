// What the blocks of a layer that stand in files of their own share: parameters, temporary buffers,
// and linears cut over tensor ranks.
#pragma once

#include <string>

#include "models/layers/quantizer.h"

namespace foretrain {

/// A matrix on this rank: y[out] = x[in] W^T.
struct Matrix {
  Ref weight, gradient;
  std::int64_t out = 0, in = 0;
};

/// Places activations: those that the backward pass computes again live in the call.
struct Placer {
  LayoutWriter& saved;
  LayoutWriter& local;
  const Precision& precision;

  Ref add(const std::string& name, DType dtype, std::int64_t count, bool again) const {
    LayoutWriter& place = again ? local : saved;
    return place.add(name, BufferKind::kActivations, dtype, count, !again);
  }
  /// What a GEMM reads and what its weight gradient will read: two quantized copies, by rows and by
  /// columns, or one for both, in place of the activation `x`.
  LinearOperand operand(const std::string& name, const Ref& x, bool again) const {
    if (!precision.low()) return LinearOperand{x, x};
    if (precision.one_copy) {
      const Ref both = add(name, precision.linear, x.count, again);
      return LinearOperand{both, both};
    }
    const Ref in = local.add(name, BufferKind::kActivations, precision.linear, x.count);
    if (precision.forward_only()) return LinearOperand{in, x};
    return LinearOperand{in, add(name, precision.linear, x.count, again)};
  }
  /// The same of what a norm gives: under autocast it is cast, and the copy is kept.
  LinearOperand normed(const std::string& name, const Ref& x, bool again) const {
    if (!precision.autocast || precision.fuses_casts) return operand(name, x, again);
    const Ref copy = add(name, precision.branch(), x.count, again);
    return LinearOperand{copy, copy};
  }
};

class Block {
 public:
  Block(ProgramBuilder& builder, const Model& model, const Plan& plan, const LayerLayouts& layouts);

  /// Temporary buffers made from now on belong to `local`; operands are cast by `quantizer`.
  void write_to(LayoutWriter& local, Quantizer& quantizer) {
    x_local = &local;
    x_quantizer = &quantizer;
  }

 protected:
  /// A parameter by its whole name, and its gradient; invalid where the layer has none.
  Ref parameter(const std::string& name) const {
    return parameter_ref(x_layouts.parameters, name, kWeights, kShared);
  }
  Ref parameter_gradient(const std::string& name) const {
    return parameter_ref(x_layouts.parameter_gradients, name, kGradients, kSharedGradients);
  }
  Ref weight(const std::string& name) const { return parameter(name + ".weight"); }
  Ref gradient(const std::string& name) const { return parameter_gradient(name + ".weight"); }
  Matrix matrix(const std::string& name, std::int64_t out, std::int64_t in) const {
    return {weight(name), gradient(name), out, in};
  }
  Ref temporary(const std::string& name, std::int64_t count) {
    return temporary(name, count, x_plan.precision.compute);
  }
  Ref temporary(const std::string& name, std::int64_t count, DType type) {
    return x_local->add(name, BufferKind::kActivations, type, count);
  }
  Kernel kernel(KernelKind kind, std::int64_t rows, std::int64_t cols) const;
  Collective over_tensor(CollectiveKind kind, std::int64_t count) const;

  /// All tokens of `part`, which holds this rank's: gathered with sequence parallelism.
  Ref gathered(SegmentWriter& w, const std::string& name, const Ref& part);
  void linear(SegmentWriter& w, const std::string& name, const Matrix& m, std::int64_t tokens,
              const Ref& in, const Ref& out);
  /// Both gradients of a matrix that every tensor rank holds whole; returns that of the input.
  Ref linear_backward(SegmentWriter& w, const std::string& name, const Matrix& m,
                      std::int64_t tokens, const Ref& d_out, const Ref& in);
  Ref linear_backward(SegmentWriter& w, const std::string& name, const Matrix& m,
                      std::int64_t tokens, const Quantizer::Copies& d, const Ref& in);
  void input_gradient(SegmentWriter& w, const std::string& name, const Matrix& m,
                      std::int64_t tokens, const Ref& d_out, const Ref& d_in);
  void weight_gradient(SegmentWriter& w, const std::string& name, const Matrix& m,
                       std::int64_t tokens, const Ref& d_out, const Ref& in);
  /// Both gradients of a matrix cut by output: as LayerWriter::backward_column, for any width.
  Ref column_backward(SegmentWriter& w, const std::string& name, const Matrix& m, const Ref& d_out,
                      const Ref& in);

  ProgramBuilder& x_builder;
  const Model& x_model;
  const Plan& x_plan;
  const LayerLayouts& x_layouts;
  GroupSlot x_tensor;
  std::int64_t x_tokens, x_rows;  ///< of a microbatch; those of them that this rank holds alone
  LayoutWriter* x_local = nullptr;
  Quantizer* x_quantizer = nullptr;
};

}  // namespace foretrain
