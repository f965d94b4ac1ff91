#include <algorithm>

#include "models/layers/end_writer.h"
#include "models/layers/ends/image_patches.h"

namespace foretrain {
namespace {

/// Of a token's vectors for all layers.
std::int64_t layers_width(const Model& model) { return model.layers * model.ends.layer_width; }
/// Positions are added to what the matrix behind narrower tables gives, not to what it takes.
bool wide_positions(const Model& model) { return model.positions > 0 && model.ends.wide_positions; }
bool narrow_positions(const Model& model) {
  return model.positions > 0 && !model.ends.wide_positions;
}
bool widens(const Model& model) { return model.ends.embedding_width > 0; }

class EmbeddingWriter : EndWriter {
 public:
  EmbeddingWriter(ProgramBuilder& builder, const Model& model, const Plan& plan,
                  const EndLayouts& layouts)
      : EndWriter(builder, model, plan, layouts, "embedding", kEmbeddingSaved, kEmbeddingLocal),
        x_dropout(dropout_of(model, plan).hidden),
        x_width(model.ends.embedding_width > 0 ? model.ends.embedding_width : x_hidden),
        x_join_group(plan.shares_vocabulary() ? kTensorGroup : x_vocabulary_group) {
    if (model.ends.patch > 0) {
      x_patches.emplace(model, plan,
                        PatchParameters{norm("embedding.patches"), weight("embedding.class"),
                                        gradient("embedding.class")});
    }
    if (!plan.in_grid()) return;
    x_tokens = plan.tokens() / plan.tensor_depth;
    x_vocabulary_group =
        plan.tensor_mode == TensorMode::k3D ? residual_axes(plan).tokens : kGridColumn;
    x_join_group = x_vocabulary_group;
  }

  EndSegments run() {
    SegmentWriter forward(x_builder, "embedding forward", x_forward);
    // With the vocabulary's passes spread, what follows the look-up goes with the layers' pass.
    SegmentWriter inner(x_builder, "embedding inner", x_forward);
    const bool apart = x_plan.spreads_vocabulary() && x_at_end && (partial() || more());
    write_forward(forward, apart ? inner : forward);
    SegmentWriter backward(x_builder, "embedding backward", x_backward);
    SegmentWriter inner_backward(x_builder, "embedding inner backward", x_backward);
    const bool early = x_plan.spreads_vocabulary() && x_at_end;
    write_backward(backward, early ? inner_backward : backward);
    const EventRef done = x_backward.event("embedding gradients done");
    backward.record(done);
    EndSegments out = finish(forward, backward, false, nullptr, apart ? &inner : nullptr,
                             early ? &inner_backward : nullptr);
    out.done = done.event;
    return out;
  }

 private:
  /// Of the table, what `rows` of the residual stream are added to.
  std::int64_t position_elements(const Ref& rows) const {
    return std::min(x_model.positions, x_plan.sequence_length) * (rows.count / x_rows);
  }
  /// Of the microbatch; with depth the rank's part of them.
  View tokens() const {
    View view = Ref{kEmbeddingInputs, kTokens, DType::kInt64, x_tokens}.view();
    if (x_plan.tensor_depth == 1) return view;
    view.shards = static_cast<std::int32_t>(x_plan.tensor_depth);
    view.shard_group = x_builder.group(kGridDepth);
    return view;
  }

  /// Something follows the look-up.
  bool more() const {
    return x_model.positions > 0 || x_model.embedding_norm || widens(x_model) || x_dropout > 0;
  }

