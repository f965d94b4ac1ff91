#include "models/architecture/model.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace foretrain {
namespace {

void add_norm(const Model& model, const std::string& name, std::int64_t width,
              std::vector<Parameter>& out) {
  if (!model.norms.weights) return;
  out.push_back({name + ".weight", width, 1, Split::kNone, Init::kOnes});
  if (model.norm == Norm::kLayerNorm && model.biases.norm) {
    out.push_back({name + ".bias", width, 1, Split::kNone, Init::kZeros});
  }
}

std::int64_t count(const std::vector<Parameter>& parameters) {
  std::int64_t sum = 0;
  for (const Parameter& p : parameters) sum += p.count();
  return sum;
}

/// Of `p`, what one token passes through.
std::int64_t active(const Model& model, const Parameter& p) {
  return p.expert ? p.count() / model.experts.count * model.experts.top_k : p.count();
}

/// Adds a parameter that is cut by rows, with `sections` each of them alone.
Parameter& add_rows(std::vector<Parameter>& out, const std::string& name, std::int64_t rows,
                    std::int64_t cols, Init init, std::vector<std::int64_t> sections = {}) {
  return out.emplace_back(
      Parameter{name, rows, cols, Split::kRows, init, 1, false, std::move(sections)});
}

/// Adds the taps of a convolution, as wide as PyTorch draws them: uniform within 1 / sqrt(taps).
void add_taps(std::vector<Parameter>& out, const std::string& name, std::int64_t channels,
              std::int64_t taps, std::vector<std::int64_t> sections = {}) {
  add_rows(out, name, channels, taps, Init::kNormal, std::move(sections)).deviation =
      1 / std::sqrt(3.0 * static_cast<double>(taps));
}

/// What the linear in of Mamba-2 gives: z, x, B, C and steps; the convolution takes the middle.
std::vector<std::int64_t> sections_of(const StateSpace& s, bool of_linear) {
  const std::int64_t grouped = s.groups * s.state;
  std::vector<std::int64_t> out = {s.width(), grouped, grouped};
  if (!of_linear) return out;
  out.insert(out.begin(), s.width());
  out.push_back(s.heads);
  return out;
}

/// What the linear in of a delta net gives: queries, keys, values, what gates come from, and the
/// decays' and the strengths' inputs; the convolution takes the first three.
std::vector<std::int64_t> sections_of(const DeltaNet& d, bool of_linear) {
  std::vector<std::int64_t> out = {d.keys(), d.keys(), d.values()};
  if (!of_linear) return out;
  out.push_back(d.by_channel() ? d.gate_rank : d.values());
  out.push_back(d.by_channel() ? d.gate_rank : d.value_heads);
  out.push_back(d.value_heads);
  return out;
}

void add_attention(const Model& model, std::vector<Parameter>& out) {
  const std::int64_t h = model.hidden;
  const std::int64_t qkv = model.qkv_width();
  std::vector<std::int64_t> sections;  // queries, keys and values; gates
  if (model.gate_width() > 0) sections = {qkv - model.gate_width(), model.gate_width()};
  add_rows(out, "attention.qkv.weight", qkv, h, Init::kNormal, sections);
  if (model.biases.qkv) add_rows(out, "attention.qkv.bias", qkv, 1, Init::kZeros, sections);
  if (model.qk_norm && model.norms.heads != HeadNorms::kWeightless) {
    const bool one = model.norms.heads == HeadNorms::kOneHead;
    const Split split = one ? Split::kNone : Split::kRows;
    const std::int64_t q = one ? model.head_dim : model.query_width();
    const std::int64_t k = one ? model.head_dim : model.kv_width();
    out.push_back({"attention.q_norm.weight", q, 1, split, Init::kOnes});
    out.push_back({"attention.k_norm.weight", k, 1, split, Init::kOnes});
  }
  out.push_back(
      {"attention.projection.weight", h, model.value_width(), Split::kCols, Init::kNormal});
  if (model.biases.projection) {
    out.push_back({"attention.projection.bias", h, 1, Split::kNone, Init::kZeros});
  }
  if (model.attention.sinks) {
    out.push_back({"attention.sinks.weight", model.heads, 1, Split::kRows, Init::kZeros});
  }
}

/// Latent attention: q and kv go down to their ranks, are normed, and come up to all heads.
void add_latent_attention(const Model& model, std::vector<Parameter>& out) {
  const LatentAttention& l = model.latent;
  const std::int64_t h = model.hidden;
  const auto norm = [&out](const char* name, std::int64_t width) {
    out.push_back({name, width, 1, Split::kNone, Init::kOnes});
  };
  if (l.q_rank > 0) {
    out.push_back({"attention.q_down.weight", l.q_rank, h, Split::kNone, Init::kNormal});
    norm("attention.q_down_norm.weight", l.q_rank);
  }
  const std::int64_t q_in = l.q_rank > 0 ? l.q_rank : h;
  out.push_back({"attention.q_up.weight", model.query_width(), q_in, Split::kRows, Init::kNormal});
  out.push_back({"attention.kv_down.weight", l.kv_rank + l.rope, h, Split::kNone, Init::kNormal});
  norm("attention.kv_down_norm.weight", l.kv_rank);
  out.push_back({"attention.kv_up.weight", model.heads * (l.nope + l.value), l.kv_rank,
                 Split::kRows, Init::kNormal});
  if (l.index_heads > 0) {
    out.push_back({"attention.index.q.weight", l.index_heads * l.index_dim, q_in, Split::kNone,
                   Init::kNormal});
    out.push_back({"attention.index.k.weight", l.index_dim, h, Split::kNone, Init::kNormal});
    norm("attention.index.norm.weight", l.index_dim);
    norm("attention.index.norm.bias", l.index_dim);
    out.push_back({"attention.index.heads.weight", l.index_heads, h, Split::kNone, Init::kNormal});
  }
  out.push_back(
      {"attention.projection.weight", h, model.value_width(), Split::kCols, Init::kNormal});
}

/// What stands between the linears of a Mamba-2 mixer. Heads, groups and channels are cut alike, so
/// that every matrix is cut by rows or by columns.
void add_state_space(const StateSpace& s, std::vector<Parameter>& out) {
  add_taps(out, "mamba.conv.weight", s.conv_width(), s.taps, sections_of(s, false));
  if (s.conv_bias) {
    add_rows(out, "mamba.conv.bias", s.conv_width(), 1, Init::kZeros, sections_of(s, false));
  }
  add_rows(out, "mamba.decay", s.heads, 1, Init::kDecay);
  add_rows(out, "mamba.skip", s.heads, 1, Init::kOnes);
  add_rows(out, "mamba.step.bias", s.heads, 1, Init::kStep);
  if (s.norm) add_rows(out, "mamba.gate_norm.weight", s.width(), 1, Init::kOnes);
}

void add_mamba(const Model& model, std::vector<Parameter>& out) {
  const StateSpace& s = model.hybrid.state_space;
  const std::int64_t h = model.hidden;
  add_norm(model, "mamba.norm", h, out);
  add_rows(out, "mamba.in.weight", s.in_width(), h, Init::kNormal, sections_of(s, true));
  if (s.bias) add_rows(out, "mamba.in.bias", s.in_width(), 1, Init::kZeros, sections_of(s, true));
  add_state_space(s, out);
  out.push_back({"mamba.out.weight", h, s.width(), Split::kCols, Init::kNormal});
  if (s.bias) out.push_back({"mamba.out.bias", h, 1, Split::kNone, Init::kZeros});
}

/// Attention and Mamba-2 side by side: their linears in are rows of one matrix, their linears back
/// columns of one, whose products are the sum of both results.
void add_beside(const Model& model, std::vector<Parameter>& out) {
  const StateSpace& s = model.hybrid.state_space;
  const std::int64_t h = model.hidden;
  add_norm(model, "beside.norm", h, out);
  add_rows(out, "beside.in.weight", model.qkv_width() + s.in_width(), h, Init::kNormal);
  if (model.biases.qkv || s.bias) {
    const std::int64_t rows =
        (model.biases.qkv ? model.qkv_width() : 0) + (s.bias ? s.in_width() : 0);
    add_rows(out, "beside.in.bias", rows, 1, Init::kZeros);
  }
  add_state_space(s, out);
  out.push_back(
      {"beside.out.weight", h, model.query_width() + s.width(), Split::kCols, Init::kNormal});
  if (model.biases.projection || s.bias) {
    const std::int64_t both = (model.biases.projection ? 1 : 0) + (s.bias ? 1 : 0);
    out.push_back({"beside.out.bias", both * h, 1, Split::kNone, Init::kZeros});
  }
}

void add_selective(const Model& model, std::vector<Parameter>& out) {
  const SelectiveScan& s = model.hybrid.selective;
  const std::int64_t h = model.hidden;
  add_norm(model, "mamba1.norm", h, out);
  add_rows(out, "mamba1.in.weight", 2 * s.width, h, Init::kNormal);
  if (s.bias) add_rows(out, "mamba1.in.bias", 2 * s.width, 1, Init::kZeros);
  add_rows(out, "mamba1.conv.weight", s.width, s.taps, Init::kNormal);
  if (s.conv_bias) add_rows(out, "mamba1.conv.bias", s.width, 1, Init::kZeros);
  out.push_back({"mamba1.select.weight", s.selected(), s.width, Split::kCols, Init::kNormal});
  if (s.norms) {
    out.push_back({"mamba1.select_norms.weight", s.selected(), 1, Split::kNone, Init::kOnes});
  }
  add_rows(out, "mamba1.steps.weight", s.width, s.step_rank, Init::kNormal);
  add_rows(out, "mamba1.steps.bias", s.width, 1, Init::kZeros);
  add_rows(out, "mamba1.decay", s.width * s.state, 1, Init::kOnes);
  add_rows(out, "mamba1.skip", s.width, 1, Init::kOnes);
  out.push_back({"mamba1.out.weight", h, s.width, Split::kCols, Init::kNormal});
  if (s.bias) out.push_back({"mamba1.out.bias", h, 1, Split::kNone, Init::kZeros});
}

/// The norm has the weights of one head for all.
void add_delta(const Model& model, std::vector<Parameter>& out) {
  const DeltaNet& d = model.hybrid.delta;
  const std::int64_t h = model.hidden;
  add_norm(model, "delta.norm", h, out);
  add_rows(out, "delta.in.weight", d.in_width(), h, Init::kNormal, sections_of(d, true));
  add_taps(out, "delta.conv.weight", d.conv_width(), d.taps, sections_of(d, false));
  add_rows(out, "delta.decay", d.value_heads, 1, Init::kDecay);
  const std::int64_t decays = d.by_channel() ? d.value_heads * d.key_dim : d.value_heads;
  add_rows(out, "delta.step.bias", decays, 1, Init::kStep);
  if (d.by_channel()) {
    add_rows(out, "delta.decays.weight", decays, d.gate_rank, Init::kNormal);
    add_rows(out, "delta.gates.weight", d.values(), d.gate_rank, Init::kNormal);
  }
  out.push_back({"delta.gate_norm.weight", d.value_dim, 1, Split::kNone, Init::kOnes});
  out.push_back({"delta.out.weight", h, d.values(), Split::kCols, Init::kNormal});
}

void add_convolution(const Model& model, std::vector<Parameter>& out) {
  const std::int64_t h = model.hidden;
  const auto add = [&out](const char* name, std::int64_t rows, std::int64_t cols, Split split) {
    out.push_back({name, rows, cols, split, cols > 1 ? Init::kNormal : Init::kZeros});
  };
  const bool bias = model.hybrid.conv_bias;
  add_norm(model, "conv.norm", h, out);
  out.push_back({"conv.in.weight", 3 * h, h, Split::kRows, Init::kNormal, 3});
  if (bias) out.push_back({"conv.in.bias", 3 * h, 1, Split::kRows, Init::kZeros, 3});
  add_taps(out, "conv.taps.weight", h, model.hybrid.conv_taps);
  if (bias) add("conv.taps.bias", h, 1, Split::kRows);
  add("conv.out.weight", h, h, Split::kCols);
  if (bias) add("conv.out.bias", h, 1, Split::kNone);
}

void add_mlp(const Model& model, std::vector<Parameter>& out) {
  const std::int64_t h = model.hidden;
  const std::int64_t up = model.gated() ? 2 * model.intermediate : model.intermediate;
  const std::int64_t parts = model.gated() ? 2 : 1;
  out.push_back({"mlp.up.weight", up, h, Split::kRows, Init::kNormal, parts});
  if (model.biases.mlp) out.push_back({"mlp.up.bias", up, 1, Split::kRows, Init::kZeros, parts});
  out.push_back({"mlp.down.weight", h, model.intermediate, Split::kCols, Init::kNormal});
  if (model.biases.mlp) out.push_back({"mlp.down.bias", h, 1, Split::kNone, Init::kZeros});
  if (model.biases.activation > 0) {
    out.push_back({"mlp.activation.weight", model.biases.activation, 1, Split::kNone, Init::kOnes});
  }
}

/// What experts beside an MLP have besides: its norm, those of both results, the router's scales.
void add_beside_experts(const Model& model, std::vector<Parameter>& out) {
  const Experts& e = model.experts;
  if (e.more.beside) add_norm(model, "moe.shared.norm", model.hidden, out);
  if (e.more.norms_after) {
    add_norm(model, "moe.shared.after_norm", model.hidden, out);
    add_norm(model, "moe.experts.after_norm", model.hidden, out);
  }
  if (!e.more.scales) return;
  out.push_back({"moe.router.input_scale", model.hidden, 1, Split::kNone, Init::kOnes});
  out.push_back({"moe.router.expert_scale", e.count, 1, Split::kNone, Init::kOnes});
}

/// Experts' matrices lie one below the other, [inputs, outputs] of the first, so that ranks hold
/// rows of whole experts and expert_tensor cuts columns of both.
void add_experts(const Model& model, std::vector<Parameter>& out) {
  const Experts& e = model.experts;
  const std::int64_t h = model.hidden;
  const std::int64_t halves = model.gated() ? 2 : 1;
  const std::int64_t up = halves * e.width;
  out.push_back({"moe.router.weight", e.count, h, Split::kNone, Init::kNormal});
  if (e.router_bias) out.push_back({"moe.router.bias", e.count, 1, Split::kNone, Init::kZeros});
  add_beside_experts(model, out);
  if (e.more.latent > 0) {
    out.push_back({"moe.latent.down.weight", e.more.latent, h, Split::kNone, Init::kNormal});
    out.push_back({"moe.latent.up.weight", h, e.more.latent, Split::kNone, Init::kNormal});
  }
  const std::int64_t token = e.token_width(h);
  if (e.shared_width > 0) {
    out.push_back(
        {"moe.shared.up.weight", halves * e.shared_width, h, Split::kRows, Init::kNormal, halves});
    out.push_back({"moe.shared.down.weight", h, e.shared_width, Split::kCols, Init::kNormal});
    if (e.more.shared_gate) {
      out.push_back({"moe.shared.gate.weight", 1, h, Split::kNone, Init::kNormal});
    }
  }
  out.push_back(
      {"moe.experts.up.weight", e.count * token, up, Split::kCols, Init::kNormal, 1, true});
  out.push_back(
      {"moe.experts.down.weight", e.count * token, e.width, Split::kCols, Init::kNormal, 1, true});
  if (!e.bias) return;
  out.push_back({"moe.experts.up.bias", e.count, up, Split::kCols, Init::kZeros, 1, true});
  out.push_back({"moe.experts.down.bias", e.count, token, Split::kNone, Init::kZeros, 1, true});
}

}  // namespace

