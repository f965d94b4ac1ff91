// What stands between the last layer and the head's norm of a model that predicts masked tokens
// (BERT): a matrix with a bias to the width of the tables, held whole by every rank, and a gelu.
#pragma once

#include "models/layers/ends/whole_matrix.h"

namespace foretrain {

class HeadTransform {
 public:
  /// Of `rows` tokens. Parameters and their gradients are named as those of a norm.
  HeadTransform(const Plan& plan, NormRefs parameters, std::int64_t rows, std::int64_t hidden,
                std::int64_t width)
      : x_plan(plan),
        x_parameters(parameters),
        x_matrix(plan, "head.transform",
                 {parameters.weight, Ref(), parameters.weight_gradient, Ref()}, rows, width,
                 hidden),
        x_rows(rows),
        x_width(width) {}

  /// What the norm reads; it and what the gelu reads are kept.
  Ref forward(SegmentWriter& w, LayoutWriter& saved, const Ref& in);
  /// From its gradient to that of the last layer's result, `d_in`.
  void backward(SegmentWriter& w, LayoutWriter& local, const Ref& d_out, const Ref& d_in);

 private:
  Kernel kernel(KernelKind kind) const {
    return kernel_of(kind, x_rows, x_width, x_plan.precision.compute);
  }

  const Plan& x_plan;
  NormRefs x_parameters;
  WholeMatrix x_matrix;
  std::int64_t x_rows, x_width;
  Ref x_in, x_up, x_out;
};

}  // namespace foretrain
