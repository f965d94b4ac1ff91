#include "models/layers/co_shard.h"
#include "models/layers/layer_ops.h"

namespace foretrain {
namespace {

class LayerWriter : LayerOps {
 public:
  LayerWriter(ProgramBuilder& builder, const Model& model, const Plan& plan,
              const LayerLayouts& layouts, bool recompute)
      : LayerOps(builder, model, plan, layouts, recompute) {}

  LayerSegments run() {
    x_b = declare(x_saved, x_forward);
    LayoutWriter again("", kSaved);
    declare(again, x_backward);  // the same places as in x_forward
    if (x_mixers.before) x_b.input_gradient = scratch("d block sum", flat());
    x_quantizer.declare_weights(x_forward, x_backward);
    if (x_plan.overlap.tensor_slices > 1) return run_slices();
    SegmentWriter forward(x_builder, "layer forward" + x_name_suffix, x_forward);
    blocks_write_to(x_forward);
    write_forward(forward);
    SegmentWriter again_forward(x_builder, "layer again" + x_name_suffix, x_forward);
    SegmentWriter last_again(x_builder, "layer again at the end" + x_name_suffix, x_forward);
    const bool blocks = x_plan.recompute.in_blocks();
    const bool stops = blocks && x_plan.recompute.early_stop;
    if (blocks) write_again_as_forward(again_forward);
    if (stops) {
      x_again.early_stop = true;
      write_again_as_forward(last_again);
      x_again.early_stop = false;
    }
    SegmentWriter backward(x_builder, "layer backward" + x_name_suffix, x_backward);
    blocks_write_to(x_backward);
    SegmentWriter of_weights(x_builder, "layer weights" + x_name_suffix, x_backward);
    std::int16_t done = -1;
    if (x_plan.splits_backward()) {
      backward.weight_pass = &of_weights;
      of_weights.phase = Phase::kBackward;
      of_weights.wait(EventRef{kInputGradient, kReady});
    }
    write_backward(backward);
    if (backward.weight_pass != nullptr) {
      const EventRef last = x_backward.event("gradients of weights done");
      of_weights.record(last);
      done = last.event;
    }
    SegmentWriter weights(x_builder, "quantize weights" + x_name_suffix, x_forward);
    if (x_layouts.quantized.valid()) {
      blocks_write_to(x_forward);
      x_quantizer.quantize_weights(weights, true, true);
    }
    auto out = closed_layouts<LayerSegments>(x_builder, x_saved, x_forward, x_backward);
    out.forward = finish(forward, out.saved, out.local_forward);
    if (blocks) {
      out.again = finish(again_forward, out.saved, out.local_forward);
      out.again_last = stops ? finish(last_again, out.saved, out.local_forward) : out.again;
    }
    out.backward = finish(backward, out.saved, out.local_backward);
    out.done = done;
    if (done >= 0) out.weights = finish(of_weights, out.saved, out.local_backward);
    if (x_layouts.quantized.valid()) {
      out.quantize = finish(weights, out.saved, out.local_forward);
    }
    return out;
  }

 private:
  /// A pair of segments for each part of the microbatch's sequences, on the same frames: each works
  /// on its rows of every activation.
  LayerSegments run_slices() {
    const std::int64_t slices = x_plan.overlap.tensor_slices;
    const Buffers whole = x_b;
    x_tokens /= slices;
    x_rows /= slices;
    std::vector<SegmentWriter> forward;
    std::vector<SegmentWriter> backward;
    for (x_slice = 0; x_slice < slices; ++x_slice) {
      x_b = rows_of(whole, x_slice, slices);
      const std::string name = x_name_suffix + " slice " + std::to_string(x_slice);
      forward.emplace_back(x_builder, "layer forward" + name, x_forward);
      blocks_write_to(x_forward);
      write_forward(forward.back());
      backward.emplace_back(x_builder, "layer backward" + name, x_backward);
      blocks_write_to(x_backward);
      write_backward(backward.back());
    }
    auto out = closed_layouts<LayerSegments>(x_builder, x_saved, x_forward, x_backward);
    for (SegmentWriter& w : forward) {
      out.forward_slices.push_back(finish(w, out.saved, out.local_forward));
    }
    for (SegmentWriter& w : backward) {
      out.backward_slices.push_back(finish(w, out.saved, out.local_backward));
    }
    return out;
  }

