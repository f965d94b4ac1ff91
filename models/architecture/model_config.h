// Parts of the reader of `config.json`.
#pragma once

#include <array>
#include <string>

#include "models/architecture/model.h"
#include "models/architecture/model_type.h"
#include "sim/base/json.h"

namespace foretrain {

/// Of a width or a count of what there must be one of.
inline constexpr JsonReader::IntRange kConfigSize{1, 1'000'000'000};

/// Keys that list the kind of every layer, by letter or by word.
inline constexpr std::array kLayerLists = {"hybrid_override_pattern", "layers_block_type",
                                           "layer_types"};

/// The name by which a file has the key `native`; `native` itself where it has not.
std::string key_of(const Json& json, const ModelType& type, const std::string& native);

/// Whether a model has experts: its type may, and the file gives it more than none.
bool has_experts(const Json& json, const ModelType& type);

/// Reads the experts of such a model.
void read_sparse(const Json& json, const ModelType& type, JsonReader& reader, Model& model);

/// Reads latent attention, where the file states its ranks.
void read_latent(const Json& json, JsonReader& reader, Model& model);

/// What a type says of layers of several mixers: the mixer `other` than attention; a layer is a
/// mixer or a feed-forward; the steps, B and C of Mamba are normed; layers share a block.
struct HybridForm {
  Mixer other = Mixer::kMamba2;
  bool one_sublayer = false, step_norms = false, shared_block = false;
};

/// Reads the kind of every layer of such a model, and the sizes of its mixers.
void read_hybrid(const Json& json, const ModelType& type, HybridForm form, JsonReader& reader,
                 Model& model);

/// Reads the sizes of Mamba's mixers, of gated delta nets, of Kimi's with their layers
/// (`linear_attn_config`), of a block that layers share.
void read_selective(const Json& json, const ModelType& type, bool norms, JsonReader& reader,
                    Model& model);
void read_delta(const Json& json, const ModelType& type, JsonReader& reader, Model& model);
void read_nested_delta(JsonReader& reader, Model& model);
void read_shared_block(JsonReader& reader, Model& model);

/// Reads the sizes of layers that see all keys, where the others have a window.
void read_global_shape(const Json& json, JsonReader& reader, Model& model);
/// Reads heads and the factor of the MLP's width of every layer (`ffn_multipliers`).
void read_listed_shapes(JsonReader& reader, Model& model);

/// Reads the heads of every layer (`num_attention_heads_per_layer`).
void read_listed_heads(JsonReader& reader, Model& model);
/// Reads which layers have lightning attention, linear in the length of a sequence: here attention
/// in blocks, with gates and as many key-value heads as heads.
void read_lightning(JsonReader& reader, Model& model);

/// Reads how many keys a query sees in layers where an indexer chooses blocks of them: the window.
void read_key_blocks(const Json& json, const ModelType& type, JsonReader& reader, Model& model);
/// Reads the sizes of layers with a window (`hybrid_layer_pattern`, `swa_...`).
void read_window_shape(JsonReader& reader, Model& model);
/// Reads what each layer has of a model that a search pruned (`block_configs`).
void read_block_configs(JsonReader& reader, Model& model);

/// Reads the parameters that a type has beside those of the model's pieces.
void read_counted(const Json& json, const ModelType& type, JsonReader& reader, Model& model);

/// Reads the second table of tokens, with a vector for every layer (`hidden_size_per_layer_input`).
void read_layer_table(const Json& json, JsonReader& reader, Model& model);

/// Reads what both ends have besides a table and an output matrix: `projected`, tables of a width
/// of their own; `patches`, an image's patches in place of tokens.
void read_ends(const Json& json, const ModelType& type, bool projected, bool patches,
               JsonReader& reader, Model& model);

/// Reads what an encoder-decoder has beside the keys of all, of which `model` holds the encoder's;
/// `relative`: its stacks have biases of relative positions, and its keys are T5's. `parts`: either
/// stack is described by an object of its own, of which `decoder` is left.
void read_encoder_decoder(bool relative, bool parts, JsonReader& reader, Model& model);

}  // namespace foretrain
