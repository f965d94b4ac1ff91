#include "models/ends.h"

namespace foretrain {
namespace {

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
        x_rows(plan.tokens() / plan.shard()) {}

 protected:
  Kernel kernel(KernelKind kind, std::int64_t rows, std::int64_t cols) const {
    return kernel_of(kind, rows, cols, x_plan.precision.compute);
  }
  /// Its rank holds a part of the vocabulary.
  Kernel vocabulary_kernel(KernelKind kind, std::int64_t rows, std::int64_t cols) const {
    Kernel out = kernel(kind, rows, cols);
    if (x_plan.tensor > 1) out.split_over = x_tensor;
    return out;
  }
  /// One row a token of the residual stream.
  Kernel token_kernel(KernelKind kind) const {
    Kernel out = kernel(kind, x_rows, x_model.hidden);
    if (x_plan.sequence) out.split_over = x_tensor;
    return out;
  }
  Ref temp(LayoutWriter& local, const std::string& name, DType dtype, std::int64_t count) const {
    return local.add(name, BufferKind::kActivations, dtype, count);
  }
  Ref temp(LayoutWriter& local, const std::string& name, std::int64_t count) const {
    return temp(local, name, x_plan.precision.compute, count);
  }
  Collective over_tensor(CollectiveKind kind, std::int64_t count, DType dtype,
                         bool maximum = false) const {
    return Collective{kind, x_tensor, count, dtype, maximum};
  }
  Ref hidden(std::int16_t frame) const {
    return {frame, kHiddenBuffer, x_plan.precision.compute, x_rows * x_model.hidden};
  }
  Ref weight(const char* name) const { return parameter_ref(x_layouts.parameters, name, 0, 2); }
  Ref gradient(const char* name) const {
    return parameter_ref(x_layouts.parameter_gradients, name, 1, 3);
  }
  NormRefs norm(const std::string& name) const {
    return {weight((name + ".weight").c_str()), weight((name + ".bias").c_str()),
            gradient((name + ".weight").c_str()), gradient((name + ".bias").c_str())};
  }
  /// `weights`: the head's pass of its own for the gradients of its matrices, or null.
  EndSegments finish(SegmentWriter& forward, SegmentWriter& backward, bool head,
                     SegmentWriter* weights = nullptr) {
    EndSegments out;
    out.saved = x_builder.layout(x_saved.layout());
    out.local_forward = x_builder.layout(x_forward.layout());
    out.local_backward = x_builder.layout(x_backward.layout());
    const auto add = [&](SegmentWriter& writer, LayoutId local) {
      const EndLayouts& l = x_layouts;
      writer.segment().frames = {l.weights,          l.gradients, l.shared,
                                 l.shared_gradients, l.hidden,    l.hidden_gradient,
                                 out.saved,          local,       l.inputs};
      if (head) writer.segment().frames.push_back(l.scalars);
      if (l.unit_weights.valid()) {
        writer.segment().frames.push_back(l.unit_weights);
        writer.segment().frames.push_back(l.unit_gradients);
      }
      return x_builder.segment(std::move(writer.segment()));
    };
    out.forward = add(forward, out.local_forward);
    out.backward = add(backward, out.local_backward);
    if (weights != nullptr) out.weights = add(*weights, out.local_backward);
    return out;
  }
  void norm_gradient(SegmentWriter& w, const std::string& name, const NormRefs& norm,
                     const Ref& d_out, const Ref& in, const Ref& stats, const Ref& d_in) {
    std::vector<View> reads = {d_out.view(), in.view(), stats.view(), norm.weight.view()};
    std::vector<View> writes = {d_in.view()};
    add_gradients(x_plan, {norm.weight_gradient, norm.bias_gradient}, reads, writes);
    w.compute(name, norm_kernel(x_model, x_rows, x_model.hidden, x_plan.precision.compute, true),
              std::move(reads), std::move(writes));
  }
  std::int64_t statistics() const { return x_rows * (x_model.norm == Norm::kLayerNorm ? 2 : 1); }

