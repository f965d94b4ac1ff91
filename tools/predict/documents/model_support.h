// What the program does with a model that ships: whether runs of it are simulated, and whether
// executors train it.
#pragma once

#include <cstdint>
#include <string>

#include "models/architecture/model.h"
#include "sim/base/result.h"

namespace foretrain {

struct ModelSupport {
  Model model;
  std::string not_simulated;  ///< why; empty: it is
  std::string not_executed;   ///< why the host backend refuses it; empty: it does not
};

/// "671.9 B": in billions or millions.
std::string parameters_text(std::int64_t count);

/// Of the preset: a step of one short sequence on one rank is lowered and verified in bf16, and in
/// fp32 asked of the host backend; an error where the preset is not read.
Result<ModelSupport> support_of(const std::string& preset);

/// docs/reference/models.md: every preset, its type, its parameters and these answers.
Result<std::string> models_page();

}  // namespace foretrain