Model Model::of(LayerKind kind) const {
  Model out = *this;
  if (kind.shape == 0) return out;
  const LayerShape& shape = hybrid.shapes.at(kind.shape - std::size_t{1});
  out.heads = shape.heads;
  out.kv_heads = shape.kv_heads;
  out.head_dim = shape.head_dim;
  out.intermediate = shape.intermediate;
  out.attention.key_is_value = shape.key_is_value;
  out.attention.sinks = shape.sinks;
  out.attention.gate = shape.gate;
  return out;
}

LayerKind Model::kind(std::int64_t index) const {
  LayerKind out;
  if (index < static_cast<std::int64_t>(hybrid.layers.size())) {
    return hybrid.layers[static_cast<std::size_t>(index)];
  }
  bool sparse = has_experts();
  if (sparse && index < layers) {  // those of multi-token prediction have experts
    sparse = experts.layers.empty()
                 ? index >= experts.first_dense && (index + 1) % experts.step == 0
                 : experts.layers[static_cast<std::size_t>(index)];
  }
  if (sparse) out.feed_forward = FeedForward::kExperts;
  return out;
}

bool Model::has_mixer(Mixer mixer) const {
  if (hybrid.layers.empty()) return mixer == Mixer::kAttention;
  return std::any_of(hybrid.layers.begin(), hybrid.layers.end(),
                     [mixer](const LayerKind& kind) { return kind.mixer == mixer; });
}

