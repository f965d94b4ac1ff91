#include "tests/execution/derivatives.h"

#include <gtest/gtest.h>

#include <cmath>

#include "executor/thread_run.h"
#include "models/lower.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

/// +1 or -1 for every element.
double direction(std::uint64_t key, std::int64_t i) { return uniform_at(key, i) < 0.5 ? -1 : 1; }

double loss_at(const Workload& workload, const TensorKey& moved, double distance,
               std::uint64_t key) {
  HostOptions options;
  options.training.learning_rate = 0;
  const auto run = ThreadRun<double>::create(workload, options);
  EXPECT_TRUE(run.ok());
  HostMemory<double>& memory = run.value()->ranks()[0]->memory();
  for (const auto& slice : memory.slices()) {
    if (TensorKey{slice.tensor->name, slice.layer} != moved) continue;
    double* values = memory.values(slice.owner) + slice.element;
    for (std::int64_t i = 0; i < slice.tensor->rows * slice.cols; ++i) {
      values[i] += distance * direction(key, i);
    }
    break;  // a tied table is one slice of two layouts
  }
  const Result<double> loss = run.value()->step();
  EXPECT_TRUE(loss.ok());
  return loss.ok() ? loss.value() : 0;
}

}  // namespace

Model probed(Model m) {
  m.layers = 2;
  m.hidden = 12;
  m.heads = 4;
  m.kv_heads = 2;
  m.head_dim = 4;
  m.intermediate = 10;
  m.vocabulary = 30;
  if (m.positions > 0) m.positions = 9;
  return m;
}

Plan plan_of(const Model& model, AttentionKernel attention, double dropout) {
  Plan plan = small_plan(model, {}, 2);
  plan.global_batch = 4;
  plan.micro_batch = 2;
  plan.sequence_length = 7;
  plan.precision.compute = plan.precision.gradients = plan.precision.matrix = DType::kFp32;
  plan.precision.master = false;
  plan.attention = attention;
  plan.dropout = dropout;
  plan.clip_norm = 0;
  return plan;
}

void expect_derivatives(const Model& model, const Plan& plan) {
  const Workload workload = lower(model, plan);
  HostOptions options;
  options.training.learning_rate = 0;
  options.check = true;
  const auto run = ThreadRun<double>::create(workload, options);
  ASSERT_TRUE(run.ok()) << run.error().message;
  const Result<double> loss = run.value()->step();
  ASSERT_TRUE(loss.ok()) << loss.error().message;
  // Drawn labels from small weights: every token is about as likely.
  EXPECT_NEAR(loss.value(), std::log(static_cast<double>(model.vocabulary)), 0.2);
  std::uint64_t key = 77;
  for (const auto& [name, gradient] : run.value()->gradients()) {
    ++key;
    double slope = 0;
    double size = 0;
    for (std::size_t i = 0; i < gradient.values.size(); ++i) {
      slope += gradient.values[i] * direction(key, static_cast<std::int64_t>(i));
      size += gradient.values[i] * gradient.values[i];
    }
    constexpr double kDistance = 1e-5;
    const auto between = [&, &of = name](double distance) {
      return loss_at(workload, of, distance, key) - loss_at(workload, of, -distance, key);
    };
    // The difference of two losses near 3 is exact to 1e-15 / 1e-5. Norms of small rows curve, so
    // two distances take the next term of the series away.
    const double measured = (8 * between(kDistance) - between(2 * kDistance)) / (12 * kDistance);
    EXPECT_NEAR(slope, measured, 1e-6 * std::sqrt(size) + 1e-9) << name.first;
  }
}

}  // namespace foretrain
