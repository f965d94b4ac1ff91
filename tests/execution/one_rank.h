// Trains small models on threads and compares plans with one rank.
#pragma once

#include <vector>

#include "executor/thread_run.h"
#include "models/plan/plan.h"

namespace foretrain {

/// The same training on one rank.
Plan on_one_rank(const Plan& plan);

struct Trained {
  std::vector<double> losses;
  WholeModel before, after;
};

/// Three steps; the lowered workload is verified, and what ranks hold alike must stay alike.
template <typename T>
Result<Trained> train(const Model& model, const Plan& plan);

/// Losses relative to each other, weights relative to how far training moved them: an update that
/// is missing or doubled shows as 1, not as a small change of a large weight.
void expect_same(const Trained& one, const Trained& many, double tolerance);

/// `model` with a few narrow layers.
Model narrowed(Model model, std::int64_t layers);
Plan in_fp32(Plan plan);

/// A plan of 8 ranks or fewer, in double, against one rank.
void expect_as_one_rank(const Model& model, const Plan& plan);

}  // namespace foretrain
