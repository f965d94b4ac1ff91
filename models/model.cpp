#include "models/model.h"

namespace foretrain {
namespace {

void add_norm(const Model& model, const std::string& name, std::int64_t width,
              std::vector<Parameter>& out) {
  out.push_back({name + ".weight", width, 1, Split::kNone, Init::kOnes});
  if (model.norm == Norm::kLayerNorm && model.norm_bias) {
    out.push_back({name + ".bias", width, 1, Split::kNone, Init::kZeros});
  }
}

std::int64_t count(const std::vector<Parameter>& parameters) {
  std::int64_t sum = 0;
  for (const Parameter& p : parameters) sum += p.count();
  return sum;
}

}  // namespace

std::vector<Parameter> layer_parameters(const Model& model) {
  const std::int64_t h = model.hidden;
  const std::int64_t qkv = model.query_width() + 2 * model.kv_width();
  const std::int64_t up = model.gated() ? 2 * model.intermediate : model.intermediate;
  std::vector<Parameter> out;
  add_norm(model, "attention.norm", h, out);
  out.push_back({"attention.qkv.weight", qkv, h, Split::kRows, Init::kNormal});
  if (model.qkv_bias) out.push_back({"attention.qkv.bias", qkv, 1, Split::kRows, Init::kZeros});
  if (model.qk_norm) {
    out.push_back({"attention.q_norm.weight", model.head_dim, 1, Split::kNone, Init::kOnes});
    out.push_back({"attention.k_norm.weight", model.head_dim, 1, Split::kNone, Init::kOnes});
  }
  out.push_back(
      {"attention.projection.weight", h, model.query_width(), Split::kCols, Init::kNormal});
  if (model.projection_bias) {
    out.push_back({"attention.projection.bias", h, 1, Split::kNone, Init::kZeros});
  }
  add_norm(model, "mlp.norm", h, out);
  const std::int64_t parts = model.gated() ? 2 : 1;
  out.push_back({"mlp.up.weight", up, h, Split::kRows, Init::kNormal, parts});
  if (model.mlp_bias) out.push_back({"mlp.up.bias", up, 1, Split::kRows, Init::kZeros, parts});
  out.push_back({"mlp.down.weight", h, model.intermediate, Split::kCols, Init::kNormal});
  if (model.mlp_bias) out.push_back({"mlp.down.bias", h, 1, Split::kNone, Init::kZeros});
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
  return out;
}

std::int64_t parameter_count(const Model& model) {
  return model.layers * count(layer_parameters(model)) + count(embedding_parameters(model)) +
         count(head_parameters(model));
}

FlopConventions model_flops(const Model& model, std::int64_t tokens, std::int64_t sequence) {
  // Matrices that every token is multiplied with: the layers' and the output matrix, tied or not.
  std::int64_t matrices = model.vocabulary * model.hidden;
  for (const Parameter& p : layer_parameters(model)) {
    if (p.cols > 1) matrices += model.layers * p.count();
  }
  const bool windowed = model.sliding_window > 0 && model.sliding_window < sequence;
  const auto keys = static_cast<double>(windowed ? model.sliding_window : sequence);
  // Keys that a query sees on average under the causal mask: s/2 without a window.
  const double seen = keys - keys * keys / (2 * static_cast<double>(sequence));
  const auto p = static_cast<double>(matrices);
  const double width = static_cast<double>(model.layers) * static_cast<double>(model.query_width());
  const auto t = static_cast<double>(tokens);
  return {t * (6 * p + 12 * width * seen), t * (6 * p + 12 * width * keys),
          t * (8 * p + 16 * width * keys)};
}

}  // namespace foretrain