  ProgramBuilder& x_builder;
  const Model& x_model;
  const Plan& x_plan;
  const EndLayouts& x_layouts;
  LayoutWriter x_saved, x_forward, x_backward;
  GroupSlot x_tensor;
  std::int64_t x_tokens, x_rows;
};

class EmbeddingWriter : EndWriter {
 public:
  EmbeddingWriter(ProgramBuilder& builder, const Model& model, const Plan& plan,
                  const EndLayouts& layouts)
      : EndWriter(builder, model, plan, layouts, "embedding", kEmbeddingSaved, kEmbeddingLocal),
        x_dropout(dropout_of(model, plan).hidden) {}

  EndSegments run() {
    SegmentWriter forward(x_builder, "embedding forward", x_forward);
    write_forward(forward);
    SegmentWriter backward(x_builder, "embedding backward", x_backward);
    write_backward(backward);
    const EventRef done = x_backward.event("embedding gradients done");
    backward.record(done);
    EndSegments out = finish(forward, backward, false);
    out.done = done.event;
    return out;
  }

 private:
  bool positions() const { return x_model.positions > 0; }
  std::int64_t position_elements() const {
    return std::min(x_model.positions, x_plan.sequence_length) * x_model.hidden;
  }
  Ref tokens() const { return {kEmbeddingInputs, kTokens, DType::kInt64, x_tokens}; }

  void write_forward(SegmentWriter& w) {
    const Ref out = hidden(kEmbeddingHidden);
    const std::int64_t full = x_tokens * x_model.hidden;
    const bool more = positions() || x_model.embedding_norm || x_dropout > 0;
    const Ref looked_up =
        x_plan.tensor > 1 || more ? temp(x_forward, "embedded tokens", full) : out;
    w.compute("embedding.tokens",
              vocabulary_kernel(KernelKind::kEmbedding, x_tokens, x_model.hidden),
              {weight("embedding.tokens").view(), tokens().view()}, {looked_up.view()});
    Ref joined = looked_up;
    if (x_plan.tensor > 1) {
      joined = more ? temp(x_forward, "embedding joined", out.count) : out;
      const auto kind =
          x_plan.sequence ? CollectiveKind::kReduceScatter : CollectiveKind::kAllReduce;
      const EventRef reduced =
          w.async_collective("embedding.reduce", over_tensor(kind, full, x_plan.precision.compute),
                             {looked_up.view()}, {joined.view()});
      if (more) w.wait(reduced);
    }
    if (positions()) {
      Ref sum = out;
      if (x_model.embedding_norm || x_dropout > 0) {
        sum = temp(x_forward, "embedding sum", out.count);
      }
      w.compute("embedding.positions", token_kernel(KernelKind::kPositionsAdd),
                {joined.view(), weight("embedding.positions").part(0, position_elements())},
                {sum.view()});
      joined = sum;
    }
    if (x_model.embedding_norm) {
      x_normed = x_saved.add("embedding norm in", BufferKind::kActivations,
                             x_plan.precision.compute, out.count, true);
      x_stats = x_saved.add("embedding norm statistics", BufferKind::kActivations, DType::kFp32,
                            statistics(), true);
      const Ref normed = x_dropout > 0 ? temp(x_forward, "embedding normed", out.count) : out;
      w.compute("embedding.keep", kernel(KernelKind::kCast, x_rows, x_model.hidden),
                {joined.view()}, {x_normed.view()});
      w.compute("embedding.norm",
                norm_kernel(x_model, x_rows, x_model.hidden, x_plan.precision.compute, false),
                norm_reads(x_normed, norm("embedding.norm")), {normed.view(), x_stats.view()});
      joined = normed;
    }
    if (x_dropout > 0) {
      x_mask = x_saved.add("embedding dropout mask", BufferKind::kActivations, DType::kUint8,
                           out.count, true);
      w.compute("embedding.dropout", dropout(KernelKind::kDropout), {joined.view()},
                {out.view(), x_mask.view()});
    }
    if (!more && x_plan.tensor > 1) {
      // Nothing follows the reduction: it is the op that makes the output ready.
      w.segment().ops.back().records = EventRef{kEmbeddingHidden, kReady};
      return;
    }
    w.record(EventRef{kEmbeddingHidden, kReady});
  }

