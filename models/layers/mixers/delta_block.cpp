#include "models/layers/mixers/delta_block.h"

#include <utility>

namespace foretrain {
namespace {

DeltaNet of_rank(DeltaNet whole, std::int64_t tensor) {
  whole.key_heads /= tensor;
  whole.value_heads /= tensor;
  return whole;
}

}  // namespace

DeltaBlock::DeltaBlock(ProgramBuilder& builder, const Model& model, const Plan& plan,
                       const LayerLayouts& layouts)
    : Block(builder, model, plan, layouts), x_sizes(of_rank(model.hybrid.delta, plan.tensor)) {}

void DeltaBlock::declare(LayoutWriter& saved, LayoutWriter& local, bool again) {
  const Placer place{saved, local, x_plan.precision};
  const DeltaNet& d = x_sizes;
  const DType type = x_plan.precision.branch();
  const std::int64_t t = x_tokens;
  const std::int64_t keys = d.value_heads * d.key_dim;
  x_kept.unit = place.add("unit queries and keys", type, t * 2 * d.keys(), again);
  x_kept.lengths =
      place.add("lengths of queries and keys", DType::kFp32, t * 2 * d.key_heads, again);
  if (repeats())
    x_kept.repeated = place.add("repeated queries and keys", type, t * 2 * keys, again);
  x_kept.values = place.add("delta values", type, t * d.values(), again);
  if (d.by_channel()) {
    x_kept.gates = place.add("delta gates", type, t * d.values(), again);
    x_kept.decays = place.add("delta decays", type, t * keys, again);
  }
  x_kept.sums =
      place.add("sums of decays", DType::kFp32, t * (d.by_channel() ? keys : d.value_heads), again);
  x_kept.inverse = place.add("inverses of chunks", type, t * d.value_heads * d.chunk, again);
  x_kept.mixed = place.add("delta output", type, t * d.values(), again);
  x_kept.roots = place.add("delta norm statistics", DType::kFp32, t * d.value_heads, again);
}

std::vector<std::int64_t> DeltaBlock::in_blocks() const {
  const DeltaNet& d = x_sizes;
  return {d.conv_width(), d.by_channel() ? d.gate_rank : d.values(),
          d.by_channel() ? d.gate_rank : d.value_heads, d.value_heads};
}

DeltaBlock::Packed DeltaBlock::parts_of(const Ref& in) const {
  const DeltaNet& d = x_sizes;
  std::int64_t at = 0;
  const auto next = [&](std::int64_t width) {
    at += x_tokens * width;
    return in.range(at - x_tokens * width, x_tokens * width);
  };
  Packed out;
  out.channels = next(d.conv_width());
  out.gates = next(d.by_channel() ? d.gate_rank : d.values());
  out.decays = next(d.by_channel() ? d.gate_rank : d.value_heads);
  out.strengths = next(d.value_heads);
  return out;
}

DeltaBlock::Channels DeltaBlock::channels_of(const Ref& all) const {
  const std::int64_t heads = x_tokens * 2 * x_sizes.keys();
  return {all.range(0, heads), all.range(heads, x_tokens * x_sizes.values())};
}

Scan DeltaBlock::scan(bool backward) const {
  Scan out;
  out.backward = backward;
  out.batch = x_tokens / x_plan.sequence_length;
  out.length = x_plan.sequence_length;
  out.heads = out.groups = x_sizes.value_heads;
  out.head_dim = x_sizes.value_dim;
  out.state = x_sizes.key_dim;
  out.chunk = x_sizes.chunk;
  out.dtype = x_plan.precision.attention();
  out.rule = x_sizes.by_channel() ? ScanRule::kChannelDelta : ScanRule::kDelta;
  return out;
}

Kernel DeltaBlock::repeat(KernelKind kind, std::int64_t width) const {
  Kernel out = kernel(kind, x_tokens, width);
  out.head_dim = x_sizes.key_dim;
  return out;
}

/// The norm of each value head, times silu(z).
Kernel DeltaBlock::gate_norm(KernelKind kind) const {
  Kernel out = kernel(kind, x_tokens * x_sizes.value_heads, x_sizes.value_dim);
  out.value = 1;
  return out;
}

void DeltaBlock::widen(SegmentWriter& w, const Packed& packed) {
  const DeltaNet& d = x_sizes;
  if (!d.by_channel()) {
    x_kept.gates = packed.gates;
    x_kept.decays = packed.decays;
    return;
  }
  linear(w, "delta.gates", matrix("delta.gates", d.values(), d.gate_rank), x_tokens, packed.gates,
         x_kept.gates);
  linear(w, "delta.decays", matrix("delta.decays", d.value_heads * d.key_dim, d.gate_rank),
         x_tokens, packed.decays, x_kept.decays);
}

void DeltaBlock::widen_backward(SegmentWriter& w, const Packed& packed, const Packed& d_packed,
                                const Ref& d_gates, const Ref& d_decays) {
  const DeltaNet& d = x_sizes;
  const auto back = [&](const std::string& name, std::int64_t out, const Ref& d_out, const Ref& in,
                        const Ref& d_in) {
    const Matrix m = matrix(name, out, d.gate_rank);
    input_gradient(w, name, m, x_tokens, d_out, d_in);
    weight_gradient(w, name, m, x_tokens, d_out, in);
  };
  back("delta.gates", d.values(), d_gates, packed.gates, d_packed.gates);
  back("delta.decays", d.value_heads * d.key_dim, d_decays, packed.decays, d_packed.decays);
}

void DeltaBlock::forward(SegmentWriter& w, const Ref& in, const Ref& out) {
  const DeltaNet& d = x_sizes;
  const Packed packed = parts_of(in);
  const Ref all = temporary("delta channels", x_tokens * d.conv_width());
  Kernel conv = kernel(KernelKind::kCausalConv, x_tokens, d.conv_width());
  conv.head_dim = 2 * d.keys();
  conv.flops = 2 * d.taps * x_tokens * d.conv_width();
  w.compute("delta.conv", conv, {packed.channels.view(), weight("delta.conv").view()},
            {all.view()});
  const Channels channels = channels_of(all);
  w.compute("delta.unit", kernel(KernelKind::kUnitRows, x_tokens * 2 * d.key_heads, d.key_dim),
            {channels.heads.view()}, {x_kept.unit.view(), x_kept.lengths.view()});
  if (repeats()) {
    w.compute("delta.repeat", repeat(KernelKind::kRepeatHeads, 2 * d.value_heads * d.key_dim),
              {x_kept.unit.view()}, {x_kept.repeated.view()});
  }
  w.compute("delta.values", kernel(KernelKind::kCast, x_tokens, d.values()),
            {channels.values.view()}, {x_kept.values.view()});
  widen(w, packed);
  w.compute("delta.scan", scan(false),
            {of_rule().view(), x_kept.values.view(), x_kept.decays.view(), packed.strengths.view(),
             parameter("delta.decay").view(), parameter("delta.step.bias").view()},
            {x_kept.mixed.view(), x_kept.sums.view(), x_kept.inverse.view()});
  w.compute("delta.gate_norm", gate_norm(KernelKind::kGatedNorm),
            {x_kept.mixed.view(), x_kept.gates.view(), weight("delta.gate_norm").view()},
            {out.view(), x_kept.roots.view()});
}

void DeltaBlock::backward(SegmentWriter& w, const Ref& d_out, const Ref& in, const Ref& d_in) {
  const DeltaNet& d = x_sizes;
  const Packed packed = parts_of(in);
  const Packed d_packed = parts_of(d_in);
  const std::int64_t keys = d.value_heads * d.key_dim;
  if (!d.by_channel()) {
    x_kept.gates = packed.gates;
    x_kept.decays = packed.decays;
  }
  const Ref d_gates =
      d.by_channel() ? temporary("d delta gates", x_tokens * d.values()) : d_packed.gates;
  const Ref d_decays =
      d.by_channel() ? temporary("d delta decays", x_tokens * keys) : d_packed.decays;
  const Ref d_mixed = temporary("d delta output", x_tokens * d.values());
  std::vector<View> reads = {d_out.view(), x_kept.mixed.view(), x_kept.gates.view(),
                             x_kept.roots.view(), weight("delta.gate_norm").view()};
  std::vector<View> writes = {d_mixed.view(), d_gates.view()};
  add_gradients(x_plan, {gradient("delta.gate_norm")}, reads, writes);
  w.compute("delta.gate_norm.gradient", gate_norm(KernelKind::kGatedNormBackward), std::move(reads),
            std::move(writes));

  const Ref d_all = temporary("d delta channels", x_tokens * d.conv_width());
  const Channels d_channels = channels_of(d_all);
  const Ref d_unit = temporary("d unit queries and keys", x_kept.unit.count);
  const Ref d_heads =
      repeats() ? temporary("d repeated queries and keys", x_tokens * 2 * keys) : d_unit;
  reads = {d_mixed.view(),       of_rule().view(),        x_kept.values.view(),
           x_kept.decays.view(), packed.strengths.view(), parameter("delta.decay").view(),
           x_kept.sums.view(),   x_kept.inverse.view(),   parameter("delta.step.bias").view()};
  writes = {d_heads.view(), d_channels.values.view(), d_decays.view(), d_packed.strengths.view()};
  add_gradients(x_plan, {parameter_gradient("delta.decay"), parameter_gradient("delta.step.bias")},
                reads, writes);
  w.compute("delta.scan.gradient", scan(true), std::move(reads), std::move(writes));
  if (d.by_channel()) widen_backward(w, packed, d_packed, d_gates, d_decays);
  if (repeats()) {
    w.compute("delta.repeat.gradient", repeat(KernelKind::kRepeatHeadsBackward, 2 * d.keys()),
              {d_heads.view()}, {d_unit.view()});
  }
  w.compute("delta.unit.gradient",
            kernel(KernelKind::kUnitRowsBackward, x_tokens * 2 * d.key_heads, d.key_dim),
            {d_unit.view(), x_kept.unit.view(), x_kept.lengths.view()}, {d_channels.heads.view()});
  reads = {d_all.view(), packed.channels.view(), weight("delta.conv").view()};
  writes = {d_packed.channels.view()};
  add_gradients(x_plan, {gradient("delta.conv")}, reads, writes);
  Kernel conv = kernel(KernelKind::kCausalConvBackward, x_tokens, d.conv_width());
  conv.head_dim = 2 * d.keys();
  conv.flops = 4 * d.taps * x_tokens * d.conv_width();
  w.compute("delta.conv.gradient", conv, std::move(reads), std::move(writes));
}

}  // namespace foretrain
