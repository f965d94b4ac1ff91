// Do devices run what is not in every model as the host does: experts, sequences and layers that
// are cut, what lies in memory of the host? On loops, as in device_test.cpp.
#include <gtest/gtest.h>

#include "tests/execution/device_ops.h"
#include "tests/execution/device_plans.h"
#include "tests/execution/drawn_plans.h"
#include "tests/execution/loop_device.h"
#include "tests/support/sanitized.h"
#include "tools/calibrate/host_run.h"

namespace foretrain {
namespace {

Result<std::unique_ptr<Device>> on_loop(const Workload&, RankId rank, Transport& transport) {
  return make_loop_device(rank, transport);
}

/// Also by teams of three threads.
void expect_operations_alike(const std::vector<DeviceCase>& all) {
  for (std::size_t i = 0; i < all.size(); i += std::size_t{cases(1, 3)}) {
    const DeviceCase& one = all[i];
    SCOPED_TRACE(one.name);
    const Workload workload = lowered(one, DType::kFp32);
    const auto transport = make_thread_transport(workload);
    const auto host = make_host_kernels_device();
    for (const std::size_t team : {1U, 3U}) {
      const auto loops = make_loop_device(RankId(0), *transport, team);
      ASSERT_TRUE(loops->open(1, 0).ok());
      expect_ops_alike(workload, *host, *loops, 2e-5, false);
    }
  }
}

TEST(LoopTeams, DoEveryOperationAsTheHost) { expect_operations_alike(single_rank_cases()); }

TEST(LoopExperts, EveryOperationIsTheHosts) { expect_operations_alike(expert_cases()); }

TEST(LoopExperts, TrainLikeTheHosts) {
  for (const DeviceCase& one : expert_cases()) {
    expect_trains_like_host(one, DType::kFp32, on_loop, {});
  }
}

// Which experts a token goes to, when logits are close, is a matter of their rounding: in turn.
TEST(LoopExperts, TrainLikeTheHostsInHalves) {
  for (const DeviceCase& one : expert_cases()) {
    if (one.plan.experts.routing != Routing::kBalanced) continue;
    expect_trains_like_host(one, DType::kBf16, on_loop, kBf16Tolerance);
    if (kSanitized) continue;
    expect_trains_like_host(one, DType::kFp16, on_loop, kFp16Tolerance);
  }
}

TEST(LoopExperts, OnManyRanksTrainLikeTheHosts) {
  const std::vector<DeviceCase> all = expert_rank_cases();
  for (std::size_t i = 0; i < all.size(); i += std::size_t{cases(1, 4)}) {
    expect_trains_like_host(all[i], DType::kFp32, on_loop, {});
  }
}

// What is copied out and back, and what the host updates: in halves too.
TEST(LoopOffload, TrainsLikeTheHost) {
  for (const std::int64_t ranks : {1, 2}) {
    const std::vector<DeviceCase> all = offload_cases(ranks);
    for (std::size_t i = 0; i < all.size(); i += std::size_t{cases(1, 8)}) {
      const DeviceCase& one = all[i];
      expect_trains_like_host(one, DType::kFp32, on_loop, {}, true);
      if (kSanitized) continue;
      expect_trains_like_host(one, DType::kFp32, on_loop, {});
      expect_trains_like_host(one, DType::kBf16, on_loop, kBf16Tolerance);
    }
  }
}

TEST(LoopContext, TrainsLikeTheHost) {
  const std::vector<DeviceCase> all = context_cases();
  for (std::size_t i = 0; i < all.size(); i += std::size_t{cases(1, 6)}) {
    const DeviceCase& one = all[i];
    expect_trains_like_host(one, DType::kFp32, on_loop, {});
    if (kSanitized || one.plan.accelerators > 2) continue;
    expect_trains_like_host(one, DType::kBf16, on_loop, kBf16Tolerance);
  }
}

TEST(LoopContext, EveryOperationIsTheHosts) { expect_operations_alike(context_cases()); }

TEST(LoopGrids, TrainLikeTheHosts) {
  const std::vector<DeviceCase> all = grid_cases();
  for (std::size_t i = 0; i < all.size(); i += std::size_t{cases(1, 4)}) {
    const DeviceCase& one = all[i];
    expect_trains_like_host(one, DType::kFp32, on_loop, {});
    if (kSanitized || one.plan.accelerators > 4) continue;
    expect_trains_like_host(one, DType::kBf16, on_loop, kBf16Tolerance);
  }
}

TEST(LoopGrids, EveryOperationIsTheHosts) { expect_operations_alike(grid_cases()); }

// Any plan that the host backend executes.
TEST(LoopDrawnPlans, TrainLikeTheHost) {
  for (const DrawnKind kind : {DrawnKind::kBuckets, DrawnKind::kUnits, DrawnKind::kExperts,
                               DrawnKind::kContext, DrawnKind::kGrid}) {
    for (int i = 0; i < cases(6, 1); ++i) {
      Rng rng(90'000 + 1000 * static_cast<std::uint64_t>(kind) + static_cast<std::uint64_t>(i));
      Drawn drawn = draw_small(rng, kind);
      if (drawn.plan.context_exchange == ContextExchange::kRingSelf) {  // the host's alone
        drawn.plan.context_exchange = ContextExchange::kRing;
        drawn.plan.attention = AttentionKernel::kFlash;
      }
      DeviceCase one{describe(drawn.model, drawn.plan), drawn.model, drawn.plan};
      expect_trains_like_host(one, DType::kFp32, on_loop, {});
      one.plan.precision.gradients = one.plan.units.reduce = DType::kBf16;
      const Status in_halves = check_device_executable(lowered(one, DType::kBf16));
      EXPECT_TRUE(in_halves.ok()) << one.name << ": " << in_halves.error().message;
    }
  }
}

// What tools/gpu_check trains besides dense models.
TEST(DeviceRuns, OfExpertsAndOffloadingAreExecutable) {
  const std::vector<std::vector<std::string>> runs = {
      {"model.model_type=mixtral", "model.num_local_experts=4", "model.num_experts_per_tok=2",
       "moe.routing=balanced"},
      {"sharding.level=parameters", "offload.parameters=nvme", "offload.optimizer=nvme",
       "offload.activation_layers=2"},
      {"sharding.level=gradients", "offload.optimizer=cpu", "launch.cuda_graph=full"}};
  for (const std::vector<std::string>& run : runs) {
    for (const char* precision : {"fp32", "bf16", "fp16"}) {
      std::vector<std::string> sets = run;
      sets.push_back(std::string("precision=") + precision);
      sets.emplace_back("kernels.attention=flash");
      CudaModule module;
      module.devices = 1;
      const auto prepared = prepare_host_run("llama-small-host", sets, 1, std::move(module));
      EXPECT_TRUE(prepared.ok()) << prepared.error().message;
    }
  }
}

}  // namespace
}  // namespace foretrain
