#include "models/quantized_parts.h"

#include <algorithm>

namespace foretrain {
namespace {

constexpr const char* kNames[4] = {"attention.qkv", "attention.projection", "mlp.up", "mlp.down"};

}  // namespace

QuantizedParts::QuantizedParts(ProgramBuilder& builder, const Model& model, const Plan& plan,
                               const LayerLayouts& layouts, bool recompute)
    : ContextParts(builder, model, plan, layouts, recompute),
      x_linears{&x_qkv, &x_projection, &x_up, &x_down} {
  std::int16_t buffer = 0;
  for (Linear* l : x_linears) {
    l->by_rows = l->by_columns = l->weight;
    if (!low() || plan.by_units()) continue;
    for (Ref* copy : {&l->by_rows, &l->by_columns}) {
      *copy = Ref{kQuantized, buffer++, plan.precision.linear, l->weight.count};
    }
  }
}

Ref QuantizedParts::local(SegmentWriter& w, const std::string& name, DType type,
                          std::int64_t count) {
  LayoutWriter& place = w.phase == Phase::kForward ? x_forward : x_backward;
  return place.add(name, BufferKind::kActivations, type, count);
}

Gemm QuantizedParts::in_low(Gemm gemm) const {
  if (low()) gemm.in = x_plan.precision.linear;
  return gemm;
}

void QuantizedParts::quantize(SegmentWriter& w, const std::string& name, const Ref& x,
                              std::int64_t rows, const Ref& by_rows, const Ref& by_columns) {
  if (!low()) return;
  const std::int64_t width = std::max<std::int64_t>(1, x.count / rows);
  std::vector<View> reads = {x.view()};
  if (x_plan.precision.current_scaling) {
    const Ref largest = local(w, name + " largest", DType::kFp32, 1);
    w.compute(name + ".largest", kernel(KernelKind::kLargest, rows, width), reads,
              {largest.view()});
    reads.push_back(largest.view());
  }
  std::vector<View> writes;
  for (const Ref& copy : {by_rows, by_columns}) {
    if (copy.valid()) writes.push_back(copy.view());
  }
  w.compute(name, kernel(KernelKind::kQuantize, rows, width), std::move(reads), std::move(writes));
}

QuantizedParts::Copies QuantizedParts::quantized_gradient(SegmentWriter& w, const std::string& name,
                                                          const Ref& d, std::int64_t rows) {
  if (!low()) return {d, d};
  const DType type = x_plan.precision.linear;
  const Copies out = {local(w, name + " d by rows", type, d.count),
                      local(w, name + " d by columns", type, d.count)};
  quantize(w, name + ".quantize_gradient", d, rows, out.rows, out.columns);
  return out;
}

QuantizedParts::Copies QuantizedParts::gathered_gradient(SegmentWriter& w, const std::string& name,
                                                         const Ref& d) {
  const DType type = low() ? x_plan.precision.linear : d.dtype;
  Ref part = d;
  if (low()) {
    part = local(w, name + " d by rows", type, d.count);
    quantize(w, name + ".quantize_gradient", d, x_rows, part, Ref{});
  }
  const Ref full = local(w, name + " d gathered", type, x_tokens * x_model.hidden);
  w.collective(name + ".gather", gather_of(full), {part.view()}, {full.view()});
  if (!low()) return {full, full};
  const Ref columns = local(w, name + " d by columns", type, full.count);
  w.compute(name + ".turn_gradient", kernel(KernelKind::kQuantize, x_tokens, x_model.hidden),
            {full.view()}, {columns.view()});
  return {full, columns};
}

void QuantizedParts::declare_weights() {
  if (!by_pass()) return;
  for (LayoutWriter* place : {&x_forward, &x_backward}) {
    for (std::size_t i = 0; i < 4; ++i) {
      Linear& l = *x_linears[i];
      const auto copy = [&](const char* which) {
        return place->add(std::string(kNames[i]) + which, BufferKind::kParameters,
                          x_plan.precision.linear, l.weight.count);
      };
      l.by_rows = copy(" weights by rows");
      l.by_columns = copy(" weights by columns");
    }
  }
}

void QuantizedParts::quantize_weights(SegmentWriter& w, bool forward, bool backward) {
  for (std::size_t i = 0; i < 4; ++i) {
    const Linear& l = *x_linears[i];
    quantize(w, std::string(kNames[i]) + ".quantize_weights", l.weight, l.out,
             forward ? l.by_rows : Ref{}, backward ? l.by_columns : Ref{});
  }
}

FrameLayout quantized_layout(const ParameterLayouts& parameters, DType type) {
  FrameLayout out;
  out.name = "quantized weights";
  for (const char* name : kNames) {
    const Ref weight = parameter_ref(parameters, std::string(name) + ".weight", 0, 0);
    for (const char* which : {" by rows", " by columns"}) {
      Buffer buffer;
      buffer.name = std::string(name) + which;
      buffer.kind = BufferKind::kParameters;
      buffer.dtype = type;
      buffer.count = weight.count;
      buffer.persistent = true;
      out.buffers.push_back(std::move(buffer));
    }
  }
  return out;
}

}  // namespace foretrain
