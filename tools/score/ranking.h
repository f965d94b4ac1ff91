// Whether predictions choose among plans as measurements do.
#pragma once

#include <string>
#include <vector>

#include "tools/score/score.h"

namespace foretrain {

/// Plans of one model on one kind of accelerator, compared by accelerator-seconds of a token.
struct Ranking {
  std::string group;
  std::size_t plans = 0;
  double regret = 0;   ///< what the plan predicted best takes more than the best, as a share
  double tau = 0;      ///< Kendall's tau-a: pairs in the same order less the others, over all
  double ordered = 0;  ///< share of pairs in the same order
};

/// Pairs of plans of one group, and those that are predicted in the order of their measurements.
struct PairsInOrder {
  std::size_t pairs = 0, ordered = 0;
};
/// Of all groups with two or more measured rows that were predicted.
PairsInOrder pairs_in_order(const std::vector<Row>& rows, const std::vector<RowResult>& results);

/// Of every group with three or more measured rows that were predicted, in the groups' order.
std::vector<Ranking> rankings(const std::vector<Row>& rows, const std::vector<RowResult>& results);

}  // namespace foretrain
