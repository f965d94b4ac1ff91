#include "models/layers/mixers/shared_block.h"

#include "models/layers/layer_parts.h"

namespace foretrain {

SharedBlockPart::SharedBlockPart(ProgramBuilder& builder, const Model& model, const Plan& plan,
                                 const LayerLayouts& layouts)
    : Block(builder, model, plan, layouts),
      x_name("shared" + std::to_string(layouts.kind.shared) + ".") {
  const char* const names[] = {"adapter.q", "adapter.k", "adapter.v"};
  for (std::size_t i = 0; i < x_heads.size(); ++i) x_heads[i] = adapter(names[i], x_wide, x_wide);
  x_inner = adapter("adapter.up", (model.gated() ? 2 : 1) * model.intermediate, model.hidden);
}

SharedBlockPart::Adapter SharedBlockPart::adapter(const std::string& name, std::int64_t out,
                                                  std::int64_t in) const {
  const std::int64_t rank = x_model.hybrid.shared.rank;
  return {name, matrix(name + ".down", rank, in), matrix(name + ".up", out, rank), Ref()};
}

Matrix SharedBlockPart::of_block(const std::string& name, std::int64_t out, std::int64_t in) const {
  const std::string whole = x_name + name + ".weight";
  return {parameter_ref(x_layouts.borrowed, whole, kBlockWeights, kBlockWeights),
          parameter_ref(x_layouts.borrowed_gradients, whole, kBlockGradients, kBlockGradients), out,
          in};
}

Kernel SharedBlockPart::norm(bool backward, std::int64_t width) const {
  return norm_kernel(x_model, x_tokens, width, x_plan.precision.compute, backward);
}

Attention SharedBlockPart::core(bool backward) const {
  Attention out;
  out.backward = backward;
  out.batch = x_plan.micro_batch;
  out.q_heads = out.kv_heads = x_model.heads;
  out.q_len = out.kv_len = x_plan.sequence_length;
  out.head_dim = x_wide / x_model.heads;
  out.documents = x_plan.documents;
  out.kernel = x_plan.attention;
  out.dtype = x_plan.precision.attention();
  return out;
}

Kernel SharedBlockPart::rope(bool backward) const {
  Kernel out =
      kernel(backward ? KernelKind::kRopeBackward : KernelKind::kRope, x_tokens, 2 * x_wide);
  out.head_dim = x_wide / x_model.heads;
  return out;
}

Ref SharedBlockPart::declare(LayoutWriter& saved, LayoutWriter& local, bool again) {
  const Placer place{saved, local, x_plan.precision};
  const DType type = x_plan.precision.compute;
  const std::int64_t t = x_tokens;
  const std::int64_t rank = x_model.hybrid.shared.rank;
  const auto add = [&](const char* name, std::int64_t width) {
    return place.add(std::string("block ") + name, type, t * width, again);
  };
  const auto statistics = [&](const char* name) {
    return place.add(name, DType::kFp32, t * norm_statistics(x_model), again);
  };
  x_attended.pair = add("stream and embedding", x_wide);
  x_attended.statistics = statistics("block norm statistics");
  x_attended.normed = add("norm out", x_wide);
  x_attended.qkv = add("qkv", 3 * x_wide);
  for (Adapter& a : x_heads) {
    if (a.down.weight.valid()) a.low = add((a.name + " low").c_str(), rank);
  }
  x_attended.context = add("context", x_wide);
  x_attended.row_sums = place.add("block log-sum-exp", DType::kFp32, t * x_model.heads, again);
  x_attended.out = add("attention out", x_model.hidden);
  x_fed.statistics = statistics("block mlp norm statistics");
  x_fed.normed = add("mlp norm out", x_model.hidden);
  x_fed.up = add("mlp up", x_inner.up.out);
  if (x_inner.down.weight.valid()) x_inner.low = add("adapter.up low", rank);
  x_fed.activated = add("mlp activation", x_model.intermediate);
  x_fed.out = add("mlp out", x_model.hidden);
  return x_sum = add("sum", x_model.hidden);
}

void SharedBlockPart::adapt(SegmentWriter& w, const Adapter& a, const Ref& in, const Ref& out) {
  if (!a.low.valid()) return;
  linear(w, a.name + ".down", a.down, x_tokens, in, a.low);
  const Ref more = temporary(a.name + " out", x_tokens * a.up.out);
  linear(w, a.name + ".up", a.up, x_tokens, a.low, more);
  w.compute(a.name + ".add", kernel(KernelKind::kAdd, x_tokens, a.up.out),
            {out.view(), more.view()}, {out.view()});
}

void SharedBlockPart::adapt_backward(SegmentWriter& w, const Adapter& a, const Ref& d_out,
                                     const Ref& in, const Ref& d_in) {
  if (!a.low.valid()) return;
  const Ref d_low = linear_backward(w, a.name + ".up", a.up, x_tokens, d_out, a.low);
  const Ref more = linear_backward(w, a.name + ".down", a.down, x_tokens, d_low, in);
  w.compute(a.name + ".add_gradient", kernel(KernelKind::kAdd, x_tokens, a.down.in),
            {d_in.view(), more.view()}, {d_in.view()});
}

void SharedBlockPart::forward(SegmentWriter& w) {
  const std::int64_t h = x_model.hidden;
  const Ref in = stream(kInput);
  w.compute("block.join", kernel(KernelKind::kCast, x_tokens, x_wide),
            {in.view(), stream(kEmbedded).view()}, {x_attended.pair.view()});
  w.compute("block.norm", norm(false, x_wide),
            {x_attended.pair.view(), of_block("norm", x_wide, 1).weight.view()},
            {x_attended.normed.view(), x_attended.statistics.view()});
  linear(w, "block.qkv", of_block("qkv", 3 * x_wide, x_wide), x_tokens, x_attended.normed,
         x_attended.qkv);
  for (std::size_t i = 0; i < x_heads.size(); ++i) {
    adapt(w, x_heads[i], x_attended.normed, x_attended.qkv.slice(static_cast<std::int64_t>(i), 3));
  }
  if (x_model.position == Position::kRope) {
    w.compute("block.rope", rope(false), {x_attended.qkv.view()}, {x_attended.qkv.view()});
  }
  w.compute("block.core", core(false), {x_attended.qkv.view()},
            {x_attended.context.view(), x_attended.row_sums.view()});
  linear(w, "block.projection", of_block("projection", h, x_wide), x_tokens, x_attended.context,
         x_attended.out);
  w.compute("block.mlp.norm", norm(false, h),
            {x_attended.out.view(), of_block("mlp.norm", h, 1).weight.view()},
            {x_fed.normed.view(), x_fed.statistics.view()});
  linear(w, "block.mlp.up", of_block("mlp.up", x_fed.up.count / x_tokens, h), x_tokens,
         x_fed.normed, x_fed.up);
  adapt(w, x_inner, x_fed.normed, x_fed.up);
  w.compute("block.mlp.activation",
            kernel(activation_kind(x_model.activation, false), x_tokens, x_model.intermediate),
            {x_fed.up.view()}, {x_fed.activated.view()});
  linear(w, "block.mlp.down", of_block("mlp.down", h, x_model.intermediate), x_tokens,
         x_fed.activated, x_fed.out);
  const Ref branch = temporary("block branch", x_tokens * h);
  linear(w, "block.way", matrix("block.way", h, h), x_tokens, x_fed.out, branch);
  w.compute("block.add", kernel(KernelKind::kAdd, x_tokens, h), {in.view(), branch.view()},
            {x_sum.view()});
}

Ref SharedBlockPart::norm_backward(SegmentWriter& w, const std::string& name, const Ref& d,
                                   const Ref& in, const Ref& statistics) {
  const std::int64_t width = in.count / x_tokens;
  const Matrix own = of_block(name, width, 1);
  const Ref out = temporary("d block " + name, in.count);
  std::vector<View> reads = {d.view(), in.view(), statistics.view(), own.weight.view()};
  std::vector<View> writes = {out.view()};
  add_gradients(x_plan, {own.gradient}, reads, writes);
  w.compute("block." + name + ".gradient", norm(true, width), std::move(reads), std::move(writes));
  return out;
}

Ref SharedBlockPart::attention_backward(SegmentWriter& w, const Ref& d_attended) {
  const std::int64_t h = x_model.hidden;
  const Ref d_context = linear_backward(w, "block.projection", of_block("projection", h, x_wide),
                                        x_tokens, d_attended, x_attended.context);
  const Ref d_qkv = temporary("d block qkv", x_attended.qkv.count);
  w.compute("block.core_gradient", core(true),
            {d_context.view(), x_attended.qkv.view(), x_attended.context.view(),
             x_attended.row_sums.view()},
            {d_qkv.view()});
  if (x_model.position == Position::kRope) {
    w.compute("block.rope_gradient", rope(true), {d_qkv.view()}, {d_qkv.view()});
  }
  const Ref d_normed = linear_backward(w, "block.qkv", of_block("qkv", 3 * x_wide, x_wide),
                                       x_tokens, d_qkv, x_attended.normed);
  for (std::size_t i = 0; i < x_heads.size(); ++i) {
    adapt_backward(w, x_heads[i], d_qkv.slice(static_cast<std::int64_t>(i), 3), x_attended.normed,
                   d_normed);
  }
  return norm_backward(w, "norm", d_normed, x_attended.pair, x_attended.statistics);
}

void SharedBlockPart::backward(SegmentWriter& w, const Ref& d_sum) {
  const std::int64_t h = x_model.hidden;
  const Ref d_out =
      linear_backward(w, "block.way", matrix("block.way", h, h), x_tokens, d_sum, x_fed.out);
  const Ref d_activated =
      linear_backward(w, "block.mlp.down", of_block("mlp.down", h, x_model.intermediate), x_tokens,
                      d_out, x_fed.activated);
  const Ref d_up = temporary("d block mlp up", x_fed.up.count);
  w.compute("block.mlp.activation_gradient",
            kernel(activation_kind(x_model.activation, true), x_tokens, x_model.intermediate),
            {d_activated.view(), x_fed.up.view()}, {d_up.view()});
  const Ref d_normed =
      linear_backward(w, "block.mlp.up", of_block("mlp.up", x_fed.up.count / x_tokens, h), x_tokens,
                      d_up, x_fed.normed);
  adapt_backward(w, x_inner, d_up, x_fed.normed, d_normed);
  const Ref d_pair = attention_backward(
      w, norm_backward(w, "mlp.norm", d_normed, x_attended.out, x_fed.statistics));
  // Of [ x ; x0 ] one half goes to the stream, the other to the embedding.
  const Kernel add = kernel(KernelKind::kAdd, x_tokens, h);
  w.compute("block.join.gradient", add, {d_sum.view(), d_pair.slice(0, 2).view()},
            {stream(kInputGradient).view()});
  const Ref embedded = stream(kEmbeddedGradient);
  if (x_layouts.kind.last_use) {
    w.compute("block.embedded_gradient", kernel(KernelKind::kCast, x_tokens, h),
              {d_pair.slice(1, 2).view()}, {embedded.view()});
  } else {
    w.compute("block.embedded_gradient", add, {d_pair.slice(1, 2).view(), embedded.view()},
              {embedded.view()});
  }
}

}  // namespace foretrain
