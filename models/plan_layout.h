// Which layers a chunk of the pipeline has (`parallel.pipeline_layout`,
// `parallel.pipeline_partition` of a RUN), and what its messages carry (`parallel.scatter_gather`).
#pragma once

#include "models/plan.h"

namespace foretrain {

/// Of `parallel`.
void read_layout(JsonReader& parallel, Plan& plan);

/// Fills in the layout, or refuses one that does not have the model's layers in the plan's chunks.
void settle_layout(JsonReader& run, const Model& model, Plan& plan);

/// Whether `parallel.scatter_gather` is modelled: decoders and encoders whose passes run one by
/// one.
bool can_scatter_messages(const Model& model, const Plan& plan);

/// Takes it back where it is not.
void settle_messages(const Model& model, Plan& plan);

/// As a RUN writes it.
std::string name_of(Partition partition);

}  // namespace foretrain