std::vector<LayersOfKind> Model::kinds(bool prediction) const {
  if (!hybrid.layers.empty()) {
    std::vector<LayersOfKind> out;
    const std::int64_t all = layers + (prediction ? predict_layers : 0);
    for (std::int64_t l = 0; l < all; ++l) {
      const LayerKind kind = this->kind(l);
      const auto known = std::find_if(out.begin(), out.end(),
                                      [&](const LayersOfKind& of) { return of.kind == kind; });
      known == out.end() ? void(out.push_back({kind, 1})) : void(++known->layers);
    }
    return out;
  }
  const std::int64_t sparse = sparse_layers();
  const std::int64_t predicted = prediction ? predict_layers : 0;
  std::vector<LayersOfKind> out;
  const auto add = [&out](LayerKind kind, std::int64_t count) {
    if (count > 0) out.push_back({kind, count});
  };
  const bool experts_predict = predicted > 0 && kind(layers).sparse();
  add({}, layers - sparse + (experts_predict ? 0 : predicted));
  add({Mixer::kAttention, FeedForward::kExperts}, sparse + (experts_predict ? predicted : 0));
  return out;
}

std::int64_t Model::sparse_layers() const {
  if (!hybrid.layers.empty()) {
    return std::count_if(hybrid.layers.begin(), hybrid.layers.end(),
                         [](const LayerKind& kind) { return kind.sparse(); });
  }
  if (!experts.layers.empty()) {
    return std::count(experts.layers.begin(), experts.layers.end(), true);
  }
  if (!has_experts() || experts.first_dense >= layers) return 0;
  return layers / experts.step - experts.first_dense / experts.step;
}

