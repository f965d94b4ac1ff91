#include "models/layers/ends/head_transform.h"

#include <utility>

namespace foretrain {

Ref HeadTransform::forward(SegmentWriter& w, LayoutWriter& saved, const Ref& in) {
  const DType type = x_plan.precision.compute;
  x_in = in;
  x_up = saved.add("head transform", BufferKind::kActivations, type, x_rows * x_width, true);
  x_out = saved.add("head activation", BufferKind::kActivations, type, x_rows * x_width, true);
  x_matrix.forward(w, in, x_up);
  w.compute("head.activation", kernel(KernelKind::kGelu), {x_up.view(), x_parameters.bias.view()},
            {x_out.view()});
  return x_out;
}

void HeadTransform::backward(SegmentWriter& w, LayoutWriter& local, const Ref& d_out,
                             const Ref& d_in) {
  const Ref d_up = local.add("d head transform", BufferKind::kActivations, x_plan.precision.compute,
                             x_rows * x_width);
  w.compute("head.activation_gradient", kernel(KernelKind::kGeluBackward),
            {d_out.view(), x_up.view(), x_parameters.bias.view()}, {d_up.view()});
  std::vector<View> reads = {d_up.view()};
  std::vector<View> writes;
  add_gradients(x_plan, {x_parameters.bias_gradient}, reads, writes);
  w.compute("head.transform.bias_gradient", kernel(KernelKind::kBiasGrad), std::move(reads),
            std::move(writes));
  x_matrix.backward(w, x_in, d_up, d_in);
}

}  // namespace foretrain
