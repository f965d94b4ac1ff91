// The Program of one pipeline stage: every rank of that stage runs it.
#pragma once

#include "models/architecture/model.h"
#include "models/plan/plan.h"
#include "sim/program/program.h"

namespace foretrain {

/// Writes the Program of `stage`, 0 .. pipeline - 1. Model and plan must fit each other
/// (`read_plan`).
Program write_stage(const Model& model, const Plan& plan, std::int64_t stage);

}  // namespace foretrain
