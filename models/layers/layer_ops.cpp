#include "models/layers/layer_ops.h"

#include <utility>

#include "models/layers/autocast.h"
#include "models/plan/captured.h"

namespace foretrain {

static constexpr const char* kSinks = "attention.sinks.weight";

void LayerOps::blocks_write_to(LayoutWriter& local) {
  x_quantizer.write_to(local);
  if (x_moe) x_moe->write_to(local, x_quantizer);
  x_mixers.write_to(local, x_quantizer);
}

SegmentId LayerOps::finish(SegmentWriter& writer, LayoutId saved, LayoutId local) {
  const LayerLayouts& l = x_layouts;
  writer.segment().frames = l.frames(saved, local);
  if (l.kind.sparse()) {
    writer.segment().frames.push_back(l.experts);
    writer.segment().frames.push_back(l.expert_gradients);
  }
  for (const LayoutId block : l.block_frames) writer.segment().frames.push_back(block);
  for (const LayoutId owner : l.owners) writer.segment().frames.push_back(owner);
  if (l.quantized.valid()) writer.segment().frames.push_back(l.quantized);
  capture(x_plan.captured, l.kind.sparse(), x_builder, writer.segment());
  return x_builder.segment(std::move(writer.segment()));
}

void LayerOps::cast_input(SegmentWriter& w, const std::string& name, const Linear& l, const Ref& x,
                          const Ref& copy, const std::vector<Ref>& more) {
  if (!x_plan.precision.autocast || x_plan.precision.fuses_casts) return;
  write_casts(w, name + ".cast_input", {}, l.in, x, copy);
  for (const Ref& other : more) write_casts(w, name + ".cast_input", {}, l.in, x, other);
}

/// The gradients that linears apart give are cast one by one and added in fp32; here their products
/// add up in 16 bits, and the other casts and sums are what the one cast moves besides.
Ref LayerOps::cast_input_gradient(SegmentWriter& w, const std::string& name, const Linear& l,
                                  const Ref& d, const std::vector<Ref>& more) {
  if (!x_plan.precision.autocast || x_plan.precision.fuses_casts) return d;
  const Ref wide = scratch(name + " d input in fp32", d.count, x_plan.precision.compute);
  Kernel cast = kernel_of(KernelKind::kCast, d.count / l.in, l.in, d.dtype);
  const auto others = static_cast<std::int64_t>(more.size());
  constexpr std::int64_t kCastAndAdd = (2 + 4) + (8 + 4);  // r2 w4, then r8 w4
  cast.launches = static_cast<std::int32_t>(1 + 2 * others);
  cast.between.bytes = others * kCastAndAdd;
  std::vector<View> reads = {d.view()};
  for (const Ref& copy : more) reads.push_back(copy.part(0, 0));  // kept until here
  w.compute(name + ".cast_input_gradient", cast, std::move(reads), {wide.view()});
  return wide;
}

void LayerOps::forward_norm(SegmentWriter& w, const char* name, const NormRefs& norm, const Ref& in,
                            const Ref& out, const Ref& stats) {
  if (!x_model.norms.before) return;
  if (x_grid) return x_grid->norm(w, name, norm, in, out, stats);
  w.compute(name, norm_kernel(x_model, x_rows, x_hidden, x_plan.precision.compute, false),
            norm_reads(in, norm), {out.view(), stats.view()});
  keep_until_released(w, name, norm.composed);
}

Ref LayerOps::norm_after(SegmentWriter& w, const std::string& block, const BranchNorms& norms,
                         const Ref& in) {
  if (!x_model.norms.after) return in;
  const Ref out = temporary(w, block + " after_norm out", in.count);
  w.compute(block + ".after_norm",
            norm_kernel(x_model, x_rows, x_hidden, x_plan.precision.compute, false),
            norm_reads(in, norms.after), {out.view(), norms.after_stats.view()});
  return out;
}

Ref LayerOps::norm_after_gradient(SegmentWriter& w, const std::string& block,
                                  const BranchNorms& norms, const Ref& in, const Ref& d_out) {
  const NormRefs& norm = norms.after;
  if (!x_model.norms.after) return d_out;
  const Ref d_in = scratch("d " + block + " before after_norm", in.count);
  std::vector<View> reads = norm_gradient_reads(d_out, in, norms.after_stats, norm);
  std::vector<View> writes = {d_in.view()};
  add_gradients(x_plan, {norm.weight_gradient, norm.bias_gradient}, reads, writes);
  w.compute(block + ".after_norm.gradient",
            norm_kernel(x_model, x_rows, x_hidden, x_plan.precision.compute, true),
            std::move(reads), std::move(writes));
  return d_in;
}

/// A norm of queries and keys, by heads or all of a token's at once.
static Kernel with_form(Kernel norm, const Model& model) {
  norm.value = model.norms.heads == HeadNorms::kWidth ? 1 : 0;
  return norm;
}

void LayerOps::forward_positions(SegmentWriter& w, std::vector<Ref> raw) {
  if (!x_layouts.kind.attends()) return;
  const bool rotates = x_model.position == Position::kRope;
  if (x_mixers.beside) raw = {x_mixers.beside->heads(raw.front())};
  if (x_mixers.beside && !rotates && !x_model.qk_norm) {
    w.compute("attention.heads", kernel(KernelKind::kCast, x_tokens, x_qkv_width), views_of(raw),
              {x_b.qkv.view()});
  }
  if (x_model.qk_norm) {
    std::vector<View> reads = views_of(raw);
    for (const char* name : {"attention.q_norm.weight", "attention.k_norm.weight"}) {
      if (const Ref own = weight(name); own.valid()) reads.push_back(own.view());
    }
    w.compute("attention.qk_norm",
              with_form(kernel(KernelKind::kRmsNorm, x_tokens * (x_q_heads + x_kv_heads),
                               x_model.head_dim),
                        x_model),
              std::move(reads), {x_b.qkv.view()});
    raw = {x_b.qkv};
  }
  if (rotates) w.compute("attention.rope", rope(false), views_of(raw), {x_b.qkv.view()});
}

void LayerOps::forward_core(SegmentWriter& w) {
  if (x_mixers.index) {
    x_mixers.index->forward(w, x_b.y1, x_mixers.latent->query_input(x_b.y1), x_b.qkv);
  }
  if (x_mixers.replace_core([&](auto& core) { core.forward(w, x_b.qkv, x_b.context); })) {
    // done
  } else if (x_plan.context > 1) {
    context_forward(w);
  } else {
    std::vector<View> writes = core_statistics();
    writes.insert(writes.begin(), x_b.context.view());
    std::vector<View> reads = {x_b.qkv.view()};
    if (const Ref sinks = weight(kSinks); sinks.valid()) {
      reads.push_back(sinks.slice(x_part, x_plan.recompute.parts).view());
    }
    w.compute("attention.core", core_of_slice(false), std::move(reads), std::move(writes));
  }
  if (x_mixers.beside) x_mixers.beside->forward(w, x_b.qkv_raw, x_b.context);
  x_quantizer.quantize(w, mixer_names(x_layouts.kind).out + std::string(".quantize"),
                       x_mixers.mixed(x_b.context), x_tokens, x_b.context_x);
}

/// Of a gelu that the model's own code writes out in operations.
static Kernel written_out(Kernel kernel, const Model& model) {
  kernel.value = model.activation == Activation::kGeluNew ? 1 : 0;
  return kernel;
}

void LayerOps::forward_activation(SegmentWriter& w) {
  std::vector<View> reads = views_of(raw_up());
  if (!x_model.gated() && x_up.bias.valid()) reads.push_back(x_up.bias.view());
  const Ref trained = weight("mlp.activation.weight");
  if (trained.valid()) reads.push_back(trained.view());
  w.compute(
      "mlp.activation",
      written_out(kernel(activation_kind(x_model.activation, false), x_tokens, x_down.in), x_model),
      std::move(reads), {x_b.act.view()});
  keep_until_released(w, "mlp.activation", x_b.composed_act);
  x_quantizer.quantize(w, "mlp.down.quantize", x_b.act, x_tokens, x_b.act_x);
}

Attention LayerOps::core_of_slice(bool backward) const {
  Attention out = core(backward);
  if (out.dropout > 0) out.first_sequence = x_slice * out.batch;
  return out;
}

Kernel LayerOps::dropout(KernelKind kind) const {
  Kernel out = kernel(kind, x_rows, x_hidden);
  if (kind == KernelKind::kResidualAdd) out.dtype = x_plan.precision.compute;
  out.value = x_dropout.hidden;
  if (out.value > 0) out.first_row = x_slice * x_rows;
  if (x_plan.sequence) out.split_over = x_tensor;
  if (x_plan.in_grid()) {
    out.split_over = x_builder.group(residual_axes(x_plan).tokens);
    out.cols_split_over = x_builder.group(residual_axes(x_plan).columns);
  }
  return out;
}

void LayerOps::residual(SegmentWriter& w, const char* name, const Ref& stream, const Ref& branch,
                        const Ref& bias, const Ref& mask, const Ref& out) {
  std::vector<View> reads = {stream.view(), branch.view()};
  if (bias.valid()) reads.push_back(bias.view());
  std::vector<View> writes = {out.view()};
  if (mask.valid()) writes.push_back(mask.view());
  w.compute(name, dropout(KernelKind::kResidualAdd), std::move(reads), std::move(writes));
}

void LayerOps::residual_of_both(SegmentWriter& w) {
  const Ref& one = x_projection.bias;
  const Ref& other = x_down.bias;
  Ref bias = one.valid() ? one : other;
  if (one.valid() && other.valid()) {
    bias = temporary(w, "biases of both branches", one.count);
    w.compute("mlp.residual.biases", kernel(KernelKind::kAdd, 1, one.count),
              {one.view(), other.view()}, {bias.view()});
  }
  residual(w, "mlp.residual", x_b.input, x_b.down, bias, x_b.mask, x_b.output);
}

Ref LayerOps::dropped(SegmentWriter& w, const std::string& name, const Ref& d_out,
                      const Ref& mask) {
  Ref d_sum = d_out;
  const bool with_dropout = x_plan.precision.fuses_casts && mask.valid();
  if (x_plan.precision.autocast && !with_dropout) {
    d_sum = scratch(name + " d in 16 bits", d_out.count);
    write_casts(w, name + ".cast_output_gradient", {}, x_hidden, d_out, d_sum);
  }
  if (!mask.valid()) return d_sum;
  const Ref d = scratch(name + " d dropout", d_sum.count);
  w.compute(name + ".dropout_gradient", dropout(KernelKind::kResidualAddBackward),
            {d_sum.view(), mask.view()}, {d.view()});
  return d;
}

void LayerOps::backward_activation(SegmentWriter& w, const Ref& d_act, const Ref& d_up) {
  std::vector<View> reads = views_of(raw_up());
  reads.insert(reads.begin(), d_act.view());
  if (!x_model.gated() && x_up.bias.valid()) reads.push_back(x_up.bias.view());
  std::vector<View> writes = {d_up.view()};
  if (const Ref trained = weight("mlp.activation.weight"); trained.valid()) {
    reads.push_back(trained.view());
    add_gradients(x_plan, {gradient("mlp.activation.weight")}, reads, writes);
  }
  w.compute(
      "mlp.activation_gradient",
      written_out(kernel(activation_kind(x_model.activation, true), x_tokens, x_down.in), x_model),
      std::move(reads), std::move(writes));
  release_kept(w, "mlp.activation", x_b.composed_act);
}

void LayerOps::backward_norm(SegmentWriter& w, const std::string& name, const NormRefs& norm,
                             const Ref& in, const Ref& stats, const Ref& d_out,
                             const Ref& d_residual, const Ref& d_in) {
  if (x_grid) return x_grid->norm_backward(w, name, norm, in, stats, d_out, d_residual, d_in);
  if (!x_model.norms.before) {
    w.compute(name + ".sum", kernel(KernelKind::kAdd, x_rows, x_hidden),
              {d_out.view(), d_residual.view()}, {d_in.view()});
    return;
  }
  std::vector<View> reads = norm_gradient_reads(d_out, in, stats, norm);
  reads.push_back(d_residual.view());
  std::vector<View> writes = {d_in.view()};
  add_gradients(x_plan, {norm.weight_gradient, norm.bias_gradient}, reads, writes);
  w.compute(name + ".gradient",
            norm_kernel(x_model, x_rows, x_hidden, x_plan.precision.compute, true),
            std::move(reads), std::move(writes));
  release_kept(w, name, norm.composed);
}

Ref LayerOps::backward_core(SegmentWriter& w, const Ref& d_mixed, const Ref& d_qkv) {
  if (x_mixers.replace_core([&](auto& core) { core.backward(w, d_mixed, x_b.qkv, d_qkv); })) {
    return d_qkv;
  }
  Ref d_context = d_mixed;
  Ref d_raw = d_qkv;
  Ref of_sinks;  // gradients of every token's
  if (x_mixers.beside) {
    d_raw = scratch("d qkv raw", x_tokens * x_qkv.out);
    d_context = x_mixers.beside->backward(w, d_mixed, x_b.qkv_raw, x_b.context, d_raw);
  }
  if (x_plan.context > 1) {
    context_backward(w, d_context, d_qkv);
  } else {
    std::vector<View> reads = {d_context.view(), x_b.qkv.view(), x_b.context.view()};
    const std::vector<View> statistics = core_statistics();
    reads.insert(reads.end(), statistics.begin(), statistics.end());
    std::vector<View> writes = {d_qkv.view()};
    if (x_model.attention.sinks) {
      of_sinks = scratch("d sinks of tokens", x_tokens * x_q_heads, DType::kFp32);
      reads.push_back(weight(kSinks).slice(x_part, x_plan.recompute.parts).view());
      writes.push_back(of_sinks.view());
    }
    w.compute("attention.core_gradient", core_of_slice(true), std::move(reads), std::move(writes));
  }
  if (x_mixers.latent) return d_qkv;
  if (x_model.attention.sinks) {
    std::vector<View> reads = {of_sinks.valid() ? of_sinks.view() : d_context.view()};
    std::vector<View> writes;
    add_gradients(x_plan, {gradient(kSinks).slice(x_part, x_plan.recompute.parts)}, reads, writes);
    w.compute("attention.sinks.gradient", kernel(KernelKind::kBiasGrad, x_tokens, x_q_heads),
              std::move(reads), std::move(writes));
  }
  backward_positions(w, d_qkv, x_mixers.beside ? x_mixers.beside->heads(d_raw) : d_qkv);
  return d_raw;
}

void LayerOps::backward_positions(SegmentWriter& w, const Ref& d_qkv, const Ref& d_raw) {
  const bool rotates = x_model.position == Position::kRope;
  if (rotates) {
    const Ref& out = x_model.qk_norm ? d_qkv : d_raw;
    w.compute("attention.rope_gradient", rope(true), {d_qkv.view()}, {out.view()});
  } else if (x_mixers.beside && !x_model.qk_norm) {
    w.compute("attention.heads.gradient", kernel(KernelKind::kCast, x_tokens, x_qkv_width),
              {d_qkv.view()}, {d_raw.view()});
  }
  if (!x_model.qk_norm) return;
  const Ref q = gradient("attention.q_norm.weight");
  const Ref k = gradient("attention.k_norm.weight");
  std::vector<Ref> raw = raw_heads();
  if (x_mixers.beside) raw = {x_mixers.beside->heads(raw.front())};
  std::vector<View> normed = views_of(raw);
  normed.insert(normed.begin(), d_qkv.view());
  for (const char* name : {"attention.q_norm.weight", "attention.k_norm.weight"}) {
    if (const Ref own = weight(name); own.valid()) normed.push_back(own.view());
  }
  std::vector<View> writes = {d_raw.view()};
  // Every part of the heads adds to what the parts before gave.
  if (x_part > 0 && x_plan.writes_fresh() && q.valid())
    normed.insert(normed.end(), {q.view(), k.view()});
  add_gradients(x_plan, {q, k}, normed, writes);
  w.compute("attention.qk_norm_gradient",
            with_form(kernel(KernelKind::kRmsNormBackward, x_tokens * (x_q_heads + x_kv_heads),
                             x_model.head_dim),
                      x_model),
            std::move(normed), std::move(writes));
}

}  // namespace foretrain