  /// What all ranks look up, summed; none where the sum goes to another stage. The tensor ranks'
  /// sum is written to `rest`, another segment or `w`.
  Ref look_up(SegmentWriter& w, SegmentWriter& rest) {
    const Ref out = hidden(kEmbeddingHidden);
    const std::int64_t full = x_tokens * x_width;
    const bool more = this->more();
    const Ref looked_up = cut() || more ? temp(x_forward, "embedded tokens", full) : out;
    w.compute("embedding.tokens", vocabulary_kernel(KernelKind::kEmbedding, x_tokens, x_width),
              {weight("embedding.tokens").view(), tokens()}, {looked_up.view()});
    Ref joined = looked_up;
    if (x_plan.shares_vocabulary()) {
      const bool apart = &rest != &w;
      LayoutWriter& place = apart ? x_saved : x_forward;
      if (x_at_end) joined = partial() || more ? temp(place, "embedded in all", full) : out;
      meet(w, x_forward, kStagesEmbeddingGroup);
      EventRef there =
          to_end(w, stages(kStagesEmbeddingGroup), "embedding.stages.reduce", 0, looked_up, joined);
      if (!x_at_end) return {};
      if (apart) there = record_last(w, x_saved.event("embedded in all"));
      if (partial() || more) rest.wait(there);
    }
    if (partial()) {
      const Ref parts = joined;
      joined = more ? temp(x_forward, "embedding joined", x_rows * x_width) : out;
      const auto kind = scattered() ? CollectiveKind::kReduceScatter : CollectiveKind::kAllReduce;
      const EventRef reduced =
          over(rest, x_join_group, Category::kTensor, "embedding.reduce",
               over_tensor(kind, full, x_plan.precision.compute), parts, joined);
      if (more) rest.wait(reduced);
    }
    return joined;
  }

  void write_forward(SegmentWriter& looks_up, SegmentWriter& w) {
    const Ref out = hidden(kEmbeddingHidden);
    if (x_at_end) look_up_layers(looks_up);
    Ref at = x_patches ? x_patches->forward(looks_up, x_forward) : look_up(looks_up, w);
    if (!x_at_end) return;
    const bool drops = x_dropout > 0;
    if (narrow_positions(x_model)) {
      at = add_positions(w, at, x_model.embedding_norm || widens(x_model) || drops);
    }
    if (x_model.embedding_norm) at = write_norm(w, at, widens(x_model) || drops);
    if (widens(x_model)) at = widen(w, at, wide_positions(x_model) || drops);
    if (wide_positions(x_model)) at = add_positions(w, at, drops);
    if (drops) {
      x_mask = x_saved.add("embedding dropout mask", BufferKind::kActivations, DType::kUint8,
                           out.count, true);
      w.compute("embedding.dropout", dropout(KernelKind::kDropout), {at.view()},
                {out.view(), x_mask.view()});
    }
    if (!more() && cut()) {
      // Nothing follows the reduction: it is the op that makes the output ready.
      w.segment().ops.back().records = EventRef{kEmbeddingHidden, kReady};
      return;
    }
    w.record(EventRef{kEmbeddingHidden, kReady});
  }

  WholeMatrix widening() const {
    return {x_plan, "embedding.widen", norm("embedding.widen"), x_rows, x_hidden, x_width};
  }

  /// `more`: something follows.
  Ref add_positions(SegmentWriter& w, const Ref& in, bool more) {
    const Ref sum = more ? temp(x_forward, "embedding sum", in.count) : hidden(kEmbeddingHidden);
    w.compute("embedding.positions", token_kernel(KernelKind::kPositionsAdd, in.count / x_rows),
              {in.view(), weight("embedding.positions").part(0, position_elements(in))},
              {sum.view()});
    return sum;
  }

  Ref write_norm(SegmentWriter& w, const Ref& in, bool more) {
    x_normed = x_saved.add("embedding norm in", BufferKind::kActivations, x_plan.precision.compute,
                           in.count, true);
    x_stats = x_saved.add("embedding norm statistics", BufferKind::kActivations, DType::kFp32,
                          statistics(), true);
    const Ref normed =
        more ? temp(x_forward, "embedding normed", in.count) : hidden(kEmbeddingHidden);
    w.compute("embedding.keep", kernel(KernelKind::kCast, x_rows, in.count / x_rows), {in.view()},
              {x_normed.view()});
    norm_forward(w, "embedding.norm", x_normed, normed, x_stats);
    return normed;
  }

