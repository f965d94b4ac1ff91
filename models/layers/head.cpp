#include "models/layers/autocast.h"
#include "models/layers/end_writer.h"
#include "models/layers/ends/head_transform.h"
#include "models/layers/ends/loss.h"

namespace foretrain {
namespace {

constexpr Ref kLossOut{kHeadScalars, kLoss, DType::kFp32, 1};

/// What the mean and the gradient of a loss read.
LossRows loss_rows(const Ref& exp, const Ref& sum, const Ref& target, const View& labels,
                   std::int64_t rows, const Ref& maximum = {}) {
  LossRows out;
  out.exp = exp;
  out.maximum = maximum;
  out.sum = sum;
  out.target = target;
  out.labels = labels;
  out.rows = rows;
  return out;
}

const char* bias_name(const Model& model) {
  return model.ends.classes > 0 ? "head.classes.bias" : "head.bias";
}

/// Nothing stands between the stream and the output matrix. Copies do, of the stream and of its
/// gradient, so that the head's passes begin and end with an op of their own.
bool reads_stream(const Model& model) {
  const Ends& e = model.ends;
  const bool narrows = head_width(model) != model.hidden;
  return !e.final_norm && !e.transform && !narrows && e.masked == 0;
}

class HeadWriter : EndWriter {
 public:
  HeadWriter(ProgramBuilder& builder, const Model& model, const Plan& plan,
             const EndLayouts& layouts, std::string table)
      : EndWriter(builder, model, plan, layouts, "head", kHeadSaved, kHeadLocal),
        x_table(std::move(table)),
        x_width(head_width(model) == model.hidden ? x_hidden : head_width(model)),
        x_vocabulary(weight(x_table.c_str()).count / x_width) {
    x_selected.all_rows = x_rows;
    if (model.ends.classes > 0) x_vocabulary_group = nullptr;
    if (plan.in_grid()) {
      x_tokens = x_rows;
      x_vocabulary_group = inner_axes(plan).columns;
    }
    if (plan.tensor_mode == TensorMode::k3D) x_vocabulary *= plan.side();
    if (model.ends.masked > 0) x_tokens = x_rows = plan.micro_batch * model.ends.masked;
    if (x_width != x_hidden && !model.ends.transform) {
      x_selected.narrowing.emplace(plan, "head.narrow", norm("head.narrow"), x_rows, x_width,
                                   x_hidden);
    }
    std::optional<GroupSlot> split;
    if (cut()) split = builder.group(x_vocabulary_group);
    x_loss.emplace(plan, x_vocabulary, branch(), split, model.ends.logit_cap);
  }

  EndSegments run() {
    if (x_plan.spreads_vocabulary()) return run_spread();
    SegmentWriter forward(x_builder, "head forward", x_forward);
    if (x_at_end) forward.wait(EventRef{kHeadHidden, kReady});
    for (std::int64_t d = 0; d <= x_model.predict_layers; ++d) {
      x_predictions.push_back(predict(forward, prefix(d), d > 0));
    }
    SegmentWriter backward(x_builder, "head backward", x_backward);
    backward.phase = Phase::kBackward;
    SegmentWriter weights(x_builder, "head weights", x_backward);
    weights.phase = Phase::kBackward;
    weights.wait(EventRef{kHeadHiddenGradient, kReady});
    if (x_plan.splits_backward() || x_plan.defers_head()) backward.weight_pass = &weights;
    for (std::int64_t d = 0; d <= x_model.predict_layers; ++d) {
      write_backward(backward, prefix(d), x_predictions[static_cast<std::size_t>(d)]);
    }
    if (x_at_end) backward.record(EventRef{kHeadHiddenGradient, kReady});
    const bool later = backward.weight_pass != nullptr;
    if (later) weights.record(done());
    EndSegments out = finish(forward, backward, true, later ? &weights : nullptr);
    out.done = x_done.event;
    return out;
  }

