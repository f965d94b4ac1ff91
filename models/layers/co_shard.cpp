// Parts of a layer that one device computes one after the other (co-shard: Lin et al., nnScaler,
// OSDI 2024).
//
// The heads and the MLP's width are cut as tensor parallelism cuts them, into n parts, but all
// parts stand on one rank: what tensor ranks would reduce adds up in one buffer, and nothing
// travels. A part's queries, keys, values, core of attention and MLP's inner activations live while
// it is computed and are computed again in its backward pass, so that 1/n of them lives at any
// moment, and between the passes none:
//
//   forward   y1 | qkv 0, core 0, projection 0 | qkv 1, core 1, + projection 1 | x2, y2 | ...
//   backward  ... | qkv 0', core 0', d projection 0, d core 0, d qkv 0 | qkv 1', ... + d qkv 1
//
// (' again.) Kept are the normed inputs of both blocks and the streams before them; the module
// `layernorm` computes the former again as well, `layer` both, for which it repeats attention
// twice, unless the branches are parallel. What nothing reads, a part's product back to the
// residual stream, is not repeated.
//
// Forward FLOPs are the same, in GEMMs of 1/n of the width; the sums over parts are read and
// written by each of n GEMMs. Each part is a checkpoint of its own, with the host's time for one
// (`launch.checkpoint_us`). Left out: kernels of their own for the sums (PyTorch's), parts in some
// layers only.
#include "models/layers/co_shard.h"

#include <array>
#include <string>

#include "models/layers/layer_ops.h"

namespace foretrain {
namespace {

class CoShardWriter : LayerOps {
 public:
  CoShardWriter(ProgramBuilder& builder, const Model& model, const Plan& plan,
                const LayerLayouts& layouts)
      : LayerOps(builder, model, plan, layouts, true),
        x_whole{x_qkv, x_projection, x_up, x_down},
        x_parts(plan.recompute.parts) {}

  LayerSegments run() {
    x_b = declare(x_saved, x_forward);
    LayoutWriter again("", kSaved);
    declare(again, x_backward);  // the same places as in x_forward
    SegmentWriter forward(x_builder, "layer forward" + x_name_suffix, x_forward);
    blocks_write_to(x_forward);
    write_forward(forward);
    SegmentWriter backward(x_builder, "layer backward" + x_name_suffix, x_backward);
    blocks_write_to(x_backward);
    write_backward(backward);
    auto out = closed_layouts<LayerSegments>(x_builder, x_saved, x_forward, x_backward);
    out.forward = finish(forward, out.saved, out.local_forward);
    out.backward = finish(backward, out.saved, out.local_backward);
    return out;
  }

 private:
  /// A block of the layer: from its normed input through one linear, something between, and the
  /// linear back to the residual stream.
  struct Branch {
    const char *name, *in_name, *out_name;
    const Linear &in, &out;  ///< of the part
    Ref input, full;         ///< the rank's rows, all of them
    Ref inner;               ///< what the linear back reads, of the part
    Ref partial, sum;        ///< its product, summed over parts; over tensor ranks too
    bool adds, reduces;      ///< to the other branch's product; the sum over tensor ranks
    void (CoShardWriter::*up)(SegmentWriter&);  ///< from the input to `inner`
    /// From the gradient of `inner` to that of the first linear's output.
    void (CoShardWriter::*down)(SegmentWriter&, const Ref&, const Ref&);
  };

  Branch attention() const {
    return {"attention",
            "attention.qkv",
            "attention.projection",
            x_qkv,
            x_projection,
            x_b.y1,
            x_b.y1_full,
            x_b.context,
            joins() ? x_b.down_part : x_b.attention_part,
            x_b.attention_out,
            false,
            !joins(),
            &CoShardWriter::heads_up,
            &CoShardWriter::heads_down};
  }
  Branch mlp() const {
    return {"mlp",
            "mlp.up",
            "mlp.down",
            x_up,
            x_down,
            x_b.y2,
            x_b.y2_full,
            x_b.act,
            x_b.down_part,
            x_b.down,
            joins(),
            true,
            &CoShardWriter::mlp_up,
            &CoShardWriter::backward_activation_of};
  }

