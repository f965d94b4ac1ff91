// Works out of their texts.
#pragma once

#include <string>

#include "sim/base/result.h"
#include "sim/program/work.h"

namespace foretrain {

/// The work that `text_of` wrote as `text`, of GEMMs, attention, kernels, whole collectives and
/// copies: `text_of` of the result is `text` again. What no text says has its default (FLOPs of
/// kernels, rates of dropout: 0.1). An error of kind kUnsupported names what cannot be read.
Result<Work> read_work(const std::string& text);

}  // namespace foretrain
