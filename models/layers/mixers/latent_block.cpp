#include "models/layers/mixers/latent_block.h"

namespace foretrain {

LatentBlock::LatentBlock(ProgramBuilder& builder, const Model& model, const Plan& plan,
                         const LayerLayouts& layouts)
    : Block(builder, model, plan, layouts), x_heads(model.heads / plan.tensor) {
  const LatentAttention& l = model.latent;
  x_q_down = matrix("attention.q_down", l.q_rank, model.hidden);
  x_q_up = matrix("attention.q_up", x_heads * model.head_dim,
                  narrow_queries() ? l.q_rank : model.hidden);
  x_kv_down = matrix("attention.kv_down", l.kv_rank + l.rope, model.hidden);
  x_kv_up = matrix("attention.kv_up", x_heads * (l.nope + l.value), l.kv_rank);
}

std::int64_t LatentBlock::packed_width() const {
  return x_heads * (2 * x_model.head_dim + x_model.latent.value);
}

void LatentBlock::declare(LayoutWriter& saved, LayoutWriter& local, bool again, bool up_again) {
  const Placer place{saved, local, x_plan.precision};
  const LatentAttention& l = x_model.latent;
  const DType type = x_plan.precision.compute;
  // Under fp8 the way up computed again starts from the normed ranks themselves.
  const bool read = x_model.latent.index_heads > 0;  // by an indexer
  const bool normed = again || (x_plan.precision.low() && !up_again && !read);
  const bool copies = again || up_again;
  if (narrow_queries()) {
    x_q_low = place.add("q low", type, x_rows * l.q_rank, again);
    x_q_normed = place.add("q low normed", type, x_rows * l.q_rank, normed);
    x_q = place.operand("q low normed quantized", x_q_normed, copies);
    x_q_statistics = place.add("q low statistics", DType::kFp32, x_rows, again);
  }
  x_kv_low = place.add("kv low", type, x_rows * (l.kv_rank + l.rope), again);
  x_kv_normed = place.add("kv low normed", type, x_rows * l.kv_rank, normed);
  x_kv = place.operand("kv low normed quantized", x_kv_normed, copies);
  x_kv_statistics = place.add("kv low statistics", DType::kFp32, x_rows, again);
}

void LatentBlock::norm(SegmentWriter& w, const std::string& name, std::int64_t width, const Ref& in,
                       const Ref& out, const Ref& statistics) {
  w.compute(name, kernel(KernelKind::kRmsNorm, x_rows, width),
            {in.part(0, x_rows * width), weight(name).view()}, {out.view(), statistics.view()});
}

void LatentBlock::forward(SegmentWriter& w, const LinearOperand& x, const Ref& qkv) {
  const Ref& in = x.in;
  if (narrow_queries()) {
    linear(w, "attention.q_down", x_q_down, x_rows, in, x_q_low);
    norm(w, "attention.q_down_norm", x_q_down.out, x_q_low, x_q_normed, x_q_statistics);
  }
  linear(w, "attention.kv_down", x_kv_down, x_rows, in, x_kv_low);
  norm(w, "attention.kv_down_norm", x_kv_up.in, x_kv_low, x_kv_normed, x_kv_statistics);
  up(w, x, qkv);
}

void LatentBlock::up(SegmentWriter& w, const LinearOperand& x, const Ref& qkv) {
  if (narrow_queries()) {
    x_quantizer->quantize(w, "attention.q_up.quantize", x_q_normed, x_rows, x_q);
  }
  x_quantizer->quantize(w, "attention.kv_up.quantize", x_kv_normed, x_rows, x_kv);
  const Ref q = temporary("q", x_tokens * x_q_up.out);
  const Ref kv = temporary("kv", x_tokens * x_kv_up.out);
  linear(w, "attention.q_up", x_q_up, x_tokens,
         gathered(w, "attention.q_up", narrow_queries() ? x_q.in : x.in), q);
  Ref shared = x_kv_low;
  if (x_plan.sequence) {
    const std::int64_t rope = x_model.latent.rope;
    const Ref part = temporary("shared key", x_rows * rope);
    w.compute("attention.shared_key", kernel(KernelKind::kCast, x_rows, rope),
              {x_kv_low.part(0, part.count)}, {part.view()});
    shared = gathered(w, "attention.shared_key", part);
  }
  linear(w, "attention.kv_up", x_kv_up, x_tokens, gathered(w, "attention.kv_up", x_kv.in), kv);
  w.compute("attention.heads", kernel(KernelKind::kLatentHeads, x_tokens, packed_width()),
            {q.view(), kv.view(), shared.view()}, {qkv.view()});
}

Ref LatentBlock::norm_backward(SegmentWriter& w, const std::string& name, std::int64_t width,
                               const Ref& d, const Ref& in, const Ref& statistics) {
  const Ref out = temporary(name + " d input", x_rows * width);
  const Ref g = gradient(name);
  std::vector<View> reads = {d.view(), in.part(0, x_rows * width), statistics.view(),
                             weight(name).view()};
  std::vector<View> writes = {out.view()};
  add_gradients(x_plan, {g}, reads, writes);
  w.compute(name + ".gradient", kernel(KernelKind::kRmsNormBackward, x_rows, width),
            std::move(reads), std::move(writes));
  return out;
}

/// The sum over tensor ranks, of this rank's tokens.
Ref LatentBlock::reduced(SegmentWriter& w, const std::string& name, const Ref& full) {
  if (x_plan.tensor == 1) return full;
  const bool scatter = x_plan.sequence;
  const Ref part = scatter ? temporary(name + " reduced", full.count / x_plan.tensor) : full;
  w.collective(name + ".reduce",
               over_tensor(scatter ? CollectiveKind::kReduceScatter : CollectiveKind::kAllReduce,
                           full.count),
               {full.view()}, {part.view()});
  return part;
}

Ref LatentBlock::backward(SegmentWriter& w, const LinearOperand& x, const Ref& d_qkv) {
  const Ref& in = x.kept;
  const LatentAttention& l = x_model.latent;
  const Ref d_q = temporary("d q", x_tokens * x_q_up.out);
  const Ref d_kv = temporary("d kv", x_tokens * x_kv_up.out);
  const Ref d_shared = temporary("d shared key", x_tokens * l.rope);
  w.compute("attention.heads_gradient",
            kernel(KernelKind::kLatentHeadsBackward, x_tokens, packed_width()), {d_qkv.view()},
            {d_q.view(), d_kv.view(), d_shared.view()});
  const Ref d_kv_normed = column_backward(w, "attention.kv_up", x_kv_up, d_kv, x_kv.kept);
  const Ref d_key = reduced(w, "attention.shared_key", d_shared);
  const Ref d_rank =
      norm_backward(w, "attention.kv_down_norm", l.kv_rank, d_kv_normed, x_kv_low, x_kv_statistics);
  const Ref d_low = temporary("d kv low", x_rows * (l.kv_rank + l.rope));
  w.compute("attention.kv_down.join", kernel(KernelKind::kCast, x_rows, l.kv_rank + l.rope),
            {d_rank.view(), d_key.view()}, {d_low.view()});
  const Ref d_in = linear_backward(w, "attention.kv_down", x_kv_down, x_rows, d_low, in);
  Ref d_of_q = column_backward(w, "attention.q_up", x_q_up, d_q, narrow_queries() ? x_q.kept : in);
  if (narrow_queries()) {
    const Ref d_q_low =
        norm_backward(w, "attention.q_down_norm", l.q_rank, d_of_q, x_q_low, x_q_statistics);
    d_of_q = linear_backward(w, "attention.q_down", x_q_down, x_rows, d_q_low, in);
  }
  w.compute("attention.input_gradient", kernel(KernelKind::kAdd, x_rows, x_model.hidden),
            {d_in.view(), d_of_q.view()}, {d_in.view()});
  return d_in;
}

}  // namespace foretrain
