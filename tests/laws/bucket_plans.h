// The model that buckets of gradients are cut from, lowered and verified.
#pragma once

#include <gtest/gtest.h>

#include "models/lower.h"
#include "sim/program/verify.h"
#include "tests/support/small_plans.h"

namespace foretrain {

inline constexpr std::int64_t kBucketRanks = 4;

/// No padding of the vocabulary; every parameter divides among the ranks.
inline Model model_for_buckets() {
  Model model = small_gpt();
  model.vocabulary = 1024;
  return model;
}

inline Workload lowered_buckets(const Plan& plan) {
  Workload out = lower(model_for_buckets(), plan);
  const Status status = verify(out);
  EXPECT_TRUE(status.ok()) << status.error().message;
  return out;
}

}  // namespace foretrain
