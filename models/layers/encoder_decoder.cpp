#include "models/layers/encoder_decoder.h"

#include "models/slots.h"

namespace foretrain {
namespace {

/// Parts of both kinds: layouts, parameters, kernels. Tensor ranks hold whole tokens: heads and the
/// table are cut, and sums over them reduced.
class MemoryWriter {
 public:
  MemoryWriter(ProgramBuilder& builder, const Model& model, const Plan& plan,
               const LayerLayouts& layouts, const char* name)
      : x_builder(builder),
        x_model(model),
        x_plan(plan),
        x_layouts(layouts),
        x_name(name),
        x_saved(x_name + " saved", kSaved),
        x_forward(x_name + " forward", kLocal),
        x_backward(x_name + " backward", kLocal),
        x_type(plan.precision.compute),
        x_tokens(plan.tokens()),
        x_dropout(dropout_of(model, plan)) {}

 protected:
  Ref weight(const std::string& name) const {
    return parameter_ref(x_layouts.parameters, name, kWeights, kShared);
  }
  Ref gradient(const std::string& name) const {
    return parameter_ref(x_layouts.parameter_gradients, name, kGradients, kSharedGradients);
  }
  NormRefs norm(const std::string& name) const {
    return {weight(name + ".weight"), weight(name + ".bias"), gradient(name + ".weight"),
            gradient(name + ".bias")};
  }
  Ref hidden(std::int16_t frame, std::int64_t tokens) const {
    return {frame, kHiddenBuffer, x_type, tokens * x_model.hidden};
  }
  Ref keep(const char* name, DType type, std::int64_t count) {
    return x_saved.add(name, BufferKind::kActivations, type, count, true);
  }
  Ref temporary(LayoutWriter& place, const std::string& name, std::int64_t count) const {
    return place.add(name, BufferKind::kActivations, x_type, count);
  }
  Kernel kernel(KernelKind kind, std::int64_t rows, std::int64_t cols) const {
    return kernel_of(kind, rows, cols, x_type);
  }
  Kernel dropout(KernelKind kind, std::int64_t tokens) const {
    Kernel out = kernel(kind, tokens, x_model.hidden);
    out.value = x_dropout.hidden;
    return out;
  }
  std::int64_t statistics(std::int64_t tokens) const { return tokens * norm_statistics(x_model); }
  bool cut() const { return x_plan.tensor > 1; }
  /// `part` becomes the sum over the tensor ranks, beside what compute does until it waits for it.
  EventRef summed(SegmentWriter& w, const std::string& name, const Ref& part) {
    const Collective sum{CollectiveKind::kAllReduce, x_builder.group(kTensorGroup), part.count,
                         x_type, false};
    return w.async_collective(name, sum, {part.view()}, {part.view()});
  }
  void norm_backward(SegmentWriter& w, const std::string& name, std::vector<View> reads,
                     const NormRefs& refs, const Ref& d_in, std::int64_t tokens) {
    std::vector<View> writes = {d_in.view()};
    add_gradients(x_plan, {refs.weight_gradient, refs.bias_gradient}, reads, writes);
    w.compute(name + ".gradient", norm_kernel(x_model, tokens, x_model.hidden, x_type, true),
              std::move(reads), std::move(writes));
  }

  LayerSegments finish(SegmentWriter& forward, SegmentWriter& backward,
                       const std::vector<LayoutId>& more) {
    auto out = closed_layouts<LayerSegments>(x_builder, x_saved, x_forward, x_backward);
    const auto add = [&](SegmentWriter& w, LayoutId local) {
      const LayerLayouts& l = x_layouts;
      std::vector<LayoutId>& frames = w.segment().frames;
      frames = l.frames(out.saved, local);
      frames.insert(frames.end(), more.begin(), more.end());
      frames.insert(frames.end(), l.owners.begin(), l.owners.end());
      return x_builder.segment(std::move(w.segment()));
    };
    out.forward = add(forward, out.local_forward);
    out.backward = add(backward, out.local_backward);
    return out;
  }