bool Model::has_windowed(bool windowed) const {
  for (std::int64_t l = 0; l < layers + predict_layers; ++l) {
    if (this->windowed(l) == windowed) return true;
  }
  return false;
}

/// What a use of a shared block has of its own: h x h, and adapters down to the rank and up.
static void add_block_use(const Model& model, std::vector<Parameter>& out) {
  const SharedBlock& s = model.hybrid.shared;
  const std::int64_t h = model.hidden;
  add_rows(out, "block.way.weight", h, h, Init::kNormal);
  if (s.rank == 0) return;
  const auto adapter = [&](const std::string& name, std::int64_t rows, std::int64_t cols) {
    add_rows(out, "adapter." + name + ".down.weight", s.rank, cols, Init::kNormal);
    add_rows(out, "adapter." + name + ".up.weight", rows, s.rank, Init::kNormal);
  };
  if (s.attention_adapters) {
    for (const char* name : {"q", "k", "v"}) adapter(name, 2 * h, 2 * h);
  }
  adapter("up", (model.gated() ? 2 : 1) * model.intermediate, h);
}

std::vector<Parameter> layer_parameters(const Model& whole, LayerKind kind) {
  std::vector<Parameter> out;
  const Model model = whole.of(kind);
  if (kind.shared > 0) add_block_use(model, out);
  if (kind.mixer == Mixer::kMamba2) add_mamba(model, out);
  if (kind.mixer == Mixer::kConv) add_convolution(model, out);
  if (kind.mixer == Mixer::kDelta) add_delta(model, out);
  if (kind.mixer == Mixer::kMamba1) add_selective(model, out);
  if (kind.mixer == Mixer::kBeside) add_beside(model, out);
  if (kind.mixer == Mixer::kAttention) {
    if (model.norms.before) add_norm(model, "attention.norm", model.hidden, out);
    if (model.is_latent()) {
      add_latent_attention(model, out);
    } else {
      add_attention(model, out);
    }
    if (model.norms.after) add_norm(model, "attention.after_norm", model.hidden, out);
  }
  if (!kind.feeds()) return out;
  if (model.norms.before && !model.shared_norm) add_norm(model, "mlp.norm", model.hidden, out);
  if (kind.sparse()) {
    add_experts(model, out);
  } else {
    add_mlp(model, out);
  }
  if (model.norms.after) add_norm(model, "mlp.after_norm", model.hidden, out);
  return out;
}

