// Models and plans that are drawn and small enough to run.
#pragma once

#include "tests/support/small_plans.h"

namespace foretrain {

enum class DrawnKind : std::uint8_t { kBuckets, kUnits, kExperts, kContext, kGrid };

/// A drawn model and plan of 8 ranks or fewer, made small enough to run, in fp32.
Drawn draw_small(Rng& rng, DrawnKind kind);

}  // namespace foretrain