  /// Waits for what the pass begins with. Slices follow other ops of compute that wrote it; what
  /// else the first layer of a chunk waits for is the calls' matter.
  void begin(SegmentWriter& w, EventRef input) const {
    if (x_plan.overlap.tensor_slices == 1) w.wait(input);
  }
  /// The last slice's end is that of all.
  void end(SegmentWriter& w, EventRef output) const {
    if (x_slice + 1 >= x_plan.overlap.tensor_slices) w.record(output);
  }

  // --- Forward ---
  void write_again_as_forward(SegmentWriter& w) {
    w.phase = Phase::kRecompute;
    write_forward(w);
  }

  void write_forward(SegmentWriter& w) {
    begin(w, EventRef{kInput, kReady});
    if (x_quantizer.by_pass()) x_quantizer.quantize_weights(w, true, false);
    x_gathered = false;
    if (x_mixers.before) x_mixers.before->forward(w);
    if (x_layouts.kind.mixes()) {
      mixer_norm(w);
      forward_heads(w);
      forward_core(w);
      if (x_layouts.kind.feeds() || !stops_early(w)) attention_output(w);
    }
    if (x_layouts.kind.feeds()) {
      mlp_norm(w);
      forward_branch(w);
      if (!stops_early(w)) last_residual(w);
    }
    end(w, EventRef{kOutput, kReady});
  }

  void mixer_norm(SegmentWriter& w) {
    const std::string name = mixer_names(x_layouts.kind).norm;
    forward_norm(w, name.c_str(), x_norm1, x_b.input, x_b.y1, x_b.stats1);
    x_quantizer.quantize(w, name + ".quantize", x_b.y1, x_rows, x_b.y1_x);
  }

  void mlp_norm(SegmentWriter& w) {
    if (x_model.shared_norm) return;
    forward_norm(w, "mlp.norm", x_norm2, x_b.x2, x_b.y2, x_b.stats2);
    quantize_mlp_input(w);
  }

  void last_residual(SegmentWriter& w) {
    if (!x_model.parallel_residual) {
      const Ref branch = norm_after(w, "mlp", x_norm2, x_b.down);
      return residual(w, "mlp.residual", x_b.x2, branch, x_down.bias, x_b.mask2, x_b.output);
    }
    if (!joins()) {
      w.compute("mlp.residual.branches", kernel(KernelKind::kAdd, x_rows, x_hidden),
                {x_b.attention_out.view(), x_b.down.view()}, {x_b.down.view()});
    }
    residual_of_both(w);
  }

  /// What the backward pass needs and forward did not keep, in the order of forward.
  void write_again(SegmentWriter& w) {
    const Recompute& again = x_again;
    if (!again.any()) return;
    w.phase = Phase::kRecompute;
    x_gathered = false;
    if (x_slice == 0) w.pause("checkpoint.state", x_plan.checkpoint_time);
    if (x_mixers.before && again.layer) x_mixers.before->forward(w);
    if (x_layouts.kind.mixes()) attention_again(w);
    if (x_layouts.kind.feeds()) branch_again(w);
    w.phase = Phase::kBackward;
  }

  void attention_again(SegmentWriter& w) {
    const Recompute& again = x_again;
    const bool whole = again.layer;
    if (whole || again.norm) mixer_norm(w);
    if (repeats_heads()) {
      forward_heads(w);
    } else if (again.latent_up) {
      widen_again(w);
    }
    if (repeats_core() || again.attention) forward_core(w);
    if (again.keep_core && !again.keep_projection) {  // the way out reads it by rows
      x_quantizer.quantize(w, "attention.projection.quantize", x_mixers.mixed(x_b.context),
                           x_tokens, x_b.context_x.in, Ref{});
    }
    if (whole && (x_layouts.kind.feeds() || !stops_early(w))) attention_output(w);
  }

