#include "tests/execution/one_rank.h"

#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>

#include "models/lower.h"
#include "sim/program/verify.h"
#include "tests/execution/device_plans.h"
#include "tests/support/sanitized.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

constexpr int kSteps = cases(3, 2);

Workload lowered(const Model& model, Plan plan) {
  if (plan.pipeline_layout.empty()) plan.pipeline_layout = default_layout(model.layers, 1);
  Workload workload = lower(model, plan);
  const Status status = verify(workload);
  // What does not verify may never end.
  if (!status.ok()) throw std::runtime_error(status.error().message);
  return workload;
}

double norm(const std::vector<double>& values) {
  double sum = 0;
  for (const double v : values) sum += v * v;
  return std::sqrt(sum);
}

std::vector<double> difference(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> out(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) out[i] = a[i] - b[i];
  return out;
}

}  // namespace

Plan on_one_rank(const Plan& plan) {
  Plan one = plan;
  one.tensor = one.pipeline = one.virtual_pipeline = one.data = one.accelerators = 1;
  one.context = one.context_inner = 1;
  one.sequence = false;
  one.tensor_mode = TensorMode::k1D;
  one.tensor_depth = 1;
  one.pipeline_layout.clear();
  one.stages.clear();
  one.tensors = StageTensors{};
  one.sharding = Sharding::kNone;
  one.buckets = GradientBuckets();
  one.recompute = Recompute{};
  one.loss.chunks = 0;
  one.offload = Offload();
  one.experts.expert = one.experts.tensor = 1;
  one.experts.dispatcher = Dispatcher::kAllToAll;
  one.schedule = plan.forwards > 1 ? plan.schedule : Schedule::kGpipe;
  one.overlap.tensor_slices = 1;
  one.attention = AttentionKernel::kFlash;
  one.precision.master = one.precision.autocast = false;
  one.fused_accumulation = true;
  one.host_waits = HostWaits::kNone;
  return one;
}

template <typename T>
Result<Trained> train(const Model& model, const Plan& plan) {
  const Workload workload = lowered(model, plan);
  FT_ASSIGN(const auto run, ThreadRun<T>::create(workload, options_for_tests()));
  Trained out;
  out.before = run->weights();
  for (int step = 0; step < kSteps; ++step) {
    FT_ASSIGN(const double loss, run->step());
    out.losses.push_back(loss);
  }
  double worst = 0;
  out.after = run->weights(&worst);
  // What several ranks hold alike they must have updated alike.
  EXPECT_LE(worst, sizeof(T) == sizeof(double) ? 1e-10 : 1e-5);
  return out;
}

template Result<Trained> train<float>(const Model&, const Plan&);
template Result<Trained> train<double>(const Model&, const Plan&);

void expect_same(const Trained& one, const Trained& many, double tolerance) {
  for (std::size_t s = 0; s < one.losses.size(); ++s) {
    EXPECT_NEAR(many.losses[s] / one.losses[s], 1.0, tolerance) << "loss of step " << s;
  }
  ASSERT_EQ(one.after.size(), many.after.size());
  for (const auto& [key, tensor] : one.after) {
    const WholeTensor& other = many.after.at(key);
    ASSERT_EQ(tensor.values.size(), other.values.size());
    const std::vector<double> start = one.before.at(key).values;
    ASSERT_LE(norm(difference(many.before.at(key).values, start)), 1e-12) << key.first;
    const double least = 1e-4 * std::sqrt(static_cast<double>(tensor.values.size()));
    const double moved = std::max(least, norm(difference(tensor.values, start)));
    EXPECT_LE(norm(difference(tensor.values, other.values)) / moved, tolerance)
        << key.first << " of layer " << key.second << ", moved " << moved;
  }
}

Model narrowed(Model model, std::int64_t layers) {
  model.layers = layers;
  model.head_dim = 4;
  model.hidden = 16;
  model.intermediate = 24;
  model.vocabulary = 60;
  return model;
}

Plan in_fp32(Plan plan) {
  plan.precision.compute = plan.precision.gradients = plan.precision.matrix = DType::kFp32;
  plan.precision.linear = DType::kFp32;
  return plan;
}

void expect_as_one_rank(const Model& model, const Plan& plan) {
  // Of a test's plans every third one under a sanitizer, the first among them.
  static const testing::TestInfo* test = nullptr;
  static int plans = 0;
  if (test != testing::UnitTest::GetInstance()->current_test_info()) plans = 0;
  test = testing::UnitTest::GetInstance()->current_test_info();
  if (kSanitized && plans++ % 3 != 0) return;
  SCOPED_TRACE(describe(model, plan));
  const Result<Trained> one = train<double>(model, on_one_rank(plan));
  ASSERT_TRUE(one.ok()) << one.error().message;
  const Result<Trained> many = train<double>(model, plan);
  ASSERT_TRUE(many.ok()) << many.error().message;
  expect_same(one.value(), many.value(), 1e-8);
}

}  // namespace foretrain
