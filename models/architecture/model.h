// The architecture of a model: what Hugging Face's config.json says, in one vocabulary.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/architecture/network.h"
#include "sim/base/json.h"
#include "sim/base/result.h"
#include "sim/program/program.h"

namespace foretrain {

enum class Norm : std::uint8_t { kLayerNorm, kRmsNorm };
/// kGeluNew: the gelu by tanh that Transformers writes out in operations.
enum class Activation : std::uint8_t { kGelu, kSwiglu, kRelu, kRelu2, kGeglu, kGeluNew };
enum class Position : std::uint8_t { kLearned, kRope, kAlibi, kNone };

/// What some experts have besides.
struct ExpertExtras {
  std::int64_t latent = 0;   ///< width of the space that experts work in; 0: the hidden width
  bool shared_gate = false;  ///< a number for each token weighs the shared experts
  bool beside = false;       ///< the shared experts are an MLP that reads through its own norm
  bool norms_after = false;  ///< beside: either result is normed before the sum
  bool scales = false;       ///< the router scales its input and each expert's result
  bool operator==(const ExpertExtras&) const = default;
};

/// Mixture of experts in place of the MLP: every token goes through `top_k` of `experts` gated MLPs
/// of `width`, and through `shared_width` more that all tokens share.
struct Experts {
  std::int64_t count = 0, top_k = 0, width = 0, shared_width = 0;
  std::int64_t first_dense = 0;              ///< the first so many layers keep their MLP
  std::int64_t step = 1;                     ///< of the others, every so many-th layer has experts
  bool bias = false;                         ///< of the experts' matrices
  std::int64_t groups = 1, group_top_k = 1;  ///< a token's experts are of so many of the groups
  bool router_bias = false;
  std::vector<bool> layers = {};  ///< which have experts; empty: as first_dense and step say
  ExpertExtras more = {};
  bool operator==(const Experts&) const = default;
  /// Of a token as experts see it, where the model's is `hidden` wide.
  std::int64_t token_width(std::int64_t hidden) const {
    return more.latent > 0 ? more.latent : hidden;
  }
};

/// Multi-head latent attention (DeepSeek-V2): queries and keys-values pass through narrow
/// projections; `rope` elements of a key are shared by all heads. kv_rank 0: plain attention.
struct LatentAttention {
  std::int64_t q_rank = 0, kv_rank = 0, nope = 0, rope = 0, value = 0;
  /// Of an indexer, which chooses the `index_keys` keys that a query sees (DeepSeek-V3.2).
  std::int64_t index_heads = 0, index_dim = 0, index_keys = 2048;
  bool operator==(const LatentAttention&) const = default;
};

/// Mamba-2's mixer (Dao and Gu, arXiv 2405.21060): a linear to z, x, B, C and steps; a convolution
/// of `taps` tokens over x, B and C; the scan of a state of head_dim x state elements a head, of
/// which heads of one group share B and C; the norm of each group of y silu(z), or that product
/// without a `norm`; a linear back.
struct StateSpace {
  std::int64_t heads = 0, head_dim = 0, state = 0, groups = 1, taps = 4;
  std::int64_t chunk = 256;  ///< tokens that the scan takes at once
  bool conv_bias = true, bias = false, norm = true;
  bool operator==(const StateSpace&) const = default;
  std::int64_t width() const { return heads * head_dim; }
  std::int64_t conv_width() const { return width() + 2 * groups * state; }
  std::int64_t in_width() const { return width() + conv_width() + heads; }
};

/// Mamba's mixer (Gu and Dao, arXiv 2312.00752): a linear to x and z, each of `width`; a
/// convolution of `taps` tokens over x; a linear from x to `step_rank` numbers, B and C; a linear
/// from those numbers to a step for every channel; the scan of `state` numbers a channel; y
/// silu(z); a linear back. With `norms` the three outputs of the second linear are normed (Jamba).
struct SelectiveScan {
  std::int64_t width = 0, state = 16, taps = 4, step_rank = 0;
  bool conv_bias = true, bias = false, norms = false;
  bool operator==(const SelectiveScan&) const = default;
  std::int64_t selected() const { return step_rank + 2 * state; }
};

/// A gated delta net (Yang et al., arXiv 2412.06464, as in Qwen3-Next): a linear to queries, keys
/// and values, gates z, and two numbers a value head; a convolution of `taps` tokens over queries,
/// keys and values; the gated delta rule on states of key_dim x value_dim elements a value head;
/// the norm of each value head, times silu(z); a linear back. With `gate_rank` > 0 every channel
/// of a key decays on its own, and decays and gates come from the hidden width by way of so many
/// numbers each (Kimi delta attention, arXiv 2510.26692).
struct DeltaNet {
  std::int64_t key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0, taps = 4;
  std::int64_t gate_rank = 0;
  std::int64_t chunk = 64;  ///< tokens that the kernels take at once
  bool operator==(const DeltaNet&) const = default;
  bool by_channel() const { return gate_rank > 0; }
  std::int64_t keys() const { return key_heads * key_dim; }
  std::int64_t values() const { return value_heads * value_dim; }
  std::int64_t conv_width() const { return 2 * keys() + values(); }
  std::int64_t in_width() const {
    return conv_width() + (by_channel() ? 2 * gate_rank : values() + value_heads) + value_heads;
  }
};

/// A transformer block on 2 x hidden columns, the stream and the embedding side by side, that
/// several layers share (Zamba2): `blocks` of them take turns at layers, each of which has a linear
/// of its own and low-rank adapters of `rank` to the block's MLP, or to queries, keys and values
/// too.
struct SharedBlock {
  std::int64_t blocks = 0, rank = 0;
  bool attention_adapters = false;
  bool operator==(const SharedBlock&) const = default;
};

/// How a layer mixes the tokens of a sequence, and what every token goes through alone after that.
/// kBeside: attention and Mamba-2 read the same input, and their results are added.
enum class Mixer : std::uint8_t {
  kNone,
  kAttention,
  kMamba2,
  kConv,
  kDelta,
  kMamba1,
  kBeside,
};
enum class FeedForward : std::uint8_t { kNone, kMlp, kExperts };

/// A layer is a mixer and a feed-forward, each with a norm before it and added to the residual
/// stream; of a layer that has one of them the other is absent with its norm.
struct LayerKind {
  Mixer mixer = Mixer::kAttention;
  FeedForward feed_forward = FeedForward::kMlp;
  std::uint16_t shape = 0;  ///< 0: the model's own; i: Hybrid::shapes[i - 1]
  std::uint8_t shared = 0;  ///< which of the blocks that layers share stands before it; 0: none
  bool last_use = false;    ///< no later layer has such a block
  /// It has queries, keys and values.
  bool attends() const { return mixer == Mixer::kAttention || mixer == Mixer::kBeside; }
  bool mixes() const { return mixer != Mixer::kNone; }
  bool feeds() const { return feed_forward != FeedForward::kNone; }
  bool sparse() const { return feed_forward == FeedForward::kExperts; }
  auto operator<=>(const LayerKind&) const = default;
};

/// What multiplies the result of attention before its linear back, by way of a sigmoid: nothing, a
/// number for each element or one for each head, which the linear to queries gives too.
enum class OutputGate : std::uint8_t { kNone, kElements, kHeads };

/// Sizes of layers that differ from the model's.
struct LayerShape {
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0, intermediate = 0;
  bool key_is_value = false, sinks = false;
  OutputGate gate = OutputGate::kNone;
  bool operator==(const LayerShape&) const = default;
};

/// Layers of several mixers or shapes.
struct Hybrid {
  StateSpace state_space;
  SelectiveScan selective;
  DeltaNet delta;
  SharedBlock shared;
  std::int64_t conv_taps = 3;     ///< of gated short convolutions
  bool conv_bias = false;         ///< of them and of their linears
  std::vector<LayerKind> layers;  ///< the kind of each; empty: as experts say
  std::vector<LayerShape> shapes;
  bool one_layer = false;  ///< all layers have the weights of one (ALBERT)
  bool operator==(const Hybrid&) const = default;
};

/// A kind and how many layers are of it.
struct LayersOfKind {
  LayerKind kind;
  std::int64_t layers = 0;
};

/// What a layer of an encoder-decoder is: models/layers/encoder_decoder.h.
enum class Stack : std::uint8_t { kEncoder, kTurn, kCross, kDecoder };

/// Which linears, norms and output matrices have biases.
struct Biases {
  bool qkv = false, projection = false, mlp = false, norm = false, head = false;
  std::int64_t activation = 0;  ///< numbers of an MLP's activation that are trained
  bool operator==(const Biases&) const = default;
};

/// Weights of the norms of queries and keys: those of one head for all, those of each head, or of
/// all heads as one vector; or none.
enum class HeadNorms : std::uint8_t { kOneHead, kEachHead, kWidth, kWeightless };

/// The norms of a block. `before`: a norm reads the stream before each branch. `after`: a norm
/// reads the result of each branch. Without `weights` no norm of the model has weights.
struct BlockNorms {
  bool before = true, after = false, weights = true;
  HeadNorms heads = HeadNorms::kOneHead;
  bool plain() const { return before && !after; }
  bool operator==(const BlockNorms&) const = default;
};

/// What attention has beside queries, keys and values.
struct AttentionExtras {
  bool sinks = false;         ///< one logit a head beside those of the keys
  double rotary_share = 1;    ///< of a head, what rotary positions turn
  bool key_is_value = false;  ///< values are the keys before their norm: no matrix of their own
  OutputGate gate = OutputGate::kNone;
  std::int64_t value_dim = 0;  ///< of a head's values, where not head_dim
  double score_cap = 0;        ///< soft cap of scores; 0: none
  bool plain() const { return !key_is_value && gate == OutputGate::kNone; }
  bool operator==(const AttentionExtras&) const = default;
};

/// Both ends of a model, where they are more than a table and an output matrix.
struct Ends {
  std::int64_t masked = 0;  ///< tokens of a sequence that the head predicts; 0 = all
  /// Of the tables; a matrix follows them, and another one stands before the output matrix.
  std::int64_t embedding_width = 0;
  bool embedding_bias = false;  ///< of that matrix
  bool wide_positions = false;  ///< positions are added behind it (OPT), else before
  /// The head has a matrix [hidden, hidden] with a bias, and a gelu, before its norm (BERT).
  bool transform = false;
  bool final_norm = true;    ///< a norm stands before the output matrix
  std::int64_t classes = 0;  ///< rows of the output matrix; 0 = the vocabulary
  std::int64_t patch = 0;    ///< elements of an image's patch, in place of a table of tokens
  /// A second table of tokens gives every layer a vector of so many elements (Gemma 3n); 0: none.
  std::int64_t layer_rows = 0, layer_width = 0;
  double logit_cap = 0;  ///< soft cap of the logits; 0: none
  bool plain() const { return embedding_width == 0 && classes == 0 && patch == 0; }
  bool operator==(const Ends&) const = default;
};

/// Parameters that the model has and none of its layers: they are counted, of which `active` of a
/// token, and take no memory, time or FLOPs. Fewer than none: those of a piece that is not there.
struct CountedPart {
  std::string what;
  std::int64_t parameters = 0, active = 0;
  bool operator==(const CountedPart&) const = default;
};

/// What a reader tells about a file.
struct ModelNotes {
  std::vector<std::string> ignored;   ///< keys that do not matter here
  std::vector<std::string> unknown;   ///< keys of a publisher's file that no reader knows
  std::vector<std::string> left_out;  ///< what its family has and is not here
  std::vector<CountedPart> counted;   ///< what is counted and not lowered
  std::string not_lowered;            ///< what keeps all of it from being lowered
  bool operator==(const ModelNotes&) const = default;
};

/// A decoder-only transformer, or an encoder that predicts masked tokens (BERT). Layers are equal,
/// but for those with experts. Or a network of layers, of which nothing else is set: its blocks are
/// the `layers`, its classes the `vocabulary`, its images sequences of one token.
struct Model {
  std::string name, type;
  std::int64_t layers = 0, hidden = 0, heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t intermediate = 0, vocabulary = 0;
  std::int64_t positions = 0;        ///< rows of the learned position table; 0 without one
  std::int64_t sliding_window = 0;   ///< keys each query sees, 0 = all
  std::vector<bool> full_attention;  ///< by layer: it sees all keys nevertheless; empty: none does
  std::int64_t attention_chunk = 0;  ///< keys lie in chunks of so many, 0 = in one (Llama 4)
  Norm norm = Norm::kRmsNorm;
  Activation activation = Activation::kSwiglu;
  Position position = Position::kRope;
  bool tied_embeddings = false;
  Biases biases;
  BlockNorms norms;
  bool qk_norm = false;  ///< norms of queries and keys
  AttentionExtras attention;
  bool parallel_residual = false;  ///< attention and MLP both read the layer's input
  bool shared_norm = false;        ///< through one norm, with parallel_residual
  bool embedding_norm = false;     ///< a norm after the embedding (BLOOM)
  Experts experts;
  LatentAttention latent;
  Hybrid hybrid;
  Network network;
  /// Of an encoder-decoder, whose `layers` are the encoder's, one where the decoder's tokens come
  /// in, and two for each of the decoder: cross-attention, the rest.
  std::int64_t encoder_layers = 0, decoder_layers = 0;
  std::int64_t relative_buckets = 0;  ///< of distances, with a bias for each head in both stacks
  bool bidirectional = false;         ///< tokens see those after them too
  Ends ends;
  std::int64_t predict_layers = 0;  ///< layers for multi-token prediction, beside `layers`
  double hidden_dropout = -1, attention_dropout = -1;  ///< -1: the file does not say
  ModelNotes notes;
  bool operator==(const Model&) const = default;

