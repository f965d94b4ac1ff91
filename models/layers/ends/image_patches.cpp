#include "models/layers/ends/image_patches.h"

#include <utility>

namespace foretrain {

Ref ImagePatches::forward(SegmentWriter& w, LayoutWriter& local) const {
  const DType type = x_plan.precision.compute;
  const auto add = [&](const char* name, std::int64_t rows) {
    return local.add(name, BufferKind::kActivations, type, rows * x_hidden);
  };
  const Ref embedded = add("embedded patches", patches());
  x_matrix.forward(w, pixels(), embedded);
  const Ref joined = add("class and patches", x_rows);
  w.compute("embedding.class", kernel_of(KernelKind::kCast, x_rows, x_hidden, type),
            {embedded.view(), x_parameters.token.view()}, {joined.view()});
  return joined;
}

void ImagePatches::backward(SegmentWriter& w, const Ref& d) const {
  const std::int64_t sequences = x_plan.micro_batch;
  std::vector<View> reads = {d.part(0, sequences * x_hidden)};
  std::vector<View> writes;
  add_gradients(x_plan, {x_parameters.token_gradient}, reads, writes);
  w.compute("embedding.class_gradient",
            kernel_of(KernelKind::kBiasGrad, sequences, x_hidden, x_plan.precision.compute),
            std::move(reads), std::move(writes));
  x_matrix.backward(w, pixels(), d.range(0, patches() * x_hidden), Ref());
}

}  // namespace foretrain
