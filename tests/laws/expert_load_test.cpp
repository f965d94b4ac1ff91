// Do experts that are chosen unequally take what their tokens and tiles take?
#include <gtest/gtest.h>

#include <numeric>

#include "hardware/local_cost.h"
#include "models/layers/moe_block.h"
#include "models/lower.h"
#include "models/plan/expert_plan.h"
#include "models/plan/keys/keys.h"
#include "sim/program/verify.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

ExpertPlan read(const std::string& moe, const Model& model, std::int64_t ranks) {
  Request request;
  const Json json = parse_json(R"({"moe": )" + moe + "}", "test").value();
  JsonReader reader(json, "test", "");
  read_request(reader, request);
  ExpertPlan out = request.plan.experts;
  out.expert = ranks;
  derive_experts(reader, request.experts, model, out);
  EXPECT_TRUE(reader.finish().ok()) << reader.finish().error().message;
  return out;
}

Plan plan_of(const Model& model, std::int64_t ranks, std::int64_t cut, const std::string& moe) {
  Plan plan = small_plan(model, {1, 1, 1, 8}, 1);
  plan.experts = read(moe, model, ranks);
  plan.experts.tensor = cut;
  return plan;
}

double expert_flops(const Program& program) {
  double out = 0;
  for (const Call& call : program.calls) {
    for (const Op& op : program.segments[call.segment.index()].ops) {
      const Work& work = program.works[op.work.index()];
      if (!std::holds_alternative<Gemm>(work)) continue;
      if (std::string(op.name).starts_with("moe.experts")) out += flops_of(work);
    }
  }
  return out;
}

// A list of equal shares, and one of Zipf's with exponent 0, are balanced routing, to the op.
TEST(ExpertLoad, EqualSharesAreBalanced) {
  const Model model = small_moe();
  for (const auto& [ranks, cut] : {std::pair{1, 1}, {4, 1}, {4, 2}, {8, 1}}) {
    const Plan balanced = plan_of(model, ranks, cut, R"({"routing": "balanced"})");
    for (const char* moe :
         {R"({"load": [0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1]})", R"({"load": {"zipf": 0}})"}) {
      const MoeSizes one = moe_sizes(model, balanced);
      const MoeSizes other = moe_sizes(model, plan_of(model, ranks, cut, moe));
      EXPECT_TRUE(other.rows.empty());
      EXPECT_EQ(one.per_expert, other.per_expert);
      EXPECT_EQ(one.received, other.received);
      EXPECT_EQ(one.sent, other.sent);
    }
  }
}

// Loads 2 and 1/2 on the first of four ranks, 1 and 1/2 on the others: it has 5/4 of the mean.
TEST(ExpertLoad, TheBusiestRankHasItsExperts) {
  const Model model = small_moe();
  const Plan plan = plan_of(model, 4, 1, R"({"load": [4, 1, 2, 2, 2, 2, 2, 1]})");
  EXPECT_DOUBLE_EQ(plan.experts.factor, 5.0 / 4);
  const MoeSizes sizes = moe_sizes(model, plan);
  const std::int64_t mean = plan.tokens() * model.experts.top_k / 2;
  EXPECT_EQ(sizes.rows, (std::vector{2 * mean, mean / 2}));
  EXPECT_EQ(sizes.worked(), mean * 5 / 2);
  const Workload workload = lower(model, plan);
  ASSERT_TRUE(verify(workload).ok()) << verify(workload).error().message;
  const Plan even = plan_of(model, 4, 1, R"({"routing": "balanced"})");
  EXPECT_DOUBLE_EQ(expert_flops(workload.programs[0]),
                   1.25 * expert_flops(lower(model, even).programs[0]));
}