std::vector<Parameter> cross_parameters(const Model& model) {
  const std::int64_t h = model.hidden;
  std::vector<Parameter> out;
  const auto linear = [&](const std::string& name, std::int64_t rows, std::int64_t cols,
                          Split split, bool bias) {
    out.push_back({name + ".weight", rows, cols, split, Init::kNormal});
    const Split of_bias = split == Split::kRows ? split : Split::kNone;
    if (bias) out.push_back({name + ".bias", rows, 1, of_bias, Init::kZeros});
  };
  add_norm(model, "cross.norm", h, out);
  linear("cross.q", model.query_width(), h, Split::kRows, model.biases.qkv);
  linear("cross.kv", 2 * model.kv_width(), h, Split::kRows, model.biases.qkv);
  linear("cross.projection", h, model.query_width(), Split::kCols, model.biases.projection);
  return out;
}

std::vector<Parameter> turn_parameters(const Model& model) {
  std::vector<Parameter> out;
  add_norm(model, "encoder.norm", model.hidden, out);
  if (model.relative_buckets == 0) return out;
  for (const char* name : {"encoder.relative_positions", "decoder.relative_positions"}) {
    out.push_back({name, model.relative_buckets, model.heads, Split::kNone, Init::kNormal});
  }
  return out;
}

std::vector<Parameter> block_parameters(const NetworkBlock& block) {
  std::vector<Parameter> out;
  const auto add = [&out](const std::string& name, std::int64_t rows, std::int64_t cols,
                          Init init) {
    // Cut in one part: such parameters keep their order in the buffer.
    out.push_back({name, rows, cols, Split::kRows, init});
  };
  for (const Node& n : block.nodes) {
    const std::int64_t count = n.parameter_count();
    if (count == 0) continue;
    const bool norm = n.kind == NodeKind::kNorm;
    const bool bias = n.bias || norm;
    const std::int64_t weights = count - (bias ? n.out.channels : 0);
    const bool matrix = !norm && n.kind != NodeKind::kOpaque;
    const std::int64_t rows = matrix ? n.out.channels : weights;
    add(n.name + ".weight", rows, weights / rows, norm ? Init::kOnes : Init::kNormal);
    if (bias) add(n.name + ".bias", n.out.channels, 1, Init::kZeros);
  }
  return out;
}

