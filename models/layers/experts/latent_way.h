// The way of tokens down to a latent space before they go to their experts, and of what these give
// back up, as Megatron Core has it (moe_latent_size): both matrices are held whole by every rank,
// and work on its own tokens.
#pragma once

#include "models/layers/block.h"

namespace foretrain {

class LatentWay : public Block {
 public:
  using Block::Block;

  /// What both matrices give and take: `again`: computed again, so not kept.
  void declare(const Placer& place, bool again);
  /// Tokens `in` in the latent space.
  const Ref& down(SegmentWriter& w, const Ref& in);
  /// Where the experts' results come together.
  const Ref& joined() const { return x_joined; }
  void up(SegmentWriter& w, const Ref& out);
  /// The gradient of `joined`, and that of the tokens `in`.
  Ref up_backward(SegmentWriter& w, const Ref& d_out);
  Ref down_backward(SegmentWriter& w, const Ref& d_low, const Ref& in);

 private:
  Matrix x_down = matrix("moe.latent.down", x_model.experts.more.latent, x_model.hidden);
  Matrix x_up = matrix("moe.latent.up", x_model.hidden, x_model.experts.more.latent);
  Ref x_low, x_joined;
};

}  // namespace foretrain