  void branch_again(SegmentWriter& w) {
    const Recompute& again = x_again;
    const bool whole = again.layer;
    if (whole || again.norm) {
      mlp_norm(w);
    } else if (starts_branch()) {
      quantize_mlp_input(w);
    }
    if (again.operations) {
      forward_up(w);
      // Eager PyTorch keeps what the policy saves whether it is read or not.
      const bool kept = keeps_products() && x_plan.fusion == Fusion::kEager;
      if (kept) w.segment().ops.back().reads.push_back(x_b.down_part.part(0, 0));
    } else if (whole || again.mlp || again.moe) {
      forward_branch(w);
      const bool draws = x_dropout.hidden > 0 && !x_model.parallel_residual;
      if (!stops_early(w) && (whole || draws)) last_residual(w);
    } else if (x_moe) {
      x_moe->again(w, x_b.y2, x_b.y2_x, x_b.down);
    } else if (again.activation) {
      forward_activation(w);
    }
  }

  /// Queries, keys and values from their narrow forms, or from the normed input.
  void widen_again(SegmentWriter& w) {
    if (!x_mixers.latent->narrow_queries() && !x_again.norm) {
      x_quantizer.quantize(w, "attention.norm.quantize", x_b.y1, x_rows, x_b.y1_x.in, Ref{});
    }
    x_mixers.latent->up(w, x_b.y1_x, x_b.qkv);
  }

  void attention_output(SegmentWriter& w) {
    if (joins()) return;  // with the MLP's
    if (w.phase == Phase::kForward || !keeps_projection()) {
      const bool kept = x_again.operations && w.phase == Phase::kRecompute;
      forward_row(w, mixer_names(x_layouts.kind).block, mixer_names(x_layouts.kind).out,
                  x_projection, kept ? x_b.context_x.kept : x_b.context_x.in, x_b.attention_part,
                  x_b.attention_out);
    }
    if (x_model.parallel_residual) return;
    const std::string name = mixer_names(x_layouts.kind).block + std::string(".residual");
    const Ref branch = norm_after(w, mixer_names(x_layouts.kind).block, x_norm1, x_b.attention_out);
    residual(w, name.c_str(), x_b.input, branch, x_projection.bias, x_b.mask1, x_b.x2);
  }

  void quantize_mlp_input(SegmentWriter& w) {
    if (x_moe && !x_moe->shares()) return;
    if (x_model.shared_norm) {  // by columns it is kept
      return x_quantizer.quantize(w, "mlp.norm.quantize", x_b.y2, x_rows, x_b.y2_x.in, Ref{});
    }
    x_quantizer.quantize(w, "mlp.norm.quantize", x_b.y2, x_rows, x_b.y2_x);
  }

  /// From the normed input to queries, keys and values.
  void forward_heads(SegmentWriter& w) {
    if (x_mixers.latent) return x_mixers.latent->forward(w, x_b.y1_x, x_b.qkv);
    forward_qkv(w);
  }

  /// The MLP or the experts, with their collectives.
  void forward_branch(SegmentWriter& w) {
    if (x_moe) return x_moe->forward(w, x_b.y2, x_b.y2_x, x_b.down);
    forward_up(w);
    if (stops_early(w)) return cast_ways_out(w);
    if (joins()) return forward_out(w);
    forward_row(w, "mlp", "mlp.down", x_down, x_b.act_x.in, x_b.down_part, x_b.down);
  }

  /// The products of both branches on the way out, added, and the reduction of their sum. The MLP
  /// computed again alone has its own to repeat, and so has a layer that keeps the other.
  void forward_out(SegmentWriter& w) {
    const bool again = w.phase == Phase::kRecompute;
    const bool both = !again || (x_again.layer && !x_again.keep_projection);
    if (both) {
      forward_linear(w, "attention.projection", x_projection, x_b.context_x.in, {x_b.down_part},
                     false);
    }
    if (!again || x_again.layer) {
      return forward_row(w, "mlp", "mlp.down", x_down, x_b.act_x.in, x_b.down_part, x_b.down, both);
    }
    forward_linear(w, "mlp.down", x_down, x_b.act_x.in, {x_b.down_part}, false);
  }