std::vector<Parameter> embedding_parameters(const Model& model) {
  std::vector<Parameter> out;
  const Ends& e = model.ends;
  const std::int64_t width = table_width(model);
  if (e.patch > 0) {
    out.push_back({"embedding.patches.weight", width, e.patch, Split::kNone, Init::kNormal});
    out.push_back({"embedding.patches.bias", width, 1, Split::kNone, Init::kZeros});
    out.push_back({"embedding.class", width, 1, Split::kNone, Init::kNormal});
  } else {
    out.push_back({"embedding.tokens", model.vocabulary, width, Split::kRows, Init::kNormal});
  }
  if (e.layer_rows > 0) {
    const std::int64_t of_layers = model.layers * e.layer_width;
    out.push_back({"embedding.layers", e.layer_rows, of_layers, Split::kNone, Init::kNormal});
  }
  if (model.positions > 0) {
    const std::int64_t of_positions = e.wide_positions ? model.hidden : width;
    out.push_back(
        {"embedding.positions", model.positions, of_positions, Split::kNone, Init::kNormal});
  }
  if (model.embedding_norm) add_norm(model, "embedding.norm", width, out);
  if (width != model.hidden) {
    out.push_back({"embedding.widen.weight", model.hidden, width, Split::kNone, Init::kNormal});
    if (e.embedding_bias) {
      out.push_back({"embedding.widen.bias", model.hidden, 1, Split::kNone, Init::kZeros});
    }
  }
  for (std::int64_t block = 1; block <= model.hybrid.shared.blocks; ++block) {
    for (Parameter& p : shared_block_parameters(model, block)) out.push_back(std::move(p));
  }
  return out;
}

std::vector<Parameter> head_parameters(const Model& model) {
  std::vector<Parameter> out;
  const Ends& e = model.ends;
  // Behind a transform the head works in the width of the tables.
  const std::int64_t width = head_width(model);
  if (e.transform) {
    out.push_back({"head.transform.weight", width, model.hidden, Split::kNone, Init::kNormal});
    out.push_back({"head.transform.bias", width, 1, Split::kNone, Init::kZeros});
  } else if (width != model.hidden) {
    out.push_back({"head.narrow.weight", width, model.hidden, Split::kNone, Init::kNormal});
  }
  if (e.final_norm) add_norm(model, "head.norm", e.transform ? width : model.hidden, out);
  if (e.classes > 0) {
    out.push_back({"head.classes.weight", e.classes, width, Split::kNone, Init::kNormal});
    if (model.biases.head) {
      out.push_back({"head.classes.bias", e.classes, 1, Split::kNone, Init::kZeros});
    }
    return out;
  }
  if (!model.tied_embeddings) {
    out.push_back({"head.output", model.vocabulary, width, Split::kRows, Init::kNormal});
  }
  if (model.biases.head) {
    out.push_back({"head.bias", model.vocabulary, 1, Split::kRows, Init::kZeros});
  }
  return out;
}

std::vector<Parameter> prediction_parameters(const Model& model) {
  std::vector<Parameter> out;
  const std::int64_t h = model.hidden;
  for (std::int64_t d = 1; d <= model.predict_layers; ++d) {
    const std::string at = "predict" + std::to_string(d) + ".";
    out.push_back({at + "norms.weight", 2 * h, 1, Split::kNone, Init::kOnes});
    out.push_back({at + "join.weight", h, 2 * h, Split::kNone, Init::kNormal});
    add_norm(model, at + "head.norm", h, out);
  }
  return out;
}

/// The norm of 2 h columns, queries, keys and values of as many, the way back to h, a norm and a
/// gated MLP (Hugging Face's zamba2).
std::vector<Parameter> shared_block_parameters(const Model& model, std::int64_t block) {
  std::vector<Parameter> out;
  const std::string at = "shared" + std::to_string(block) + ".";
  const std::int64_t h = model.hidden;
  const std::int64_t wide = 2 * h;
  add_rows(out, at + "norm.weight", wide, 1, Init::kOnes);
  add_rows(out, at + "qkv.weight", 3 * wide, wide, Init::kNormal);
  add_rows(out, at + "projection.weight", h, wide, Init::kNormal);
  add_rows(out, at + "mlp.norm.weight", h, 1, Init::kOnes);
  add_rows(out, at + "mlp.up.weight", (model.gated() ? 2 : 1) * model.intermediate, h,
           Init::kNormal);
  add_rows(out, at + "mlp.down.weight", h, model.intermediate, Init::kNormal);
  return out;
}

