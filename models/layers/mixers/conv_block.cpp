#include "models/layers/mixers/conv_block.h"

#include <utility>

namespace foretrain {

void ConvBlock::declare(LayoutWriter& saved, LayoutWriter& local, bool again) {
  const Placer place{saved, local, x_plan.precision};
  const DType type = x_plan.precision.branch();
  x_gated = place.add("gated convolution inputs", type, x_tokens * x_channels, again);
  x_convolved = place.add("convolved", type, x_tokens * x_channels, again);
}

/// Products by gates before and behind the convolution are kernels of their own, which read what
/// `passes` others of a channel wrote.
Kernel ConvBlock::convolution(KernelKind kind, std::int64_t passes) const {
  Kernel out = kernel(kind, x_tokens, x_channels);
  const bool backward = kind == KernelKind::kGatedConvBackward;
  out.launches = backward ? 5 : 3;
  out.between.bytes = passes * bits_of(out.dtype) / 8;
  out.flops = (backward ? 4 : 2) * x_model.hybrid.conv_taps * x_tokens * x_channels;
  return out;
}

void ConvBlock::forward(SegmentWriter& w, const Ref& in, const Ref& out) {
  std::vector<View> reads = {in.view(), taps().view()};
  if (const Ref bias = parameter("conv.taps.bias"); bias.valid()) reads.push_back(bias.view());
  w.compute("conv.gated", convolution(KernelKind::kGatedConv, 2), std::move(reads),
            {out.view(), x_gated.view(), x_convolved.view()});
}

void ConvBlock::backward(SegmentWriter& w, const Ref& d_out, const Ref& in, const Ref& d_in) {
  std::vector<View> reads = {d_out.view(), in.view(), x_gated.view(), x_convolved.view(),
                             taps().view()};
  std::vector<View> writes = {d_in.view()};
  add_gradients(x_plan, {gradient("conv.taps"), parameter_gradient("conv.taps.bias")}, reads,
                writes);
  w.compute("conv.gated.gradient", convolution(KernelKind::kGatedConvBackward, 5), std::move(reads),
            std::move(writes));
}

}  // namespace foretrain