  ProgramBuilder& x_builder;
  const Model& x_model;
  const Plan& x_plan;
  const LayerLayouts& x_layouts;
  std::string x_name;
  LayoutWriter x_saved, x_forward, x_backward;
  DType x_type;
  std::int64_t x_tokens;
  DropoutRates x_dropout;
};

class CrossWriter : MemoryWriter {
 public:
  CrossWriter(ProgramBuilder& builder, const Model& model, const Plan& plan, std::int64_t source,
              const LayerLayouts& layouts, CrossForm form)
      : MemoryWriter(builder, model, plan, layouts, form.again ? "cross recomputed" : "cross"),
        x_source(source),
        x_form(form),
        x_query_width(model.query_width() / plan.tensor),
        x_key_width(2 * model.kv_width() / plan.tensor),
        x_norm(norm("cross.norm")) {}

  LayerSegments run(const MemoryLayouts& memory) {
    const std::string suffix = x_form.again ? " recomputed" : "";
    declare(x_form.again ? x_forward : x_saved, x_forward);
    if (x_form.again) declare(x_backward, x_backward);  // the same places as in x_forward
    SegmentWriter forward(x_builder, "cross-attention forward" + suffix, x_forward);
    forward.wait(EventRef{kInput, kReady});
    write_forward(forward);
    forward.record(EventRef{kOutput, kReady});
    SegmentWriter backward(x_builder, "cross-attention backward" + suffix, x_backward);
    backward.phase = Phase::kBackward;
    write_backward(backward);
    return finish(forward, backward, {memory.memory, memory.gradient});
  }

 private:
  Ref memory() const { return hidden(kMemory, x_source); }

  Attention core(bool backward) const {
    Attention out;
    out.backward = backward;
    out.batch = x_plan.micro_batch;
    out.q_heads = x_model.heads / x_plan.tensor;
    out.kv_heads = x_model.kv_heads / x_plan.tensor;
    out.q_len = x_plan.sequence_length;
    out.kv_len = x_source / x_plan.micro_batch;
    out.head_dim = x_model.head_dim;
    out.causal = false;
    out.dropout = x_dropout.attention;
    out.kernel = x_plan.attention;
    out.dtype = x_plan.precision.attention();
    out.plain = x_plan.stored_scores.plain_products;
    return out;
  }

  /// What the backward pass reads, in `place`; and what comes out of the projection.
  void declare(LayoutWriter& place, LayoutWriter& local) {
    const std::int64_t h = x_model.hidden;
    const auto keep = [&](const char* name, DType type, std::int64_t count) {
      return place.add(name, BufferKind::kActivations, type, count, &place == &x_saved);
    };
    x_y = keep("cross.norm out", x_type, x_tokens * h);
    x_stats = keep("cross.norm statistics", DType::kFp32, statistics(x_tokens));
    x_q = keep("cross queries", x_type, x_tokens * x_query_width);
    x_kv = keep("cross keys and values", x_type, x_source * x_key_width);
    x_context = keep("cross context", x_type, x_tokens * x_query_width);
    x_core.clear();
    if (x_plan.attention != AttentionKernel::kUnfused) {
      x_core.push_back(keep("cross log-sum-exp", DType::kFp32, x_tokens * core(false).q_heads));
    } else {
      const std::int64_t square = x_tokens * core(false).q_heads * (x_source / x_plan.micro_batch);
      x_core.push_back(keep("cross probabilities", x_type, square));
      if (x_dropout.attention > 0) {
        x_core.push_back(keep("cross attention mask", DType::kUint8, square));
        x_core.push_back(keep("cross dropped probabilities", x_type, square));
      }
    }
    if (x_dropout.hidden > 0) x_mask = keep("cross dropout mask", DType::kUint8, x_tokens * h);
    x_projected = temporary(local, "cross out", x_tokens * h);
  }

  void linear(SegmentWriter& w, const std::string& name, std::int64_t rows, std::int64_t out,
              std::int64_t in, const Ref& x, const Ref& y, bool with_bias) {
    std::vector<View> reads = {x.view(), weight(name + ".weight").view()};
    if (const Ref bias = weight(name + ".bias"); with_bias && bias.valid()) {
      reads.push_back(bias.view());
    }
    w.compute(name, forward_gemm(x_plan, rows, out, in), std::move(reads), {y.view()});
  }