namespace {

std::int64_t counted_parameters(const Model& model) {
  std::int64_t sum = 0;
  for (const CountedPart& part : model.notes.counted) sum += part.parameters;
  return sum;
}

}  // namespace

std::int64_t parameter_count(const Model& model) {
  if (model.is_network()) return parameter_count(model.network);
  std::int64_t sum = count(embedding_parameters(model)) + count(head_parameters(model));
  if (model.is_encoder_decoder()) {
    const std::int64_t layer = count(layer_parameters(model));
    sum += model.encoder_layers * layer + count(turn_parameters(model)) +
           model.decoder_layers * (layer + count(cross_parameters(model)));
    return sum + counted_parameters(model);
  }
  for (const LayersOfKind& of : model.kinds(false)) {
    const std::int64_t layers = model.hybrid.one_layer ? 1 : of.layers;
    sum += layers * count(layer_parameters(model, of.kind));
  }
  return sum + counted_parameters(model);
}

std::int64_t active_parameter_count(const Model& model) {
  std::int64_t idle = 0;
  for (const CountedPart& part : model.notes.counted) idle += part.parameters - part.active;
  if (!model.has_experts()) return parameter_count(model) - idle;
  for (const LayersOfKind& of : model.kinds(false)) {
    for (const Parameter& p : layer_parameters(model, of.kind)) {
      idle += of.layers * (p.count() - active(model, p));
    }
  }
  return parameter_count(model) - idle;
}

namespace {

/// Elements of the matrices that every token is multiplied with: the layers' and the output matrix,
/// tied or not.
std::int64_t active_matrices(const Model& model, std::int64_t sequence) {
  const bool few = model.ends.masked > 0 && model.ends.masked < sequence;
  std::int64_t matrices = 0;
  for (const Parameter& p : head_parameters(model)) {
    if (p.cols > 1) matrices += p.count();
  }
  if (model.tied_embeddings) {
    const std::int64_t narrow = model.ends.embedding_width;
    matrices += model.vocabulary * (narrow > 0 ? narrow : model.hidden);
  }
  if (few) matrices = matrices * model.ends.masked / sequence;
  for (const Parameter& p : embedding_parameters(model)) {
    if (p.name == "embedding.widen.weight" || p.name == "embedding.patches.weight") {
      matrices += p.count();
    }
  }
  for (const LayersOfKind& of : model.kinds(true)) {
    for (const Parameter& p : layer_parameters(model, of.kind)) {
      if (p.cols > 1 && !p.name.ends_with(".bias")) matrices += of.layers * active(model, p);
    }
    if (of.kind.shared == 0) continue;
    for (const Parameter& p : shared_block_parameters(model, of.kind.shared)) {
      if (p.cols > 1) matrices += of.layers * p.count();
    }
  }
  matrices += model.predict_layers * model.vocabulary * model.hidden;
  for (const Parameter& p : prediction_parameters(model)) {
    if (p.cols > 1) matrices += p.count();
  }
  return matrices;
}

double matrix_elements(const std::vector<Parameter>& parameters) {
  double sum = 0;
  for (const Parameter& p : parameters) {
    if (p.cols > 1) sum += static_cast<double>(p.count());
  }
  return sum;
}

FlopConventions flops_of_stacks(const Model& model, double tokens, double sequence, double target) {
  const auto encoder = static_cast<double>(model.encoder_layers);
  const auto decoder = static_cast<double>(model.decoder_layers);
  const double layer = matrix_elements(layer_parameters(model));
  const auto h = static_cast<double>(model.hidden);
  const double keys = 2 * static_cast<double>(model.kv_width()) * h;
  const double queries = matrix_elements(cross_parameters(model)) - keys;
  // Multiply-adds of a sequence's forward pass.
  const double linear =
      sequence * (encoder * layer + decoder * keys) +
      target * (decoder * (layer + queries) + static_cast<double>(model.vocabulary) * h);
  const double width = 2 * static_cast<double>(model.query_width());
  const double seen = encoder * sequence * sequence + decoder * target * sequence;
  const double own = decoder * target * target;
  const double sequences = tokens / sequence;
  return {sequences * 6 * (linear + width * (seen + own / 2)),
          sequences * 6 * (linear + width * (seen + own)),
          sequences * 8 * (linear + width * (seen + own))};
}

/// Sum over the layers of attention with a window, or without one, of the mean of the widths of
/// queries and values.
double attention_width(const Model& model, bool narrow) {
  double out = 0;
  const bool alike = model.hybrid.shapes.empty();
  const double own = static_cast<double>(model.query_width() + model.value_width()) / 2;
  for (std::int64_t l = 0; l < model.layers + model.predict_layers; ++l) {
    const LayerKind kind = model.kind(l);
    if (kind.shared > 0 && !narrow) out += 2 * static_cast<double>(model.hidden);
    if (!kind.attends() || model.windowed(l) != narrow) continue;
    if (alike || kind.shape == 0) {
      out += own;
      continue;
    }
    const LayerShape& s = model.hybrid.shapes[kind.shape - std::size_t{1}];
    out += static_cast<double>(s.heads * s.head_dim);
  }
  return out;
}

/// FLOPs a token of indexers that score all `keys` that a token sees, of which they choose some:
/// once forward, and for gradients twice those of the chosen.
void add_indexers(const Model& model, std::int64_t keys, FlopConventions& out) {
  const LatentAttention& l = model.latent;
  if (l.index_heads == 0) return;
  const auto layers = static_cast<double>(model.layers + model.predict_layers);
  const double pair = layers * 2 * static_cast<double>(l.index_heads * l.index_dim);
  const auto all = static_cast<double>(keys);
  const auto chosen = static_cast<double>(std::min(keys, l.index_keys));
  const double seen = chosen - chosen * chosen / (2 * all);
  out.causal += pair * (all / 2 + 2 * seen);
  out.full += pair * (all + 2 * chosen);
  out.recomputed += pair * (2 * all + 2 * chosen);
}

/// FLOPs a token of the scans of all layers.
void add_scans(const Model& model, FlopConventions& out) {
  const Hybrid& h = model.hybrid;
  for (const LayersOfKind& of : model.kinds(true)) {
    const Mixer mixer = of.kind.mixer;
    const StateSpace& s = h.state_space;
    const DeltaNet& d = h.delta;
    Scan scan{false, 1, 1, s.heads, s.groups, s.head_dim, s.state, s.chunk, DType::kBf16};
    const bool state_space = mixer == Mixer::kMamba2 || mixer == Mixer::kBeside;
    if (mixer == Mixer::kDelta) {
      scan = {false,       1,         1,       d.value_heads, d.value_heads,
              d.value_dim, d.key_dim, d.chunk, DType::kBf16,  ScanRule::kDelta};
    } else if (mixer == Mixer::kMamba1) {
      scan = {false,
              1,
              1,
              h.selective.width,
              1,
              1,
              h.selective.state,
              1,
              DType::kBf16,
              ScanRule::kSelective};
    } else if (!state_space) {
      continue;
    }
    const auto layers = static_cast<double>(of.layers);
    const double forward = layers * flops_of(Work{scan});
    out.causal += 3 * forward;
    out.full +=
        state_space ? 3 * 7 * layers * static_cast<double>(s.width() * s.state) : 3 * forward;
    out.recomputed += 4 * forward;
  }
}

}  // namespace

