#include "models/block.h"

namespace foretrain {

Block::Block(ProgramBuilder& builder, const Model& model, const Plan& plan,
             const LayerLayouts& layouts)
    : x_builder(builder),
      x_model(model),
      x_plan(plan),
      x_layouts(layouts),
      x_tensor(builder.group("tensor")),
      x_tokens(plan.tokens()),
      x_rows(plan.tokens() / plan.shard()) {}

Kernel Block::kernel(KernelKind kind, std::int64_t rows, std::int64_t cols) const {
  Kernel out;
  out.kind = kind;
  out.rows = rows;
  out.cols = cols;
  out.dtype = x_plan.precision.compute;
  return out;
}

Collective Block::over_tensor(CollectiveKind kind, std::int64_t count) const {
  return Collective{kind, x_tensor, count, x_plan.precision.compute, false};
}

Ref Block::gathered(SegmentWriter& w, const std::string& name, const Ref& part) {
  if (!x_plan.sequence) return part;
  const Ref full = temporary(name + " gathered", part.count * x_plan.tensor);
  w.collective(name + ".gather", over_tensor(CollectiveKind::kAllGather, full.count), {part.view()},
               {full.view()});
  return full;
}

void Block::linear(SegmentWriter& w, const std::string& name, const Matrix& m, std::int64_t tokens,
                   const Ref& in, const Ref& out) {
  w.compute(name, forward_gemm(x_plan, tokens, m.out, m.in), {in.view(), m.weight.view()},
            {out.view()});
}

void Block::weight_gradient(SegmentWriter& w, const std::string& name, const Matrix& m,
                            std::int64_t tokens, const Ref& d_out, const Ref& in) {
  std::vector<View> reads = {d_out.view(), in.view()};
  std::vector<View> writes;
  add_gradients(x_plan, {m.gradient}, reads, writes);
  w.compute(name + ".weight_gradient", weight_gradient_gemm(x_plan, tokens, m.out, m.in),
            std::move(reads), std::move(writes));
}

Ref Block::linear_backward(SegmentWriter& w, const std::string& name, const Matrix& m,
                           std::int64_t tokens, const Ref& d_out, const Ref& in) {
  const Ref d_in = temporary(name + " d input", tokens * m.in);
  w.compute(name + ".input_gradient", input_gradient_gemm(x_plan, tokens, m.out, m.in),
            {d_out.view(), m.weight.view()}, {d_in.view()});
  weight_gradient(w, name, m, tokens, d_out, in);
  return d_in;
}

Ref Block::column_backward(SegmentWriter& w, const std::string& name, const Matrix& m,
                           const Ref& d_out, const Ref& in) {
  if (x_plan.tensor == 1) return linear_backward(w, name, m, x_tokens, d_out, in);
  const bool async = x_plan.overlap.tensor_backward;
  const Ref full = x_plan.sequence ? temporary(name + " gathered", x_tokens * m.in) : in;
  const Ref d_full = temporary(name + " d input full", x_tokens * m.in);
  const Ref d_in = x_plan.sequence ? temporary(name + " d input", x_rows * m.in) : d_full;
  EventRef gathered;
  if (x_plan.sequence) {
    gathered =
        w.async_collective(name + ".gather", over_tensor(CollectiveKind::kAllGather, full.count),
                           {in.view()}, {full.view()});
    if (!async) w.wait(gathered);
  }
  w.compute(name + ".input_gradient", input_gradient_gemm(x_plan, x_tokens, m.out, m.in),
            {d_out.view(), m.weight.view()}, {d_full.view()});
  const auto kind = x_plan.sequence ? CollectiveKind::kReduceScatter : CollectiveKind::kAllReduce;
  const EventRef reduced = w.async_collective(name + ".reduce", over_tensor(kind, d_full.count),
                                              {d_full.view()}, {d_in.view()});
  if (!async) w.wait(reduced);
  if (async && gathered.valid()) w.wait(gathered);
  weight_gradient(w, name, m, x_tokens, d_out, full);
  if (async) w.wait(reduced);
  return d_in;
}

}  // namespace foretrain