  /// Of linears whose products nothing needs again: their backward passes read the copies.
  void cast_ways_out(SegmentWriter& w) const {
    if (joins()) cast_weights(w, "attention.projection", x_projection);
    cast_weights(w, "mlp.down", x_down);
  }

  /// No backward pass reads the product on the way down and the residual stream after it, but for
  /// what dropout and 3d leave on the way.
  bool stops_early(const SegmentWriter& w) const {
    const Ref& last = x_layouts.kind.feeds() ? x_b.mask2 : x_b.mask1;
    const bool drawn = last.valid() || (x_b.mask.valid() && x_again.layer);
    const bool leaves = drawn || (x_grid && x_grid->keeps()) || x_model.norms.after;
    return x_again.early_stop && w.phase == Phase::kRecompute && !x_moe && !leaves;
  }

  void forward_qkv(SegmentWriter& w) {
    std::vector<Ref> raw = raw_heads();
    const MixerNames names = mixer_names(x_layouts.kind);
    cast_input(w, names.in, x_qkv, x_b.y1, x_b.y1_x.in, x_b.y1_more);
    if (keeps_products() && w.phase == Phase::kRecompute) {
      column_again(w, "attention", "attention.k", x_qkv, x_b.y1_x.in, x_b.y1_full, x_b.keys);
    } else {
      forward_column(w, names.block, names.in, x_qkv, x_b.y1_x.in, x_b.y1_full, raw, true);
    }
    x_gathered = true;
    forward_positions(w, std::move(raw));
  }

  void forward_up(SegmentWriter& w) {
    const Ref part = shares_input() && x_gathered ? Ref{} : x_b.y2_x.in;
    cast_input(w, "mlp.up", x_up, x_b.y2, x_b.y2_x.in, x_b.y2_more);
    if (keeps_products() && w.phase == Phase::kRecompute) {
      column_again(w, "mlp", "mlp.up", x_up, part, x_b.y2_full, x_b.up);
    } else if (!x_again.keep_up || w.phase == Phase::kForward) {
      forward_column(w, "mlp", "mlp.up", x_up, part, x_b.y2_full, raw_up(), x_model.gated());
    }
    forward_activation(w);
  }

  /// Forward GEMMs are among what is computed again.
  bool multiplies_again() const {
    const Recompute& r = x_again;
    return r.layer || r.mlp || r.moe || r.shared_experts || r.latent_up;
  }

  void write_backward(SegmentWriter& w) {
    w.phase = Phase::kBackward;
    begin(w, EventRef{kOutputGradient, kReady});
    if (x_quantizer.by_pass()) x_quantizer.quantize_weights(w, multiplies_again(), true);
    cast_again();
    write_again(w);
    const Ref d_out = x_b.output_gradient;
    Ref d_act;
    Ref d_up;
    if (x_layouts.kind.feeds() && !x_moe) {
      d_act = scratch("d activation", x_tokens * x_down.in);
      d_up = scratch("d up", x_tokens * x_up.out);
    }
    Ref d_x2 = x_layouts.kind.mixes() ? d_out : x_b.input_gradient;
    if (x_layouts.kind.mixes() && x_layouts.kind.feeds() && !x_model.shared_norm) {
      d_x2 = scratch("d attention residual", flat(), x_plan.precision.compute);
    }
    Ref d_context;
    Ref d_qkv;
    if (x_layouts.kind.mixes()) {
      d_context = scratch("d context", x_tokens * x_projection.in);
      d_qkv = scratch("d qkv", x_tokens * x_qkv_width);
    }
    const Ref d_both = x_model.parallel_residual ? dropped(w, "branches", d_out, x_b.mask) : d_out;
    if (joins()) backward_out(w, d_both, d_act, d_context);
    Ref d_y2;
    if (x_layouts.kind.feeds()) {
      Ref d_stream = d_out;
      d_y2 = backward_branch(w, d_both, d_act, d_up, d_stream);
      if (!x_model.shared_norm) {
        backward_norm(w, "mlp.norm", x_norm2, x_b.x2, x_b.stats2, d_y2, d_stream, d_x2);
      }
    }
    // With parallel branches the attention branch sees the gradient of the output itself.
    if (x_layouts.kind.mixes()) {
      const Ref& d = x_model.parallel_residual ? d_both : d_x2;
      backward_mixer(w, {d, d_x2, d_y2, d_context, d_qkv});
    }
    if (x_mixers.before) x_mixers.before->backward(w, x_b.input_gradient);
    end(w, EventRef{kInputGradient, kReady});
  }

