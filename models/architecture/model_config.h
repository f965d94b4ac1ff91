// Parts of the reader of `config.json`.
#pragma once

#include <array>
#include <string>

#include "models/architecture/model.h"
#include "sim/base/json.h"

namespace foretrain {

/// Of a width or a count of what there must be one of.
inline constexpr JsonReader::IntRange kConfigSize{1, 1'000'000'000};

/// How hub files call the number of experts.
inline constexpr std::array kExpertCounts = {"num_experts", "num_local_experts",
                                             "n_routed_experts"};

/// Whether a model of this `model_type` has experts: always, or where a gpt2's file gives it more
/// than one, as those of DeepSpeed-MoE have them.
bool has_experts(const Json& json, const std::string& type);

/// Reads what such a model has beside the keys of all: experts, and latent attention where the file
/// states its ranks.
void read_sparse(const Json& json, JsonReader& reader, Model& model);

/// Whether layers of this type have mixers of several kinds, as the file lists them.
bool is_hybrid_type(const std::string& type);

/// Reads what such a model has beside the keys of all and its experts: the state space and the kind
/// of every layer.
void read_hybrid(const Json& json, JsonReader& reader, Model& model);

/// Whether models of this type have an encoder and a decoder.
bool is_encoder_decoder_type(const std::string& type);

/// Reads what such a model has beside the keys of all, of which `model` holds the encoder's.
void read_encoder_decoder(JsonReader& reader, Model& model);

}  // namespace foretrain
