// What the writers of both ends share: shapes on one rank, parameters, norms, the reductions over
// the ranks that cut the vocabulary.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "models/layers/ends.h"
#include "models/layers/tensor_grid.h"
#include "models/slots.h"

namespace foretrain {

class EndWriter {
 public:
  EndWriter(ProgramBuilder& builder, const Model& model, const Plan& plan,
            const EndLayouts& layouts, const char* name, std::int16_t saved, std::int16_t local)
      : x_builder(builder),
        x_model(model),
        x_plan(plan),
        x_layouts(layouts),
        x_saved(std::string(name) + " saved", saved),
        x_forward(std::string(name) + " forward", local),
        x_backward(std::string(name) + " backward", local),
        x_tensor(builder.group("tensor")),
        x_tokens(plan.tokens()),
        x_rows(plan.rows()),
        x_hidden(model.hidden / plan.column_parts()),
        x_at_end(layouts.at_end) {
    if (plan.shares_vocabulary()) x_vocabulary_group = kVocabularyGroup;
    if (TensorGrid::used(plan)) x_grid.emplace(builder, model, plan);
  }

 protected:
  using Views = std::vector<View>;

  Kernel kernel(KernelKind kind, std::int64_t rows, std::int64_t cols) const {
    return kernel_of(kind, rows, cols, x_plan.precision.compute);
  }
  /// The rows of the table are cut among ranks.
  bool cut() const {
    if (x_vocabulary_group == nullptr) return false;
    return x_plan.in_grid() ? x_grid.has_value() : x_plan.vocabulary_parts() > 1;
  }
  /// Each of them holds a part of the sum that one stage's ranks need.
  bool partial() const { return x_plan.in_grid() ? x_grid.has_value() : x_plan.tensor > 1; }
  /// Each of them goes on with its tokens alone.
  bool scattered() const { return x_plan.sequence || x_grid.has_value(); }
  /// On the stream of the group, which is named like it.
  EventRef over(SegmentWriter& w, const char* group, Category category, const std::string& name,
                Collective work, const Ref& in, const Ref& out) const {
    work.group = x_builder.group(group);
    return w.on_stream(group, name, category, work, {in.view()}, {out.view()});
  }
  /// The root's values go to the same tensor rank of every stage.
  EventRef from_end(SegmentWriter& w, const char* group, const std::string& name, std::int64_t root,
                    const Ref& values) const {
    const std::vector<View> own = {values.view()};
    return over_stages(w, group, name, CollectiveKind::kBroadcast, root, values.count,
                       x_at_end ? own : Views(), x_at_end ? Views() : own);
  }
  /// The sum of the stages' values goes to `sum` on the root.
  EventRef to_end(SegmentWriter& w, const char* group, const std::string& name, std::int64_t root,
                  const Ref& values, const Ref& sum) const {
    return over_stages(w, group, name, CollectiveKind::kReduce, root, values.count, {values.view()},
                       x_at_end ? Views{sum.view()} : Views());
  }
  /// The stages' group for one kind of exchange, where these do not wait for each other.
  const char* stages(const char* spread) const {
    return x_plan.spreads_vocabulary() ? spread : kStagesGroup;
  }
  /// The last op of the segment records this event instead of one of the call's own.
  static EventRef record_last(SegmentWriter& w, EventRef event) {
    return w.segment().ops.back().records = event;
  }
  /// Its rank holds a part of the vocabulary.
  Kernel vocabulary_kernel(KernelKind kind, std::int64_t rows, std::int64_t cols) const {
    return vocabulary_kernel(kind, rows, cols, x_plan.precision.compute);
  }
  Kernel vocabulary_kernel(KernelKind kind, std::int64_t rows, std::int64_t cols,
                           DType type) const {
    Kernel out = kernel_of(kind, rows, cols, type);
    if (cut()) out.split_over = x_builder.group(x_vocabulary_group);
    return out;
  }
  /// One row a token of the residual stream, or `width` elements of it.
  Kernel token_kernel(KernelKind kind, std::int64_t width = 0) const {
    Kernel out = kernel(kind, x_rows, width > 0 ? width : x_hidden);
    if (x_plan.sequence) out.split_over = x_tensor;
    if (x_plan.in_grid()) out.split_over = x_builder.group(residual_axes(x_plan).tokens);
    return out;
  }
  Ref temp(LayoutWriter& local, const std::string& name, DType dtype, std::int64_t count) const {
    return local.add(name, BufferKind::kActivations, dtype, count);
  }
  Ref temp(LayoutWriter& local, const std::string& name, std::int64_t count) const {
    return temp(local, name, x_plan.precision.compute, count);
  }
  Ref keep(const std::string& name, DType dtype, std::int64_t count) {
    return x_saved.add(name, BufferKind::kActivations, dtype, count, true);
  }

