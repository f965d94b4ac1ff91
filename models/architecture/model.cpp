#include "models/architecture/model.h"

#include <algorithm>

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

void add_attention(const Model& model, std::vector<Parameter>& out) {
  const std::int64_t h = model.hidden;
  const std::int64_t qkv = model.query_width() + 2 * model.kv_width();
  out.push_back({"attention.qkv.weight", qkv, h, Split::kRows, Init::kNormal});
  if (model.biases.qkv) out.push_back({"attention.qkv.bias", qkv, 1, Split::kRows, Init::kZeros});
  if (model.qk_norm && model.norms.heads != HeadNorms::kWeightless) {
    const bool one = model.norms.heads == HeadNorms::kOneHead;
    const Split split = one ? Split::kNone : Split::kRows;
    const std::int64_t q = one ? model.head_dim : model.query_width();
    const std::int64_t k = one ? model.head_dim : model.kv_width();
    out.push_back({"attention.q_norm.weight", q, 1, split, Init::kOnes});
    out.push_back({"attention.k_norm.weight", k, 1, split, Init::kOnes});
  }
  out.push_back(
      {"attention.projection.weight", h, model.query_width(), Split::kCols, Init::kNormal});
  if (model.biases.projection) {
    out.push_back({"attention.projection.bias", h, 1, Split::kNone, Init::kZeros});
  }
  if (model.attention_sinks) {
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
  out.push_back(
      {"attention.projection.weight", h, model.value_width(), Split::kCols, Init::kNormal});
}

/// Heads, groups and channels are cut alike, so that every matrix is cut by rows or by columns.
void add_mamba(const Model& model, std::vector<Parameter>& out) {
  const StateSpace& s = model.hybrid.state_space;
  const std::int64_t h = model.hidden;
  const auto add = [&out](const char* name, std::int64_t rows, std::int64_t cols, Init init) {
    out.push_back({name, rows, cols, Split::kRows, init});
  };
  add_norm(model, "mamba.norm", h, out);
  add("mamba.in.weight", s.in_width(), h, Init::kNormal);
  if (s.bias) add("mamba.in.bias", s.in_width(), 1, Init::kZeros);
  add("mamba.conv.weight", s.conv_width(), s.taps, Init::kNormal);
  if (s.conv_bias) add("mamba.conv.bias", s.conv_width(), 1, Init::kZeros);
  add("mamba.decay", s.heads, 1, Init::kOnes);
  add("mamba.skip", s.heads, 1, Init::kOnes);
  add("mamba.step.bias", s.heads, 1, Init::kZeros);
  add("mamba.gate_norm.weight", s.width(), 1, Init::kOnes);
  out.push_back({"mamba.out.weight", h, s.width(), Split::kCols, Init::kNormal});
  if (s.bias) out.push_back({"mamba.out.bias", h, 1, Split::kNone, Init::kZeros});
}

void add_convolution(const Model& model, std::vector<Parameter>& out) {
  const std::int64_t h = model.hidden;
  const auto add = [&out](const char* name, std::int64_t rows, std::int64_t cols, Split split) {
    out.push_back({name, rows, cols, split, cols > 1 ? Init::kNormal : Init::kZeros});
  };
  const bool bias = model.hybrid.conv_bias;
  add_norm(model, "conv.norm", h, out);
  out.push_back({"conv.in.weight", 3 * h, h, Split::kRows, Init::kNormal, 3});
  if (bias) add("conv.in.bias", 3 * h, 1, Split::kRows);
  add("conv.taps.weight", h, model.hybrid.conv_taps, Split::kRows);
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
  if (e.shared_width > 0) {
    out.push_back(
        {"moe.shared.up.weight", halves * e.shared_width, h, Split::kRows, Init::kNormal, halves});
    out.push_back({"moe.shared.down.weight", h, e.shared_width, Split::kCols, Init::kNormal});
    if (e.shared_gate) {
      out.push_back({"moe.shared.gate.weight", 1, h, Split::kNone, Init::kNormal});
    }
  }
  out.push_back({"moe.experts.up.weight", e.count * h, up, Split::kCols, Init::kNormal, 1, true});
  out.push_back(
      {"moe.experts.down.weight", e.count * h, e.width, Split::kCols, Init::kNormal, 1, true});
  if (!e.bias) return;
  out.push_back({"moe.experts.up.bias", e.count, up, Split::kCols, Init::kZeros, 1, true});
  out.push_back({"moe.experts.down.bias", e.count, h, Split::kNone, Init::kZeros, 1, true});
}

}  // namespace

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