  std::int64_t query_width() const { return heads * head_dim; }
  std::int64_t kv_width() const { return kv_heads * head_dim; }
  std::int64_t gate_width() const {
    if (attention.gate == OutputGate::kNone) return 0;
    return attention.gate == OutputGate::kHeads ? heads : query_width();
  }
  /// Rows of the linear to queries, keys, values and gates.
  std::int64_t qkv_width() const {
    const std::int64_t values =
        attention.value_dim > 0 ? kv_heads * attention.value_dim : kv_width();
    return query_width() + kv_width() + (attention.key_is_value ? 0 : values) + gate_width();
  }
  /// Width of the values of all heads: what the output projection reads.
  std::int64_t value_width() const {
    const std::int64_t own = latent.kv_rank > 0 ? latent.value : attention.value_dim;
    return own > 0 ? heads * own : query_width();
  }
  bool gated() const {
    return activation == Activation::kSwiglu || activation == Activation::kGeglu;
  }
  bool is_encoder_decoder() const { return encoder_layers > 0; }
  Stack stack(std::int64_t index) const {
    if (index <= encoder_layers) return index < encoder_layers ? Stack::kEncoder : Stack::kTurn;
    return (index - encoder_layers) % 2 == 1 ? Stack::kCross : Stack::kDecoder;
  }
  bool is_network() const { return !network.empty(); }
  bool is_latent() const { return latent.kv_rank > 0; }
  bool has_experts() const { return experts.count > 0; }
  /// Some layers are other than attention and a feed-forward.
  bool is_hybrid() const { return !hybrid.layers.empty(); }
  bool has_mixer(Mixer mixer) const;
  /// Itself with the sizes that layers of a kind have.
  Model of(LayerKind kind) const;
  /// Of layer `index`; of those of multi-token prediction from `layers` on.
  LayerKind kind(std::int64_t index) const;
  /// The kinds that the layers are of, in the order of their first layer; those of multi-token
  /// prediction are among them where `prediction` says so.
  std::vector<LayersOfKind> kinds(bool prediction) const;
  /// Whether layer `index` has experts.
  bool sparse(std::int64_t index) const { return kind(index).sparse(); }
  std::int64_t sparse_layers() const;
  /// Whether layer `index` sees only `sliding_window` keys.
  bool windowed(std::int64_t index) const {
    const auto i = static_cast<std::size_t>(index);
    return sliding_window > 0 && (i >= full_attention.size() || !full_attention[i]);
  }
  /// Whether any layer is windowed, or any is not.
  bool has_windowed(bool windowed) const;
};

/// Columns of the tables of tokens.
inline std::int64_t table_width(const Model& model) {
  return model.ends.embedding_width > 0 ? model.ends.embedding_width : model.hidden;
}
/// Of the output matrix: behind a narrower table's matrix, or the hidden width.
inline std::int64_t head_width(const Model& model) {
  return model.ends.classes > 0 ? model.hidden : table_width(model);
}

/// Reads the keys of a `config.json` (see configs/README.md), or `image` and `layers`.
/// Of BERT's parameters the pooler, the transform before the output matrix and the bias after it
/// are left out (0.6 % of bert-large), and norms stand before what they stand after.
Result<Model> read_model(const Json& json, const std::string& source, const std::string& pointer);

/// All the names that the key of a config goes by, itself among them.
std::vector<std::string> spellings_of(const std::string& key);

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
  bool expert = false;  ///< of all experts: rows are cut over expert, columns over expert_tensor
  /// Rows of unequal matrices one above the other, each cut alone; empty: `parts` says.
  std::vector<std::int64_t> sections = {};
  double deviation = 0.02;  ///< of what a kNormal starts with
  std::int64_t count() const { return rows * cols; }
  /// Cut along the vocabulary; every rank holds a matrix of classes whole.
  bool is_table() const {
    return name == "embedding.tokens" || name == "head.output" || name == "head.bias";
  }
  bool operator==(const Parameter&) const = default;
};

