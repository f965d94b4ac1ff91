#include "models/co_shard.h"
#include "models/layer_ops.h"

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
    x_quantizer.declare_weights(x_forward, x_backward);
    if (x_plan.overlap.tensor_slices > 1) return run_slices();
    SegmentWriter forward(x_builder, "layer forward" + x_name_suffix, x_forward);
    blocks_write_to(x_forward);
    write_forward(forward);
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
  void write_forward(SegmentWriter& w) {
    w.phase = Phase::kForward;
    begin(w, EventRef{kInput, kReady});
    if (x_quantizer.by_pass()) x_quantizer.quantize_weights(w, true, false);
    forward_norm(w, "attention.norm", x_norm1, x_b.input, x_b.y1, x_b.stats1);
    x_quantizer.quantize(w, "attention.norm.quantize", x_b.y1, x_rows, x_b.y1_x);
    forward_heads(w);
    forward_core(w);
    attention_output(w);
    forward_norm(w, "mlp.norm", x_norm2, x_model.parallel_residual ? x_b.input : x_b.x2, x_b.y2,
                 x_b.stats2);
    quantize_mlp_input(w);
    forward_branch(w);
    residual(w, "mlp.residual", x_b.x2, x_b.down, x_down, x_b.mask2, x_b.output);
    end(w, EventRef{kOutput, kReady});
  }

  /// What the backward pass needs and forward did not keep, in the order of forward.
  void write_again(SegmentWriter& w) {
    const Recompute& again = x_again;
    if (!again.any()) return;
    w.phase = Phase::kRecompute;
    if (x_slice == 0) w.pause("checkpoint.state", x_plan.checkpoint_time);
    attention_again(w);
    branch_again(w);
    w.phase = Phase::kBackward;
  }

  void attention_again(SegmentWriter& w) {
    const Recompute& again = x_again;
    const bool whole = again.layer;
    if (whole || again.norm) {
      forward_norm(w, "attention.norm", x_norm1, x_b.input, x_b.y1, x_b.stats1);
      x_quantizer.quantize(w, "attention.norm.quantize", x_b.y1, x_rows, x_b.y1_x);
    }
    if (repeats_heads()) {
      forward_heads(w);
    } else if (again.latent_up) {
      widen_again(w);
    }
    if (repeats_core() || again.attention) forward_core(w);
    if (again.keep_core && !again.keep_projection) {  // the way out reads it by rows
      x_quantizer.quantize(w, "attention.projection.quantize", x_b.context, x_tokens,
                           x_b.context_x.in, Ref{});
    }
    if (whole) attention_output(w);
  }

  void branch_again(SegmentWriter& w) {
    const Recompute& again = x_again;
    const bool whole = again.layer;
    if (whole || again.norm) {
      forward_norm(w, "mlp.norm", x_norm2, x_model.parallel_residual ? x_b.input : x_b.x2, x_b.y2,
                   x_b.stats2);
      quantize_mlp_input(w);
    }
    const bool branch = again.mlp || again.moe || again.shared_experts;
    if (branch && !whole && !again.norm) quantize_mlp_input(w);
    if (again.operations) {
      forward_up(w);
      // Eager PyTorch keeps what the policy saves whether it is read or not.
      const bool kept = keeps_products() && x_plan.fusion == Fusion::kEager;
      if (kept) w.segment().ops.back().reads.push_back(x_b.down_part.part(0, 0));
    } else if (whole || again.mlp || again.moe) {
      forward_branch(w);
      if (!stops_early(w) && (whole || x_dropout.hidden > 0)) {
        residual(w, "mlp.residual", x_b.x2, x_b.down, x_down, x_b.mask2, x_b.output);
      }
    } else if (x_moe) {
      x_moe->again(w, x_b.y2, x_b.y2_x, x_b.down);
    } else if (again.activation) {
      forward_activation(w);
    }
  }

  /// Queries, keys and values from their narrow forms, or from the normed input.
  void widen_again(SegmentWriter& w) {
    if (!x_latent->narrow_queries() && !x_again.norm) {
      x_quantizer.quantize(w, "attention.norm.quantize", x_b.y1, x_rows, x_b.y1_x.in, Ref{});
    }
    x_latent->up(w, x_b.y1_x, x_b.qkv);
  }

  void attention_output(SegmentWriter& w) {
    if (w.phase == Phase::kForward || !keeps_projection()) {
      const bool kept = x_again.operations && w.phase == Phase::kRecompute;
      forward_row(w, "attention", "attention.projection", x_projection,
                  kept ? x_b.context_x.kept : x_b.context_x.in, x_b.attention_part,
                  x_b.attention_out);
    }
    residual(w, "attention.residual", x_b.input, x_b.attention_out, x_projection, x_b.mask1,
             x_b.x2);
  }

  void quantize_mlp_input(SegmentWriter& w) {
    if (x_moe && !x_moe->shares()) return;
    x_quantizer.quantize(w, "mlp.norm.quantize", x_b.y2, x_rows, x_b.y2_x);
  }

  /// From the normed input to queries, keys and values.
  void forward_heads(SegmentWriter& w) {
    if (x_latent) return x_latent->forward(w, x_b.y1_x, x_b.qkv);
    forward_qkv(w);
  }

  /// The MLP or the experts, with their collectives.
  void forward_branch(SegmentWriter& w) {
    if (x_moe) return x_moe->forward(w, x_b.y2, x_b.y2_x, x_b.down);
    forward_up(w);
    if (stops_early(w)) return;
    forward_row(w, "mlp", "mlp.down", x_down, x_b.act_x.in, x_b.down_part, x_b.down);
  }

  /// No backward pass reads the product on the way down and the residual stream after it, but for
  /// what dropout and 3d leave on the way.
  bool stops_early(const SegmentWriter& w) const {
    const bool leaves = x_b.mask2.valid() || (x_grid && x_grid->keeps());
    return x_again.early_stop && w.phase == Phase::kRecompute && !x_moe && !leaves;
  }

  void forward_qkv(SegmentWriter& w) {
    std::vector<Ref> raw = raw_heads();
    if (keeps_products() && w.phase == Phase::kRecompute) {
      column_again(w, "attention", "attention.k", x_qkv, x_b.y1_x.in, x_b.y1_full, x_b.keys);
    } else {
      forward_column(w, "attention", "attention.qkv", x_qkv, x_b.y1_x.in, x_b.y1_full, raw, true);
    }
    forward_positions(w, std::move(raw));
  }

  void forward_up(SegmentWriter& w) {
    if (keeps_products() && w.phase == Phase::kRecompute) {
      column_again(w, "mlp", "mlp.up", x_up, x_b.y2_x.in, x_b.y2_full, x_b.up);
    } else if (!x_again.keep_up || w.phase == Phase::kForward) {
      forward_column(w, "mlp", "mlp.up", x_up, x_b.y2_x.in, x_b.y2_full, raw_up(), x_model.gated());
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
    write_again(w);
    const Ref d_out = x_b.output_gradient;
    Ref d_act;
    Ref d_up;
    if (!x_moe) {
      d_act = scratch("d activation", x_tokens * x_down.in);
      d_up = scratch("d up", x_tokens * x_up.out);
    }
    const Ref d_x2 = scratch("d attention residual", flat());
    const Ref d_context = scratch("d context", x_tokens * x_projection.in);
    const Ref d_qkv = scratch("d qkv", x_tokens * x_qkv_width);
    const Ref d_y2 = backward_branch(w, d_out, d_act, d_up);
    const bool parallel = x_model.parallel_residual;
    backward_norm(w, "mlp.norm", x_norm2, parallel ? x_b.input : x_b.x2, x_b.stats2, d_y2, d_out,
                  d_x2);
    // With parallel branches the attention branch sees the gradient of the output itself.
    backward_row(w, "attention.projection", x_projection, parallel ? d_out : d_x2, x_b.mask1,
                 x_b.context_x.kept, d_context);
    backward_core(w, d_context, d_qkv);
    const Ref d_y1 =
        x_latent ? x_latent->backward(w, x_b.y1_x, d_qkv)
                 : backward_column(w, "attention.qkv", x_qkv, d_qkv, x_b.y1_x.kept, x_b.y1_full);
    backward_norm(w, "attention.norm", x_norm1, x_b.input, x_b.stats1, d_y1, d_x2,
                  x_b.input_gradient);
    end(w, EventRef{kInputGradient, kReady});
  }

  /// From the gradient of the residual stream to that of the branch's normed input.
  Ref backward_branch(SegmentWriter& w, const Ref& d_out, const Ref& d_act, const Ref& d_up) {
    if (x_moe) return x_moe->backward(w, x_b.y2, x_b.y2_x, dropped(w, "moe", d_out, x_b.mask2));
    backward_row(w, "mlp.down", x_down, d_out, x_b.mask2, x_b.act_x.kept, d_act);
    backward_activation(w, d_act, d_up);
    return backward_column(w, "mlp.up", x_up, d_up, x_b.y2_x.kept, x_b.y2_full);
  }

  /// A row-parallel linear followed by dropout: `d_out` is the gradient of the residual stream.
  void backward_row(SegmentWriter& w, const std::string& name, const Linear& l, const Ref& d_out,
                    const Ref& mask, const Ref& in, const Ref& d_in) {
    Ref d = dropped(w, name, d_out, mask);
    bias_gradient(w, name, l, d, x_rows);
    if (x_grid) {
      return x_grid->backward(w, name, l.of_grid(), d, in, x_b.kept.at(l.number), d_in);
    }
    weight_gradient(w, name, l, row_input_gradient(w, name, l, d, d_in), in);
  }

  /// A column-parallel linear: its input is gathered and its input gradient reduced over the group.
  Ref backward_column(SegmentWriter& w, const std::string& name, const Linear& l, const Ref& d,
                      const Ref& in, const Ref& in_full) {
    const bool async = x_plan.backward_overlaps();
    const Ref d_in = scratch((name + " d input").c_str(), flat());
    const Ref d_full = x_plan.sequence
                           ? scratch((name + " d input full").c_str(), x_tokens * x_model.hidden)
                           : d_in;
    bias_gradient(w, name, l, d, x_tokens);
    if (x_grid) {
      x_grid->backward(w, name, l.of_grid(), d, in, x_b.kept.at(l.number), d_in);
      return d_in;
    }
    const Quantizer::Copies copies = x_quantizer.gradient(w, name, l.weight, d, x_tokens);
    EventRef gathered;
    SegmentWriter& later = w.of_weights();
    if (x_plan.sequence) {
      gathered = later.async_collective(name + ".gather", x_quantizer.gather_of(in_full),
                                        {in.view()}, {in_full.view()});
      if (!async) later.wait(gathered);
    }
    w.compute(name + ".input_gradient",
              of_linear(l, input_gradient_gemm(x_plan, x_tokens, l.out, l.in), true),
              {copies.rows.view(), x_quantizer.by_columns(l.weight).view()}, {d_full.view()});
    EventRef reduced;
    if (x_plan.tensor > 1 && !x_plan.in_grid()) {
      reduced = w.async_collective(name + ".reduce", reduction_of(d_full), {d_full.view()},
                                   {d_in.view()});
      if (!async) w.wait(reduced);
    }
    if (async && gathered.valid()) later.wait(gathered);
    weight_gradient(w, name, l, copies.columns, x_plan.sequence ? in_full : in);
    if (async && reduced.valid()) w.wait(reduced);
    return d_in;
  }
};

}  // namespace

LayerSegments write_layer(ProgramBuilder& builder, const Model& model, const Plan& plan,
                          const LayerLayouts& layouts, bool recompute) {
  if (plan.recompute.parts > 1) return write_co_shard(builder, model, plan, layouts);
  return LayerWriter(builder, model, plan, layouts, recompute).run();
}

}  // namespace foretrain