  /// Both gradients of a linear, and that of its bias. Where tensor ranks cut its rows (`reduced`)
  /// the gradients of its input are summed beside the weight's.
  void linear_backward(SegmentWriter& w, const std::string& name, std::int64_t rows,
                       std::int64_t out, std::int64_t in, const Ref& d, const Ref& x,
                       const Ref& d_x, bool reduced) {
    if (const Ref bias = gradient(name + ".bias"); bias.valid()) {
      std::vector<View> reads = {d.view()};
      std::vector<View> writes;
      add_gradients(x_plan, {bias}, reads, writes);
      w.compute(name + ".bias_gradient", kernel(KernelKind::kBiasGrad, rows, out), std::move(reads),
                std::move(writes));
    }
    w.compute(name + ".input_gradient", input_gradient_gemm(x_plan, rows, out, in),
              {d.view(), weight(name + ".weight").view()}, {d_x.view()});
    EventRef sum;
    if (reduced && cut()) sum = summed(w, name + ".reduce", d_x);
    if (sum.valid() && !x_plan.overlap.tensor_backward) w.wait(sum);
    write_weight_gradient(w, x_plan, name, weight_gradient_gemm(x_plan, rows, out, in), d, x,
                          gradient(name + ".weight"));
    if (sum.valid() && x_plan.overlap.tensor_backward) w.wait(sum);
  }

  void write_forward(SegmentWriter& w) {
    const std::int64_t h = x_model.hidden;
    const Ref in = hidden(kInput, x_tokens);
    w.compute("cross.norm", norm_kernel(x_model, x_tokens, h, x_type, false),
              norm_reads(in, x_norm), {x_y.view(), x_stats.view()});
    linear(w, "cross.q", x_tokens, x_query_width, h, x_y, x_q, true);
    linear(w, "cross.kv", x_source, x_key_width, h, memory(), x_kv, true);
    std::vector<View> writes = {x_context.view()};
    for (const Ref& ref : x_core) writes.push_back(ref.view());
    w.compute("cross.core", core(false), {x_q.view(), x_kv.view()}, std::move(writes));
    linear(w, "cross.projection", x_tokens, h, x_query_width, x_context, x_projected, false);
    if (cut()) w.wait(summed(w, "cross.reduce", x_projected));
    std::vector<View> reads = {in.view(), x_projected.view()};
    if (const Ref bias = weight("cross.projection.bias"); bias.valid()) {
      reads.push_back(bias.view());
    }
    std::vector<View> out = {hidden(kOutput, x_tokens).view()};
    if (x_mask.valid()) out.push_back(x_mask.view());
    w.compute("cross.residual", dropout(KernelKind::kResidualAdd, x_tokens), std::move(reads),
              std::move(out));
  }

  /// All of the forward pass, into places of the backward one; its output into a frame of its own.
  void write_again(SegmentWriter& w) {
    w.phase = Phase::kRecompute;
    w.pause("checkpoint.state", x_plan.checkpoint_time);
    write_forward(w);
    w.phase = Phase::kBackward;
  }

