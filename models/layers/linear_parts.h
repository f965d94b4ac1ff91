// A layer's linears, and what tensor-parallel ranks exchange before and after them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "models/layers/context_parts.h"

namespace foretrain {

/// A column-parallel linear multiplies what is gathered, a row-parallel one's product is reduced
/// (with sequence parallelism: scattered too). With `overlap.tensor` both are cut by tokens into
/// the parts of the t ranks, which travel under the products, as Transformer Engine's userbuffers
/// ("ring exchange") and PyTorch's asynchronous tensor parallelism have it:
///   gather   t - 1 exchanges with the neighbours in the ring; the product of a part runs beside
///            the exchange that brings the next. Forward of a column-parallel linear, and the input
///            gradient of a row-parallel one.
///   reduce   the product of the part of the member i places on goes to it beside the product of
///            the next member's, i = 1 .. t - 1; the rank's own product comes last and is summed
///            with what the others sent. Forward of a row-parallel linear.
/// The collectives of a column-parallel linear's gradients stay whole: the gather of its input runs
/// beside the input gradient, the reduction beside the weight gradient, with or without
/// `overlap.tensor_backward`.
/// A kernel puts the rank's own part among those that are gathered. With `overlap.tensor_streams`
/// products are issued on so many streams by turns and each takes the SMs that the one before it
/// leaves in its last wave: a property of their prices, as the Program has one compute stream. With
/// `overlap.tensor_copy_engines` copy engines move what is gathered and hold no SMs.
/// Left out: experts, latent attention and the head.
class LinearParts : public ContextParts {
 protected:
  using ContextParts::ContextParts;
  using Product = std::function<void(std::int64_t hops, const View& in)>;

  Collective over_tensor(CollectiveKind kind, std::int64_t count) const {
    return Collective{kind, x_tensor, count, x_plan.precision.compute, false};
  }
  /// `gemm` with the matrices and the types of the linear's weights.
  Gemm of_linear(const Linear& l, Gemm gemm, bool backward) const {
    gemm.columns = l.columns;
    return x_quantizer.typed(gemm, l.weight, backward);
  }
  /// The product of one rank's part in a ring.
  Gemm of_part(Gemm gemm) const {
    const std::int64_t streams = std::min(x_plan.tensor, x_plan.overlap.tensor_streams);
    if (streams == 1) return gemm;
    gemm.beside = static_cast<std::int32_t>(x_plan.tensor);
    gemm.streams = static_cast<std::int32_t>(streams);
    return gemm;
  }
  /// All rows of `part`, where tokens are cut.
  void gather(SegmentWriter& w, const char* block, const Ref& part, const Ref& full);
  /// Under autocast the linear's 16-bit copies of its weight and bias.
  void cast_weights(SegmentWriter& w, const std::string& name, const Linear& l) const;
  void forward_linear(SegmentWriter& w, const char* name, const Linear& l, const Ref& in,
                      const std::vector<Ref>& out, bool with_bias);
  /// The linear's product or, where it goes back, the gradient of its input; `adds`: to `out`.
  void product(SegmentWriter& w, const std::string& name, const Linear& l, const Gemm& gemm,
               const Ref& in, const Ref& matrix, const Ref& out, bool adds);
  /// The sum over tensor ranks of what each has in `partial`: to `out`, with `sequence` its rows.
  Collective reduction_of(const Ref& partial) const {
    const bool scatters = x_plan.sequence;
    return over_tensor(scatters ? CollectiveKind::kReduceScatter : CollectiveKind::kAllReduce,
                       partial.count);
  }
  /// `part` is the rank's rows of the input, `full` where all are gathered (`part` itself without
  /// sequence parallelism); no `part`: they are. `with_bias`: added in the GEMM's epilogue; else a
  /// later kernel adds it.
  void forward_column(SegmentWriter& w, const char* block, const char* name, const Linear& l,
                      const Ref& part, const Ref& full, const std::vector<Ref>& out,
                      bool with_bias);
  /// Of a linear whose products are kept every second time, those of `width` that are not.
  void column_again(SegmentWriter& w, const char* block, const char* name, const Linear& l,
                    const Ref& part, const Ref& full, const Ref& out);
  /// `partial` holds the rank's product of all rows, `out` what is left of it after the reduction.
  /// `adds`: to what `partial` holds before.
  void forward_row(SegmentWriter& w, const char* block, const char* name, const Linear& l,
                   const Ref& in, const Ref& partial, const Ref& out, bool adds = false);
  /// The gradient of a row-parallel linear's input; returns `d` of all rows, the copy by columns
  /// for the weight gradient.
  Quantizer::Copies row_input_gradient(SegmentWriter& w, const std::string& name, const Linear& l,
                                       const Ref& d, const Ref& d_in);
  /// Of `rows` rows of the gradient `d` of the linear's output.
  void bias_gradient(SegmentWriter& w, const std::string& name, const Linear& l, const Ref& d,
                     std::int64_t rows);
  void weight_gradient(SegmentWriter& w, const std::string& name, const Linear& l, const Ref& d,
                       const Ref& in);

 private:
  /// The part of the member `hops` places before this one (0: the rank's own) of an array cut by
  /// tokens.
  View member(const Ref& all, std::int64_t hops) const;
  EventRef exchange(SegmentWriter& w, const std::string& name, std::int64_t places, const View& out,
                    const View& in, bool copied);
  void ring_gather(SegmentWriter& w, const std::string& name, const Ref& part, const Ref& full,
                   const Product& product);
  void ring_reduce(SegmentWriter& w, const char* block, const char* name, const Linear& l,
                   const Ref& in, const Ref& partial, const Ref& out, bool adds);
};

}  // namespace foretrain