  void heads_up(SegmentWriter& w) {
    const std::vector<Ref> raw = raw_heads();
    forward_linear(w, "attention.qkv", x_qkv, x_b.y1_full, raw, true);
    forward_positions(w, raw);
    forward_core(w);
  }
  void heads_down(SegmentWriter& w, const Ref& d_inner, const Ref& d_out) {
    backward_core(w, d_inner, d_out);
  }
  void mlp_up(SegmentWriter& w) {
    forward_linear(w, "mlp.up", x_up, x_b.y2_full, raw_up(), x_model.gated());
    forward_activation(w);
  }
  void backward_activation_of(SegmentWriter& w, const Ref& d_inner, const Ref& d_out) {
    backward_activation(w, d_inner, d_out);
  }

  /// The linears become those of part `part`. Biases of the linears back are added once, with the
  /// residual stream.
  void take_part(std::int64_t part) {
    x_part = part;
    const std::array<Linear*, 4> own = {&x_qkv, &x_projection, &x_up, &x_down};
    for (std::size_t i = 0; i < own.size(); ++i) {
      const Linear& whole = x_whole.at(i);
      Linear& l = *own.at(i);
      l.weight = whole.weight.slice(part, x_parts);
      l.weight_gradient = whole.weight_gradient.slice(part, x_parts);
      if (l.inner || !l.bias.valid()) continue;
      l.bias = whole.bias.slice(part, x_parts);
      l.bias_gradient = whole.bias_gradient.slice(part, x_parts);
    }
  }

  void forward_branch(SegmentWriter& w, const Branch& b) {
    if (!b.adds || !shares_input()) gather(w, b.name, b.input, b.full);
    for (std::int64_t i = 0; i < x_parts; ++i) {
      take_part(i);
      (this->*b.up)(w);
      product(w, b.out_name, b.out, forward_gemm(x_plan, x_tokens, b.out.out, b.out.in), b.inner,
              b.out.weight, b.partial, i > 0 || b.adds);
    }
    if (x_plan.tensor == 1 || !b.reduces) return;
    w.collective(std::string(b.name) + ".reduce", reduction_of(b.partial), {b.partial.view()},
                 {b.sum.view()});
  }

  void attention_forward(SegmentWriter& w) {
    attention_norm(w);
    forward_branch(w, attention());
    if (joins()) return;
    residual(w, "attention.residual", x_b.input, x_b.attention_out, x_projection.bias, x_b.mask1,
             x_b.x2);
  }
  void attention_norm(SegmentWriter& w) {
    forward_norm(w, "attention.norm", x_norm1, x_b.input, x_b.y1, x_b.stats1);
  }
  const Ref& mlp_stream() const { return joins() ? x_b.input : x_b.x2; }
  void mlp_norm(SegmentWriter& w) {
    if (x_model.shared_norm) return;
    forward_norm(w, "mlp.norm", x_norm2, mlp_stream(), x_b.y2, x_b.stats2);
  }

  void write_forward(SegmentWriter& w) {
    w.phase = Phase::kForward;
    w.wait(EventRef{kInput, kReady});
    attention_forward(w);
    mlp_norm(w);
    forward_branch(w, mlp());
    if (joins()) {
      residual_of_both(w);
    } else {
      residual(w, "mlp.residual", x_b.x2, x_b.down, x_down.bias, x_b.mask2, x_b.output);
    }
    w.record(EventRef{kOutput, kReady});
  }

  template <typename Repeat>
  void again(SegmentWriter& w, Repeat repeat) {
    w.phase = Phase::kRecompute;
    w.pause("checkpoint.state", x_plan.checkpoint_time);
    repeat();
    w.phase = Phase::kBackward;
  }

