// Which family of time a group's error lies in, as far as its plans differ enough to tell.
#pragma once

#include <string>
#include <vector>

#include "sim/timeline/breakdown.h"
#include "tools/score/score.h"

namespace foretrain {

/// By how much a part of the predicted step would have to be multiplied.
struct PartFactor {
  Part part = Part::kHost;
  double factor = 1;
  double deviation = 0;  ///< one standard deviation of the factor
  double share = 0;      ///< of the predicted steps, in the mean
};

struct Explanation {
  std::string group;
  std::size_t rows = 0;
  std::vector<PartFactor> told;    ///< what matters most for the group's error first
  std::vector<PartFactor> untold;  ///< parts of which the rows tell little, the largest first
};

/// Of each group with four rows or more. With the parts T_f of a predicted step and the measured
/// step y of every row
///
///     y / sum_f T_f = sum_f a_f T_f / sum_f T_f + noise
///
/// where factors a_f lie around 1 with a deviation of 0.3, as analytic prices do, and steps of
/// equal runs differ by 3 % between releases. The mean and the deviation of each a_f, given the
/// rows, is the answer (Bayesian linear regression; Bishop 2006, 3.3). A part is told where the
/// rows halve its deviation. Left out: parts that follow from others, as a bubble does, count as
/// their own.
std::vector<Explanation> explanations(const std::vector<Row>& rows,
                                      const std::vector<RowResult>& results);

std::string explanation_lines(const std::vector<Explanation>& all);
Json explanations_json(const std::vector<Explanation>& all);

}  // namespace foretrain
