#include "models/layers/mixers/selective_block.h"

#include <utility>

namespace foretrain {

void SelectiveBlock::declare(LayoutWriter& saved, LayoutWriter& local, bool again) {
  const Placer place{saved, local, x_plan.precision};
  const DType type = x_plan.precision.branch();
  const std::int64_t selected = x_tokens * x_sizes.selected();
  x_channels = place.add("convolved channels", type, x_tokens * x_sizes.width, again);
  x_raw = place.add("steps, B and C", type, selected, again);
  x_selected = x_raw;
  if (x_sizes.norms) {
    x_selected = place.add("normed steps, B and C", type, selected, again);
    x_roots = place.add("statistics of steps, B and C", DType::kFp32, 3 * x_tokens, again);
  }
  x_steps = place.add("steps of channels", type, x_tokens * x_sizes.width, again);
}

Scan SelectiveBlock::scan(bool backward) const {
  Scan out;
  out.backward = backward;
  out.batch = x_tokens / x_plan.sequence_length;
  out.length = x_plan.sequence_length;
  out.heads = x_sizes.width;
  out.state = x_sizes.state;
  out.dtype = x_plan.precision.attention();
  out.rule = ScanRule::kSelective;
  return out;
}

Ref SelectiveBlock::step_inputs(const Ref& all) const {
  return all.range(0, x_tokens * x_sizes.step_rank);
}

Ref SelectiveBlock::b_and_c(const Ref& all) const {
  const std::int64_t before = x_tokens * x_sizes.step_rank;
  return all.range(before, all.count - before);
}

void SelectiveBlock::forward(SegmentWriter& w, const Ref& in, const Ref& out) {
  const SelectiveScan& s = x_sizes;
  Kernel conv = kernel(KernelKind::kCausalConv, x_tokens, s.width);
  conv.flops = 2 * s.taps * x_tokens * s.width;
  std::vector<View> reads = {in.slice(0, 2).view(), weight("mamba1.conv").view()};
  if (const Ref bias = parameter("mamba1.conv.bias"); bias.valid()) reads.push_back(bias.view());
  w.compute("mamba1.conv", conv, std::move(reads), {x_channels.view()});
  linear(w, "mamba1.select", select(), x_tokens, x_channels, x_raw);
  if (s.norms) {
    w.compute("mamba1.select_norms", kernel(KernelKind::kRmsNorm, x_tokens, s.selected()),
              {x_raw.view(), weight("mamba1.select_norms").view()},
              {x_selected.view(), x_roots.view()});
  }
  linear(w, "mamba1.steps", steps(), x_tokens, step_inputs(x_selected), x_steps);
  w.compute("mamba1.scan", scan(false),
            {x_channels.view(), in.slice(1, 2).view(), x_steps.view(), b_and_c(x_selected).view(),
             parameter("mamba1.decay").view(), parameter("mamba1.skip").view(),
             parameter("mamba1.steps.bias").view()},
            {out.view()});
}

void SelectiveBlock::backward(SegmentWriter& w, const Ref& d_out, const Ref& in, const Ref& d_in) {
  const SelectiveScan& s = x_sizes;
  const Ref d_scanned = temporary("d scanned channels", x_channels.count);
  const Ref d_selected = temporary("d steps, B and C", x_selected.count);
  const Ref d_steps = temporary("d steps of channels", x_steps.count);
  std::vector<View> reads = {d_out.view(), x_channels.view(), in.slice(1, 2).view(), x_steps.view(),
                             b_and_c(x_selected).view()};
  std::vector<View> writes = {d_scanned.view(), d_in.slice(1, 2).view(), d_steps.view(),
                              b_and_c(d_selected).view()};
  std::vector<Ref> gradients;
  for (const char* name : {"mamba1.decay", "mamba1.skip", "mamba1.steps.bias"}) {
    reads.push_back(parameter(name).view());
    gradients.push_back(parameter_gradient(name));
  }
  add_gradients(x_plan, gradients, reads, writes);
  w.compute("mamba1.scan.gradient", scan(true), std::move(reads), std::move(writes));
  input_gradient(w, "mamba1.steps", steps(), x_tokens, d_steps, step_inputs(d_selected));
  weight_gradient(w, "mamba1.steps", steps(), x_tokens, d_steps, step_inputs(x_selected));
  Ref d_raw = d_selected;
  if (s.norms) {
    d_raw = temporary("d steps, B and C before norms", x_raw.count);
    reads = {d_selected.view(), x_raw.view(), x_roots.view(), weight("mamba1.select_norms").view()};
    writes = {d_raw.view()};
    add_gradients(x_plan, {gradient("mamba1.select_norms")}, reads, writes);
    w.compute("mamba1.select_norms.gradient",
              kernel(KernelKind::kRmsNormBackward, x_tokens, s.selected()), std::move(reads),
              std::move(writes));
  }
  const Ref d_select = linear_backward(w, "mamba1.select", select(), x_tokens, d_raw, x_channels);
  const Ref d_channels = temporary("d convolved channels", x_channels.count);
  w.compute("mamba1.channels.gradient", kernel(KernelKind::kAdd, x_tokens, s.width),
            {d_scanned.view(), d_select.view()}, {d_channels.view()});
  reads = {d_channels.view(), in.slice(0, 2).view(), weight("mamba1.conv").view()};
  if (const Ref bias = parameter("mamba1.conv.bias"); bias.valid()) reads.push_back(bias.view());
  writes = {d_in.slice(0, 2).view()};
  add_gradients(x_plan, {gradient("mamba1.conv"), parameter_gradient("mamba1.conv.bias")}, reads,
                writes);
  Kernel conv = kernel(KernelKind::kCausalConvBackward, x_tokens, s.width);
  conv.flops = 4 * s.taps * x_tokens * s.width;
  w.compute("mamba1.conv.gradient", conv, std::move(reads), std::move(writes));
}

}  // namespace foretrain
