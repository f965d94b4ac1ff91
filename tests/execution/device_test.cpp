// Is everything of the CUDA backend right that needs no GPU? Its ranks, memory plans and the
// functors of its kernels run on a device that is a loop, and must train as the host backend does.
#include <gtest/gtest.h>

#include <set>

#include "executor/cuda/busy_times.h"
#include "executor/cuda/device_rank.h"
#include "executor/side_by_side.h"
#include "models/lower.h"
#include "sim/program/verify.h"
#include "tests/execution/device_ops.h"
#include "tests/execution/device_plans.h"
#include "tests/execution/loop_device.h"
#include "tests/support/sanitized.h"
#include "tests/support/small_plans.h"
#include "tools/calibrate/calibration.h"
#include "tools/calibrate/run_shapes.h"

namespace foretrain {
namespace {

Result<std::unique_ptr<Device>> loop(const Workload&, RankId rank, Transport& transport) {
  return make_loop_device(rank, transport);
}

TEST(LoopDevice, EveryOperationIsTheHosts) {
  for (const DeviceCase& one : drawn_cases(3, cases(12, 4))) {
    SCOPED_TRACE(one.name);
    const Workload workload = lowered(one, DType::kFp32);
    const auto transport = make_thread_transport(workload);
    const auto host = make_host_kernels_device();
    const auto loops = make_loop_device(RankId(0), *transport);
    ASSERT_TRUE(loops->open(1, 0).ok());
    expect_ops_alike(workload, *host, *loops, 2e-5, false);
  }
}

TEST(LoopDevice, TrainsLikeTheHostInFp32) {
  const std::vector<DeviceCase> all = single_rank_cases();
  for (std::size_t i = 0; i < all.size(); i += std::size_t{cases(1, 2)}) {
    expect_trains_like_host(all[i], DType::kFp32, loop, {});
  }
}

TEST(LoopDevice, DrawnSizesTrainLikeTheHost) {
  for (const DeviceCase& one : drawn_cases(1, cases(8, 1))) {
    expect_trains_like_host(one, DType::kFp32, loop, {});
  }
}

TEST(LoopDevice, TrainsLikeTheHostInHalves) {
  const std::vector<DeviceCase> all = single_rank_cases();
  for (std::size_t i = 0; i < all.size(); i += std::size_t{cases(1, 3)}) {
    const DeviceCase& one = all[i];
    expect_trains_like_host(one, DType::kBf16, loop, kBf16Tolerance);
    if (kSanitized) continue;
    expect_trains_like_host(one, DType::kFp16, loop, kFp16Tolerance);
  }
}

TEST(LoopDevice, ManyRanksTrainLikeTheHost) {
  const std::vector<DeviceCase> all = many_rank_cases();
  for (std::size_t i = 0; i < all.size(); i += std::size_t{cases(1, 5)}) {
    expect_trains_like_host(all[i], DType::kFp32, loop, {});
  }
}

// Pieces between host syncs, handed over as one (as CUDA graphs are), train the same.
TEST(LoopDevice, PiecesTrainLikeTheHost) {
  const std::vector<DeviceCase> single = single_rank_cases();
  for (std::size_t i = 0; i < std::size_t{cases(4, 1)}; ++i) {
    expect_trains_like_host(single[i], DType::kFp32, loop, {}, true);
  }
  const std::vector<DeviceCase> many = many_rank_cases();
  for (std::size_t i = 1; i < many.size(); i += std::size_t{cases(1, 5)}) {
    expect_trains_like_host(many[i], DType::kFp32, loop, {}, true);
  }
}

// Operations are measured, and steps executed between them, on a device as on the host.
TEST(LoopDevice, MeasuresAndExecutes) {
  for (const DType type : {DType::kFp32, DType::kBf16}) {
    const Workload workload = lowered(single_rank_cases().front(), type);
    const std::vector<MicroOp> ops = distinct_ops(workload);
    SideBySideOptions options;
    options.calibrate.seconds = options.calibrate.spread = 0.001;
    options.calibrate.rotation = 1 << 16;
    options.calibrate.library = "loops";
    options.calibrate.gemm_rate = options.calibrate.byte_rate = 1e8;
    options.execute.steps = 4;
    options.execute.make_rank = [](const Workload& of, RankId rank, Transport& transport,
                                   const HostOptions& how) {
      return Result<std::unique_ptr<RankRunner>>(std::make_unique<DeviceRank>(
          of, rank, transport, how, make_loop_device(rank, transport)));
    };
    options.calibrate.make_rank = options.execute.make_rank;
    options.execute.name_of = [](RankId) { return std::string("rank"); };
    options.rounds = 2;
    Profile profile;
    profile.machine = Json{Json::Object{}};
    profile.machine.set("blas", "loops");
    const auto executed = measure_and_execute_threads(ops, workload, options, profile);
    ASSERT_TRUE(executed.ok()) << executed.error().message;
    ASSERT_EQ(executed.value().steps.size(), 4);
    EXPECT_GT(executed.value().steps[0].loss, executed.value().steps[3].loss);
    // Besides the ops: dispatch, event, the host's time to launch; two of them in graphs too.
    EXPECT_EQ(profile.samples.size(), ops.size() + 5);
    const ProfileTable table(profile);
    for (const char* op :
         {kDispatchSample, kEventSample, kLaunchSample, kGraphDispatchSample, kGraphLaunchSample}) {
      EXPECT_GT(table.overhead_seconds(op, 1), 0) << op;
    }
    std::set<std::string> types;
    for (const MicroOp& op : ops) {
      const auto price = table.price(op.work, 1);
      ASSERT_TRUE(price.ok()) << op.key.shape;
      EXPECT_EQ(price.value().provenance, Provenance::kMeasured) << op.key.shape;
      types.insert(profile.find(op.key)->dtype);
    }
    EXPECT_EQ(types.contains("bf16"), type == DType::kBf16);
  }
}

// What `calibrate --device cuda` measures can be executed there, one by one; of two ranks it is
// what they share and what one rank has not.
TEST(LoopDevice, WhatIsCalibratedIsExecutable) {
  std::set<std::string> alone;
  for (const std::int64_t ranks : {1, 2}) {
    const auto ops = calibration_ops({ranks, true, true, false, 132});
    ASSERT_TRUE(ops.ok()) << ops.error().message;
    std::set<std::string> kinds;
    for (const MicroOp& op : ops.value()) {
      const Status possible = check_device_executable(micro_workload(op, ranks, 2, 1));
      EXPECT_TRUE(possible.ok()) << possible.error().message;
      kinds.insert(op.key.op);
      if (ranks == 1) alone.insert(op.key.shape);
      const bool copy = std::holds_alternative<Copy>(op.work);
      EXPECT_TRUE(ranks == 1 || copy || !alone.contains(op.key.shape)) << op.key.shape;
    }
    for (const char* kind : {"gemm nt", "gemm tn", "attention causal flash",
                             "attention-backward causal unfused", "adam"}) {
      EXPECT_TRUE(kinds.contains(kind)) << kind;
    }
    EXPECT_TRUE(ranks == 2 || kinds.contains("layer-norm"));
    EXPECT_EQ(kinds.contains("all-reduce"), ranks == 2);
  }
}

// Products and attention are taken in two states, bursts before what is sustained; quickly
// sustained alone and before all else; a few ops beside SMs that are held, never all of them.
TEST(LoopDevice, StatesThatAreCalibrated) {
  const auto count = [](bool quick, const std::string& state) {
    const auto ops = calibration_ops({1, quick, true, false, 30});
    EXPECT_TRUE(ops.ok());
    std::int64_t out = 0;
    bool sustained = quick;
    for (const MicroOp& op : ops.value()) {
      const bool heavy = op.key.op.starts_with("gemm") || op.key.op.starts_with("attention");
      EXPECT_EQ(op.key.state.empty(), !heavy || op.key.sms > 0) << op.key.shape;
      EXPECT_LT(op.key.sms, 30);
      const bool now = op.key.state == kSustained;
      EXPECT_FALSE(quick ? now && !sustained : sustained && !now) << op.key.shape;
      sustained = quick ? sustained && now : sustained || now;
      if (op.key.sms == 0 && op.key.state == state) ++out;
    }
    return out;
  };
  EXPECT_GT(count(false, kBurst), 100);
  EXPECT_EQ(count(false, kBurst), count(false, kSustained));
  EXPECT_EQ(count(true, kBurst), 0);
  EXPECT_GT(count(true, kSustained), 10);
}

// Of runs of any size a device measures the products first, the most costly one before all others;
// cuDNN's attention of their shapes; and kernels that need no other rank.
TEST(LoopDevice, ShapesOfRuns) {
  const CalibrationScope scope{1, false, true, false, 132, true};
  const auto ops = shapes_of_runs({"llama-3-8b-8-h100", "llama-3.1-405b-16384-h100"}, scope);
  ASSERT_TRUE(ops.ok()) << ops.error().message;
  ASSERT_GT(ops.value().size(), 40U);
  EXPECT_EQ(ops.value()[0].key.by, Maker::kVendor);
  EXPECT_GT(sample_size(ops.value()[0].work), 5e11);
  bool vendor = true;
  std::set<std::string> kinds;
  std::set<SampleKey> keys;
  for (const MicroOp& op : ops.value()) {
    const bool product =
        std::holds_alternative<Gemm>(op.work) || std::holds_alternative<Attention>(op.work);
    EXPECT_TRUE(!product || vendor) << op.key.shape;
    vendor = vendor && product;
    EXPECT_EQ(op.key.ranks, 1);
    EXPECT_TRUE(keys.insert(op.key).second) << op.key.shape;
    EXPECT_FALSE(std::holds_alternative<Collective>(op.work));
    kinds.insert(op.key.op);
    const Workload one = micro_workload(op, 1, 1, 1);
    EXPECT_TRUE(verify(one).ok()) << op.key.shape << ": " << verify(one).error().message;
  }
  for (const char* kind : {"gemm nt", "gemm nn", "gemm tn", "attention causal cudnn",
                           "attention-backward causal cudnn", "rms-norm", "swiglu"}) {
    EXPECT_TRUE(kinds.contains(kind)) << kind;
  }
}

/// Memory is used again, yet never while another op may still touch it: the plan of a Program with
/// several streams is no more than a few times its peak, and blocks that are there at the same
/// time do not overlap.
TEST(MemoryPlan, BlocksThatAreThereTogetherDoNotOverlap) {
  Rng rng(7);
  for (int i = 0; i < 40; ++i) {
    Drawn drawn = i % 2 == 0 ? draw_plan(rng) : draw_sharded_plan(rng);
    if (i % 4 < 2) drawn.plan.offload = Offload();  // the device holds all
    const Workload workload = lower(drawn.model, drawn.plan);
    const Program& program = workload.programs[0];
    const TaskList list(program);
    const MemoryLayout layout(program, places_of(workload, RankId(0)));
    const MemoryPlan plan(list, layout);
    std::map<std::size_t, PlannedBlock> live;  // by buffer
    std::array<std::size_t, 3> most{};         // by memory
    for (std::size_t at = 0; at < list.issue.size(); ++at) {
      const QueuedOp& task =
          list.tasks[static_cast<std::size_t>(list.issue[at].first)][list.issue[at].second];
      const Call& call = list.call_of(task);
      const Op& op = list.op_of(task);
      for (std::size_t a = 0; a < op.allocates.size(); ++a) {
        const PlannedBlock block = plan.allocates[at][a];
        EXPECT_EQ(block.memory, layout.buffer(layout.index_of(call, op.allocates[a])).memory);
        EXPECT_GE(block.offset, plan.space(block.memory).persistent);
        EXPECT_LE(block.offset + block.bytes, plan.space(block.memory).bytes);
        for (const auto& [buffer, other] : live) {
          EXPECT_TRUE(block.memory != other.memory || block.offset + block.bytes <= other.offset ||
                      other.offset + other.bytes <= block.offset);
        }
        live[layout.index_of(call, op.allocates[a])] = block;
      }
      std::array<std::size_t, 3> now{};
      for (const auto& [buffer, block] : live)
        now[static_cast<std::size_t>(block.memory)] += block.bytes;
      for (std::size_t m = 0; m < now.size(); ++m) most[m] = std::max(most[m], now[m]);
      for (const BufferRef& ref : op.frees) live.erase(layout.index_of(call, ref));
    }
    EXPECT_TRUE(live.empty());
    // Copies and the host's work are ordered by little: memory beside them can take far more.
    for (std::size_t m = 0; m < most.size() && i % 4 < 2; ++m) {
      EXPECT_LE(plan.spaces[m].bytes - plan.spaces[m].persistent, 8 * most[m] + 4096)
          << describe(drawn.model, drawn.plan);
    }
  }
}

// The cases that test cuDNN's attention on a device: there are some, with and without grouped
// heads.
TEST(DeviceRefusals, LeaveCasesForCudnn) {
  std::set<bool> grouped;
  for (const DeviceCase& one : cudnn_cases()) {
    grouped.insert(one.model.kv_heads < one.model.heads);
  }
  EXPECT_EQ(grouped.size(), 2);
}

TEST(DeviceRefusals, ByName) {
  const Model model = small_llama();
  const auto refusal = [&](const auto& change) {
    Plan plan = small_plan(model, {}, 2);
    plan.sequence_length = 64;
    plan.attention = AttentionKernel::kFlash;
    change(plan);
    const Status status = check_device_executable(lower(model, plan));
    return status.ok() ? std::string() : status.error().message;
  };
  EXPECT_EQ(refusal([](Plan&) {}), "");
  EXPECT_EQ(refusal([](Plan& p) { p.attention = AttentionKernel::kCudnn; }), "");
  EXPECT_EQ(refusal([](Plan& p) { p.loss.form = LossForm::kTorch; }), "");
  const std::string fp8 = refusal([](Plan& p) { p.precision.linear = DType::kFp8; });
  EXPECT_NE(fp8.find("set precision to one of these"), std::string::npos) << fp8;
  const std::string sum = refusal([](Plan& p) { p = under_autocast(p); });
  EXPECT_NE(sum.find("attention.residual"), std::string::npos) << sum;
  EXPECT_NE(sum.find("no kernel for these types"), std::string::npos) << sum;
  const std::string lamb = refusal([](Plan& p) { p.optimizer = Optimizer::kLamb; });
  EXPECT_NE(lamb.find("optimizers other than Adam"), std::string::npos) << lamb;
  const std::string fp32 = refusal([](Plan& p) {
    p.attention = AttentionKernel::kCudnn;
    p.precision.compute = p.precision.gradients = p.precision.matrix = DType::kFp32;
    p.precision.linear = DType::kFp32;
  });
  EXPECT_NE(fp32.find("bf16 and fp16 only"), std::string::npos) << fp32;
  EXPECT_NE(fp32.find("kernels.attention to flash"), std::string::npos) << fp32;
  Plan plan = small_plan(model, {1, 1, 1, 2}, 1);
  plan.context = 2;
  plan.global_batch = 1;
  plan.attention = AttentionKernel::kCudnn;
  const Status status = check_device_executable(lower(model, plan));
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("kernels.context to alltoall"), std::string::npos);
  plan.context_exchange = ContextExchange::kAllToAll;
  EXPECT_TRUE(check_device_executable(lower(model, plan)).ok());
  Model sparse = small_moe();
  Plan routed = small_plan(sparse, {}, 1);
  EXPECT_TRUE(check_device_executable(lower(sparse, routed)).ok());
  routed.experts.routing = Routing::kNatural;
  const Status natural = check_device_executable(lower(sparse, routed));
  ASSERT_FALSE(natural.ok());
  EXPECT_NE(natural.error().message.find("set moe.routing to balanced"), std::string::npos);
  sparse.experts.bias = true;
  const Status biased = check_device_executable(lower(sparse, small_plan(sparse, {}, 1)));
  ASSERT_FALSE(biased.ok());
  EXPECT_NE(biased.error().message.find("biases of experts"), std::string::npos);
}

// Op 0 ran in [10, 30) and [50, 60), twice at once for a while, op 1 in [25, 45); launch 9 is
// nobody's.
TEST(BusyTimes, AreTheUnionOfWhatRan) {
  const std::vector<Launched> launches = {{1, 0}, {2, 0}, {3, 1}, {4, 0}};
  const std::vector<Ran> ran = {{2, 20, 30}, {1, 10, 25}, {9, 0, 100}, {3, 25, 45}, {4, 50, 60}};
  const std::vector<Time> busy = busy_times(launches, ran, 3);
  ASSERT_EQ(busy.size(), 3U);
  EXPECT_EQ(busy[0].ps, 30'000);
  EXPECT_EQ(busy[1].ps, 20'000);
  EXPECT_EQ(busy[2].ps, 0);
}

}  // namespace
}  // namespace foretrain
