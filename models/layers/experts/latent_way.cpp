#include "models/layers/experts/latent_way.h"

namespace foretrain {

void LatentWay::declare(const Placer& place, bool again) {
  const DType type = x_plan.precision.compute;
  x_low = place.add("latent tokens", type, x_rows * x_down.out, again);
  x_joined = place.add("latent results", type, x_rows * x_down.out, again);
}

const Ref& LatentWay::down(SegmentWriter& w, const Ref& in) {
  linear(w, "moe.latent.down", x_down, x_rows, in, x_low);
  return x_low;
}

void LatentWay::up(SegmentWriter& w, const Ref& out) {
  linear(w, "moe.latent.up", x_up, x_rows, x_joined, out);
}

Ref LatentWay::up_backward(SegmentWriter& w, const Ref& d_out) {
  return linear_backward(w, "moe.latent.up", x_up, x_rows, d_out, x_joined);
}

Ref LatentWay::down_backward(SegmentWriter& w, const Ref& d_low, const Ref& in) {
  return linear_backward(w, "moe.latent.down", x_down, x_rows, d_low, in);
}

}  // namespace foretrain
