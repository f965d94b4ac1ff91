// What a layer is made of: its linears and norms on one rank, and its activations.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "models/layers/layer.h"
#include "models/layers/mixers/beside_core.h"
#include "models/layers/mixers/conv_block.h"
#include "models/layers/mixers/delta_block.h"
#include "models/layers/mixers/index_block.h"
#include "models/layers/mixers/latent_block.h"
#include "models/layers/mixers/mamba_block.h"
#include "models/layers/mixers/selective_block.h"
#include "models/layers/mixers/shared_block.h"
#include "models/layers/moe_block.h"
#include "models/layers/tensor_grid.h"

namespace foretrain {

/// A linear of the layer: its parameters, its size on this rank.
struct Linear {
  Ref weight, bias, weight_gradient, bias_gradient;
  std::int64_t out = 0, in = 0;
  ColumnCuts columns = {};    ///< as Gemm's
  std::int64_t matrices = 1;  ///< matrices of the weight
  bool inner = false;         ///< back to the residual stream
  /// Under autocast: the parameters that weight and bias are 16-bit copies of, and the copies that
  /// a pass makes which computes the layer again.
  Ref own_weight = {}, own_bias = {}, weight_again = {}, bias_again = {};
  std::size_t number = 0;  ///< among the linears of the layer
  /// Matrices that are linears of their own.
  std::size_t apart() const {
    return static_cast<std::size_t>(std::count_if(columns.parts.begin(), columns.parts.end(),
                                                  [](std::int64_t rows) { return rows > 0; }));
  }
  GridMatrix of_grid() const { return {weight, weight_gradient, out, in, matrices, inner, false}; }
};

/// Activations of one layer. Saved or local is decided by what is computed again.
struct Buffers {
  Ref input, output, output_gradient, input_gradient;
  Ref y1, stats1, y1_full, qkv_raw, qkv, context, row_stats, scores, score_mask, dropped;
  Ref narrow_scores;         ///< under autocast, without dropout
  Ref qkv_heads, out_heads;  ///< of own heads and all tokens, where context ranks exchange them
  /// With products kept every second time, what the linears give: kept, and computed again.
  Ref kept_heads, keys, gate;
  /// Operands of the linears: quantized copies for forward, and what is kept for the weight
  /// gradients. Under 16 bits and more both are the activation itself.
  LinearOperand y1_x, y2_x, context_x, act_x;
  /// Under autocast the copies of further linears that take the same.
  std::vector<Ref> y1_more, y2_more;
  Ref attention_out, attention_part, mask1, x2, y2, stats2, y2_full, up, act, down, down_part,
      mask2;
  Ref composed_act;              ///< what a composed gated activation keeps besides its inputs
  Ref mask;                      ///< of the sum of parallel branches, in place of mask1 and mask2
  std::array<GridKept, 4> kept;  ///< by linear
};

/// The i-th of `parts` equal parts of the rows of all of them.
Buffers rows_of(const Buffers& whole, std::int64_t i, std::int64_t parts);

KernelKind activation_kind(Activation activation, bool backward);

/// The norm before a branch, and the one behind it where there is one, with what it keeps.
struct BranchNorms : NormRefs {
  NormRefs after = {};
  Ref after_stats = {};
};

/// What a mixer has beside two linears.
struct MixerBlocks {
  std::optional<LatentBlock> latent;  ///< in place of one linear to queries, keys and values
  std::optional<IndexBlock> index;    ///< chooses the keys that attention sees
  std::optional<MambaBlock> mamba;    ///< in place of the core of attention
  std::optional<ConvBlock> conv;      ///< likewise
  std::optional<DeltaBlock> delta;
  std::optional<SelectiveBlock> selective;
  std::optional<BesideCore> beside;       ///< the core of attention
  std::optional<SharedBlockPart> before;  ///< in front of all else
  /// Calls `visit` with what stands in place of the core of attention; false if nothing does.
  template <typename Visit>
  bool replace_core(Visit visit) {
    if (mamba) visit(*mamba);
    if (conv) visit(*conv);
    if (delta) visit(*delta);
    if (selective) visit(*selective);
    return mamba || conv || delta || selective;
  }
  /// What the linear back reads, of the core's result.
  const Ref& mixed(const Ref& context) const { return beside ? beside->mixed() : context; }
  void write_to(LayoutWriter& local, Quantizer& quantizer) {
    if (latent) latent->write_to(local, quantizer);
    if (index) index->write_to(local, quantizer);
    if (beside) beside->write_to(local, quantizer);
    if (before) before->write_to(local, quantizer);
    replace_core([&](auto& core) { core.write_to(local, quantizer); });
  }
};

/// What the operations of a layer's mixer are called.
struct MixerNames {
  const char *block, *norm, *in, *out;
};
inline MixerNames mixer_names(LayerKind kind) {
  if (kind.mixer == Mixer::kConv) return {"conv", "conv.norm", "conv.in", "conv.out"};
  if (kind.mixer == Mixer::kMamba2) return {"mamba", "mamba.norm", "mamba.in", "mamba.out"};
  if (kind.mixer == Mixer::kDelta) return {"delta", "delta.norm", "delta.in", "delta.out"};
  if (kind.mixer == Mixer::kMamba1) return {"mamba1", "mamba1.norm", "mamba1.in", "mamba1.out"};
  if (kind.mixer == Mixer::kBeside) return {"beside", "beside.norm", "beside.in", "beside.out"};
  return {"attention", "attention.norm", "attention.qkv", "attention.projection"};
}

/// The parts of one layer, for the writer of its segments.
class LayerParts {
 protected:
  LayerParts(ProgramBuilder& builder, const Model& model, const Plan& plan,
             const LayerLayouts& layouts, bool recompute);