std::vector<Parameter> layer_parameters(const Model& model, LayerKind kind) {
  std::vector<Parameter> out;
  if (kind.mixer == Mixer::kMamba2) add_mamba(model, out);
  if (kind.mixer == Mixer::kConv) add_convolution(model, out);
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
  out.push_back({"embedding.tokens", model.vocabulary, model.hidden, Split::kRows, Init::kNormal});
  if (model.positions > 0) {
    out.push_back(
        {"embedding.positions", model.positions, model.hidden, Split::kNone, Init::kNormal});
  }
  if (model.embedding_norm) add_norm(model, "embedding.norm", model.hidden, out);
  return out;
}

std::vector<Parameter> head_parameters(const Model& model) {
  std::vector<Parameter> out;
  add_norm(model, "head.norm", model.hidden, out);
  if (!model.tied_embeddings) {
    out.push_back({"head.output", model.vocabulary, model.hidden, Split::kRows, Init::kNormal});
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

std::int64_t parameter_count(const Model& model) {
  if (model.is_network()) return parameter_count(model.network);
  std::int64_t sum = count(embedding_parameters(model)) + count(head_parameters(model));
  if (model.is_encoder_decoder()) {
    const std::int64_t layer = count(layer_parameters(model));
    return sum + model.encoder_layers * layer + count(turn_parameters(model)) +
           model.decoder_layers * (layer + count(cross_parameters(model)));
  }
  for (const LayersOfKind& of : model.kinds(false)) {
    sum += of.layers * count(layer_parameters(model, of.kind));
  }
  return sum;
}

std::int64_t active_parameter_count(const Model& model) {
  std::int64_t idle = 0;
  if (!model.has_experts()) return parameter_count(model);
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
  const bool few = model.masked > 0 && model.masked < sequence;
  std::int64_t matrices = model.vocabulary * model.hidden;
  if (few) matrices = matrices * model.masked / sequence;
  for (const LayersOfKind& of : model.kinds(true)) {
    for (const Parameter& p : layer_parameters(model, of.kind)) {
      if (p.cols > 1 && !p.name.ends_with(".bias")) matrices += of.layers * active(model, p);
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
  double causal = 0;
  double full = 0;
  double again = 0;
  const std::int64_t all = model.layers + model.predict_layers;
  std::int64_t with_window = 0;
  std::int64_t attention = 0;
  std::int64_t scans = 0;
  for (const LayersOfKind& of : model.kinds(true)) {
    attention += of.kind.mixer == Mixer::kAttention ? of.layers : 0;
    scans += of.kind.mixer == Mixer::kMamba2 ? of.layers : 0;
  }
  for (std::int64_t l = 0; l < all; ++l) {
    with_window += model.windowed(l) && model.kind(l).mixer == Mixer::kAttention ? 1 : 0;
  }
  const std::vector<std::int64_t> lengths = documents.empty() ? std::vector{sequence} : documents;
  for (const bool narrow : {false, true}) {
    const double width = static_cast<double>(narrow ? with_window : attention - with_window) *
                         static_cast<double>(model.query_width() + model.value_width()) / 2;
    for (const std::int64_t length : lengths) {
      const bool windowed = narrow && model.sliding_window < length;
      const auto keys = static_cast<double>(windowed ? model.sliding_window : length);
      // Keys that a query sees on average under the causal mask: s/2 without a window.
      const double hidden = keys * keys / (2 * static_cast<double>(length));
      const double seen = model.bidirectional ? keys : keys - hidden;
      const double share = width * (static_cast<double>(length) / static_cast<double>(sequence));
      causal += 12 * share * seen;
      full += 12 * share * keys;
      again += 16 * share * keys;
    }
  }
  if (scans > 0) {
    const StateSpace& s = model.hybrid.state_space;
    const Scan scan{false, 1, 1, s.heads, s.groups, s.head_dim, s.state, s.chunk, DType::kBf16};
    const double forward = static_cast<double>(scans) * flops_of(Work{scan});
    causal += 3 * forward;
    full += 3 * 7 * static_cast<double>(scans * s.width() * s.state);
    again += 4 * forward;
  }
  const auto p = static_cast<double>(active_matrices(model, sequence));
  const auto t = static_cast<double>(tokens);
  return {t * (6 * p + causal), t * (6 * p + full), t * (8 * p + again)};
}

}  // namespace foretrain