  /// Gradients around the mixer: of its branch's output, of the stream that it adds to, of what the
  /// feed-forward reads, of what the linear back reads, of what the linear in gives.
  struct MixerGradients {
    Ref out, stream, y2, context, qkv;
  };

  void backward_mixer(SegmentWriter& w, const MixerGradients& d) {
    const MixerNames names = mixer_names(x_layouts.kind);
    if (!joins()) {
      const Ref d_out = norm_after_gradient(w, names.block, x_norm1, x_b.attention_out, d.out);
      backward_row(w, names.out, x_projection, d_out, x_b.mask1, x_b.context_x.kept, d.context);
    }
    const Ref d_qkv = backward_core(w, d.context, d.qkv);
    if (x_mixers.index) {
      x_mixers.index->backward(w, x_b.y1, x_mixers.latent->query_input(x_b.y1));
    }
    Ref d_y1;
    if (shares_input()) {  // the feed-forward's gradient is added to
      d_y1 =
          backward_column(w, names.in, x_qkv, d_qkv, x_b.y1_x.kept, x_b.y1_full, Turn::kLast, d.y2);
    } else {
      d_y1 = x_mixers.latent ? x_mixers.latent->backward(w, x_b.y1_x, d_qkv)
                             : backward_column(w, names.in, x_qkv, d_qkv, x_b.y1_x.kept,
                                               x_b.y1_full, Turn::kAlone);
      if (x_model.shared_norm) {
        w.compute("attention.norm.d_sum", kernel(KernelKind::kAdd, x_rows, x_hidden),
                  {d_y1.view(), d.y2.view()}, {d_y1.view()});
      }
      d_y1 = cast_input_gradient(w, names.in, x_qkv, d_y1, x_b.y1_more);
    }
    backward_norm(w, names.norm, x_norm1, x_b.input, x_b.stats1, d_y1, d.stream,
                  x_b.input_gradient);
  }

  /// The ways out of both branches have the same gradient, which is gathered once.
  void backward_out(SegmentWriter& w, const Ref& d, const Ref& d_act, const Ref& d_context) {
    const std::string attention = "attention.projection";
    bias_gradient(w, "mlp.down", x_down, d, x_rows);
    bias_gradient(w, attention, x_projection, d, x_rows);
    const Quantizer::Copies all = row_input_gradient(w, "mlp.down", x_down, d, d_act);
    weight_gradient(w, "mlp.down", x_down, all.columns, x_b.act_x.kept);
    product(w, attention + ".input_gradient", x_projection,
            input_gradient_gemm(x_plan, x_tokens, x_projection.out, x_projection.in), all.rows,
            x_quantizer.by_columns(x_projection.weight), d_context, false);
    weight_gradient(w, attention, x_projection, all.columns, x_b.context_x.kept);
  }

  /// From the gradient of the residual stream to that of the branch's normed input; an MLP beside
  /// experts adds to that of the stream before the norm.
  Ref backward_branch(SegmentWriter& w, const Ref& d_out, const Ref& d_act, const Ref& d_up,
                      Ref& d_stream) {
    const Ref d = norm_after_gradient(w, "mlp", x_norm2, x_b.down, d_out);
    if (x_moe) {
      return x_moe->backward(w, x_b.y2, x_b.y2_x, dropped(w, "moe", d, x_b.mask2), d_stream);
    }
    if (!joins()) backward_row(w, "mlp.down", x_down, d, x_b.mask2, x_b.act_x.kept, d_act);
    backward_activation(w, d_act, d_up);
    const Ref d_y2 = backward_column(w, "mlp.up", x_up, d_up, x_b.y2_x.kept, x_b.y2_full,
                                     shares_input() ? Turn::kFirst : Turn::kAlone);
    return cast_input_gradient(w, "mlp.up", x_up, d_y2, x_b.y2_more);
  }