  Ref weight(const std::string& name) const {
    return parameter_ref(x_layouts.parameters, name, kWeights, kShared);
  }
  Ref gradient(const std::string& name) const {
    return parameter_ref(x_layouts.parameter_gradients, name, kGradients, kSharedGradients);
  }
  Linear linear(const std::string& name, std::int64_t out, std::int64_t in) const {
    return {weight(name + ".weight"),
            weight(name + ".bias"),
            gradient(name + ".weight"),
            gradient(name + ".bias"),
            out,
            in};
  }
  NormRefs norm(const std::string& name) const {
    return {weight(name + ".weight"), weight(name + ".bias"), gradient(name + ".weight"),
            gradient(name + ".bias")};
  }
  bool exchanges_heads() const { return x_plan.head_ranks() > 1; }
  /// Of the linears to queries, keys and values, and to the MLP's inner size: what is kept and what
  /// is computed again have buffers of their own.
  bool keeps_products() const { return x_again.operations && !x_plan.precision.low(); }
  std::vector<Ref> raw_heads() const {
    if (keeps_products()) return {x_b.kept_heads, x_b.keys};
    return {x_b.qkv_raw.valid() ? x_b.qkv_raw : x_b.qkv};
  }
  std::vector<Ref> raw_up() const {
    if (keeps_products()) return {x_b.gate, x_b.up};
    return {x_b.up};
  }
  /// Of a layer that is computed again: queries, keys and values; the core of attention.
  bool repeats_heads() const { return (x_again.layer && !x_again.keep_heads) || x_again.parts > 1; }
  bool repeats_core() const {
    const bool whole = x_again.layer && !x_again.operations && !x_again.keep_core;
    return whole || x_again.parts > 1;
  }
  /// The feed-forward of a layer is computed again, to its end.
  bool repeats_branch() const { return x_again.layer || x_again.mlp || x_again.moe; }
  /// What is scattered over tensor ranks is kept.
  bool keeps_scattered() const { return x_again.operations && x_plan.sequence; }
  bool keeps_projection() const { return keeps_scattered() || x_again.keep_projection; }
  /// A module that is computed again alone starts from its normed input.
  bool starts_branch() const { return x_again.mlp || x_again.moe || x_again.shared_experts; }
  /// The normed input of the MLP or the experts is read after the forward pass, not a copy of it.
  bool reads_normed() const { return starts_branch() || x_moe.has_value(); }
  /// Eager code composes RMS norms and gated activations of operations, each of which keeps what
  /// its gradient reads (Hugging Face's and PaddleNLP's Llama). A norm: its input in fp32 and what
  /// it multiplies with the weight, in place of the input, thus 4 bytes an element more. A gated
  /// activation: the activated gate. Left out: that of experts, the last norm.
  bool composes_norms() const {
    return x_plan.fusion == Fusion::kEager && x_model.norm == Norm::kRmsNorm && !x_grid &&
           x_model.norms.before;
  }
  bool composes_activation() const {
    const bool composed = x_plan.fusion == Fusion::kEager || x_plan.fusion == Fusion::kNorms;
    const bool gelu = x_model.activation == Activation::kGeluNew;
    return !x_moe && ((composed && x_model.gated()) || (gelu && x_plan.fusion == Fusion::kEager));
  }
  /// What norms give is cast by kernels of their own, or they write what linears read.
  bool casts_normed() const { return x_plan.precision.autocast && !x_plan.precision.fuses_casts; }
  DType normed_type() const {
    return casts_normed() ? x_plan.precision.compute : x_plan.precision.branch();
  }
  /// Of parallel branches: a rank adds its products of both, and their sum is reduced.
  bool joins() const { return x_model.parallel_residual && !x_grid && !x_moe; }
  /// Both branches multiply the same rows, which are gathered once; so is their gradient's sum
  /// reduced.
  bool shares_input() const { return joins() && x_model.shared_norm && !x_mixers.latent; }
  /// Declares all activations in the layout they belong to: kept from forward to backward, or
  /// local.
  Buffers declare(LayoutWriter& saved, LayoutWriter& local);

