#include "models/layers/experts/beside_mlp.h"

#include <utility>

namespace foretrain {

void BesideMlp::declare(const Placer& place, bool again, const Ref& stream) {
  const DType type = x_plan.precision.compute;
  const std::int64_t statistics = x_rows * norm_statistics(x_model);
  const auto roots = [&](const char* name) {
    return place.add(name, DType::kFp32, statistics, again);
  };
  x_read = {stream, roots("mlp beside statistics")};
  x_normed = place.add("mlp beside input", type, flat(), again || x_plan.precision.low());
  x_operand = place.operand("mlp beside input quantized", x_normed, again);
  if (x_model.experts.more.norms_after) {
    x_routed = {place.add("experts' result", type, flat(), again), roots("experts' statistics")};
    x_shared = {place.add("mlp's result", type, flat(), again), roots("mlp's statistics")};
  }
  if (x_model.experts.more.scales) x_scaled = place.add("router input", type, flat(), again);
}

NormRefs BesideMlp::norm_of(const std::string& name) const {
  return {parameter(name + ".weight"), parameter(name + ".bias"),
          parameter_gradient(name + ".weight"), parameter_gradient(name + ".bias")};
}

void BesideMlp::norm(SegmentWriter& w, const std::string& name, const Normed& kept,
                     const Ref& out) {
  w.compute(name, norm_kernel(x_model, x_rows, x_model.hidden, x_plan.precision.compute, false),
            norm_reads(kept.in, norm_of(name)), {out.view(), kept.statistics.view()});
}

Ref BesideMlp::norm_backward(SegmentWriter& w, const std::string& name, const Normed& kept,
                             const Ref& d_out, const Ref& d_more) {
  const NormRefs norm = norm_of(name);
  const Ref d_in = temporary("d " + name + " in", flat());
  std::vector<View> reads = norm_gradient_reads(d_out, kept.in, kept.statistics, norm);
  if (d_more.valid()) reads.push_back(d_more.view());
  std::vector<View> writes = {d_in.view()};
  add_gradients(x_plan, {norm.weight_gradient, norm.bias_gradient}, reads, writes);
  w.compute(name + ".gradient",
            norm_kernel(x_model, x_rows, x_model.hidden, x_plan.precision.compute, true),
            std::move(reads), std::move(writes));
  return d_in;
}

const LinearOperand& BesideMlp::read(SegmentWriter& w) {
  const std::string name = "moe.shared.norm";
  norm(w, name, x_read, x_normed);
  x_quantizer->quantize(w, name + ".quantize", x_normed, x_rows, x_operand);
  return x_operand;
}

BesideMlp::Results BesideMlp::after(SegmentWriter& w, const Results& given) {
  if (!x_model.experts.more.norms_after) return given;
  const auto keep = [&](const char* name, const Ref& from, const Ref& to) {
    w.compute(name, kernel(KernelKind::kCast, x_rows, x_model.hidden), {from.view()}, {to.view()});
  };
  keep("moe.experts.keep", given.routed, x_routed.in);
  keep("moe.shared.keep", given.shared, x_shared.in);
  const auto normed = [&](const std::string& name, const Normed& kept) {
    const Ref out = temporary(name + " out", flat());
    norm(w, name, kept, out);
    return out;
  };
  const Ref routed = normed("moe.experts.after_norm", x_routed);
  return {routed, normed("moe.shared.after_norm", x_shared)};
}

BesideMlp::Results BesideMlp::after_backward(SegmentWriter& w, const Ref& d_out) {
  if (!x_model.experts.more.norms_after) return {d_out, d_out};
  const Ref routed = norm_backward(w, "moe.experts.after_norm", x_routed, d_out, Ref());
  return {routed, norm_backward(w, "moe.shared.after_norm", x_shared, d_out, Ref())};
}

Ref BesideMlp::add_to_stream(SegmentWriter& w, const Ref& d_input, const Ref& d_stream) {
  return norm_backward(w, "moe.shared.norm", x_read, d_input, d_stream);
}

Ref BesideMlp::scaled(SegmentWriter& w, const Ref& in) {
  if (!x_model.experts.more.scales) return in;
  w.compute("moe.router.scale", kernel(KernelKind::kRmsNorm, x_rows, x_model.hidden),
            {in.view(), parameter("moe.router.input_scale").view()}, {x_scaled.view()});
  return x_scaled;
}

Ref BesideMlp::scaled_backward(SegmentWriter& w, const Ref& in, const Ref& d_scaled) {
  if (!x_model.experts.more.scales) return d_scaled;
  const Ref d_in = temporary("d router scale in", flat());
  std::vector<View> reads = {d_scaled.view(), in.view(),
                             parameter("moe.router.input_scale").view()};
  std::vector<View> writes = {d_in.view()};
  add_gradients(x_plan, {parameter_gradient("moe.router.input_scale")}, reads, writes);
  w.compute("moe.router.scale.gradient",
            kernel(KernelKind::kRmsNormBackward, x_rows, x_model.hidden), std::move(reads),
            std::move(writes));
  return d_in;
}

void BesideMlp::scale_gradient(SegmentWriter& w, const Ref& d_probabilities) {
  if (!x_model.experts.more.scales) return;
  std::vector<View> reads = {d_probabilities.view()};
  std::vector<View> writes;
  add_gradients(x_plan, {parameter_gradient("moe.router.expert_scale")}, reads, writes);
  w.compute("moe.router.expert_scale.gradient",
            kernel(KernelKind::kBiasGrad, x_rows, x_model.experts.count), std::move(reads),
            std::move(writes));
}

}  // namespace foretrain
