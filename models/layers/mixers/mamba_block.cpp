#include "models/layers/mixers/mamba_block.h"

#include <array>
#include <utility>

namespace foretrain {
namespace {

constexpr std::array kOfScan = {"mamba.decay", "mamba.skip", "mamba.step.bias"};

}  // namespace

MambaBlock::MambaBlock(ProgramBuilder& builder, const Model& model, const Plan& plan,
                       const LayerLayouts& layouts)
    : Block(builder, model, plan, layouts),
      x_heads(model.hybrid.state_space.heads / plan.tensor),
      x_groups(model.hybrid.state_space.groups / plan.tensor),
      x_channels(model.hybrid.state_space.conv_width() / plan.tensor) {}

void MambaBlock::declare(LayoutWriter& saved, LayoutWriter& local, bool again) {
  const Placer place{saved, local, x_plan.precision};
  x_scanned = place.add("scanned", x_plan.precision.branch(), x_tokens * out_width(), again);
  if (!x_model.hybrid.state_space.norm) return;
  x_roots = place.add("gated norm statistics", DType::kFp32, x_tokens * x_groups, again);
}

MambaBlock::Packed MambaBlock::parts_of(const Ref& in) const {
  const std::int64_t gate = x_tokens * out_width();
  const std::int64_t channels = x_tokens * x_channels;
  return {in.part(0, gate), in.part(gate, channels), in.part(gate + channels, x_tokens * x_heads)};
}

Scan MambaBlock::scan(bool backward) const {
  const StateSpace& s = x_model.hybrid.state_space;
  Scan out;
  out.backward = backward;
  out.batch = x_tokens / x_plan.sequence_length;
  out.length = x_plan.sequence_length;
  out.heads = x_heads;
  out.groups = x_groups;
  out.head_dim = s.head_dim;
  out.state = s.state;
  out.chunk = s.chunk;
  out.dtype = x_plan.precision.attention();
  return out;
}

Ref MambaBlock::convolve(SegmentWriter& w, const std::string& name, const Ref& in) {
  const Ref out = temporary(name, x_tokens * x_channels);
  Kernel work = kernel(KernelKind::kCausalConv, x_tokens, x_channels);
  work.flops = 2 * x_model.hybrid.state_space.taps * x_tokens * x_channels;
  std::vector<View> reads = {parts_of(in).channels, parameter("mamba.conv.weight").view()};
  if (const Ref bias = parameter("mamba.conv.bias"); bias.valid()) reads.push_back(bias.view());
  w.compute(name, work, std::move(reads), {out.view()});
  return out;
}

void MambaBlock::forward(SegmentWriter& w, const Ref& in, const Ref& out) {
  const Packed packed = parts_of(in);
  const Ref channels = convolve(w, "mamba.conv", in);
  std::vector<View> reads = {channels.view(), packed.steps};
  for (const char* name : kOfScan) reads.push_back(parameter(name).view());
  w.compute("mamba.scan", scan(false), std::move(reads), {x_scanned.view()});
  if (!x_model.hybrid.state_space.norm) {
    w.compute("mamba.gate", kernel(KernelKind::kSwiglu, x_tokens, out_width()),
              {packed.gate, x_scanned.view()}, {out.view()});
    return;
  }
  w.compute("mamba.gate_norm",
            kernel(KernelKind::kGatedNorm, x_tokens * x_groups, out_width() / x_groups),
            {x_scanned.view(), packed.gate, parameter("mamba.gate_norm.weight").view()},
            {out.view(), x_roots.view()});
}

/// Of y silu(z), normed or not: returns that of y, and writes that of z.
Ref MambaBlock::gate_backward(SegmentWriter& w, const Ref& d_out, const Packed& packed,
                              const Packed& d_packed) {
  const Ref d_scanned = temporary("d scanned", x_tokens * out_width());
  if (!x_model.hybrid.state_space.norm) {
    w.compute("mamba.gate.gradient", kernel(KernelKind::kSwigluBackward, x_tokens, out_width()),
              {d_out.view(), packed.gate, x_scanned.view()}, {d_packed.gate, d_scanned.view()});
    return d_scanned;
  }
  std::vector<View> reads = {d_out.view(), x_scanned.view(), packed.gate, x_roots.view(),
                             parameter("mamba.gate_norm.weight").view()};
  std::vector<View> writes = {d_scanned.view(), d_packed.gate};
  add_gradients(x_plan, {parameter_gradient("mamba.gate_norm.weight")}, reads, writes);
  w.compute("mamba.gate_norm.gradient",
            kernel(KernelKind::kGatedNormBackward, x_tokens * x_groups, out_width() / x_groups),
            std::move(reads), std::move(writes));
  return d_scanned;
}

void MambaBlock::backward(SegmentWriter& w, const Ref& d_out, const Ref& in, const Ref& d_in) {
  const Packed packed = parts_of(in);
  const Packed d_packed = parts_of(d_in);
  const Ref d_scanned = gate_backward(w, d_out, packed, d_packed);
  const Ref channels = convolve(w, "mamba.conv.again", in);
  const Ref d_channels = temporary("d channels", x_tokens * x_channels);
  std::vector<View> reads = {d_scanned.view(), channels.view(), packed.steps};
  for (const char* name : kOfScan) reads.push_back(parameter(name).view());
  std::vector<View> writes = {d_channels.view(), d_packed.steps};
  std::vector<Ref> gradients;
  for (const char* name : kOfScan) gradients.push_back(parameter_gradient(name));
  add_gradients(x_plan, gradients, reads, writes);
  w.compute("mamba.scan.gradient", scan(true), std::move(reads), std::move(writes));

  reads = {d_channels.view(), packed.channels, parameter("mamba.conv.weight").view()};
  if (const Ref bias = parameter("mamba.conv.bias"); bias.valid()) reads.push_back(bias.view());
  writes = {d_packed.channels};
  add_gradients(x_plan,
                {parameter_gradient("mamba.conv.weight"), parameter_gradient("mamba.conv.bias")},
                reads, writes);
  Kernel work = kernel(KernelKind::kCausalConvBackward, x_tokens, x_channels);
  work.flops = 4 * x_model.hybrid.state_space.taps * x_tokens * x_channels;
  w.compute("mamba.conv.gradient", work, std::move(reads), std::move(writes));
}

}  // namespace foretrain