  void write_backward(SegmentWriter& w) {
    const std::int64_t h = x_model.hidden;
    const Ref d_out = hidden(kOutputGradient, x_tokens);
    const auto local = [this](const char* name, std::int64_t count) {
      return temporary(x_backward, name, count);
    };
    w.wait(EventRef{kOutputGradient, kReady});
    if (x_form.again) write_again(w);
    Ref d = d_out;
    if (x_mask.valid()) {
      d = local("d cross dropout", d_out.count);
      w.compute("cross.dropout_gradient", dropout(KernelKind::kResidualAddBackward, x_tokens),
                {d_out.view(), x_mask.view()}, {d.view()});
    }
    const Ref d_context = local("d cross context", x_tokens * x_query_width);
    linear_backward(w, "cross.projection", x_tokens, h, x_query_width, d, x_context, d_context,
                    false);
    const Ref d_q = local("d cross queries", x_tokens * x_query_width);
    const Ref d_kv = local("d cross keys and values", x_source * x_key_width);
    std::vector<View> reads = {d_context.view(), x_q.view(), x_kv.view(), x_context.view()};
    for (const Ref& ref : x_core) reads.push_back(ref.view());
    w.compute("cross.core_gradient", core(true), std::move(reads), {d_q.view(), d_kv.view()});
    const Ref d_y = local("d cross.norm out", x_tokens * h);
    linear_backward(w, "cross.q", x_tokens, x_query_width, h, d_q, x_y, d_y, true);
    const Ref sum = hidden(kMemoryGradient, x_source);
    const Ref d_memory = x_form.first ? sum : local("d cross memory", x_source * h);
    linear_backward(w, "cross.kv", x_source, x_key_width, h, d_kv, memory(), d_memory, true);
    if (!x_form.first) {
      w.compute("cross.memory.d_sum", kernel(KernelKind::kAdd, x_source, h),
                {sum.view(), d_memory.view()}, {sum.view()});
    }
    norm_backward(w, "cross.norm",
                  {d_y.view(), hidden(kInput, x_tokens).view(), x_stats.view(),
                   x_norm.weight.view(), d_out.view()},
                  x_norm, hidden(kInputGradient, x_tokens), x_tokens);
    w.record(EventRef{kInputGradient, kReady});
  }

  std::int64_t x_source;
  CrossForm x_form;
  std::int64_t x_query_width, x_key_width;
  NormRefs x_norm;
  Ref x_y, x_stats, x_q, x_kv, x_context, x_mask, x_projected;
  std::vector<Ref> x_core;
};

class TurnWriter : MemoryWriter {
 public:
  TurnWriter(ProgramBuilder& builder, const Model& model, const Plan& plan,
             const LayerLayouts& layouts, const EndLayouts& embedding)
      : MemoryWriter(builder, model, plan, layouts, "turn"),
        x_embedding(embedding),
        x_targets(plan.micro_batch * plan.target()),
        x_norm(norm("encoder.norm")) {}

  LayerSegments run(const MemoryLayouts& memory) {
    SegmentWriter forward(x_builder, "turn forward", x_forward);
    write_forward(forward);
    SegmentWriter backward(x_builder, "turn backward", x_backward);
    backward.phase = Phase::kBackward;
    write_backward(backward);
    std::vector<LayoutId> more = {memory.memory, memory.gradient, x_embedding.inputs,
                                  x_embedding.weights, x_embedding.gradients};
    more.insert(more.end(), x_embedding.owners.begin(), x_embedding.owners.end());
    return finish(forward, backward, more);
  }

 private:
  Ref tokens() const { return {kTurnInputs, kTargets, DType::kInt64, x_targets}; }
  /// Of the rank's part of the vocabulary.
  Kernel table_kernel(KernelKind kind) const {
    Kernel out = kernel(kind, x_targets, x_model.hidden);
    if (cut()) out.split_over = x_builder.group(kTensorGroup);
    return out;
  }

  void write_forward(SegmentWriter& w) {
    const std::int64_t h = x_model.hidden;
    x_stats = keep("encoder.norm statistics", DType::kFp32, statistics(x_tokens));
    w.wait(EventRef{kInput, kReady});
    w.compute("encoder.norm", norm_kernel(x_model, x_tokens, h, x_type, false),
              norm_reads(hidden(kInput, x_tokens), x_norm),
              {hidden(kMemory, x_tokens).view(), x_stats.view()});
    const Ref table = parameter_ref(x_embedding.parameters, "embedding.tokens", kTurnTable, -1);
    const Ref out = hidden(kOutput, x_targets);
    const bool drops = x_dropout.hidden > 0;
    const Ref looked_up = drops ? temporary(x_forward, "embedded targets", out.count) : out;
    w.compute("embedding.targets", table_kernel(KernelKind::kEmbedding),
              {table.view(), tokens().view()}, {looked_up.view()});
    if (cut()) {
      const EventRef sum = summed(w, "embedding.targets.reduce", looked_up);
      if (drops) w.wait(sum);
      if (!drops) w.segment().ops.back().records = EventRef{kOutput, kReady};
    }
    if (drops) {
      x_mask = keep("targets dropout mask", DType::kUint8, out.count);
      w.compute("embedding.targets.dropout", dropout(KernelKind::kDropout, x_targets),
                {looked_up.view()}, {out.view(), x_mask.view()});
    }
    if (drops || !cut()) w.record(EventRef{kOutput, kReady});
  }

