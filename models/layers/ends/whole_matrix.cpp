#include "models/layers/ends/whole_matrix.h"

#include <utility>

namespace foretrain {

void WholeMatrix::forward(SegmentWriter& w, const Ref& x, const Ref& y) const {
  std::vector<View> reads = {x.view(), x_parameters.weight.view()};
  if (x_parameters.bias.valid()) reads.push_back(x_parameters.bias.view());
  w.compute(x_name, forward_gemm(x_plan, x_rows, x_out, x_in), std::move(reads), {y.view()});
}

void WholeMatrix::backward(SegmentWriter& w, const Ref& x, const Ref& d, const Ref& d_x) const {
  if (x_parameters.bias.valid()) {
    std::vector<View> reads = {d.view()};
    std::vector<View> writes;
    add_gradients(x_plan, {x_parameters.bias_gradient}, reads, writes);
    w.compute(x_name + ".bias_gradient",
              kernel_of(KernelKind::kBiasGrad, x_rows, x_out, x_plan.precision.compute),
              std::move(reads), std::move(writes));
  }
  if (d_x.valid()) {
    w.compute(x_name + ".input_gradient", input_gradient_gemm(x_plan, x_rows, x_out, x_in),
              {d.view(), x_parameters.weight.view()}, {d_x.view()});
  }
  write_weight_gradient(w, x_plan, x_name, weight_gradient_gemm(x_plan, x_rows, x_out, x_in), d, x,
                        x_parameters.weight_gradient);
}

}  // namespace foretrain