  void write_backward(SegmentWriter& w) {
    w.phase = Phase::kBackward;
    w.wait(EventRef{kEmbeddingHiddenGradient, kReady});
    Ref d = hidden(kEmbeddingHiddenGradient);
    if (x_dropout > 0) {
      const Ref d_in = temp(x_backward, "d embedding dropout", d.count);
      w.compute("embedding.dropout_gradient", dropout(KernelKind::kResidualAddBackward),
                {d.view(), x_mask.view()}, {d_in.view()});
      d = d_in;
    }
    if (x_model.embedding_norm) {
      const Ref d_in = temp(x_backward, "d embedding norm", d.count);
      norm_gradient(w, "embedding.norm.gradient", norm("embedding.norm"), d, x_normed, x_stats,
                    d_in);
      d = d_in;
    }
    if (positions()) {
      const Ref whole = gradient("embedding.positions");
      const Ref used{whole.frame, whole.buffer, whole.dtype, position_elements()};
      if (used.count < whole.count) clear(w, "embedding.positions.zero", whole);
      std::vector<View> reads = {d.view()};
      std::vector<View> writes;
      add_gradients(x_plan, {used}, reads, writes);
      w.compute("embedding.positions.gradient", token_kernel(KernelKind::kPositionsGrad),
                std::move(reads), std::move(writes));
    }
    if (x_plan.sequence) {
      const Ref full = temp(x_backward, "d embedding gathered", x_tokens * x_model.hidden);
      w.collective("embedding.gather",
                   over_tensor(CollectiveKind::kAllGather, full.count, x_plan.precision.compute),
                   {d.view()}, {full.view()});
      d = full;
    }
    // A tied table already holds the head's part of its gradient.
    const Ref table = gradient("embedding.tokens");
    const bool written = x_model.tied_embeddings || x_model.is_encoder_decoder();
    if (!written) clear(w, "embedding.tokens.zero", table);
    const Kernel scatter =
        vocabulary_kernel(KernelKind::kEmbeddingBackward, x_tokens, x_model.hidden);
    if (x_plan.fresh_gradients() || x_plan.fused_accumulation) {
      w.compute("embedding.tokens.gradient", scatter, {d.view(), tokens().view()}, {table.view()});
      return;
    }
    // A whole table of its own, as autograd makes it, then added.
    const Ref part = temp(x_backward, "d table", table.count);
    w.compute("embedding.tokens.zero", kernel(KernelKind::kFill, 1, table.count), {},
              {part.view()});
    w.compute("embedding.tokens.gradient", scatter, {d.view(), tokens().view()}, {part.view()});
    w.compute("embedding.tokens.accumulate",
              kernel(KernelKind::kAdd, table.count / x_model.hidden, x_model.hidden),
              {table.view(), part.view()}, {table.view()});
  }

  Kernel dropout(KernelKind kind) const {
    Kernel out = token_kernel(kind);
    out.value = x_dropout;
    return out;
  }

  /// Fresh gradients that are added to, or written in part, start from zero.
  void clear(SegmentWriter& w, const char* name, const Ref& ref) {
    if (!x_plan.fresh_gradients()) return;
    Kernel fill = kernel(KernelKind::kFill, 1, ref.count);
    fill.dtype = ref.dtype;
    w.compute(name, fill, {}, {ref.view()});
  }

  double x_dropout;
  Ref x_normed, x_stats, x_mask;
};

class HeadWriter : EndWriter {
 public:
  HeadWriter(ProgramBuilder& builder, const Model& model, const Plan& plan,
             const EndLayouts& layouts, std::string table)
      : EndWriter(builder, model, plan, layouts, "head", kHeadSaved, kHeadLocal),
        x_table(std::move(table)),
        x_vocabulary(weight(x_table.c_str()).count / model.hidden),
        x_all_rows(x_rows) {
    if (model.masked > 0) x_tokens = x_rows = plan.micro_batch * model.masked;
  }