  /// A row-parallel linear followed by dropout: `d_out` is the gradient of the residual stream.
  void backward_row(SegmentWriter& w, const std::string& name, const Linear& l, const Ref& d_out,
                    const Ref& mask, const Ref& in, const Ref& d_in) {
    Ref d = dropped(w, name, d_out, mask);
    bias_gradient(w, name, l, d, x_rows);
    if (x_grid) {
      return x_grid->backward(w, name, l.of_grid(), d, in, x_b.kept.at(l.number), d_in);
    }
    weight_gradient(w, name, l, row_input_gradient(w, name, l, d, d_in).columns, in);
  }

  /// Of two linears that multiply the same rows the first gathers them, the last adds its gradient
  /// to what the first gave and reduces the sum.
  enum class Turn : std::uint8_t { kAlone, kFirst, kLast };

  /// A column-parallel linear: its input is gathered and its input gradient reduced over the group.
  /// The first of two returns the gradient before the reduction, which the last takes as `sum`.
  Ref backward_column(SegmentWriter& w, const std::string& name, const Linear& l, const Ref& d,
                      const Ref& in, const Ref& in_full, Turn turn, const Ref& sum = {}) {
    const bool async = x_plan.backward_overlaps();
    const bool scatters = x_plan.sequence && turn != Turn::kFirst;
    Ref d_in = scatters ? scratch(name + " d input", flat()) : sum;
    Ref d_full = sum;
    if (turn != Turn::kLast) {
      d_full = x_plan.sequence ? scratch(name + " d input full", x_tokens * x_model.hidden)
                               : scratch(name + " d input", flat());
    }
    if (!scatters) d_in = d_full;
    bias_gradient(w, name, l, d, x_tokens);
    if (x_grid) {
      x_grid->backward(w, name, l.of_grid(), d, in, x_b.kept.at(l.number), d_in);
      return d_in;
    }
    const Quantizer::Copies copies = x_quantizer.gradient(w, name, l.weight, d, x_tokens);
    EventRef gathered;
    SegmentWriter& later = w.of_weights();
    if (x_plan.sequence && turn != Turn::kLast) {
      gathered = later.async_collective(name + ".gather", x_quantizer.gather_of(in_full),
                                        {in.view()}, {in_full.view()});
      if (!async) later.wait(gathered);
    }
    product(w, name + ".input_gradient", l, input_gradient_gemm(x_plan, x_tokens, l.out, l.in),
            copies.rows, x_quantizer.by_columns(l.weight), d_full, turn == Turn::kLast);
    EventRef reduced;
    if (x_plan.tensor > 1 && !x_plan.in_grid() && turn != Turn::kFirst) {
      reduced = w.async_collective(name + ".reduce", reduction_of(d_full), {d_full.view()},
                                   {d_in.view()});
      if (!async) w.wait(reduced);
    }
    if (async && gathered.valid()) later.wait(gathered);
    weight_gradient(w, name, l, copies.columns, x_plan.sequence ? in_full : in);
    if (async && reduced.valid()) w.wait(reduced);
    return d_in;
  }

  bool x_gathered = false;  ///< of the pass: the normed input of attention is, of all rows
};

}  // namespace

LayerSegments write_layer(ProgramBuilder& builder, const Model& model, const Plan& plan,
                          const LayerLayouts& layouts, bool recompute) {
  if (plan.recompute.parts > 1) return write_co_shard(builder, model, plan, layouts);
  const Model own = model.of(layouts.kind);
  return LayerWriter(builder, own, plan, layouts, recompute).run();
}

}  // namespace foretrain