  void write_backward(SegmentWriter& w) {
    w.phase = Phase::kBackward;
    w.wait(EventRef{kOutputGradient, kReady});
    const bool norms = x_again.layer || x_again.norm;
    const bool repeats = x_again.layer && !joins();
    if (repeats) again(w, [&] { attention_forward(w); });
    if (norms) again(w, [&] { x_model.shared_norm ? attention_norm(w) : mlp_norm(w); });
    const Ref& d_out = x_b.output_gradient;
    const Ref d_x2 = x_model.shared_norm ? d_out : scratch("d attention residual", flat());
    const Gradient d_mlp = gradient_of(w, mlp(), d_out, joins() ? x_b.mask : x_b.mask2);
    const Ref d_y2 = backward_branch(w, mlp(), d_mlp);
    if (!x_model.shared_norm) {
      backward_norm(w, "mlp.norm", x_norm2, mlp_stream(), x_b.stats2, d_y2, d_out, d_x2);
      if (norms && !repeats) again(w, [&] { attention_norm(w); });
    }
    // With parallel branches the attention branch sees the gradient of the output itself.
    Gradient d_attention = joins() ? d_mlp : gradient_of(w, attention(), d_x2, x_b.mask1);
    if (shares_input()) d_attention.sum = d_y2;
    const Ref d_y1 = backward_branch(w, attention(), d_attention);
    backward_norm(w, "attention.norm", x_norm1, x_b.input, x_b.stats1, d_y1, d_x2,
                  x_b.input_gradient);
    w.record(EventRef{kInputGradient, kReady});
  }

  /// Of a branch's output: the rank's rows, all of them. And of its normed input, what the other
  /// branch gives, before the reduction.
  struct Gradient {
    Ref own, all, sum;
  };
  Gradient gradient_of(SegmentWriter& w, const Branch& b, const Ref& d_stream, const Ref& mask) {
    const Ref own = dropped(w, b.out_name, d_stream, mask);
    if (!x_plan.sequence) return {own, own, Ref{}};
    return {own, x_quantizer.gathered_gradient(w, b.out_name, own, x_rows).rows, Ref{}};
  }

  /// From the gradient of the branch's output to that of its normed input; before the reduction
  /// where the other branch will add to it.
  Ref backward_branch(SegmentWriter& w, const Branch& b, const Gradient& gradient) {
    const std::string in_name = b.in_name;
    const std::string out_name = b.out_name;
    const Ref& d = gradient.all;
    const bool last = gradient.sum.valid();
    const bool reduces = x_plan.tensor > 1 && (last || !shares_input());
    bias_gradient(w, out_name, b.out, gradient.own, x_rows);
    if (!last) gather(w, b.name, b.input, b.full);
    const Ref d_inner = scratch(out_name + " d input", x_tokens * b.out.in);
    const Ref d_in = scratch(in_name + " d output", x_tokens * b.in.out);
    const Ref d_sum =
        last ? gradient.sum : scratch(in_name + " d input", x_tokens * x_model.hidden);
    const bool scatters = reduces && x_plan.sequence;
    const Ref d_rows = scatters ? scratch(in_name + " d rows", flat()) : d_sum;
    EventRef reduced;
    for (std::int64_t i = 0; i < x_parts; ++i) {
      take_part(i);
      again(w, [&] { (this->*b.up)(w); });
      product(w, out_name + ".input_gradient", b.out,
              input_gradient_gemm(x_plan, x_tokens, b.out.out, b.out.in), d, b.out.weight, d_inner,
              false);
      weight_gradient(w, out_name, b.out, d, b.inner);
      (this->*b.down)(w, d_inner, d_in);
      bias_gradient(w, in_name, b.in, d_in, x_tokens);
      product(w, in_name + ".input_gradient", b.in,
              input_gradient_gemm(x_plan, x_tokens, b.in.out, b.in.in), d_in, b.in.weight, d_sum,
              last || i > 0);
      if (reduces && i + 1 == x_parts) {
        reduced = w.async_collective(in_name + ".reduce", reduction_of(d_sum), {d_sum.view()},
                                     {d_rows.view()});
        if (!x_plan.backward_overlaps()) w.wait(reduced);
      }
      weight_gradient(w, in_name, b.in, d_in, b.full);
    }
    if (reduced.valid() && x_plan.backward_overlaps()) w.wait(reduced);
    return d_rows;
  }

  std::array<Linear, 4> x_whole;  ///< of all parts
  std::int64_t x_parts;
};

}  // namespace

LayerSegments write_co_shard(ProgramBuilder& builder, const Model& model, const Plan& plan,
                             const LayerLayouts& layouts) {
  return CoShardWriter(builder, model, plan, layouts).run();
}

}  // namespace foretrain