  /// From now on linears read the copies of the backward pass, where that computes them again.
  void cast_again();

  /// Elements of the residual stream on this rank.
  std::int64_t flat() const { return x_rows * x_hidden; }

  ProgramBuilder& x_builder;
  const Model& x_model;
  const Plan& x_plan;
  const LayerLayouts& x_layouts;
  LayoutWriter x_saved, x_forward, x_backward;
  Recompute x_again;
  DropoutRates x_dropout;
  GroupSlot x_tensor;
  std::int64_t x_tokens, x_rows;  ///< what a linear sees; of the residual stream on this rank
  std::int64_t x_hidden;          ///< columns of the residual stream on this rank
  std::int64_t x_q_heads = 0, x_kv_heads = 0, x_qkv_width = 0;
  Linear x_qkv, x_projection, x_up, x_down;
  BranchNorms x_norm1, x_norm2;  ///< of the mixer, of the feed-forward
  Quantizer x_quantizer;
  std::optional<TensorGrid> x_grid;  ///< of more than one rank
  std::optional<MoeBlock> x_moe;     ///< in place of the MLP
  MixerBlocks x_mixers;
  Buffers x_b;
  std::int64_t x_part = 0;  ///< of plan.recompute.parts: whose linears these are
  std::string x_name_suffix;

 private:
  void set_linears();
  void declare_mixer(Buffers& b, LayoutWriter& saved, LayoutWriter& local);
  void declare_attention(Buffers& b, LayoutWriter& saved, LayoutWriter& local);
  void declare_branch(Buffers& b, LayoutWriter& saved, LayoutWriter& local);
  void declare_partial(Buffers& b, LayoutWriter& saved, LayoutWriter& local) const;
  void declare_operations(Buffers& b, const Placer& place) const;
  void declare_casts(LayoutWriter& saved, LayoutWriter& local);
  std::vector<Ref> declare_more(const Placer& place, const std::string& name, const Linear& l,
                                const Ref& normed) const;
  void declare_kept(Buffers& b, LayoutWriter& saved, LayoutWriter& local) const;
};

}  // namespace foretrain