 private:
  EventRef done() { return x_done = x_backward.event("head gradients done"); }

  /// What one prediction keeps for its backward pass: of the next token, then of later ones.
  /// Of every row: the sum of exponentials; of capped logits the maximum.
  struct RowNumbers {
    Ref sum, maximum;
  };
  struct Prediction {
    Ref pair, joined;  ///< of later tokens: both inputs, and what comes of them
    Ref y, stats, exp;
    RowNumbers rows;
    Ref normed;       ///< y, or under autocast what y is the 16-bit copy of
    Ref input;        ///< y of all tokens, on all stages where they share the vocabulary
    Ref target, all;  ///< of Vocab-1 and Vocab-2: the labels' logits and the sums of all ranks
    GridKept kept;
    EventRef ready;  ///< with a loss in chunks: y is there
  };

  static std::string prefix(std::int64_t d) {
    return d == 0 ? "" : "predict" + std::to_string(d) + ".";
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
    Ref in = later ? Ref() : select_rows(w, hidden(kHeadHidden));
    if (!later && x_model.ends.transform) {
      x_selected.transform.emplace(x_plan, norm("head.transform"), x_rows, x_model.hidden, x_width);
      in = x_selected.transform->forward(w, x_saved, in);
    }
    if (!later) x_selected.rows = in;
    if (later) {
      join_inputs(w, at, p);
      in = p.joined;
    }
    keep_forward(at, p, in);
    if (x_plan.loss.chunks > 0) {  // all else is done in the backward pass
      enter(w, at, p, in);
      p.ready = record_last(w, x_saved.event(at + "normed"));
      return p;
    }
    const Ref maximum = p.rows.maximum.valid() ? p.rows.maximum : row(at + "maximum");
    const Ref target = row(at + "target logit");
    write_logits(w, at, p, in, maximum, target, true);
    join(w, at + "loss.target.reduce", target, false);
    join(w, at + "loss.sum.reduce", p.rows.sum, false);
    x_loss->mean(w, at, loss_rows(Ref(), p.rows.sum, target, labels(), x_tokens), kLossOut);
    return p;
  }

  /// What every prediction keeps of its input.
  void keep_forward(const std::string& at, Prediction& p, const Ref& in) {
    const bool norms = x_model.ends.final_norm;
    if (x_at_end) {
      const std::int64_t count = x_rows * x_width;
      x_selected.wide = in;
      if (norms && x_selected.narrowing) {
        x_selected.wide = keep(at + "head.norm out, wide", branch(), in.count);
      }
      const bool selected = !norms && !x_selected.narrowing && !reads_stream(x_model);
      p.y = selected && !casts() ? in : keep(at + "head.norm out", branch(), count);
      p.normed = casts() ? temp(x_forward, at + "head.norm out in fp32", count) : p.y;
      if (selected) p.normed = in;
      if (norms) p.stats = keep(at + "head.norm statistics", DType::kFp32, statistics());
    }
    if (x_plan.loss.chunks > 0) return;
    p.exp = keep(at + "exponentials", DType::kFp32, x_tokens * x_vocabulary);
    p.rows.sum = keep(at + "sum of exponentials", DType::kFp32, x_tokens);
    if (x_loss->keeps_maximum()) p.rows.maximum = keep(at + "maximum", DType::kFp32, x_tokens);
    if (autocast()) x_cast = keep("output matrix in 16 bits", branch(), table().count);
  }

  /// From the rows that the head predicts, or what the transform makes of them, to what the output
  /// matrix reads: normed, and as narrow as the tables.
  void enter(SegmentWriter& w, const std::string& at, const Prediction& p, const Ref& in) {
    const bool narrows = x_selected.narrowing.has_value();
    if (x_model.ends.final_norm) {
      norm_forward(w, at + "head.norm", in, narrows ? x_selected.wide : p.normed, p.stats);
    }
    if (narrows) x_selected.narrowing->forward(w, x_selected.wide, p.normed);
    if (reads_stream(x_model)) {
      w.compute(at + "head.keep", kernel(KernelKind::kCast, x_rows, x_hidden), {in.view()},
                {p.normed.view()});
    }
  }