  EndSegments run() {
    SegmentWriter forward(x_builder, "head forward", x_forward);
    forward.wait(EventRef{kHeadHidden, kReady});
    for (std::int64_t d = 0; d <= x_model.predict_layers; ++d) {
      x_predictions.push_back(predict(forward, prefix(d), d > 0));
    }
    SegmentWriter backward(x_builder, "head backward", x_backward);
    backward.phase = Phase::kBackward;
    SegmentWriter weights(x_builder, "head weights", x_backward);
    weights.phase = Phase::kBackward;
    weights.wait(EventRef{kHeadHiddenGradient, kReady});
    if (x_plan.splits_backward()) backward.weight_pass = &weights;
    for (std::int64_t d = 0; d <= x_model.predict_layers; ++d) {
      write_backward(backward, prefix(d), x_predictions[static_cast<std::size_t>(d)]);
    }
    backward.record(EventRef{kHeadHiddenGradient, kReady});
    if (backward.weight_pass == nullptr) return finish(forward, backward, true);
    const EventRef done = x_backward.event("head gradients done");
    weights.record(done);
    EndSegments out = finish(forward, backward, true, &weights);
    out.done = done.event;
    return out;
  }

 private:
  /// What one prediction keeps for its backward pass: of the next token, then of later ones.
  struct Prediction {
    Ref pair, joined;  ///< of later tokens: both inputs, and what comes of them
    Ref y, stats, exp, sum;
  };

  static std::string prefix(std::int64_t d) {
    return d == 0 ? "" : "predict" + std::to_string(d) + ".";
  }

  Ref keep(const std::string& name, DType dtype, std::int64_t count) {
    return x_saved.add(name, BufferKind::kActivations, dtype, count, true);
  }

  Ref weight_of(const std::string& name) const { return weight((name + ".weight").c_str()); }

  /// The hidden state and the embedding of the next token, each normed, side by side and through a
  /// matrix. Every tensor rank does its own tokens.
  void join_inputs(SegmentWriter& w, const std::string& at, Prediction& p) {
    const std::int64_t h = x_model.hidden;
    p.pair = keep(at + "pair", x_plan.precision.compute, x_rows * 2 * h);
    p.joined = keep(at + "joined", x_plan.precision.compute, x_rows * h);
    w.compute(at + "norms", norm_kernel(x_model, x_rows, 2 * h, x_plan.precision.compute, false),
              {hidden(kHeadHidden).view(), weight_of(at + "norms").view()}, {p.pair.view()});
    w.compute(at + "join", forward_gemm(x_plan, x_rows, h, 2 * h),
              {p.pair.view(), weight_of(at + "join").view()}, {p.joined.view()});
  }

  void join_backward(SegmentWriter& w, const std::string& at, const Prediction& p,
                     const Ref& d_joined) {
    const std::int64_t h = x_model.hidden;
    const Ref d_pair = temp(x_backward, at + "d pair", x_rows * 2 * h);
    const Ref d_in = temp(x_backward, at + "d hidden", x_rows * h);
    w.compute(at + "join.input_gradient", input_gradient_gemm(x_plan, x_rows, h, 2 * h),
              {d_joined.view(), weight_of(at + "join").view()}, {d_pair.view()});
    write_weight_gradient(w, x_plan, at + "join", weight_gradient_gemm(x_plan, x_rows, h, 2 * h),
                          d_joined, p.pair, gradient((at + "join.weight").c_str()));
    std::vector<View> reads = {d_pair.view(), hidden(kHeadHidden).view(),
                               weight_of(at + "norms").view()};
    std::vector<View> writes = {d_in.view()};
    add_gradients(x_plan, {gradient((at + "norms.weight").c_str())}, reads, writes);
    w.compute(at + "norms.gradient",
              norm_kernel(x_model, x_rows, 2 * h, x_plan.precision.compute, true), std::move(reads),
              std::move(writes));
    const View sum = hidden(kHeadHiddenGradient).view();
    w.compute(at + "add_gradient", kernel(KernelKind::kAdd, x_rows, h), {sum, d_in.view()}, {sum});
  }