// The more unequal the choices, the more the busiest rank has.
TEST(ExpertLoad, SteeperSharesLoadTheBusiestRankMore) {
  Model model = small_moe();
  model.experts.count = 64;
  model.experts.top_k = 2;
  for (const std::int64_t ranks : {1, 4, 16, 64}) {
    double last = 0;
    for (const char* exponent : {"0", "0.1", "0.3", "0.5", "0.8"}) {
      const ExpertPlan plan =
          read(R"({"load": {"zipf": )" + std::string(exponent) + "}}", model, ranks);
      EXPECT_NEAR(std::accumulate(plan.load.begin(), plan.load.end(), 0.0), 64, 1e-6);
      EXPECT_TRUE(ranks == 1 ? std::abs(plan.factor - 1) < 1e-8 : plan.factor > last) << exponent;
      last = plan.factor;
    }
  }
}

Gemm grouped(std::vector<std::int64_t> groups, bool apart, bool of_weight) {
  Gemm out;
  out.batch = static_cast<std::int64_t>(groups.size());
  const std::int64_t sum = std::accumulate(groups.begin(), groups.end(), std::int64_t{0});
  const std::int64_t mean = (sum + out.batch - 1) / out.batch;
  out.m = of_weight ? 4096 : mean;
  out.n = 4096;
  out.k = of_weight ? mean : 4096;
  out.transpose_a = of_weight;
  out.apart = apart;
  out.groups = std::move(groups);
  return out;
}

Time time_of(const Gemm& work, const char* device) {
  const DeviceSpec spec = read_device(Json(device), "test", "").value();
  return gemm_cost(spec, work, nullptr).value().duration;
}

// Groups of equal size cost what equal products do, whatever the pass, the kernel and the device.
TEST(ExpertLoad, EqualGroupsCostTheSame) {
  for (const char* device : {"a100-sxm-80gb", "h200-sxm-141gb", "b200-sxm-180gb"}) {
    for (const bool apart : {false, true}) {
      for (const bool of_weight : {false, true}) {
        for (const std::int64_t rows : {16, 1000, 4096}) {
          Gemm uneven = grouped(std::vector(7, rows), apart, of_weight);
          const Time time = time_of(uneven, device);
          const double flops = flops_of(Work{uneven});
          uneven.groups.clear();
          EXPECT_EQ(flops_of(Work{uneven}), flops);
          EXPECT_NEAR(static_cast<double>(time_of(uneven, device).ps), static_cast<double>(time.ps),
                      0.01 * static_cast<double>(time.ps))
              << device << (apart ? " apart " : " ") << (of_weight ? "weight " : "") << rows;
        }
      }
    }
  }
}

// Of the same tokens, unequal groups fill tiles worse, or at best as well; and one group with all
// of them is one product.
TEST(ExpertLoad, UnequalGroupsAreNotFaster) {
  for (const char* device : {"a100-sxm-80gb", "h200-sxm-141gb"}) {
    for (const bool apart : {false, true}) {
      const auto time = [&](std::vector<std::int64_t> groups, bool of_weight) {
        return time_of(grouped(std::move(groups), apart, of_weight), device);
      };
      const Time even = time({1024, 1024, 1024, 1024}, false);
      EXPECT_GE(time({1100, 1000, 996, 1000}, false), even);
      EXPECT_GE(time({2040, 1030, 1000, 26}, false), even);
      const Time deep = time({4096, 4096, 4096, 4096}, true);
      EXPECT_GE(time({8192, 4096, 2048, 2048}, true), deep);
    }
  }
}

// A few tokens of many experts: each takes a tile of its own.
TEST(ExpertLoad, SmallGroupsTakeATileEach) {
  const DeviceSpec device = read_device(Json("h200-sxm-141gb"), "test", "").value();
  const Gemm work = grouped({1, 1, 1, 1, 1, 1, 1, 4089}, false, false);
  const Gemm one = grouped({4096}, false, false);
  const Cost many = gemm_cost(device, work, nullptr).value();
  EXPECT_GE(many.tiles, gemm_cost(device, one, nullptr).value().tiles + 7);
}

}  // namespace
}  // namespace foretrain
