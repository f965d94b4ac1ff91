// What stands between the last layer and the head's norm of a model that predicts masked tokens
// (BERT): a matrix [hidden, hidden] with a bias, held whole by every rank, and a gelu.
#pragma once

#include "models/layers/layer.h"

namespace foretrain {

class HeadTransform {
 public:
  /// Of `rows` tokens. Parameters and their gradients are named as those of a norm.
  HeadTransform(const Plan& plan, NormRefs parameters, std::int64_t rows, std::int64_t hidden)
      : x_plan(plan), x_parameters(parameters), x_rows(rows), x_hidden(hidden) {}

  /// What the norm reads; it and what the gelu reads are kept.
  Ref forward(SegmentWriter& w, LayoutWriter& saved, const Ref& in);
  /// From its gradient to that of the last layer's result, `d_in`.
  void backward(SegmentWriter& w, LayoutWriter& local, const Ref& d_out, const Ref& d_in);

 private:
  Kernel kernel(KernelKind kind) const {
    return kernel_of(kind, x_rows, x_hidden, x_plan.precision.compute);
  }

  const Plan& x_plan;
  NormRefs x_parameters;
  std::int64_t x_rows, x_hidden;
  Ref x_in, x_up, x_out;
};

}  // namespace foretrain
