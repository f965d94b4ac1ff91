#include "models/layers/layer_parts.h"

#include <array>

namespace foretrain {
namespace {

/// What of `again` a layer of this kind has.
Recompute of_kind(Recompute again, LayerKind kind, bool latent) {
  if (!latent) again.latent_up = false;
  if (!kind.attends()) {
    again.attention = again.latent_up = again.keep_heads = again.keep_core = false;
    again.keep_projection = false;
  }
  if (kind.feed_forward == FeedForward::kNone) {
    again.mlp = again.activation = again.keep_up = false;
    again.moe = again.expert_activation = again.shared_experts = false;
  } else if (kind.sparse()) {
    again.mlp = again.activation = false;
  } else {
    again.moe = again.expert_activation = again.shared_experts = false;
  }
  return again;
}

}  // namespace

static std::string suffix(bool recompute) { return recompute ? " recomputed" : ""; }

/// What tells a layer of this kind from one of attention and an MLP.
static std::string text_of_kind(LayerKind kind) {
  constexpr std::array kMixers = {" without a mixer",
                                  "",
                                  " with a state space",
                                  " with a convolution",
                                  " with a delta net",
                                  " with a selective scan",
                                  " with attention and a state space"};
  std::string out = kMixers.at(static_cast<std::size_t>(kind.mixer));
  if (kind.shared > 0) {
    out += std::string(kind.last_use ? " behind the last use of" : " behind") + " shared block " +
           std::to_string(kind.shared);
  }
  if (kind.shape > 0) out += " of shape " + std::to_string(kind.shape);
  if (kind.sparse()) out += " with experts";
  if (kind.feed_forward == FeedForward::kNone) out += " without a feed-forward";
  return out;
}

Buffers rows_of(const Buffers& whole, std::int64_t i, std::int64_t parts) {
  Buffers out = whole;
  const auto cut = [i, parts](Ref& ref) {
    if (ref.valid()) ref = ref.slice(i, parts);
  };
  for (Ref* ref : {&out.input,
                   &out.output,
                   &out.output_gradient,
                   &out.input_gradient,
                   &out.y1,
                   &out.stats1,
                   &out.y1_full,
                   &out.qkv_raw,
                   &out.qkv,
                   &out.context,
                   &out.row_stats,
                   &out.scores,
                   &out.score_mask,
                   &out.dropped,
                   &out.kept_heads,
                   &out.keys,
                   &out.gate,
                   &out.attention_out,
                   &out.attention_part,
                   &out.mask1,
                   &out.x2,
                   &out.y2,
                   &out.stats2,
                   &out.y2_full,
                   &out.up,
                   &out.act,
                   &out.composed_act,
                   &out.down,
                   &out.down_part,
                   &out.mask2,
                   &out.mask}) {
    cut(*ref);
  }
  for (LinearOperand* operand : {&out.y1_x, &out.y2_x, &out.context_x, &out.act_x}) {
    cut(operand->in);
    cut(operand->kept);
  }
  return out;
}

KernelKind activation_kind(Activation activation, bool backward) {
  switch (activation) {
    case Activation::kGelu:
    case Activation::kGeluNew:
      return backward ? KernelKind::kGeluBackward : KernelKind::kGelu;
    case Activation::kSwiglu:
      return backward ? KernelKind::kSwigluBackward : KernelKind::kSwiglu;
    case Activation::kGeglu:
      return backward ? KernelKind::kGegluBackward : KernelKind::kGeglu;
    case Activation::kRelu:
      return backward ? KernelKind::kReluBackward : KernelKind::kRelu;
    case Activation::kRelu2:
      return backward ? KernelKind::kRelu2Backward : KernelKind::kRelu2;
  }
  return KernelKind::kGelu;
}

LayerParts::LayerParts(ProgramBuilder& builder, const Model& model, const Plan& plan,
                       const LayerLayouts& layouts, bool recompute)
    : x_builder(builder),
      x_model(model),
      x_plan(plan),
      x_layouts(layouts),
      x_saved("saved" + suffix(recompute), kSaved),
      x_forward("forward" + suffix(recompute), kLocal),
      x_backward("backward" + suffix(recompute), kLocal),
      x_again(recompute ? of_kind(plan.recompute, layouts.kind, model.is_latent()) : Recompute{}),
      x_dropout(dropout_of(model, plan)),
      x_tensor(builder.group("tensor")),
      x_tokens(plan.in_grid() ? plan.rows() : plan.tokens()),
      x_rows(plan.rows()),
      x_hidden(model.hidden / plan.column_parts()),
      x_quantizer(builder, plan, layouts) {
  x_name_suffix = text_of_kind(layouts.kind) + suffix(recompute);
  if (x_again.operations) x_again.layer = true;
  x_again.parts = plan.recompute.parts;
  if (layouts.kind.mixer == Mixer::kMamba2) x_mixers.mamba.emplace(builder, model, plan, layouts);
  if (layouts.kind.mixer == Mixer::kConv) x_mixers.conv.emplace(builder, model, plan, layouts);
  if (layouts.kind.mixer == Mixer::kDelta) x_mixers.delta.emplace(builder, model, plan, layouts);
  if (layouts.kind.mixer == Mixer::kMamba1) {
    x_mixers.selective.emplace(builder, model, plan, layouts);
  }
  if (layouts.kind.shared > 0) x_mixers.before.emplace(builder, model, plan, layouts);
  if (BesideCore::used(model, layouts.kind) && !model.is_latent()) {
    x_mixers.beside.emplace(builder, model, plan, layouts);
  }
  set_linears();
  if (TensorGrid::used(plan)) x_grid.emplace(builder, model, plan);
  if (layouts.kind.sparse()) x_moe.emplace(builder, model, plan, layouts, x_again);
  if (!model.is_latent() || layouts.kind.mixer != Mixer::kAttention) return;
  x_mixers.latent.emplace(builder, model, plan, layouts);
  if (IndexBlock::used(model)) x_mixers.index.emplace(builder, model, plan, layouts);
  x_qkv_width = x_mixers.latent->packed_width();
}

void LayerParts::set_linears() {
  const std::int64_t t = x_plan.width_parts() * x_plan.recompute.parts;
  const std::int64_t h = x_hidden;
  const std::int64_t f = x_model.intermediate / t;
  x_q_heads = x_model.heads / t;
  x_kv_heads = x_model.kv_heads / t;
  const std::int64_t value_dim =
      x_model.attention.value_dim > 0 ? x_model.attention.value_dim : x_model.head_dim;
  x_qkv_width = (x_q_heads + x_kv_heads) * x_model.head_dim + x_kv_heads * value_dim;
  x_qkv = linear("attention.qkv", x_qkv_width, h);
  x_projection = linear("attention.projection", h, x_model.value_width() / t);
  x_up = linear("mlp.up", x_model.gated() ? 2 * f : f, h);
  x_down = linear("mlp.down", h, f);
  const MixerNames names = mixer_names(x_layouts.kind);
  const bool other = x_mixers.replace_core([&](const auto& core) {
    x_qkv_width = core.in_width();
    x_qkv = linear(names.in, x_qkv_width, h);
    x_qkv.columns.blocks = core.in_blocks();
    x_projection = linear(names.out, h, core.out_width());
  });
  if (x_mixers.beside) {
    x_qkv = linear(names.in, x_mixers.beside->in_width(), h);
    x_qkv.columns.blocks = x_mixers.beside->in_blocks();
    x_projection =
        linear(names.out, h, x_model.value_width() / t + x_mixers.beside->more_columns());
  } else if (!other && x_plan.separate_projections) {
    x_qkv.columns.parts = {x_q_heads * x_model.head_dim, x_kv_heads * x_model.head_dim,
                           x_kv_heads * value_dim};
  }
  if (x_plan.separate_projections && x_model.gated()) x_up.columns.parts = {f, f};
  x_up.matrices = x_model.gated() ? 2 : 1;
  x_projection.inner = x_down.inner = true;
  x_projection.number = 1;
  x_up.number = 2;
  x_down.number = 3;
  x_norm1 = {norm(mixer_names(x_layouts.kind).norm), norm("attention.after_norm"), {}};
  x_norm2 = {norm("mlp.norm"), norm("mlp.after_norm"), {}};
}

Buffers LayerParts::declare(LayoutWriter& saved, LayoutWriter& local) {
  const Placer place{saved, local, x_plan.precision};
  const DType type = x_plan.precision.compute;
  if (x_plan.precision.autocast) declare_casts(saved, local);
  Buffers b;
  b.input = {kInput, kHiddenBuffer, type, flat()};
  b.output = {kOutput, kHiddenBuffer, type, flat()};
  b.output_gradient = {kOutputGradient, kHiddenBuffer, type, flat()};
  b.input_gradient = {kInputGradient, kHiddenBuffer, type, flat()};
  if (x_mixers.before) b.input = x_mixers.before->declare(saved, local, x_again.layer);
  const bool parallel = x_model.parallel_residual;
  if (x_layouts.kind.mixes()) {
    declare_mixer(b, saved, local);
    if (x_dropout.hidden > 0 && !parallel) {
      b.mask1 = place.add("attention dropout mask", DType::kUint8, flat(), x_again.layer);
    }
  }
  b.x2 = x_layouts.kind.mixes() && !parallel ? b.output : b.input;
  if (x_layouts.kind.mixes() && x_layouts.kind.feeds() && !parallel) {
    b.x2 = place.add("attention residual", type, flat(), x_again.layer);
  }
  if (x_layouts.kind.feeds()) declare_branch(b, saved, local);
  if (x_dropout.hidden > 0 && x_layouts.kind.feeds()) {
    // Parts do not repeat what it is drawn for.
    const bool whole = x_again.layer && x_again.parts == 1;
    if (parallel) {
      b.mask = place.add("dropout mask", DType::kUint8, flat(), whole && !x_again.operations);
    } else {
      const bool again = (whole || x_again.mlp) && !x_again.operations;
      b.mask2 = place.add("mlp dropout mask", DType::kUint8, flat(), again);
    }
  }
  declare_partial(b, saved, local);
  if (x_grid && x_grid->keeps()) declare_kept(b, saved, local);
  return b;
}

/// The norm before the mixer and what it gives; the mixer's own.
void LayerParts::declare_mixer(Buffers& b, LayoutWriter& saved, LayoutWriter& local) {
  const Placer place{saved, local, x_plan.precision};
  const Recompute& again = x_again;
  const bool whole = again.layer;
  // Queries that the way up computes again start from the normed input itself.
  const bool queries = again.latent_up && !x_mixers.latent->narrow_queries();
  const bool norm = whole || again.norm;
  const bool copied = x_plan.precision.keeps_copies() && !queries && !IndexBlock::used(x_model) &&
                      !(x_model.shared_norm && reads_normed());
  const std::string name = mixer_names(x_layouts.kind).norm;
  b.y1 = b.input;
  if (x_model.norms.before) {
    b.y1 = place.add(name + " out", normed_type(), flat(), copied || norm || casts_normed());
  }
  b.y1_x = place.normed(name + " out quantized", b.y1, norm);
  b.y1_more = declare_more(place, name + " out quantized", x_qkv, b.y1);
  const std::int64_t statistics = x_rows * norm_statistics(x_model);
  if (x_model.norms.before) {
    b.stats1 = place.add(name + " statistics", DType::kFp32, statistics, norm);
  }
  if (x_model.norms.after) {
    x_norm1.after_stats = place.add("mixer after_norm statistics", DType::kFp32, statistics, whole);
  }
  if (composes_norms()) {
    x_norm1.composed = place.add(name + " input in fp32", DType::kFp32, flat(), norm);
  }
  if (x_layouts.kind.attends()) return declare_attention(b, saved, local);
  const DType type = x_plan.precision.branch();
  b.qkv = place.add("packed mixer inputs", type, x_tokens * x_qkv_width, whole);
  x_mixers.replace_core([&](auto& core) { core.declare(saved, local, whole); });
  b.context = place.add("mixed", type, x_tokens * x_projection.in, whole);
  b.context_x = place.operand("mixed quantized", b.context, whole);
}

void LayerParts::declare_attention(Buffers& b, LayoutWriter& saved, LayoutWriter& local) {
  const Placer place{saved, local, x_plan.precision};
  const Recompute& again = x_again;
  const Precision& precision = x_plan.precision;
  const DType type = precision.branch();
  const bool whole = again.layer;
  const bool core = repeats_core() || again.attention;
  if (x_mixers.latent) x_mixers.latent->declare(saved, local, whole, again.latent_up);
  if (x_mixers.index) x_mixers.index->declare(saved, local, core);
  b.qkv = place.add("qkv", type, x_tokens * x_qkv_width,
                    repeats_heads() || again.latent_up || (exchanges_heads() && !core));
  if (x_model.qk_norm || x_mixers.beside) {
    const std::int64_t width = x_mixers.beside ? x_qkv.out : x_qkv_width;
    b.qkv_raw = place.add("qkv raw", type, x_tokens * width, repeats_heads());
  }
  b.context = x_mixers.beside
                  ? x_mixers.beside->declare(saved, local, repeats_core())
                  : place.add("context", type, x_tokens * x_projection.in, repeats_core());
  if (exchanges_heads()) {
    b.qkv_heads = place.add("qkv of own heads", type, b.qkv.count, core);
    b.out_heads = place.add("context of own heads", type, b.context.count, core);
  }
  declare_operations(b, place);
  b.context_x = place.operand("context quantized", x_mixers.mixed(b.context), core);
  if (x_plan.attention != AttentionKernel::kUnfused) {
    b.row_stats = place.add("log-sum-exp", DType::kFp32, x_tokens * x_q_heads, core);
    return;
  }
  const std::int64_t square = x_tokens * x_q_heads * x_plan.sequence_length;
  // Eager softmax is in fp32 under autocast, and what it gives is kept beside its 16-bit copy.
  const bool wide = precision.autocast && x_plan.fusion == Fusion::kEager;
  b.scores = place.add("probabilities", wide ? precision.compute : type, square, core);
  if (x_dropout.attention > 0) {
    b.score_mask = place.add("attention mask", DType::kUint8, square, core);
    b.dropped = place.add("dropped probabilities", type, square, core);
  } else if (wide) {
    b.narrow_scores = place.add("probabilities in 16 bits", type, square, core);
  }
}

void LayerParts::declare_branch(Buffers& b, LayoutWriter& saved, LayoutWriter& local) {
  const Placer place{saved, local, x_plan.precision};
  const Recompute& again = x_again;
  const Precision& precision = x_plan.precision;
  const DType type = precision.branch();
  const bool low = precision.keeps_copies();
  const bool norm = again.layer || again.norm;
  if (x_model.shared_norm) {
    b.y2 = b.y1;
    b.y2_x = b.y1_x;
  } else {
    b.y2 = b.x2;
    if (x_model.norms.before) {
      b.y2 = place.add("mlp.norm out", normed_type(), flat(),
                       (low && !reads_normed()) || norm || casts_normed());
    }
    b.y2_x = {b.y2, b.y2};
    if (!x_moe || x_moe->shares()) {
      b.y2_x = place.normed("mlp.norm out quantized", b.y2, norm || starts_branch());
    }
    b.y2_more = declare_more(place, "mlp.norm out quantized", x_up, b.y2);
    const std::int64_t statistics = x_rows * norm_statistics(x_model);
    if (x_model.norms.before) {
      b.stats2 = place.add("mlp.norm statistics", DType::kFp32, statistics, norm);
    }
    if (x_model.norms.after) {
      x_norm2.after_stats =
          place.add("mlp after_norm statistics", DType::kFp32, statistics, repeats_branch());
    }
    if (composes_norms()) {
      x_norm2.composed = place.add("mlp.norm input in fp32", DType::kFp32, flat(), norm);
    }
  }
  if (x_moe) return x_moe->declare(saved, local, b.x2);
  const bool whole = again.layer || again.mlp || again.parts > 1;
  b.up = place.add("mlp up", type, x_tokens * x_up.out / (keeps_products() ? 2 : 1),
                   whole && !again.keep_up);
  const bool activation = whole || again.activation;
  b.act = place.add("mlp activation", type, x_tokens * x_down.in, low || activation);
  b.act_x = place.operand("mlp activation quantized", b.act, activation);
  if (!composes_activation()) return;
  if (x_model.gated()) {
    b.composed_act = place.add("mlp gate activated", type, b.act.count, activation);
    return;
  }
  // A gelu's: the cube's operand, tanh and 1 + tanh in fp32, half of x in 16 bits; where nothing is
  // cast the operand is what the matrix gave.
  const bool autocast = x_plan.precision.autocast;
  b.composed_act = place.add("mlp gelu terms", autocast ? DType::kFp32 : type,
                             b.act.count * (autocast ? 7 : 6) / 2, activation);
}

void LayerParts::declare_operations(Buffers& b, const Placer& place) const {
  if (!keeps_products()) return;
  const DType type = x_plan.precision.compute;
  const std::int64_t kv = x_tokens * x_kv_heads * x_model.head_dim;
  b.kept_heads = place.add("queries and values", type, x_tokens * x_qkv_width - kv, false);
  b.keys = place.add("keys", type, kv, true);
  b.gate = place.add("mlp gate", type, x_tokens * x_down.in, false);
}

/// What tensor-parallel collectives give and take. Of what is kept by operation the backward pass
/// reads the scattered output of attention alone: the others are kept without need.
void LayerParts::declare_partial(Buffers& b, LayoutWriter& saved, LayoutWriter& local) const {
  const std::int64_t full = x_tokens * x_model.hidden;
  const auto temp = [&](const char* name, DType dtype, std::int64_t count, bool kept = false) {
    return (kept ? saved : local).add(name, BufferKind::kActivations, dtype, count, kept);
  };
  const DType type = x_plan.precision.branch();
  const bool projects = x_layouts.kind.mixes() && !joins();
  if (x_plan.sequence) {
    if (x_layouts.kind.mixes()) b.y1_full = temp("attention input gathered", b.y1_x.in.dtype, full);
    if (shares_input()) b.y2_full = b.y1_full;
    if (x_layouts.kind.feeds() && !shares_input()) {
      b.y2_full = temp("mlp input gathered", b.y2_x.in.dtype, full);
    }
    if (projects) b.attention_part = temp("attention partial", type, full);
    if (x_layouts.kind.feeds()) b.down_part = temp("mlp partial", type, full, keeps_products());
  }
  if (projects) {
    const bool read_again = x_model.norms.after && !x_again.layer;
    b.attention_out = temp("attention out", type, flat(), keeps_projection() || read_again);
  }
  if (x_layouts.kind.feeds()) {
    const bool read_again = x_model.norms.after && !repeats_branch();
    b.down = temp("mlp out", type, flat(), keeps_scattered() || keeps_products() || read_again);
  }
  if (!x_plan.sequence) {
    b.y1_full = b.y1_x.in;
    b.y2_full = b.y2_x.in;
    b.attention_part = b.attention_out;
    b.down_part = b.down;
  }
}

/// Autocast's copies of weights and biases. They stay for the linears' backward pass or, of a layer
/// that is computed again, until the forward pass of the microbatch is over.
void LayerParts::declare_casts(LayoutWriter& saved, LayoutWriter& local) {
  const auto copy_of = [&](const std::string& name, const Ref& own, bool again) {
    if (!own.valid() || (again && !x_again.layer)) return Ref();
    return (again ? local : saved)
        .add(name + " in 16 bits", BufferKind::kActivations, x_plan.precision.branch(), own.count,
             !x_again.layer);
  };
  const std::pair<std::string, Linear*> linears[] = {{"attention.qkv", &x_qkv},
                                                     {"attention.projection", &x_projection},
                                                     {"mlp.up", &x_up},
                                                     {"mlp.down", &x_down}};
  for (const auto& [name, l] : linears) {
    if (!l->own_weight.valid()) {
      l->own_weight = l->weight;
      l->own_bias = l->bias;
    }
    l->weight = copy_of(name + ".weight", l->own_weight, false);
    l->bias = copy_of(name + ".bias", l->own_bias, false);
    l->weight_again = copy_of(name + ".weight", l->own_weight, true);
    l->bias_again = copy_of(name + ".bias", l->own_bias, true);
  }
}

void LayerParts::cast_again() {
  if (!x_plan.precision.autocast || !x_again.layer) return;
  for (Linear* l : {&x_qkv, &x_projection, &x_up, &x_down}) {
    l->weight = l->weight_again;
    l->bias = l->bias_again;
  }
}

std::vector<Ref> LayerParts::declare_more(const Placer& place, const std::string& name,
                                          const Linear& l, const Ref& normed) const {
  std::vector<Ref> out;
  if (!casts_normed()) return out;
  for (std::size_t i = 1; i < l.apart(); ++i) {
    out.push_back(place.add(name, x_plan.precision.branch(), normed.count, x_again.layer));
  }
  return out;
}

/// What 3d gathers: kept, unless the linear is computed again.
void LayerParts::declare_kept(Buffers& b, LayoutWriter& saved, LayoutWriter& local) const {
  const Placer place{saved, local, x_plan.precision};
  const auto keep = [&](const char* input, const char* weight, const Linear& l, bool again) {
    const DType type = x_plan.precision.compute;
    const Ref in = place.add(input, type, x_grid->kept_input(x_rows, l.in), again);
    b.kept.at(l.number) = {in, place.add(weight, type, x_grid->kept_weight(l.of_grid()), again)};
  };
  const bool whole = x_again.layer;
  const bool mlp = whole || x_again.mlp;
  keep("qkv input gathered", "qkv weight gathered", x_qkv, whole);
  keep("projection input gathered", "projection weight gathered", x_projection, whole);
  keep("up input gathered", "up weight gathered", x_up, mlp);
  keep("down input gathered", "down weight gathered", x_down, mlp);
}

}  // namespace foretrain
