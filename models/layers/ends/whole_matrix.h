// A linear of an end that every rank holds whole: patches of images to the hidden width, tables
// narrower than that to it, and back to their width before the output matrix.
#pragma once

#include <string>

#include "models/layers/layer.h"

namespace foretrain {

/// y[rows, out] = x[rows, in] W[out, in]^T, with a bias where there is one.
class WholeMatrix {
 public:
  /// Parameters and their gradients are named as those of a norm.
  WholeMatrix(const Plan& plan, std::string name, NormRefs parameters, std::int64_t rows,
              std::int64_t out, std::int64_t in)
      : x_plan(plan),
        x_name(std::move(name)),
        x_parameters(parameters),
        x_rows(rows),
        x_out(out),
        x_in(in) {}

  void forward(SegmentWriter& w, const Ref& x, const Ref& y) const;
  /// From `d`, the gradient of y, to those of the parameters; without `d_x` nothing else is wanted.
  void backward(SegmentWriter& w, const Ref& x, const Ref& d, const Ref& d_x) const;

 private:
  const Plan& x_plan;
  std::string x_name;
  NormRefs x_parameters;
  std::int64_t x_rows, x_out, x_in;
};

}  // namespace foretrain
