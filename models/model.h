// The architecture of a model: what Hugging Face's config.json says, in one vocabulary.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/base/json.h"
#include "sim/base/result.h"
#include "sim/program/program.h"

namespace foretrain {

enum class Norm : std::uint8_t { kLayerNorm, kRmsNorm };
enum class Activation : std::uint8_t { kGelu, kSwiglu, kRelu, kRelu2 };
enum class Position : std::uint8_t { kLearned, kRope, kAlibi };

/// A decoder-only transformer with equal layers.
struct Model {
  std::string name, type;
  std::int64_t layers = 0, hidden = 0, heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t intermediate = 0, vocabulary = 0;
  std::int64_t positions = 0;       ///< rows of the learned position table; 0 without one
  std::int64_t sliding_window = 0;  ///< keys each query sees, 0 = all
  Norm norm = Norm::kRmsNorm;
  Activation activation = Activation::kSwiglu;
  Position position = Position::kRope;
  bool tied_embeddings = false;
  bool qkv_bias = false, projection_bias = false, mlp_bias = false, norm_bias = false;
  bool qk_norm = false;            ///< RMSNorm of every query and key head
  bool parallel_residual = false;  ///< attention and MLP both read the layer's input
  bool embedding_norm = false;     ///< a norm after the embedding (BLOOM)
  double hidden_dropout = -1, attention_dropout = -1;  ///< -1: the file does not say
  std::vector<std::string> ignored;                    ///< keys of the file that do not matter here
  bool operator==(const Model&) const = default;

  std::int64_t query_width() const { return heads * head_dim; }
  std::int64_t kv_width() const { return kv_heads * head_dim; }
  bool gated() const { return activation == Activation::kSwiglu; }
};

/// Reads the keys of a `config.json` (see configs/README.md). Mixture-of-experts and encoder types
/// are refused as unsupported.
Result<Model> read_model(const Json& json, const std::string& source, const std::string& pointer);

/// How tensor parallelism cuts a parameter.
enum class Split : std::uint8_t { kNone, kRows, kCols };

/// One parameter tensor of a layer, of the embedding or of the head; [rows, cols] of the whole
/// model.
struct Parameter {
  std::string name;
  std::int64_t rows = 0, cols = 1;
  Split split = Split::kNone;
  Init init = Init::kNormal;
  /// Equal matrices one above the other, each cut alone: gate and up.
  std::int64_t parts = 1;
  std::int64_t count() const { return rows * cols; }
  bool operator==(const Parameter&) const = default;
};

/// Parameters of one transformer layer, in the order of use.
std::vector<Parameter> layer_parameters(const Model& model);
/// Token table, position table, embedding norm.
std::vector<Parameter> embedding_parameters(const Model& model);
/// Final norm, and the output matrix unless tied.
std::vector<Parameter> head_parameters(const Model& model);

/// Parameters of the whole model; a tied matrix counts once.
std::int64_t parameter_count(const Model& model);

/// FLOPs of one step over `tokens` tokens in sequences of `sequence`, by the three conventions that
/// published figures use. With P = parameters without the tables that are only looked up, the
/// output matrix included, L layers and q = heads * head_dim:
struct FlopConventions {
  double causal = 0;      ///< 6 P + 6 L q s a token: attention halved (what `mfu` uses)
  double full = 0;        ///< 6 P + 12 L q s a token: as Megatron-LM and PaLM print it
  double recomputed = 0;  ///< 8 P + 16 L q s a token: full, with every layer's forward done twice
};
FlopConventions model_flops(const Model& model, std::int64_t tokens, std::int64_t sequence);

}  // namespace foretrain
