#include "models/layers/block.h"

namespace foretrain {

Block::Block(ProgramBuilder& builder, const Model& model, const Plan& plan,
             const LayerLayouts& layouts)
    : x_builder(builder),
      x_model(model),
      x_plan(plan),
      x_layouts(layouts),
      x_tensor(builder.group("tensor")),
      x_tokens(plan.tokens()),
      x_rows(plan.rows()) {}

Kernel Block::kernel(KernelKind kind, std::int64_t rows, std::int64_t cols) const {
  return kernel_of(kind, rows, cols, x_plan.precision.compute);
}

Collective Block::over_tensor(CollectiveKind kind, std::int64_t count) const {
  return Collective{kind, x_tensor, count, x_plan.precision.compute, false};
}

Ref Block::gathered(SegmentWriter& w, const std::string& name, const Ref& part) {
  if (!x_plan.sequence) return part;
  const Ref full = temporary(name + " gathered", part.count * x_plan.tensor, part.dtype);
  w.collective(name + ".gather", x_quantizer->gather_of(full), {part.view()}, {full.view()});
  return full;
}

void Block::linear(SegmentWriter& w, const std::string& name, const Matrix& m, std::int64_t tokens,
                   const Ref& in, const Ref& out) {
  w.compute(name, x_quantizer->typed(forward_gemm(x_plan, tokens, m.out, m.in), m.weight, false),
            {in.view(), x_quantizer->by_rows(m.weight).view()}, {out.view()});
}

void Block::weight_gradient(SegmentWriter& w, const std::string& name, const Matrix& m,
                            std::int64_t tokens, const Ref& d_out, const Ref& in) {
  write_weight_gradient(
      w, x_plan, name,
      x_quantizer->typed(weight_gradient_gemm(x_plan, tokens, m.out, m.in), m.weight, true), d_out,
      in, m.gradient);
}

Ref Block::linear_backward(SegmentWriter& w, const std::string& name, const Matrix& m,
                           std::int64_t tokens, const Ref& d_out, const Ref& in) {
  return linear_backward(w, name, m, tokens,
                         x_quantizer->gradient(w, name, m.weight, d_out, tokens), in);
}

Ref Block::linear_backward(SegmentWriter& w, const std::string& name, const Matrix& m,
                           std::int64_t tokens, const Quantizer::Copies& d, const Ref& in) {
  const Ref d_in = temporary(name + " d input", tokens * m.in);
  input_gradient(w, name, m, tokens, d.rows, d_in);
  weight_gradient(w, name, m, tokens, d.columns, in);
  return d_in;
}

void Block::input_gradient(SegmentWriter& w, const std::string& name, const Matrix& m,
                           std::int64_t tokens, const Ref& d_out, const Ref& d_in) {
  w.compute(name + ".input_gradient",
            x_quantizer->typed(input_gradient_gemm(x_plan, tokens, m.out, m.in), m.weight, true),
            {d_out.view(), x_quantizer->by_columns(m.weight).view()}, {d_in.view()});
}

Ref Block::column_backward(SegmentWriter& w, const std::string& name, const Matrix& m,
                           const Ref& d_out, const Ref& in) {
  if (x_plan.tensor == 1) return linear_backward(w, name, m, x_tokens, d_out, in);
  const bool async = x_plan.overlap.tensor_backward;
  const Ref full = x_plan.sequence ? temporary(name + " gathered", x_tokens * m.in, in.dtype) : in;
  const Ref d_full = temporary(name + " d input full", x_tokens * m.in);
  const Ref d_in = x_plan.sequence ? temporary(name + " d input", x_rows * m.in) : d_full;
  const Quantizer::Copies d = x_quantizer->gradient(w, name, m.weight, d_out, x_tokens);
  EventRef gathered;
  SegmentWriter& later = w.of_weights();
  if (x_plan.sequence) {
    gathered = later.async_collective(name + ".gather", x_quantizer->gather_of(full), {in.view()},
                                      {full.view()});
    if (!async) later.wait(gathered);
  }
  input_gradient(w, name, m, x_tokens, d.rows, d_full);
  const auto kind = x_plan.sequence ? CollectiveKind::kReduceScatter : CollectiveKind::kAllReduce;
  const EventRef reduced = w.async_collective(name + ".reduce", over_tensor(kind, d_full.count),
                                              {d_full.view()}, {d_in.view()});
  if (!async) w.wait(reduced);
  if (async && gathered.valid()) later.wait(gathered);
  weight_gradient(w, name, m, x_tokens, d.columns, full);
  if (async) w.wait(reduced);
  return d_in;
}

}  // namespace foretrain