  /// One number a token.
  Ref row(const std::string& name) { return temp(x_forward, name, DType::kFp32, x_tokens); }

  /// The rank's logits, their maximum (with `joined` that of all ranks) and exponentials.
  void write_logits(SegmentWriter& w, const std::string& at, Prediction& p, const Ref& in,
                    const Ref& maximum, const Ref& target, bool joined) {
    const Ref logits = temp(x_forward, at + "logits", branch(), x_tokens * x_vocabulary);
    if (x_at_end) enter(w, at, p, in);
    if (casts()) write_casts(w, "head.output.cast_input", {}, x_width, p.normed, p.y);
    if (autocast()) {
      write_casts(w, "head.output.cast_weight", {}, x_width, weight(x_table.c_str()), x_cast);
    }
    output_forward(w, at, p, head_input(w, at, p), logits);
    Ref wide;
    if (x_loss->widens()) {
      wide = temp(x_forward, at + "logits in fp32", DType::kFp32, logits.count);
    }
    const LossRows of{logits, wide, p.exp, p.rows.sum, maximum, target, labels(), x_tokens};
    x_loss->maximum(w, at, of);
    if (joined) join(w, at + "loss.maximum.reduce", maximum, true);
    x_loss->exponentials(w, at, of);
  }

  /// The normed hidden states of all tokens.
  Ref head_input(SegmentWriter& w, const std::string& at, Prediction& p) {
    const DType type = x_plan.precision.compute;
    const std::int64_t all = x_tokens * head_width(x_model);
    const bool shares = x_plan.shares_vocabulary();
    Ref y = p.y;
    if (x_plan.sequence || !x_at_end) {
      y = shares ? keep(at + "head input", type, all)
                 : temp(x_forward, at + "head input gathered", all);
    }
    if (x_plan.sequence && x_at_end) {
      w.collective(at + "head.gather", over_tensor(CollectiveKind::kAllGather, all, type),
                   {p.y.view()}, {y.view()});
    }
    if (!shares) return y;
    const EventRef there =
        from_end(w, kStagesGroup, at + "head.stages.broadcast", x_plan.pipeline - 1, y);
    if (x_at_end && x_plan.spreads_vocabulary()) {
      record_last(w, x_sent);  // T waits for it: nothing else needs it gone
    } else {
      w.wait(there);
    }
    return p.input = y;
  }

  void join(SegmentWriter& w, const std::string& name, const Ref& values, bool maximum) {
    if (!cut()) return;
    const Category category = x_plan.shares_vocabulary() ? Category::kPipeline : Category::kTensor;
    w.wait(over(w, x_vocabulary_group, category, name,
                over_tensor(CollectiveKind::kAllReduce, values.count, DType::kFp32, maximum),
                values, values));
  }

  /// Of this rank's rows.
  View labels() const {
    View view = Ref{kHeadInputs, kLabels, DType::kInt64, x_tokens}.view();
    if (!x_plan.in_grid()) return view;
    view.shards = static_cast<std::int32_t>(x_plan.token_parts());
    view.shard_group = x_builder.group(inner_axes(x_plan).tokens);
    return view;
  }

  GridMatrix matrix() const {
    GridMatrix out{weight(x_table.c_str()), gradient(x_table.c_str()), x_vocabulary, x_width};
    out.table = true;
    return out;
  }

