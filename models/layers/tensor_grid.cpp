#include "models/layers/tensor_grid.h"

#include <cstddef>
#include <utility>

namespace foretrain {
namespace {

constexpr auto kBroadcast = CollectiveKind::kBroadcast;
constexpr auto kReduce = CollectiveKind::kReduce;
constexpr auto kGather = CollectiveKind::kAllGather;
constexpr auto kScatter = CollectiveKind::kReduceScatter;

/// Matrix `part` of so many that lie one above the other.
View part_of(const Ref& ref, std::int64_t part, std::int64_t parts) {
  const std::int64_t each = ref.count / parts;
  return ref.part(part * each, each);
}

}  // namespace

std::int64_t Plan::side() const {
  const std::int64_t ranks = tensor / tensor_depth;
  const bool cube = tensor_mode == TensorMode::k3D;
  std::int64_t q = 1;
  while ((cube ? (q + 1) * (q + 1) : q + 1) * (q + 1) <= ranks) ++q;
  return q;
}

GridAxes residual_axes(const Plan& plan) {
  if (plan.tensor_mode == TensorMode::k3D) return {kGridInputWeight, kGridOutput};
  return {plan.tensor_depth > 1 ? kGridColumns : kGridColumn, kGridRow};
}

GridAxes inner_axes(const Plan& plan) {
  if (plan.tensor_mode == TensorMode::k3D) return {kGridOutputWeight, kGridInput};
  return residual_axes(plan);
}

GridCut grid_cut(const Parameter& p, const Plan& plan) {
  const std::int64_t q = plan.side();
  const GridAxes residual = residual_axes(plan);
  const GridAxes inner = inner_axes(plan);
  if (p.cols == 1 || p.split == Split::kNone) {
    const char* columns = p.split == Split::kRows ? inner.columns : residual.columns;
    if (p.cols == 1) return {q, 1, columns, nullptr, false};
    return {1, q, nullptr, columns, false};
  }
  const bool outward = p.split == Split::kRows;  // from the residual stream
  if (plan.tensor_mode == TensorMode::k3D) {
    const GridAxes& from = outward ? residual : inner;
    return {q * q, q, from.tokens, from.columns, true};
  }
  if (p.is_table()) return {q, q, kGridColumn, kGridRow, true};
  return {q, q, kGridRow, kGridColumn, true};
}

TensorGrid::TensorGrid(ProgramBuilder& builder, const Model& model, const Plan& plan)
    : x_builder(builder),
      x_model(model),
      x_plan(plan),
      x_side(plan.side()),
      x_type(plan.precision.compute) {}

Collective TensorGrid::of(const char* group, CollectiveKind kind, std::int64_t count, DType type,
                          std::int64_t root) const {
  Collective out{kind, x_builder.group(group), count, type, false};
  out.root = static_cast<std::int32_t>(root);
  return out;
}

EventRef TensorGrid::over(SegmentWriter& w, const char* group, const std::string& name,
                          const Collective& work, const View& in, const View& out) const {
  return w.on_stream(group, name, Category::kTensor, work, {in}, {out});
}

TensorGrid::Pair TensorGrid::two(SegmentWriter& w, const std::string& name, std::int64_t count,
                                 DType type) const {
  const auto one = [&](const char* which) {
    return w.local().add(name + which, BufferKind::kActivations, type, count);
  };
  const Ref even = one(" even");
  return {even, one(" odd")};
}

EventRef TensorGrid::broadcast(SegmentWriter& w, const char* group, const std::string& name,
                               std::int64_t t, const Ref& own, const Ref& to) const {
  return over(w, group, name, of(group, kBroadcast, own.count, own.dtype, t), own.view(),
              to.view());
}

/// The broadcasts of step t + 1 go beside the product of step t, once that of step t - 1, which
/// read the same buffers, is done.
void TensorGrid::both_broadcast(SegmentWriter& w, const std::string& name, Gemm gemm, const Ref& a,
                                const Ref& b, const Ref& c) const {
  const Pair row = two(w, name + " row", a.count, a.dtype);
  const Pair column = two(w, name + " column", b.count, b.dtype);
  std::array<EventRef, 2> row_there;
  std::array<EventRef, 2> column_there;
  const auto fetch = [&](std::int64_t t) {
    const auto at = static_cast<std::size_t>(t % 2);
    row_there.at(at) = broadcast(w, kGridRow, name + ".broadcast_row", t, a, row.at(at));
    column_there.at(at) =
        broadcast(w, kGridColumn, name + ".broadcast_column", t, b, column.at(at));
  };
  fetch(0);
  for (std::int64_t t = 0; t < x_side; ++t) {
    if (t + 1 < x_side) fetch(t + 1);
    const auto at = static_cast<std::size_t>(t % 2);
    w.wait(row_there.at(at));
    w.wait(column_there.at(at));
    gemm.accumulate = t > 0;
    std::vector<View> reads = {row.at(at).view(), column.at(at).view()};
    if (gemm.accumulate) reads.push_back(c.view());
    w.compute(name, gemm, std::move(reads), {c.view()});
  }
}

void TensorGrid::reduced(SegmentWriter& w, const std::string& name, const Gemm& gemm,
                         const Reduced& x) const {
  const Pair moving = two(w, name + " moving", x.moving.count, x.moving.dtype);
  const Pair part = two(w, name + " partial", x.result.count, x.result.dtype);
  std::array<EventRef, 2> there;
  std::array<EventRef, 2> given;
  const auto fetch = [&](std::int64_t t) {
    const auto at = static_cast<std::size_t>(t % 2);
    there.at(at) = broadcast(w, x.broadcast, name + ".broadcast", t, x.moving, moving.at(at));
  };
  fetch(0);
  for (std::int64_t t = 0; t < x_side; ++t) {
    if (t + 1 < x_side) fetch(t + 1);
    const auto at = static_cast<std::size_t>(t % 2);
    w.wait(there.at(at));
    if (given.at(at).valid()) w.wait(given.at(at));
    const View block = moving.at(at).view();
    const View fixed = x.fixed.view();
    w.compute(name, gemm,
              x.moving_first ? std::vector<View>{block, fixed} : std::vector<View>{fixed, block},
              {part.at(at).view()});
    given.at(at) = over(w, x.reduce, name + ".reduce",
                        of(x.reduce, kReduce, x.result.count, x.result.dtype, t),
                        part.at(at).view(), x.result.view());
  }
  w.wait(given.at(static_cast<std::size_t>((x_side - 1) % 2)));
}

/// The sum of the ranks' parts goes to what earlier microbatches left.
void TensorGrid::add_gradient(SegmentWriter& w, const std::string& name, const GridMatrix& m,
                              const Ref& part) const {
  w.compute(name + ".accumulate", kernel_of(KernelKind::kAdd, part.count / m.in, m.in, part.dtype),
            {m.gradient.view(), part.view()}, {m.gradient.view()});
}

void TensorGrid::forward(SegmentWriter& w, const std::string& name, const GridMatrix& m,
                         const Ref& x, const GridKept& kept, const Ref& y) const {
  if (keeps()) return forward_3d(w, name, m, x, kept, y);
  const Gemm gemm = forward_gemm(x_plan, x.count / m.in, m.out, m.in);
  if (!m.table) return both_broadcast(w, name, gemm, x, m.weight, y);
  reduced(w, name, gemm, {m.weight, x, y, false, kGridColumn, kGridRow});
}

void TensorGrid::backward(SegmentWriter& w, const std::string& name, const GridMatrix& m,
                          const Ref& d_y, const Ref& x, const GridKept& kept,
                          const Ref& d_x) const {
  if (keeps()) return backward_3d(w, name, m, d_y, kept, d_x);
  const std::int64_t rows = x.count / m.in;
  const Gemm to_input = input_gradient_gemm(x_plan, rows, m.out, m.in);
  const Gemm to_weight = weight_gradient_gemm(x_plan, rows, m.out, m.in);
  SegmentWriter& later = w.of_weights();
  const std::string of_input = name + ".input_gradient";
  const std::string of_weight = name + ".weight_gradient";
  if (m.table) {
    both_broadcast(w, of_input, to_input, d_y, m.weight, d_x);
  } else {
    reduced(w, of_input, to_input, {m.weight, d_y, d_x, false, kGridColumn, kGridRow});
  }
  const Ref part = later.local().add(of_weight, BufferKind::kActivations, x_type, m.weight.count);
  const Reduced operands = m.table ? Reduced{d_y, x, part, true, kGridRow, kGridColumn}
                                   : Reduced{x, d_y, part, false, kGridRow, kGridColumn};
  reduced(later, of_weight, to_weight, operands);
  add_gradient(later, name, m, part);
}

void TensorGrid::forward_3d(SegmentWriter& w, const std::string& name, const GridMatrix& m,
                            const Ref& x, const GridKept& kept, const Ref& y) const {
  const char* in = m.inner ? kGridOutput : kGridInput;
  const char* out = m.inner ? kGridInput : kGridOutput;
  const std::int64_t rows = x_side * (x.count / m.in);
  const EventRef input = over(w, in, name + ".gather", of(in, kGather, kept.input.count, x.dtype),
                              x.view(), kept.input.view());
  EventRef weight;
  for (std::int64_t p = 0; p < m.parts; ++p) {
    weight = over(w, kGridWeight, name + ".gather_weight",
                  of(kGridWeight, kGather, kept.weight.count / m.parts, x_type),
                  part_of(m.weight, p, m.parts), part_of(kept.weight, p, m.parts));
  }
  w.wait(input);
  w.wait(weight);
  const Ref part = w.local().add(name + " partial", BufferKind::kActivations, x_type, rows * m.out);
  w.compute(name, forward_gemm(x_plan, rows, m.out, m.in), {kept.input.view(), kept.weight.view()},
            {part.view()});
  w.wait(
      over(w, out, name + ".reduce", of(out, kScatter, part.count, x_type), part.view(), y.view()));
}

void TensorGrid::backward_3d(SegmentWriter& w, const std::string& name, const GridMatrix& m,
                             const Ref& d_y, const GridKept& kept, const Ref& d_x) const {
  const char* in = m.inner ? kGridOutput : kGridInput;
  const char* out = m.inner ? kGridInput : kGridOutput;
  const std::int64_t rows = kept.input.count / m.in;
  SegmentWriter& later = w.of_weights();
  const auto temp = [this](SegmentWriter& to, const std::string& what, std::int64_t count) {
    return to.local().add(what, BufferKind::kActivations, x_type, count);
  };
  const Ref full = temp(w, name + " d gathered", x_side * d_y.count);
  const Ref part = temp(w, name + " d input partial", rows * m.in);
  const Ref of_weight = temp(later, name + " d weight partial", m.out * m.in);
  const Ref own = temp(later, name + ".weight_gradient", m.weight.count);
  w.wait(over(w, out, name + ".gather_gradient", of(out, kGather, full.count, x_type), d_y.view(),
              full.view()));
  w.compute(name + ".input_gradient", input_gradient_gemm(x_plan, rows, m.out, m.in),
            {full.view(), kept.weight.view()}, {part.view()});
  const EventRef given = over(w, in, name + ".reduce_input", of(in, kScatter, part.count, x_type),
                              part.view(), d_x.view());
  later.compute(name + ".weight_gradient", weight_gradient_gemm(x_plan, rows, m.out, m.in),
                {full.view(), kept.input.view()}, {of_weight.view()});
  for (std::int64_t p = 0; p < m.parts; ++p) {
    later.wait(over(later, kGridWeight, name + ".reduce_weight",
                    of(kGridWeight, kScatter, of_weight.count / m.parts, x_type),
                    part_of(of_weight, p, m.parts), part_of(own, p, m.parts)));
  }
  add_gradient(later, name, m, own);
  w.wait(given);
}

Kernel TensorGrid::columns_cut(Kernel kernel) const {
  kernel.cols_split_over = x_builder.group(residual_axes(x_plan).columns);
  return kernel;
}

void TensorGrid::norm(SegmentWriter& w, const std::string& name, const NormRefs& norm,
                      const Ref& in, const Ref& out, const Ref& statistics) const {
  const char* columns = residual_axes(x_plan).columns;
  const std::int64_t cols = norm.weight.count;
  const std::int64_t rows = in.count / cols;
  const Ref sums =
      w.local().add(name + " sums", BufferKind::kActivations, DType::kFp32, statistics.count);
  w.compute(name + ".sums", kernel_of(KernelKind::kNormSums, rows, cols, x_type), {in.view()},
            {sums.view()});
  w.wait(over(w, columns, name + ".reduce",
              of(columns, CollectiveKind::kAllReduce, sums.count, DType::kFp32), sums.view(),
              sums.view()));
  std::vector<View> reads = norm_reads(in, norm);
  reads.push_back(sums.view());
  w.compute(name, columns_cut(norm_kernel(x_model, rows, cols, x_type, false)), std::move(reads),
            {out.view(), statistics.view()});
}

void TensorGrid::norm_backward(SegmentWriter& w, const std::string& name, const NormRefs& norm,
                               const Ref& in, const Ref& statistics, const Ref& d_out,
                               const Ref& d_residual, const Ref& d_in) const {
  const char* columns = residual_axes(x_plan).columns;
  const std::int64_t cols = norm.weight.count;
  const std::int64_t rows = in.count / cols;
  const Ref sums = w.local().add(name + " gradient sums", BufferKind::kActivations, DType::kFp32,
                                 statistics.count);
  std::vector<View> reads = {d_out.view(), in.view(), statistics.view(), norm.weight.view()};
  w.compute(name + ".gradient_sums", kernel_of(KernelKind::kNormGradientSums, rows, cols, x_type),
            reads, {sums.view()});
  w.wait(over(w, columns, name + ".gradient_reduce",
              of(columns, CollectiveKind::kAllReduce, sums.count, DType::kFp32), sums.view(),
              sums.view()));
  reads.push_back(sums.view());
  if (d_residual.valid()) reads.push_back(d_residual.view());
  std::vector<View> writes = {d_in.view()};
  add_gradients(x_plan, {norm.weight_gradient, norm.bias_gradient}, reads, writes);
  w.compute(name + ".gradient", columns_cut(norm_kernel(x_model, rows, cols, x_type, true)),
            std::move(reads), std::move(writes));
}

}  // namespace foretrain
