#include "models/layers/ends/head_transform.h"

#include <utility>

namespace foretrain {

Ref HeadTransform::forward(SegmentWriter& w, LayoutWriter& saved, const Ref& in) {
  const DType type = x_plan.precision.compute;
  x_in = in;
  x_up = saved.add("head transform", BufferKind::kActivations, type, x_rows * x_hidden, true);
  x_out = saved.add("head activation", BufferKind::kActivations, type, x_rows * x_hidden, true);
  w.compute("head.transform", forward_gemm(x_plan, x_rows, x_hidden, x_hidden),
            {in.view(), x_parameters.weight.view()}, {x_up.view()});
  w.compute("head.activation", kernel(KernelKind::kGelu), {x_up.view(), x_parameters.bias.view()},
            {x_out.view()});
  return x_out;
}

void HeadTransform::backward(SegmentWriter& w, LayoutWriter& local, const Ref& d_out,
                             const Ref& d_in) {
  const Ref d_up = local.add("d head transform", BufferKind::kActivations, x_plan.precision.compute,
                             x_rows * x_hidden);
  w.compute("head.activation_gradient", kernel(KernelKind::kGeluBackward),
            {d_out.view(), x_up.view(), x_parameters.bias.view()}, {d_up.view()});
  std::vector<View> reads = {d_up.view()};
  std::vector<View> writes;
  add_gradients(x_plan, {x_parameters.bias_gradient}, reads, writes);
  w.compute("head.transform.bias_gradient", kernel(KernelKind::kBiasGrad), std::move(reads),
            std::move(writes));
  w.compute("head.transform.input_gradient",
            input_gradient_gemm(x_plan, x_rows, x_hidden, x_hidden),
            {d_up.view(), x_parameters.weight.view()}, {d_in.view()});
  write_weight_gradient(w, x_plan, "head.transform",
                        weight_gradient_gemm(x_plan, x_rows, x_hidden, x_hidden), d_up, x_in,
                        x_parameters.weight_gradient);
}

}  // namespace foretrain