  void output_forward(SegmentWriter& w, const std::string& at, Prediction& p, const Ref& y,
                      const Ref& logits) {
    if (!x_grid) {
      std::vector<View> reads = {y.view(), table().view()};
      if (const Ref bias = weight(bias_name(x_model)); bias.valid()) reads.push_back(bias.view());
      w.compute(at + "head.output", forward_gemm(x_plan, x_tokens, x_vocabulary, x_width),
                std::move(reads), {logits.view()});
      return;
    }
    if (x_grid->keeps()) {
      const DType type = x_plan.precision.compute;
      p.kept = {keep("head input gathered", type, x_grid->kept_input(x_rows, x_hidden)),
                keep("head weight gathered", type, x_grid->kept_weight(matrix()))};
    }
    x_grid->forward(w, at + "head.output", matrix(), y, p.kept, logits);
  }

  void write_backward(SegmentWriter& w, const std::string& at, const Prediction& p) {
    const bool chunks = x_plan.loss.chunks > 0;
    const Ref d_logits =
        chunks ? Ref() : temp(x_backward, at + "d logits", branch(), x_tokens * x_vocabulary);
    Ref d_y =
        x_at_end ? temp(x_backward, at + "d head.norm out", branch(), x_rows * x_width) : Ref();
    const Ref full =
        x_plan.sequence || x_plan.shares_vocabulary()
            ? temp(x_backward, at + "d head input full", x_tokens * head_width(x_model))
            : d_y;
    if (chunks) {
      write_chunks(w, at, p, full, d_y);
      return write_norm_backward(w, at, p, d_y);
    }
    x_loss->gradient(w, x_backward, at,
                     loss_rows(p.exp, p.rows.sum, Ref(), labels(), x_tokens, p.rows.maximum),
                     d_logits);
    if (const Ref bias = gradient(bias_name(x_model)); bias.valid()) {
      std::vector<View> reads = {d_logits.view()};
      std::vector<View> writes;
      add_gradients(x_plan, {bias}, reads, writes);
      w.compute(at + "head.bias_gradient",
                kernel_of(KernelKind::kBiasGrad, x_tokens, x_vocabulary, branch()),
                std::move(reads), std::move(writes));
    }
    if (x_plan.shares_vocabulary()) {
      shared_output_backward(w, p, d_logits, full, d_y);
      if (!x_at_end) return;
    } else {
      output_backward(w, at, p, d_logits, full, d_y);
    }
    if (casts()) {
      const Ref wide = temp(x_backward, "d head.norm out in fp32", d_y.count);
      write_casts(w, "head.output.cast_input_gradient", {}, x_width, d_y, wide);
      d_y = wide;
    }
    write_norm_backward(w, at, p, d_y);
  }

  /// From the gradient of what the output matrix takes to that of the head's input.
  void write_norm_backward(SegmentWriter& w, const std::string& at, const Prediction& p,
                           const Ref& d_y) {
    if (!p.joined.valid()) {
      const bool some = x_model.ends.masked > 0;
      const Ref d_in = some ? temp(x_backward, "d masked rows", x_rows * x_model.hidden)
                            : hidden(kHeadHiddenGradient);
      Ref d = d_y;
      if (x_selected.narrowing) {
        const Ref d_wide = x_model.ends.final_norm
                               ? temp(x_backward, "d head.norm out, wide", x_rows * x_hidden)
                               : d_in;
        x_selected.narrowing->backward(w, x_selected.wide, d, d_wide);
        d = d_wide;
      }
      if (x_model.ends.final_norm) {
        const Ref d_normed =
            x_selected.transform ? temp(x_backward, "d head activation", x_rows * x_width) : d_in;
        norm_gradient(w, "head.norm", norm("head.norm"), d, x_selected.rows, p.stats, d_normed);
        d = d_normed;
      }
      if (x_selected.transform) {
        x_selected.transform->backward(w, x_backward, d, d_in);
        d = d_in;
      }
      if (reads_stream(x_model)) {
        w.compute("head.keep_gradient", kernel(KernelKind::kCast, x_rows, x_hidden), {d.view()},
                  {d_in.view()});
      }
      if (some) scatter_rows(w, d, hidden(kHeadHiddenGradient), x_selected.all_rows);
      return;
    }
    const Ref d_joined = temp(x_backward, at + "d joined", x_rows * x_model.hidden);
    norm_gradient(w, at + "head.norm", norm(at + "head.norm"), d_y, p.joined, p.stats, d_joined);
    join_backward(w, at, p, d_joined);
  }

