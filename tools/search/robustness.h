// How often the best plan stays the best when predictions are off.
//
// Two things move a plan's step. Prices of every kind of work may be off by their deviation
// (docs/prices.md): they miss together in one kind of work, for all plans by the same number of
// deviations, and independently between kinds. And plans of one model are off among themselves:
// published runs of one model deviate by `plans` of configs/intervals.json. What two plans spend
// time on alike errs alike there: errors e_i are normal with covariance
//
//   cov(e_i, e_j) = sigma^2 sum over parts of min(share_i, share_j)
//
// where a share is a part of the step (the histogram intersection kernel; Barla, Odone and Verri,
// ICIP 2003). A small difference tells plans apart that spend their time alike, and no others.
#pragma once

#include <vector>

#include "tools/predict/predict.h"

namespace foretrain {

/// A plan's objective, what one deviation of the prices of each part of the work adds to it as a
/// share, and each part's share of the step.
struct UnsurePlan {
  double objective = 0;
  PartDeviations by_part{}, shares{};
};

/// For each plan the share of `draws` in which its objective is the least, where plans deviate by
/// `deviation` among themselves. The same for the same plans; they add up to 1.
std::vector<double> shares_of_wins(const std::vector<UnsurePlan>& plans, double deviation,
                                   std::size_t draws);

}  // namespace foretrain
