// Do optimizers keep and move what their papers say?
#include <gtest/gtest.h>

#include "models/layers/optimizer.h"
#include "models/lower.h"
#include "sim/program/memory.h"
#include "sim/program/verify.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

Model even_gpt() {
  Model model = small_gpt();
  model.vocabulary = 1024;
  return model;
}

Program program_of(const Plan& plan) {
  const Workload workload = lower(even_gpt(), plan);
  const Status status = verify(workload);
  EXPECT_TRUE(status.ok()) << status.error().message;
  return workload.programs[0];
}

Plan plan_with(Optimizer optimizer, Sharding sharding, std::int64_t data) {
  Plan plan = small_plan(even_gpt(), {1, 1, 1, data}, 1);
  plan.optimizer = optimizer;
  plan.sharding = sharding;
  plan.precision.master = false;
  plan.units.narrow_shards = false;
  return plan;
}

Bytes state_bytes(const Plan& plan) {
  return persistent_bytes(program_of(plan))[static_cast<std::size_t>(BufferKind::kOptimizer)];
}

/// Rows and columns of matrices, elements of vectors.
std::int64_t factors() {
  const Model model = even_gpt();
  const auto of = [](const std::vector<Parameter>& list) {
    std::int64_t sum = 0;
    for (const Parameter& p : list) sum += p.cols > 1 ? p.rows + p.cols : p.rows;
    return sum;
  };
  return of(embedding_parameters(model)) + model.layers * of(layer_parameters(model)) +
         of(head_parameters(model));
}

// Bytes of states for P parameters, without a copy of the weights: 8 P, 8 P, 4 P, 2 P and two
// scales a block of 256, 4 (n + m) a matrix.
TEST(OptimizerStates, Bytes) {
  const std::int64_t p = parameter_count(even_gpt());
  const auto bytes = [](Optimizer o) { return state_bytes(plan_with(o, Sharding::kNone, 1)); };
  EXPECT_EQ(bytes(Optimizer::kFusedAdam), 8 * p);
  EXPECT_EQ(bytes(Optimizer::kAdam), 8 * p);
  EXPECT_EQ(bytes(Optimizer::kLamb), 8 * p);
  EXPECT_EQ(bytes(Optimizer::kSgd), 4 * p);
  EXPECT_EQ(bytes(Optimizer::kAdam8bit), 2 * p + 2 * 4 * ((p + 255) / 256));
  EXPECT_EQ(bytes(Optimizer::kAdafactor), 4 * factors());
}

// Sharded states divide among the ranks, up to padding of a unit; a copy of the weights is 4 P
// more.
TEST(OptimizerStates, Shards) {
  for (const Optimizer o : {Optimizer::kLamb, Optimizer::kSgd, Optimizer::kAdam8bit}) {
    for (const Sharding s : {Sharding::kOptimizer, Sharding::kGradients, Sharding::kParameters}) {
      Plan plan = plan_with(o, s, 4);
      const auto whole = static_cast<double>(state_bytes(plan_with(o, Sharding::kNone, 1)));
      EXPECT_NEAR(static_cast<double>(state_bytes(plan)), whole / 4, 0.01 * whole);
      const Bytes before = state_bytes(plan);
      plan.precision.master = plan.units.narrow_shards = true;
      const auto copies = static_cast<double>(state_bytes(plan) - before);
      EXPECT_NEAR(copies, static_cast<double>(parameter_count(even_gpt())), 0.01 * copies);
    }
  }
}

// With fp32 weights and gradients (r4 and w4, r4): SGD reads and writes 4 P of momentum; LAMB
// writes the update, reads it twice, and reads the weights twice more; Adam is one kernel, or eight
// operations over lists of tensors, of which each reads and writes what it works on.
TEST(OptimizerUpdate, Bytes) {
  const std::int64_t p = parameter_count(even_gpt());
  const auto moved = [](Optimizer optimizer) {
    Plan plan = plan_with(optimizer, Sharding::kNone, 1);
    plan.precision.compute = DType::kFp32;
    const Program program = program_of(plan);
    Bytes sum = 0;
    for (const Work& work : program.works) {
      if (const auto* opaque = std::get_if<Opaque>(&work)) sum += opaque->bytes;
    }
    for (const Segment& segment : program.segments) {
      for (const Op& op : segment.ops) {
        const auto* kernel = std::get_if<Kernel>(&program.works[op.work.index()]);
        const bool adam = kernel != nullptr && kernel->kind == KernelKind::kAdam;
        if (adam) sum += kernel_bytes(*kernel, op);
      }
    }
    return sum;
  };
  EXPECT_EQ(moved(Optimizer::kFusedAdam), 28 * p);
  EXPECT_EQ(moved(Optimizer::kAdam), 80 * p);
  EXPECT_EQ(moved(Optimizer::kSgd), (12 + 8) * p);
  EXPECT_EQ(moved(Optimizer::kLamb), (12 + 16 + 20) * p);
  EXPECT_EQ(moved(Optimizer::kAdam8bit), 12 * p + 2 * 2 * p + 2 * 2 * 4 * ((p + 255) / 256));
}

// Loops launch for each of the parameters of embedding, layers and head; sharded optimizers for
// their share of these; flat units are one each, those that parameters are copied out of are not.
TEST(OptimizerUpdate, HostsLoopOverTensors) {
  const Model model = even_gpt();
  const auto tensors = static_cast<std::int64_t>(embedding_parameters(model).size() +
                                                 head_parameters(model).size()) +
                       model.layers * static_cast<std::int64_t>(layer_parameters(model).size());
  const auto looped = [](Optimizer optimizer, Sharding sharding, bool copies_out = false) {
    Plan plan = plan_with(optimizer, sharding, 2);
    plan.units.copies_out = copies_out;
    plan.update_time = Time::from_us(3);
    const Program program = program_of(plan);
    Time sum;
    for (const Call& call : program.calls) {
      for (const Op& op : program.segments[call.segment.index()].ops) {
        const auto* delay = std::get_if<HostDelay>(&program.works[op.work.index()]);
        if (delay != nullptr) sum += delay->time;
      }
    }
    return sum;
  };
  for (const Optimizer o : {Optimizer::kAdam, Optimizer::kSgd, Optimizer::kAdafactor}) {
    EXPECT_EQ(looped(o, Sharding::kNone), Time::from_us(3 * static_cast<double>(tensors)));
  }
  const std::int64_t share = (tensors + 1) / 2;
  EXPECT_EQ(looped(Optimizer::kAdam, Sharding::kOptimizer),
            Time::from_us(3 * static_cast<double>(share)));
  EXPECT_EQ(looped(Optimizer::kAdam, Sharding::kParameters),
            Time::from_us(3 * static_cast<double>(model.layers + 1)));
  EXPECT_EQ(looped(Optimizer::kAdam, Sharding::kParameters, true),
            Time::from_us(3 * static_cast<double>(tensors)));
  EXPECT_EQ(looped(Optimizer::kFusedAdam, Sharding::kNone), Time());
  EXPECT_EQ(looped(Optimizer::kLamb, Sharding::kNone), Time());
}

}  // namespace
}  // namespace foretrain