  struct Chunk {
    std::int64_t begin = 0, rows = 0;
  };

  /// Logits, loss and gradients of a chunk of the rows of `y`; its part of `full`.
  void write_chunk(SegmentWriter& w, const std::string& at, const Prediction& p, const Chunk& of,
                   const Ref& y, const Ref& full) {
    const auto wide = [&](const char* name, DType type) {
      return temp(x_backward, at + name, type, of.rows * x_vocabulary);
    };
    const auto row = [&](const char* name) {
      return temp(x_backward, at + name, DType::kFp32, of.rows);
    };
    LossRows rows;
    rows.rows = of.rows;
    rows.logits = wide("logits", branch());
    if (x_loss->widens()) rows.wide = wide("logits in fp32", DType::kFp32);
    rows.exp = wide("exponentials", DType::kFp32);
    rows.sum = row("sum of exponentials");
    rows.maximum = row("maximum");
    rows.target = row("target logit");
    rows.labels = Ref{kHeadInputs, kLabels, DType::kInt64, x_tokens}.part(of.begin, of.rows);
    const Ref in = y.range(of.begin * x_width, of.rows * x_width);
    w.compute(at + "head.output", forward_gemm(x_plan, of.rows, x_vocabulary, x_width),
              {in.view(), table().view()}, {rows.logits.view()});
    x_loss->maximum(w, at, rows);
    join(w, at + "loss.maximum.reduce", rows.maximum, true);
    x_loss->exponentials(w, at, rows);
    join(w, at + "loss.target.reduce", rows.target, false);
    join(w, at + "loss.sum.reduce", rows.sum, false);
    x_loss->mean(w, at, rows, kLossOut);
    const Ref d_logits = wide("d logits", branch());
    LossRows given = rows;
    if (!x_loss->keeps_maximum()) given.maximum = Ref();
    x_loss->gradient(w, x_backward, at, given, d_logits);
    w.compute(at + "head.output.input_gradient",
              input_gradient_gemm(x_plan, of.rows, x_vocabulary, x_width),
              {d_logits.view(), table().view()},
              {full.range(of.begin * x_width, of.rows * x_width).view()});
    Gemm gemm = weight_gradient_gemm(x_plan, of.rows, x_vocabulary, x_width);
    gemm.accumulate = p.joined.valid() || of.begin > 0;
    write_weight_gradient(w, x_plan, at + "head.output", gemm, d_logits, in,
                          gradient(x_table.c_str()));
  }

  /// Head, loss and their gradients, one chunk of the rows after another: logits, exponentials and
  /// gradients of logits have the rows of a chunk.
  void write_chunks(SegmentWriter& w, const std::string& at, const Prediction& p, const Ref& full,
                    const Ref& d_y) {
    const DType type = x_plan.precision.compute;
    Ref y = p.y;
    if (x_plan.sequence) {
      y = temp(x_backward, at + "head input gathered", x_tokens * head_width(x_model));
      w.wait(p.ready);
      w.collective(at + "head.gather", over_tensor(CollectiveKind::kAllGather, y.count, type),
                   {p.y.view()}, {y.view()});
    }
    const std::int64_t most = (x_tokens + x_plan.loss.chunks - 1) / x_plan.loss.chunks;
    for (std::int64_t begin = 0; begin < x_tokens; begin += most) {
      write_chunk(w, at, p, {begin, std::min(most, x_tokens - begin)}, y, full);
    }
    if (!cut()) return;
    const auto kind = x_plan.sequence ? CollectiveKind::kReduceScatter : CollectiveKind::kAllReduce;
    w.collective(at + "head.reduce", over_tensor(kind, full.count, type), {full.view()},
                 {d_y.view()});
  }

