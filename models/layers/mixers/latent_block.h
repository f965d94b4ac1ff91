// Multi-head latent attention: from the normed input of a layer to its packed queries, keys and
// values, as Megatron-LM cuts it.
//
// The projections down to the ranks are held whole by every tensor rank and work on its own tokens;
// what lies between down and up is gathered instead of the wide input. Keys get the part that all
// heads share in the kernel that rotates it.
#pragma once

#include "models/layers/block.h"

namespace foretrain {

class LatentBlock : public Block {
 public:
  LatentBlock(ProgramBuilder& builder, const Model& model, const Plan& plan,
              const LayerLayouts& layouts);

  /// Elements of a token's packed queries, keys and values on this rank.
  std::int64_t packed_width() const;
  /// Declares what goes from forward to backward; `again`: computed again, so not kept; `up_again`:
  /// the way from the ranks up is.
  void declare(LayoutWriter& saved, LayoutWriter& local, bool again, bool up_again);
  /// From the normed input `x` of this rank's tokens to the packed `qkv` of all.
  void forward(SegmentWriter& w, const LinearOperand& x, const Ref& qkv);
  /// The second half of forward: from the normed ranks up.
  void up(SegmentWriter& w, const LinearOperand& x, const Ref& qkv);
  /// Queries that are not cut to a rank come from the layer's normed input.
  bool narrow_queries() const { return x_model.latent.q_rank > 0; }
  /// What queries come from, before it is quantized: their rank, or the layer's normed input.
  const Ref& query_input(const Ref& normed) const { return narrow_queries() ? x_q_normed : normed; }
  /// Returns the gradient of the normed input.
  Ref backward(SegmentWriter& w, const LinearOperand& x, const Ref& d_qkv);

 private:
  void norm(SegmentWriter& w, const std::string& name, std::int64_t width, const Ref& in,
            const Ref& out, const Ref& statistics);
  Ref norm_backward(SegmentWriter& w, const std::string& name, std::int64_t width, const Ref& d,
                    const Ref& in, const Ref& statistics);
  Ref reduced(SegmentWriter& w, const std::string& name, const Ref& full);

  std::int64_t x_heads;
  Matrix x_q_down, x_q_up, x_kv_down, x_kv_up;
  Ref x_q_low, x_q_normed, x_q_statistics, x_kv_low, x_kv_normed, x_kv_statistics;
  LinearOperand x_q, x_kv;  ///< the normed ranks as the ways up read them
};

}  // namespace foretrain
