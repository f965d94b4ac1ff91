// Looks at single plans of a search: may they be, do they fit, what does their step take.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/search/robustness.h"
#include "tools/search/search_case.h"
#include "tools/search/search_state.h"

namespace foretrain {

/// Thread-safe. The cases must outlive it.
class Evaluator {
 public:
  Evaluator(const std::vector<SearchCase>& cases, std::vector<Condition> conditions)
      : x_cases(cases), x_conditions(std::move(conditions)) {}

  /// One plan of a case, by number. Says nothing of it where the thread is asked to stop.
  Outcome look_at(std::uint32_t of_case, std::uint32_t plan) const;
  /// `any`: also a plan that does not fit, with its memory alone.
  Outcome simulate(const SearchCase& of, const Run& run, bool any) const;
  /// The plan with what its prices' deviations add.
  UnsurePlan unsure(const FoundPlan& plan) const;
  const SearchCase& case_of(const FoundPlan& plan) const;

 private:
  bool excludes(const Run& run, const FoundPlan* found) const;

  const std::vector<SearchCase>& x_cases;
  std::vector<Condition> x_conditions;
};

/// Says of a found plan which of a case it is.
void describe_plan(const SearchCase& of, Point point, FoundPlan& plan);

/// Names of results that conditions may use.
const std::vector<std::string>& result_names();

}  // namespace foretrain