FlopConventions model_flops(const Model& model, std::int64_t tokens, std::int64_t sequence,
                            std::int64_t target, const std::vector<std::int64_t>& documents) {
  if (model.is_encoder_decoder()) {
    return flops_of_stacks(model, static_cast<double>(tokens), static_cast<double>(sequence),
                           static_cast<double>(target > 0 ? target : sequence));
  }
  if (model.is_network()) {
    const double forward = static_cast<double>(tokens) * forward_flops(model.network);
    return {3 * forward, 3 * forward, 4 * forward};
  }
  FlopConventions out;
  const std::vector<std::int64_t> lengths = documents.empty() ? std::vector{sequence} : documents;
  for (const bool narrow : {false, true}) {
    const double width = attention_width(model, narrow);
    for (const std::int64_t length : lengths) {
      std::int64_t most = narrow ? model.sliding_window : length;
      if (model.latent.index_heads > 0) most = std::min(most, model.latent.index_keys);
      const auto keys = static_cast<double>(std::min(most, length));
      // Keys that a query sees on average under the causal mask: s/2 without a window.
      const double hidden = keys * keys / (2 * static_cast<double>(length));
      const double seen = model.bidirectional ? keys : keys - hidden;
      const double share = width * (static_cast<double>(length) / static_cast<double>(sequence));
      out.causal += 12 * share * seen;
      out.full += 12 * share * keys;
      out.recomputed += 16 * share * keys;
    }
  }
  add_scans(model, out);
  add_indexers(model, sequence, out);
  const auto p = static_cast<double>(active_matrices(model, sequence));
  const auto t = static_cast<double>(tokens);
  return {t * (6 * p + out.causal), t * (6 * p + out.full), t * (8 * p + out.recomputed)};
}

}  // namespace foretrain