  /// From narrower tables to the hidden width; what the matrix reads is kept.
  Ref widen(SegmentWriter& w, const Ref& in, bool more) {
    x_narrow = keep("narrow embedding", x_plan.precision.compute, in.count);
    w.compute("embedding.widen.keep", kernel(KernelKind::kCast, x_rows, x_width), {in.view()},
              {x_narrow.view()});
    const Ref wide =
        more ? temp(x_forward, "wide embedding", x_rows * x_hidden) : hidden(kEmbeddingHidden);
    widening().forward(w, x_narrow, wide);
    return wide;
  }

  /// A vector of every token for every layer, which the layers keep for their backward pass.
  void look_up_layers(SegmentWriter& w) {
    if (x_model.ends.layer_rows == 0) return;
    const Ref out =
        keep("vectors of every layer", x_plan.precision.compute, x_tokens * layers_width(x_model));
    w.compute("embedding.layers", kernel(KernelKind::kEmbedding, x_tokens, layers_width(x_model)),
              {weight("embedding.layers").view(), tokens()}, {out.view()});
  }

  /// What the layers write, then the table's gradient.
  void write_layers_gradient(SegmentWriter& w) {
    if (x_model.ends.layer_rows == 0 || !x_at_end) return;
    const std::int64_t width = layers_width(x_model);
    const Ref d = temp(x_backward, "d vectors of every layer", x_tokens * width);
    w.compute("embedding.layers.from_layers", kernel(KernelKind::kFill, x_tokens, width), {},
              {d.view()});
    write_table_gradient(w, "embedding.layers",
                         kernel(KernelKind::kEmbeddingBackward, x_tokens, width), d, false);
  }

  /// `inner`: where the layers' gradient goes, another segment or `w`.
  void write_backward(SegmentWriter& w, SegmentWriter& inner) {
    w.phase = inner.phase = Phase::kBackward;
    write_layers_gradient(inner);
    if (!x_plan.shares_vocabulary()) return write_token_gradient(w, gradient_of_sum(w));
    const Ref d = x_at_end ? gradient_of_sum(inner)
                           : temp(x_backward, "d embedding of the first", x_tokens * x_hidden);
    meet(inner, x_backward, kStagesEmbeddingGradientGroup);
    w.wait(
        from_end(inner, stages(kStagesEmbeddingGradientGroup), "embedding.stages.broadcast", 0, d));
    write_token_gradient(w, d);
  }

  /// From the gradient of the residual stream to that of the sum of what ranks looked up.
  Ref gradient_of_sum(SegmentWriter& w) {
    w.wait(EventRef{kEmbeddingHiddenGradient, kReady});
    Ref d = hidden(kEmbeddingHiddenGradient);
    if (x_model.hybrid.shared.blocks > 0) {  // what the blocks that layers share read
      const Ref sum = temp(x_backward, "d embedding of blocks too", d.count);
      w.compute("embedding.blocks_gradient", kernel(KernelKind::kAdd, x_rows, x_hidden),
                {d.view(), hidden(kEmbeddingFrames).view()}, {sum.view()});
      d = sum;
    }
    if (x_dropout > 0) {
      const Ref d_in = temp(x_backward, "d embedding dropout", d.count);
      w.compute("embedding.dropout_gradient", dropout(KernelKind::kResidualAddBackward),
                {d.view(), x_mask.view()}, {d_in.view()});
      d = d_in;
    }
    if (wide_positions(x_model)) write_position_gradient(w, d);
    if (widens(x_model)) {
      const Ref d_in = temp(x_backward, "d narrow embedding", x_rows * x_width);
      widening().backward(w, x_narrow, d, d_in);
      d = d_in;
    }
    if (x_model.embedding_norm) {
      const Ref d_in = temp(x_backward, "d embedding norm", d.count);
      norm_gradient(w, "embedding.norm", norm("embedding.norm"), d, x_normed, x_stats, d_in);
      d = d_in;
    }
    if (narrow_positions(x_model)) write_position_gradient(w, d);
    if (scattered()) {
      const Ref full = temp(x_backward, "d embedding gathered", x_tokens * x_width);
      w.wait(over(w, x_join_group, Category::kTensor, "embedding.gather",
                  over_tensor(CollectiveKind::kAllGather, full.count, x_plan.precision.compute), d,
                  full));
      d = full;
    }
    return d;
  }