/// Parameters of one layer, in the order of use.
std::vector<Parameter> layer_parameters(const Model& model, LayerKind kind = {});
/// Cross-attention of a decoder layer; the encoder's last norm and both stacks' relative positions.
std::vector<Parameter> cross_parameters(const Model& model);
std::vector<Parameter> turn_parameters(const Model& model);
/// Parameters of a block of a network, in the order of use.
std::vector<Parameter> block_parameters(const NetworkBlock& block);
/// Token table, position table, embedding norm; then the blocks that layers share.
std::vector<Parameter> embedding_parameters(const Model& model);
/// Final norm, the transform before it, the output matrix unless tied, and its bias; of a model
/// that tells classes the matrix to them.
std::vector<Parameter> head_parameters(const Model& model);

/// Of a block that layers share; they lie with those of the embedding.
std::vector<Parameter> shared_block_parameters(const Model& model, std::int64_t block);

/// What multi-token prediction adds to the head: for each later token the norms of its two inputs,
/// the matrix that joins them and a final norm. Its layers are `predict_layers` more, its embedding
/// and its output matrix the model's.
std::vector<Parameter> prediction_parameters(const Model& model);

/// Parameters of the whole model; a tied matrix counts once. Layers for multi-token prediction are
/// left out, as in published counts.
std::int64_t parameter_count(const Model& model);
/// The same, of the experts only those that one token passes through.
std::int64_t active_parameter_count(const Model& model);

