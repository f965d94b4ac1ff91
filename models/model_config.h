// Parts of the reader of `config.json`.
#pragma once

#include <string>

#include "models/model.h"
#include "sim/base/json.h"

namespace foretrain {

/// Whether models of this `model_type` have experts.
bool has_expert_type(const std::string& type);

/// Reads what such a model has beside the keys of all: experts, and latent attention where the file
/// states its ranks.
void read_sparse(const Json& json, JsonReader& reader, Model& model);

}  // namespace foretrain
