// The model of a launch file as a RUN names it.
#pragma once

#include "models/architecture/model.h"
#include "tools/import/draft.h"

namespace foretrain {

/// Writes /model of the draft's RUN from its facts `model.*`, whose names are those of config.json,
/// and besides: norm, position, activation, bias, qkv_bias, qk_norm, latent, moe_layers (the period
/// of layers with experts, or a 1 for each that has them), grouped, padded_vocab_size. Of the types
/// in configs/model_types the nearest is taken; what it has otherwise is told as not modelled. A
/// preset that is the same model stands by its name.
Status write_model(Draft& draft);

/// A model by all that matters here: without names, notes and rates of dropout.
Model bare_model(Model model);

/// The same of a config.json.
Status write_model(const Json& config, Draft& draft);

}  // namespace foretrain