  /// Both gradients of the output matrix' GEMM. A second prediction adds to the matrix' gradient.
  void output_backward(SegmentWriter& w, const std::string& at, const Prediction& p,
                       const Ref& d_logits, const Ref& full, const Ref& d_y) {
    if (x_grid)
      return x_grid->backward(w, at + "head.output", matrix(), d_logits, p.y, p.kept, d_y);
    const DType type = x_plan.precision.compute;
    Ref y = p.y;
    EventRef gathered;
    SegmentWriter& later = w.of_weights();
    if (x_plan.sequence) {
      y = temp(x_backward, at + "head input gathered", x_tokens * head_width(x_model));
      gathered = later.async_collective(at + "head.gather",
                                        over_tensor(CollectiveKind::kAllGather, y.count, type),
                                        {p.y.view()}, {y.view()});
      if (!x_plan.overlap.tensor_backward) later.wait(gathered);
    }
    w.compute(at + "head.output.input_gradient",
              input_gradient_gemm(x_plan, x_tokens, x_vocabulary, x_width),
              {d_logits.view(), table().view()}, {full.view()});
    EventRef reduced;
    if (cut()) {
      const auto kind =
          x_plan.sequence ? CollectiveKind::kReduceScatter : CollectiveKind::kAllReduce;
      reduced = w.async_collective(at + "head.reduce", over_tensor(kind, full.count, type),
                                   {full.view()}, {d_y.view()});
      if (!x_plan.overlap.tensor_backward) w.wait(reduced);
    }
    if (x_plan.overlap.tensor_backward && gathered.valid()) later.wait(gathered);
    Gemm gemm = weight_gradient_gemm(x_plan, x_tokens, x_vocabulary, x_width);
    gemm.accumulate = p.joined.valid();
    write_weight_gradient(later, x_plan, at + "head.output", gemm, d_logits, y,
                          gradient(x_table.c_str()));
    if (x_plan.overlap.tensor_backward && reduced.valid()) w.wait(reduced);
  }

  void input_gradient(SegmentWriter& w, const Ref& d_logits, const Ref& d_in) {
    w.compute("head.output.input_gradient",
              input_gradient_gemm(x_plan, x_tokens, x_vocabulary, x_width),
              {d_logits.view(), table().view()}, {d_in.view()});
  }

  void matrix_gradient(SegmentWriter& w, const Prediction& p, const Ref& d_logits) {
    write_weight_gradient(w, x_plan, "head.output",
                          weight_gradient_gemm(x_plan, x_tokens, x_vocabulary, x_width), d_logits,
                          p.input, gradient(x_table.c_str()));
    w.record(done());
  }

  /// What all stages' sum becomes on this rank: over the tensor ranks.
  void join_input_gradient(SegmentWriter& w, const Ref& sum, const Ref& d_y) {
    const auto kind = x_plan.sequence ? CollectiveKind::kReduceScatter : CollectiveKind::kAllReduce;
    w.collective("head.reduce", over_tensor(kind, sum.count, x_plan.precision.compute),
                 {sum.view()}, {d_y.view()});
  }

  /// The same where all stages share the vocabulary; d_y on the last stage alone.
  void shared_output_backward(SegmentWriter& w, const Prediction& p, const Ref& d_logits,
                              const Ref& full, const Ref& d_y) {
    input_gradient(w, d_logits, full);
    const bool joins = x_at_end && partial();
    const Ref sum = joins ? temp(x_backward, "d head input of all stages", full.count) : d_y;
    const EventRef there =
        to_end(w, kStagesGroup, "head.stages.reduce", x_plan.pipeline - 1, full, sum);
    matrix_gradient(w, p, d_logits);
    if (x_at_end) w.wait(there);
    if (joins) join_input_gradient(w, sum, d_y);
  }