  Prediction predict(SegmentWriter& w, const std::string& at, bool later) {
    Prediction p;
    Ref in = later ? Ref() : select_rows(w);
    if (!later) x_selected = in;
    if (later) {
      join_inputs(w, at, p);
      in = p.joined;
    }
    const DType type = x_plan.precision.compute;
    p.y = keep(at + "head.norm out", type, in.count);
    p.stats = keep(at + "head.norm statistics", DType::kFp32, statistics());
    p.exp = keep(at + "exponentials", DType::kFp32, x_tokens * x_vocabulary);
    p.sum = keep(at + "sum of exponentials", DType::kFp32, x_tokens);
    const Ref maximum = temp(x_forward, at + "maximum", DType::kFp32, x_tokens);
    const Ref target = temp(x_forward, at + "target logit", DType::kFp32, x_tokens);
    const Ref logits = temp(x_forward, at + "logits", x_tokens * x_vocabulary);
    const Ref labels{kHeadInputs, kLabels, DType::kInt64, x_tokens};
    w.compute(at + "head.norm", norm_kernel(x_model, x_rows, x_model.hidden, type, false),
              norm_reads(in, norm(at + "head.norm")), {p.y.view(), p.stats.view()});
    Ref y = p.y;
    if (x_plan.sequence) {
      y = temp(x_forward, at + "head input gathered", x_tokens * x_model.hidden);
      w.collective(at + "head.gather", over_tensor(CollectiveKind::kAllGather, y.count, type),
                   {p.y.view()}, {y.view()});
    }
    w.compute(at + "head.output", forward_gemm(x_plan, x_tokens, x_vocabulary, x_model.hidden),
              {y.view(), weight(x_table.c_str()).view()}, {logits.view()});
    w.compute(at + "loss.maximum", vocabulary_kernel(KernelKind::kLossMax, x_tokens, x_vocabulary),
              {logits.view()}, {maximum.view()});
    join(w, at + "loss.maximum.reduce", maximum, true);
    w.compute(at + "loss.exponentials",
              vocabulary_kernel(KernelKind::kLossSumExp, x_tokens, x_vocabulary),
              {logits.view(), maximum.view(), labels.view()},
              {p.exp.view(), p.sum.view(), target.view()});
    join(w, at + "loss.target.reduce", target, false);
    join(w, at + "loss.sum.reduce", p.sum, false);
    const Ref loss{kHeadScalars, kLoss, DType::kFp32, 1};
    w.compute(at + "loss.mean", kernel(KernelKind::kLossMean, x_tokens, 1),
              {target.view(), p.sum.view(), loss.view()}, {loss.view()});
    return p;
  }

  void join(SegmentWriter& w, const std::string& name, const Ref& values, bool maximum) {
    if (x_plan.tensor == 1) return;
    w.collective(name, over_tensor(CollectiveKind::kAllReduce, values.count, DType::kFp32, maximum),
                 {values.view()}, {values.view()});
  }

  void write_backward(SegmentWriter& w, const std::string& at, const Prediction& p) {
    const Ref labels{kHeadInputs, kLabels, DType::kInt64, x_tokens};
    const Ref d_logits = temp(x_backward, at + "d logits", x_tokens * x_vocabulary);
    const Ref d_y = temp(x_backward, at + "d head.norm out", x_rows * x_model.hidden);
    const Ref full = x_plan.sequence
                         ? temp(x_backward, at + "d head input full", x_tokens * x_model.hidden)
                         : d_y;
    w.compute(at + "loss.gradient",
              vocabulary_kernel(KernelKind::kLossBackward, x_tokens, x_vocabulary),
              {p.exp.view(), p.sum.view(), labels.view()}, {d_logits.view()});
    output_backward(w, at, p, d_logits, full, d_y);
    if (!p.joined.valid()) {
      const bool some = x_model.masked > 0;
      const Ref d_in = some ? temp(x_backward, "d masked rows", x_rows * x_model.hidden)
                            : hidden(kHeadHiddenGradient);
      norm_gradient(w, "head.norm.gradient", norm("head.norm"), d_y, x_selected, p.stats, d_in);
      if (some) scatter_rows(w, d_in);
      return;
    }
    const Ref d_joined = temp(x_backward, at + "d joined", x_rows * x_model.hidden);
    norm_gradient(w, at + "head.norm.gradient", norm(at + "head.norm"), d_y, p.joined, p.stats,
                  d_joined);
    join_backward(w, at, p, d_joined);
  }