  /// Of `all` the rows of masked tokens: where only these are predicted, x_rows.
  Ref select_rows(SegmentWriter& w, const Ref& all) {
    if (x_model.ends.masked == 0) return all;
    const Ref out = keep("masked rows", x_plan.precision.compute, x_rows * x_model.hidden);
    w.compute("head.select", kernel(KernelKind::kPermute, x_rows, x_model.hidden), {all.view()},
              {out.view()});
    return out;
  }
  /// Their gradients among those of all tokens, which are zero.
  void scatter_rows(SegmentWriter& w, const Ref& rows, const Ref& some, std::int64_t all_rows) {
    const Ref all{some.frame, some.buffer, some.dtype, all_rows * x_model.hidden};
    w.compute("head.select.zero", kernel(KernelKind::kFill, all_rows, x_model.hidden), {},
              {all.view()});
    w.compute("head.select.gradient", kernel(KernelKind::kUnpermute, x_rows, x_model.hidden),
              {rows.view()}, {some.view()});
  }
  Collective over_tensor(CollectiveKind kind, std::int64_t count, DType dtype,
                         bool maximum = false) const {
    return Collective{kind, x_tensor, count, dtype, maximum};
  }
  Ref hidden(std::int16_t frame) const {
    return {frame, kHiddenBuffer, x_plan.precision.compute, x_rows * x_hidden};
  }
  Ref weight(const char* name) const { return parameter_ref(x_layouts.parameters, name, 0, 2); }
  Ref gradient(const char* name) const {
    return parameter_ref(x_layouts.parameter_gradients, name, 1, 3);
  }
  NormRefs norm(const std::string& name) const {
    return {weight((name + ".weight").c_str()), weight((name + ".bias").c_str()),
            gradient((name + ".weight").c_str()), gradient((name + ".bias").c_str())};
  }
  /// `weights`: the head's pass of its own for the gradients of its matrices, or null; the
  /// others: what goes with the passes of the layers next to it, or null.
  EndSegments finish(SegmentWriter& forward, SegmentWriter& backward, bool head,
                     SegmentWriter* weights = nullptr, SegmentWriter* inner_forward = nullptr,
                     SegmentWriter* inner_backward = nullptr) {
    auto out = closed_layouts<EndSegments>(x_builder, x_saved, x_forward, x_backward);
    const auto add = [&](SegmentWriter& writer, LayoutId local) {
      const EndLayouts& l = x_layouts;
      writer.segment().frames = l.frames(out.saved, local, head);
      for (const LayoutId owner : l.owners) writer.segment().frames.push_back(owner);
      return x_builder.segment(std::move(writer.segment()));
    };
    out.forward = add(forward, out.local_forward);
    out.backward = add(backward, out.local_backward);
    if (weights != nullptr) out.weights = add(*weights, out.local_backward);
    if (inner_forward != nullptr) out.inner_forward = add(*inner_forward, out.local_forward);
    if (inner_backward != nullptr) out.inner_backward = add(*inner_backward, out.local_backward);
    return out;
  }
  void norm_gradient(SegmentWriter& w, const std::string& name, const NormRefs& norm,
                     const Ref& d_out, const Ref& in, const Ref& stats, const Ref& d_in) {
    if (x_grid) return x_grid->norm_backward(w, name, norm, in, stats, d_out, Ref(), d_in);
    std::vector<View> reads = norm_gradient_reads(d_out, in, stats, norm);
    std::vector<View> writes = {d_in.view()};
    add_gradients(x_plan, {norm.weight_gradient, norm.bias_gradient}, reads, writes);
    w.compute(name + ".gradient",
              norm_kernel(x_model, x_rows, in.count / x_rows, x_plan.precision.compute, true),
              std::move(reads), std::move(writes));
  }
  void norm_forward(SegmentWriter& w, const std::string& name, const Ref& in, const Ref& out,
                    const Ref& stats) {
    if (x_grid) return x_grid->norm(w, name, norm(name), in, out, stats);
    w.compute(name,
              norm_kernel(x_model, x_rows, in.count / x_rows, x_plan.precision.compute, false),
              norm_reads(in, norm(name)), {out.view(), stats.view()});
  }
  std::int64_t statistics() const { return x_rows * norm_statistics(x_model); }

  /// Stages that come to an exchange at different times wait for each other in a collective of one
  /// element, which holds few SMs, and not in that of all tokens (Yeung et al., whose code does so
  /// for embeddings; their gradients of hidden states travel behind the next microbatch's maxima).
  void meet(SegmentWriter& w, LayoutWriter& local, const char* group) const {
    if (!x_plan.spreads_vocabulary()) return;
    const std::string name = std::string(group) + ".meet";
    const View one = temp(local, name, DType::kFp32, 1).view();
    Kernel zero;
    zero.rows = zero.cols = 1;
    zero.dtype = DType::kFp32;
    w.on_stream(group, name + ".zero", Category::kPipeline, zero, {}, {one});
    w.on_stream(
        group, name, Category::kPipeline,
        Collective{CollectiveKind::kAllReduce, x_builder.group(group), 1, DType::kFp32, true},
        {one}, {one});
  }
  EventRef over_stages(SegmentWriter& w, const char* group, const std::string& name,
                       CollectiveKind kind, std::int64_t root, std::int64_t count, Views reads,
                       Views writes) const {
    Collective work{kind, x_builder.group(group), count, x_plan.precision.compute, false};
    work.root = static_cast<std::int32_t>(root);
    return w.on_stream(group, name, Category::kPipeline, work, std::move(reads), std::move(writes));
  }

  ProgramBuilder& x_builder;
  const Model& x_model;
  const Plan& x_plan;
  const EndLayouts& x_layouts;
  LayoutWriter x_saved, x_forward, x_backward;
  GroupSlot x_tensor;
  std::int64_t x_tokens, x_rows;
  std::int64_t x_hidden;  ///< columns of the residual stream on this rank
  bool x_at_end;
  std::optional<TensorGrid> x_grid;
  const char* x_vocabulary_group = kTensorGroup;  ///< null: every rank has the whole matrix
};

}  // namespace foretrain
