#include "models/layers/mixers/beside_core.h"

namespace foretrain {
BesideCore::BesideCore(ProgramBuilder& builder, const Model& model, const Plan& plan,
                       const LayerLayouts& layouts)
    : Block(builder, model, plan, layouts),
      x_heads_width((model.qkv_width() - model.gate_width()) / plan.tensor),
      x_core_width(model.query_width() / plan.tensor) {
  if (layouts.kind.mixer == Mixer::kBeside) x_mamba.emplace(builder, model, plan, layouts);
}

std::int64_t BesideCore::in_width() const {
  return x_model.qkv_width() / x_plan.tensor + (x_mamba ? x_mamba->in_width() : 0);
}

std::vector<std::int64_t> BesideCore::in_blocks() const {
  std::vector<std::int64_t> out = {x_heads_width};
  if (gates()) out.push_back(x_model.gate_width() / x_plan.tensor);
  if (x_mamba) {
    const std::vector<std::int64_t> more = x_mamba->in_blocks();
    out.insert(out.end(), more.begin(), more.end());
  }
  if (out.size() == 1) out.clear();
  return out;
}

Ref BesideCore::declare(LayoutWriter& saved, LayoutWriter& local, bool again) {
  const Placer place{saved, local, x_plan.precision};
  const DType type = x_plan.precision.branch();
  const std::int64_t count = x_tokens * x_core_width;
  if (x_mamba) {
    x_mamba->declare(saved, local, again);
    x_mixed = place.add("results of both mixers", type, count + x_tokens * more_columns(), again);
    return x_mixed.range(0, count);
  }
  const Ref context = place.add("context", type, count, again);
  x_mixed = gates() ? place.add("gated context", type, count, again) : context;
  return context;
}

Ref BesideCore::heads(const Ref& raw) const { return raw.range(0, x_tokens * x_heads_width); }

Ref BesideCore::rest(const Ref& raw) const {
  const std::int64_t before = x_tokens * x_heads_width;
  return raw.range(before, raw.count - before);
}

Ref BesideCore::scanned(const Ref& all) const {
  const std::int64_t before = x_tokens * x_core_width;
  return all.range(before, all.count - before);
}

void BesideCore::forward(SegmentWriter& w, const Ref& raw, const Ref& context) {
  if (x_mamba) return x_mamba->forward(w, rest(raw), scanned(x_mixed));
  if (!gates()) return;
  w.compute("attention.gate", kernel(KernelKind::kSigmoidGate, x_tokens, x_core_width),
            {context.view(), rest(raw).view()}, {x_mixed.view()});
}

Ref BesideCore::backward(SegmentWriter& w, const Ref& d_mixed, const Ref& raw, const Ref& context,
                         const Ref& d_raw) {
  if (x_mamba) {
    x_mamba->backward(w, scanned(d_mixed), rest(raw), rest(d_raw));
    return d_mixed.range(0, context.count);
  }
  if (!gates()) return d_mixed;
  const Ref d_context = temporary("d ungated context", context.count, d_mixed.dtype);
  w.compute(
      "attention.gate.gradient", kernel(KernelKind::kSigmoidGateBackward, x_tokens, x_core_width),
      {d_mixed.view(), context.view(), rest(raw).view()}, {d_context.view(), rest(d_raw).view()});
  return d_context;
}

}  // namespace foretrain