  void write_backward(SegmentWriter& w) {
    const std::int64_t h = x_model.hidden;
    Ref d = hidden(kOutputGradient, x_targets);
    w.wait(EventRef{kOutputGradient, kReady});
    if (x_mask.valid()) {
      const Ref d_in = temporary(x_backward, "d embedded targets", d.count);
      w.compute("embedding.targets.dropout_gradient",
                dropout(KernelKind::kResidualAddBackward, x_targets), {d.view(), x_mask.view()},
                {d_in.view()});
      d = d_in;
    }
    const Ref table =
        parameter_ref(x_embedding.parameter_gradients, "embedding.tokens", kTurnTableGradient, -1);
    const Kernel scatter = table_kernel(KernelKind::kEmbeddingBackward);
    if (x_plan.writes_fresh()) clear_fresh(w, table);
    if (x_plan.writes_fresh() || x_plan.fused_accumulation) {
      w.compute("embedding.targets.gradient", scatter, {d.view(), tokens().view()}, {table.view()});
    } else {  // a whole table of its own, as autograd makes it, then added
      const Ref part = temporary(x_backward, "d table of targets", table.count);
      w.compute("embedding.targets.zero", kernel(KernelKind::kFill, 1, table.count), {},
                {part.view()});
      w.compute("embedding.targets.gradient", scatter, {d.view(), tokens().view()}, {part.view()});
      w.compute("embedding.targets.accumulate", kernel(KernelKind::kAdd, table.count / h, h),
                {table.view(), part.view()}, {table.view()});
    }
    norm_backward(w, "encoder.norm",
                  {hidden(kMemoryGradient, x_tokens).view(), hidden(kInput, x_tokens).view(),
                   x_stats.view(), x_norm.weight.view()},
                  x_norm, hidden(kInputGradient, x_tokens), x_tokens);
    w.record(EventRef{kInputGradient, kReady});
  }

  /// What nothing has written before it is added to: the table unless the head has, and biases of
  /// positions, whose gradients are left out.
  void clear_fresh(SegmentWriter& w, const Ref& table) {
    const auto clear = [&](const std::string& name, const Ref& ref) {
      if (!ref.valid()) return;
      Kernel fill = kernel(KernelKind::kFill, 1, ref.count);
      fill.dtype = ref.dtype;
      w.compute(name + ".zero", fill, {}, {ref.view()});
    };
    if (!x_model.tied_embeddings) clear("embedding.tokens", table);
    for (const char* name : {"encoder.relative_positions", "decoder.relative_positions"}) {
      clear(name, gradient(name));
    }
  }

  const EndLayouts& x_embedding;
  std::int64_t x_targets;
  NormRefs x_norm;
  Ref x_stats, x_mask;
};

}  // namespace

Plan decoder_plan(const Plan& plan) {
  Plan out = plan;
  out.sequence_length = plan.target();
  return out;
}

Model stack_model(const Model& model, bool encoder) {
  Model out = model;
  out.bidirectional = encoder;
  return out;
}

LayerSegments write_cross(ProgramBuilder& builder, const Model& model, const Plan& plan,
                          std::int64_t source, const LayerLayouts& layouts,
                          const MemoryLayouts& memory, CrossForm form) {
  return CrossWriter(builder, model, plan, source, layouts, form).run(memory);
}

LayerSegments write_turn(ProgramBuilder& builder, const Model& model, const Plan& plan,
                         const LayerLayouts& layouts, const MemoryLayouts& memory,
                         const EndLayouts& embedding) {
  return TurnWriter(builder, model, plan, layouts, embedding).run(memory);
}

}  // namespace foretrain