  // --- Vocab-1 and Vocab-2: S, T, and what the last stage does before its layers' backward pass
  // ---

  EndSegments run_spread() {
    SegmentWriter s(x_builder, "head S", x_forward);
    if (x_at_end) s.wait(EventRef{kHeadHidden, kReady});
    SegmentWriter t(x_builder, "head T", x_backward);
    SegmentWriter inner(x_builder, "head inner", x_backward);
    t.phase = inner.phase = Phase::kBackward;
    x_joined = x_saved.event("statistics joined");
    x_summed = x_saved.event("d head input summed");
    if (x_at_end) {
      x_sent = x_saved.event("head input sent");
      x_sum = x_saved.add("d head input of all stages", BufferKind::kActivations,
                          x_plan.precision.compute, x_tokens * x_model.hidden);
    }
    const Prediction p = spread_forward(s);
    spread_backward(t, p);
    if (x_at_end) inner_backward(inner, p);
    EndSegments out = finish(s, t, true, nullptr, nullptr, x_at_end ? &inner : nullptr);
    out.done = x_done.event;
    return out;
  }

  /// The type of what the output matrix takes and gives.
  DType branch() const { return x_plan.precision.branch(); }
  bool one_barrier() const { return x_plan.vocabulary_barriers() == 1; }

  Prediction spread_forward(SegmentWriter& w) {
    Prediction p;
    keep_forward("", p, hidden(kHeadHidden));
    p.target = keep("target logit", DType::kFp32, x_tokens);
    p.all = keep("sum of all exponentials", DType::kFp32, x_tokens);
    const Ref maximum = row("maximum");
    const Ref target = row("own target logit");
    write_logits(w, "", p, hidden(kHeadHidden), maximum, target, false);
    Ref product;
    Ref rows;
    if (one_barrier()) {
      w.phase = Phase::kBackward;
      const Ref exponentials = temp(x_forward, "exponentials to multiply", p.exp.count);
      product = temp(x_forward, "product of exponentials", x_tokens * x_hidden);
      rows = temp(x_forward, "rows of labels", x_tokens * x_hidden);
      w.compute("loss.exponentials.cast", kernel(KernelKind::kCast, x_tokens, x_vocabulary),
                {p.exp.view()}, {exponentials.view()});
      input_gradient(w, exponentials, product);
      w.compute("head.output.rows", vocabulary_kernel(KernelKind::kEmbedding, x_tokens, x_hidden),
                {weight(x_table.c_str()).view(), labels()}, {rows.view()});
    }
    join_statistics(w, p, maximum, target);
    if (one_barrier()) sum_product(w, p, product, rows);
    return p;
  }

  /// On the vocabulary's stream, beside compute.
  EventRef beside(SegmentWriter& w, const std::string& name, const Kernel& work, Views reads,
                  Views writes) const {
    return w.on_stream(kVocabularyGroup, name, Category::kPipeline, work, std::move(reads),
                       std::move(writes));
  }

  /// From the ranks' own maxima, sums and targets to those of all; p.rows.sum becomes the sum less
  /// the rank's own maximum, as its exponentials are.
  void join_statistics(SegmentWriter& w, const Prediction& p, const Ref& maximum,
                       const Ref& target) {
    const auto reduce = [&](const char* name, const Ref& in, const Ref& out, bool largest) {
      over(w, kVocabularyGroup, Category::kPipeline, name,
           over_tensor(CollectiveKind::kAllReduce, in.count, DType::kFp32, largest), in, out);
    };
    Kernel shift = vocabulary_kernel(KernelKind::kLossShift, x_tokens, x_vocabulary);
    shift.value = x_model.ends.logit_cap;
    const Ref top = row("maximum of all");
    const Ref shifted = row("shifted sum");
    reduce("loss.maximum.reduce", maximum, top, true);
    beside(w, "loss.shift", shift,
           {p.rows.sum.view(), maximum.view(), top.view(), target.view(), labels()},
           {shifted.view(), p.target.view()});
    reduce("loss.target.reduce", p.target, p.target, false);
    reduce("loss.sum.reduce", shifted, p.all, false);
    beside(w, "loss.shift_back", shift, {p.all.view(), top.view(), maximum.view()},
           {p.rows.sum.view()});
    if (!one_barrier()) record_last(w, x_joined);
  }