  /// Both gradients of the output matrix' GEMM. A second prediction adds to the matrix' gradient.
  void output_backward(SegmentWriter& w, const std::string& at, const Prediction& p,
                       const Ref& d_logits, const Ref& full, const Ref& d_y) {
    const DType type = x_plan.precision.compute;
    Ref y = p.y;
    EventRef gathered;
    SegmentWriter& later = w.of_weights();
    if (x_plan.sequence) {
      y = temp(x_backward, at + "head input gathered", x_tokens * x_model.hidden);
      gathered = later.async_collective(at + "head.gather",
                                        over_tensor(CollectiveKind::kAllGather, y.count, type),
                                        {p.y.view()}, {y.view()});
      if (!x_plan.overlap.tensor_backward) later.wait(gathered);
    }
    w.compute(at + "head.output.input_gradient",
              input_gradient_gemm(x_plan, x_tokens, x_vocabulary, x_model.hidden),
              {d_logits.view(), weight(x_table.c_str()).view()}, {full.view()});
    EventRef reduced;
    if (x_plan.tensor > 1) {
      const auto kind =
          x_plan.sequence ? CollectiveKind::kReduceScatter : CollectiveKind::kAllReduce;
      reduced = w.async_collective(at + "head.reduce", over_tensor(kind, full.count, type),
                                   {full.view()}, {d_y.view()});
      if (!x_plan.overlap.tensor_backward) w.wait(reduced);
    }
    if (x_plan.overlap.tensor_backward && gathered.valid()) later.wait(gathered);
    const Ref table = gradient(x_table.c_str());
    Gemm gemm = weight_gradient_gemm(x_plan, x_tokens, x_vocabulary, x_model.hidden);
    gemm.accumulate = p.joined.valid();
    write_weight_gradient(later, x_plan, at + "head.output", gemm, d_logits, y, table);
    if (x_plan.overlap.tensor_backward && reduced.valid()) w.wait(reduced);
  }

  /// The rows of masked tokens: where only these are predicted, the head's tokens.
  Ref select_rows(SegmentWriter& w) {
    if (x_model.masked == 0) return hidden(kHeadHidden);
    const Ref out = keep("masked rows", x_plan.precision.compute, x_rows * x_model.hidden);
    w.compute("head.select", kernel(KernelKind::kPermute, x_rows, x_model.hidden),
              {hidden(kHeadHidden).view()}, {out.view()});
    return out;
  }

  /// Their gradients among those of all tokens, which are zero.
  void scatter_rows(SegmentWriter& w, const Ref& rows) {
    const Ref some = hidden(kHeadHiddenGradient);
    const Ref all{some.frame, some.buffer, some.dtype, x_all_rows * x_model.hidden};
    w.compute("head.select.zero", kernel(KernelKind::kFill, x_all_rows, x_model.hidden), {},
              {all.view()});
    w.compute("head.select.gradient", kernel(KernelKind::kUnpermute, x_rows, x_model.hidden),
              {rows.view()}, {some.view()});
  }

  std::string x_table;
  std::int64_t x_vocabulary;
  std::int64_t x_all_rows;  ///< of the residual stream; x_rows are those that the head predicts
  Ref x_selected;
  std::vector<Prediction> x_predictions;
};

}  // namespace

EndSegments write_embedding(ProgramBuilder& builder, const Model& model, const Plan& plan,
                            const EndLayouts& layouts) {
  return EmbeddingWriter(builder, model, plan, layouts).run();
}

EndSegments write_head(ProgramBuilder& builder, const Model& model, const Plan& plan,
                       const EndLayouts& layouts, const std::string& table) {
  return HeadWriter(builder, model, plan, layouts, table).run();
}

}  // namespace foretrain
