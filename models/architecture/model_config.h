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

/// Reads the state space of a model whose layers have mixers of several kinds, and the kind of
/// every layer; `one_sublayer`: a layer is a mixer or a feed-forward.
void read_hybrid(const Json& json, const ModelType& type, bool one_sublayer, JsonReader& reader,
                 Model& model);

/// Reads what an encoder-decoder has beside the keys of all, of which `model` holds the encoder's;
/// `relative`: its stacks have biases of relative positions, and its keys are T5's.
void read_encoder_decoder(bool relative, JsonReader& reader, Model& model);

}  // namespace foretrain