  void sum_product(SegmentWriter& w, const Prediction& p, const Ref& product, const Ref& rows) {
    const Ref part = temp(x_forward, "d head input", product.count);
    beside(w, "loss.input_gradient", kernel(KernelKind::kLossInput, x_tokens, x_hidden),
           {product.view(), rows.view(), p.rows.sum.view()}, {part.view()});
    w.wait(record_last(w, x_joined));
    to_last(w, part);
  }

  void to_last(SegmentWriter& w, const Ref& part) {
    to_end(w, kStagesGradientGroup, "head.stages.reduce", x_plan.pipeline - 1, part, x_sum);
    record_last(w, x_summed);
  }

  void spread_backward(SegmentWriter& w, const Prediction& p) {
    w.wait(x_joined);
    if (x_at_end) w.wait(x_sent);
    x_loss->mean(w, "", loss_rows(Ref(), p.all, p.target, labels(), x_tokens), kLossOut);
    const Ref d_logits = temp(x_backward, "d logits", x_tokens * x_vocabulary);
    x_loss->gradient(w, x_backward, "", loss_rows(p.exp, p.rows.sum, Ref(), labels(), x_tokens),
                     d_logits);
    if (!one_barrier()) {
      const Ref part = temp(x_backward, "d head input", x_tokens * x_hidden);
      input_gradient(w, d_logits, part);
      meet(w, x_backward, kStagesGradientGroup);
      to_last(w, part);
    }
    matrix_gradient(w, p, d_logits);
  }

  void inner_backward(SegmentWriter& w, const Prediction& p) {
    w.wait(x_summed);
    Ref d_y = x_sum;
    if (partial()) {
      d_y = temp(x_backward, "d head.norm out", x_rows * x_hidden);
      join_input_gradient(w, x_sum, d_y);
    }
    norm_gradient(w, "head.norm", norm("head.norm"), d_y, hidden(kHeadHidden), p.stats,
                  hidden(kHeadHiddenGradient));
    w.record(EventRef{kHeadHiddenGradient, kReady});
  }

  bool autocast() const { return x_plan.precision.autocast; }
  bool casts() const { return autocast() && !x_plan.precision.fuses_casts; }
  /// What products read: the matrix itself, or under autocast its 16-bit copy.
  Ref table() const { return x_cast.valid() ? x_cast : weight(x_table.c_str()); }

  std::optional<LossWriter> x_loss;
  std::string x_table;
  Ref x_cast;
  std::int64_t x_width;  ///< columns of the output matrix on this rank
  std::int64_t x_vocabulary;
  /// What the head's norm reads, what stands before it and behind it.
  struct Selected {
    std::int64_t all_rows = 0;  ///< of the residual stream; x_rows are those that the head predicts
    Ref rows;
    Ref wide;  ///< what a matrix takes that narrows it
    std::optional<HeadTransform> transform;
    std::optional<WholeMatrix> narrowing;
  };
  Selected x_selected;
  EventRef x_done;
  /// Of Vocab-1 and Vocab-2: statistics; the head's input; its gradient.
  EventRef x_joined, x_sent, x_summed;
  Ref x_sum;  ///< the latter, on the last stage
  std::vector<Prediction> x_predictions;
};

}  // namespace

EndSegments write_head(ProgramBuilder& builder, const Model& model, const Plan& plan,
                       const EndLayouts& layouts, const std::string& table) {
  return HeadWriter(builder, model, plan, layouts, table).run();
}

}  // namespace foretrain
