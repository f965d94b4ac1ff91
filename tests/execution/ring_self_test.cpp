// Does ring self-attention train as one rank does?
#include <gtest/gtest.h>

#include "executor/cuda/device.h"
#include "executor/executable.h"
#include "models/lower.h"
#include "tests/execution/one_rank.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

Model ring_self_model(const Model& wide, std::int64_t length) {
  Model model = narrowed(wide, 2);
  model.heads = 8;
  model.kv_heads = wide.norm == Norm::kRmsNorm && !wide.has_experts() ? 4 : 8;
  if (model.has_experts()) {
    model.experts = Experts{4, 2, 8, 8, 1, 1, false};
    model.position = Position::kAlibi;
  }
  if (model.positions > 0) model.positions = length;
  return model;
}

Plan ring_self_plan(const Model& model, const PlanDegrees& degrees, std::int64_t context,
                    std::int64_t length) {
  Plan plan = in_fp32(small_plan(model, degrees, 2));
  plan.context = context;
  plan.context_exchange = ContextExchange::kRingSelf;
  plan.attention = AttentionKernel::kUnfused;
  plan.sequence_length = length;
  plan.micro_batch = 2;
  plan.global_batch = plan.micro_batch * plan.batch_ranks() * 2;
  plan.sequence = plan.tensor > 1;
  plan.dropout = 0.1;
  return plan;
}

// Beside the other ways to divide a model. 12 tokens on four ranks: three each, which two chunks
// could not be.
TEST(RingSelfAttention, TrainsAsOneRank) {
  struct Case {
    PlanDegrees degrees;  ///< data: ranks of the context group too
    std::int64_t context, length;
  };
  const Case cases[] = {{{1, 1, 1, 2}, 2, 16},
                        {{1, 1, 1, 4}, 4, 12},
                        {{1, 1, 1, 4}, 2, 6},
                        {{2, 1, 1, 2}, 2, 16},
                        {{1, 2, 1, 2}, 2, 16}};
  for (const Case& c : cases) {
    for (const Model& wide : {small_gpt(), small_llama(), small_moe()}) {
      const std::int64_t length = wide.has_experts() ? 16 : c.length;  // whose shares are even
      const Model model = ring_self_model(wide, length);
      Plan plan = ring_self_plan(model, c.degrees, c.context, length);
      if (c.context == 4) plan.dropout = 0;
      expect_as_one_rank(model, plan);
    }
  }
}

TEST(RingSelfAttention, EncodersTrainAsOneRank) {
  for (const double dropout : {0.0, 0.1}) {
    Model model = ring_self_model(small_gpt(), 16);
    model.bidirectional = true;
    Plan plan = ring_self_plan(model, {1, 1, 1, 4}, 4, 16);
    plan.dropout = dropout;
    expect_as_one_rank(model, plan);
  }
}

// What is computed again goes around again; heads in parts; the host that waits; eager layers.
TEST(RingSelfAttention, TrainsAsOneRankInEveryForm) {
  for (int form = 0; form < 6; ++form) {
    const Model model = ring_self_model(small_llama(), 16);
    Plan plan = ring_self_plan(model, {1, 1, 1, 4}, 4, 16);
    plan.recompute.attention = form == 0;
    plan.recompute.layer = form == 1;
    if (form == 2) plan.recompute.parts = 2;
    if (form == 3) plan.host_waits = HostWaits::kTransfers;
    if (form == 4) plan.fusion = Fusion::kEager;
    if (form == 5) plan.sharding = Sharding::kParameters;
    expect_as_one_rank(model, plan);
  }
}

TEST(RingSelfAttention, DevicesRefuseIt) {
  const Model model = ring_self_model(small_llama(), 16);
  const Workload workload = lower(model, ring_self_plan(model, {1, 1, 1, 2}, 2, 16));
  EXPECT_TRUE(check_executable(workload).ok());
  const Status status = check_device_executable(workload);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("no ring self-attention: set kernels.context"),
            std::string::npos);
}

}  // namespace
}  // namespace foretrain
