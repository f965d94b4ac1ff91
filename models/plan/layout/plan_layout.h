// Which layers a chunk of the pipeline has (`parallel.pipeline_layout`,
// `parallel.pipeline_partition` of a RUN), and what its messages carry (`parallel.scatter_gather`).
#pragma once

#include "models/plan/plan.h"

namespace foretrain {

/// Fills in the layout, or refuses one that does not have the model's layers in the plan's chunks.
void derive_layout(JsonReader& run, const Model& model, Plan& plan);

/// Layers of every chunk where a RUN says nothing: `default_layout` (models/plan/plan.h), but that
/// where the layers do not divide those of multi-token prediction count. Each takes the place of
/// two layers of the last chunk, for the layer and for its pass through the output matrix; what
/// that chunk has no room for the longest of the others give, the first of them. So stand the 61
/// and 1 of DeepSeek-V3 in Megatron Bridge's recipes (recipes/deepseek/deepseek_v3.py): 8 chunks 7
/// x 8 + 5, 16 chunks 15 x 4 + 1, 32 chunks 1 + 30 x 2 + 0.
std::vector<std::int64_t> even_layout(const Model& model, const Plan& plan);

/// Whether `parallel.scatter_gather` is modelled: decoders and encoders whose passes run one by
/// one.
bool can_scatter_messages(const Model& model, const Plan& plan);

/// Takes it back where it is not.
void derive_messages(const Model& model, Plan& plan);

/// As a RUN writes it.
std::string name_of(Partition partition);

}  // namespace foretrain