  void write_position_gradient(SegmentWriter& w, const Ref& d) {
    const Ref whole = gradient("embedding.positions");
    const Ref used{whole.frame, whole.buffer, whole.dtype, position_elements(d)};
    if (used.count < whole.count) clear(w, "embedding.positions.zero", whole);
    std::vector<View> reads = {d.view()};
    std::vector<View> writes;
    add_gradients(x_plan, {used}, reads, writes);
    w.compute("embedding.positions.gradient",
              token_kernel(KernelKind::kPositionsGrad, d.count / x_rows), std::move(reads),
              std::move(writes));
  }

  void write_token_gradient(SegmentWriter& w, const Ref& d) {
    if (x_patches) return x_patches->backward(w, d);
    // A tied table of this stage already holds the head's part of its gradient.
    const bool written =
        (x_model.tied_embeddings && x_plan.pipeline == 1) || x_model.is_encoder_decoder();
    write_table_gradient(w, "embedding.tokens",
                         vocabulary_kernel(KernelKind::kEmbeddingBackward, x_tokens, x_width), d,
                         written);
  }

  /// `written`: something of this pass wrote into the gradient before.
  void write_table_gradient(SegmentWriter& w, const char* of, const Kernel& scatter, const Ref& d,
                            bool written) {
    const Ref table = gradient(of);
    const std::string name = of;
    if (!written) clear(w, name + ".zero", table);
    if (x_plan.writes_fresh() || x_plan.fused_accumulation) {
      w.compute(name + ".gradient", scatter, {d.view(), tokens()}, {table.view()});
      return;
    }
    // A whole table of its own, as autograd makes it, then added.
    const Ref part =
        temp(x_backward, name == "embedding.tokens" ? "d table" : "d table of layers", table.count);
    w.compute(name + ".zero", kernel(KernelKind::kFill, 1, table.count), {}, {part.view()});
    w.compute(name + ".gradient", scatter, {d.view(), tokens()}, {part.view()});
    w.compute(name + ".accumulate",
              kernel(KernelKind::kAdd, table.count / scatter.cols, scatter.cols),
              {table.view(), part.view()}, {table.view()});
  }

  Kernel dropout(KernelKind kind) const {
    Kernel out = token_kernel(kind);
    out.value = x_dropout;
    if (x_plan.in_grid()) out.cols_split_over = x_builder.group(residual_axes(x_plan).columns);
    return out;
  }

  /// Fresh gradients that are added to, or written in part, start from zero.
  void clear(SegmentWriter& w, const std::string& name, const Ref& ref) {
    if (!x_plan.writes_fresh()) return;
    Kernel fill = kernel(KernelKind::kFill, 1, ref.count);
    fill.dtype = ref.dtype;
    w.compute(name, fill, {}, {ref.view()});
  }

  double x_dropout;
  std::int64_t x_width;                   ///< of the tables on this rank
  const char* x_join_group;               ///< tensor ranks, each with its part of the sum
  std::optional<ImagePatches> x_patches;  ///< in place of a table
  Ref x_normed, x_stats, x_narrow, x_mask;
};

}  // namespace

EndSegments write_embedding(ProgramBuilder& builder, const Model& model, const Plan& plan,
                            const EndLayouts& layouts) {
  return EmbeddingWriter(builder, model, plan, layouts).run();
}

}  // namespace foretrain
