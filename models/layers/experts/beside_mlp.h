// What an MLP beside experts has of its own: the norm through which it reads the stream and, where
// the model has them, norms of either result before their sum, a scale of the router's input, which
// is normed without weights, and one of every expert's result (Arctic, Gemma 4). The MLP itself is
// that of shared experts.
#pragma once

#include "models/layers/block.h"
#include "models/layers/layer.h"

namespace foretrain {

class BesideMlp : public Block {
 public:
  using Block::Block;

  /// `stream`: what the layer's feed-forward reads, before its norm.
  void declare(const Placer& place, bool again, const Ref& stream);
  /// The MLP's normed input.
  const LinearOperand& read(SegmentWriter& w);
  const LinearOperand& input() const { return x_operand; }
  /// Both results as the sum takes them.
  struct Results {
    Ref routed, shared;
  };
  Results after(SegmentWriter& w, const Results& given);
  /// Their gradients, from that of the sum.
  Results after_backward(SegmentWriter& w, const Ref& d_out);
  /// The gradient of the stream, `d_stream` so far, with that of the MLP's normed input.
  Ref add_to_stream(SegmentWriter& w, const Ref& d_input, const Ref& d_stream);
  /// What the router multiplies, of the normed `in`.
  Ref scaled(SegmentWriter& w, const Ref& in);
  const Ref& router_input(const Ref& in) const { return x_scaled.valid() ? x_scaled : in; }
  /// The gradient of `in`, from that of what the router multiplies.
  Ref scaled_backward(SegmentWriter& w, const Ref& in, const Ref& d_scaled);
  void scale_gradient(SegmentWriter& w, const Ref& d_probabilities);

 private:
  struct Normed {
    Ref in, statistics;
  };
  NormRefs norm_of(const std::string& name) const;
  void norm(SegmentWriter& w, const std::string& name, const Normed& kept, const Ref& out);
  Ref norm_backward(SegmentWriter& w, const std::string& name, const Normed& kept, const Ref& d_out,
                    const Ref& d_more);
  std::int64_t flat() const { return x_rows * x_model.hidden; }

  Normed x_read, x_routed, x_shared;
  Ref x_normed, x_scaled;
  LinearOperand x_operand;
};

}  // namespace foretrain