/// FLOPs of one step over `tokens` tokens in sequences of `sequence`, by the three conventions that
/// published figures use. With P = matrices that a token is multiplied with (the output matrix and
/// `top_k` experts included, tables that are only looked up not), L layers and q = heads * head_dim
/// (latent attention: the mean of the widths of queries and values):
/// An encoder-decoder has tokens of the encoder and, in sequences of `target` (0: as long), of the
/// decoder: every matrix and score counts with the tokens it is multiplied with.
/// A network of layers: 3 times the forward FLOPs of an image by the first two, 4 times by the
/// third.
/// Of sequences that pack `documents` s is what their tokens see in the mean, sum d^2 / sum d.
/// A scan adds its own FLOPs to each: the chunks' of sim/program/scan.h in the first and third; in
/// the second 7 d state a token forward of state spaces, as Megatron-LM counts, the chunks' else.
struct FlopConventions {
  double causal = 0;      ///< 6 P + 6 L q s a token: attention halved (what `mfu` uses)
  double full = 0;        ///< 6 P + 12 L q s a token: as Megatron-LM and PaLM print it
  double recomputed = 0;  ///< 8 P + 16 L q s a token: full, with every layer's forward done twice
};
FlopConventions model_flops(const Model& model, std::int64_t tokens, std::int64_t sequence,
                            std::int64_t target = 0,
                            const std::vector<std::int64_t>& documents = {});

}  // namespace foretrain
