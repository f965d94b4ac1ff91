// Does the real thing compute the step that the Program describes? Every plan of a model must give
// the losses and the weights of one rank; one rank's gradients are the derivatives of its loss.
#include <gtest/gtest.h>

#include <cmath>

#include "models/lower.h"
#include "tests/execution/drawn_plans.h"
#include "tests/execution/one_rank.h"
#include "tests/support/sanitized.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

constexpr std::uint64_t kFirstSeed = 40'000;
constexpr int kPlans = cases(70, 16);

void expect_trains_equally(std::uint64_t seed, DrawnKind kind) {
  Rng rng(seed);
  const Drawn drawn = draw_small(rng, kind);
  SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(drawn.model, drawn.plan));
  const Plan one = on_one_rank(drawn.plan);
  const auto in_double = [&](const Plan& plan) { return train<double>(drawn.model, plan); };
  const auto in_float = [&](const Plan& plan) { return train<float>(drawn.model, plan); };
  const Result<Trained> reference = in_double(one);
  ASSERT_TRUE(reference.ok()) << reference.error().message;
  const Result<Trained> exact = in_double(drawn.plan);
  ASSERT_TRUE(exact.ok()) << exact.error().message;
  expect_same(reference.value(), exact.value(), 1e-8);
  const Result<Trained> reference_float = in_float(one);
  ASSERT_TRUE(reference_float.ok()) << reference_float.error().message;
  const Result<Trained> rounded = in_float(drawn.plan);
  ASSERT_TRUE(rounded.ok()) << rounded.error().message;
  expect_same(reference_float.value(), rounded.value(), 2e-4);
}

class Training : public ::testing::TestWithParam<int> {};

TEST_P(Training, EqualsOneRank) {
  expect_trains_equally(kFirstSeed + static_cast<std::uint64_t>(GetParam()), DrawnKind::kBuckets);
}

// Sharded gradients and parameters: units, groups with replicas, prefetches.
TEST_P(Training, InShardsEqualsOneRank) {
  expect_trains_equally(kFirstSeed + 1000 + static_cast<std::uint64_t>(GetParam()),
                        DrawnKind::kUnits);
}

// Sequences cut among ranks, in every exchange.
TEST_P(Training, OverPartsOfSequencesEqualsOneRank) {
  expect_trains_equally(kFirstSeed + 3000 + static_cast<std::uint64_t>(GetParam()),
                        DrawnKind::kContext);
}

// Tensor ranks on a square, on layers of them, on a cube.
TEST_P(Training, OnGridsEqualsOneRank) {
  expect_trains_equally(kFirstSeed + 4000 + static_cast<std::uint64_t>(GetParam()),
                        DrawnKind::kGrid);
}

// Experts over tensor- and data-parallel ranks, whole or cut, in buckets or units.
TEST_P(Training, WithExpertsEqualsOneRank) {
  expect_trains_equally(kFirstSeed + 2000 + static_cast<std::uint64_t>(GetParam()),
                        DrawnKind::kExperts);
}

Model narrow_gpt() {
  Model model = narrowed(small_gpt(), 4);
  model.positions = 8;
  return model;
}

// Two copies of the parameters, whose gradients are summed over both holders; sharded and not.
TEST(TwoPipelines, TrainAsOneRank) {
  Model model = narrow_gpt();
  model.tied_embeddings = false;
  for (const Schedule schedule : {Schedule::kDualPipe, Schedule::kChimera}) {
    for (const Sharding sharding : {Sharding::kNone, Sharding::kOptimizer}) {
      for (const PlanDegrees degrees : {PlanDegrees{1, 2, 1, 1}, PlanDegrees{1, 4, 1, 1},
                                        PlanDegrees{1, 2, 1, 2}, PlanDegrees{2, 2, 1, 2}}) {
        Plan plan = small_plan(model, degrees, 2 * degrees.pipeline);
        plan.schedule = schedule;
        plan.sequence_length = 8;
        plan.sharding = sharding;
        plan.bucket_elements = 500;
        plan.clip_norm = 0.3;
        plan.overlap.gradient_reduce = plan.overlap.parameter_gather = true;
        expect_as_one_rank(model, in_fp32(plan));
      }
    }
  }
}

// Gradients of weights in passes of their own; with a table at both ends of the V.
TEST(WeightPasses, TrainAsOneRank) {
  Model model = narrow_gpt();
  for (const Schedule schedule : {Schedule::kZbH1, Schedule::kZbH2, Schedule::kZbV,
                                  Schedule::kZbAuto, Schedule::kDualPipeV}) {
    for (const bool tied : {false, true}) {
      for (const std::int64_t tensor : {1, 2}) {
        model.tied_embeddings = tied;
        const bool v = schedule == Schedule::kZbV || schedule == Schedule::kDualPipeV;
        Plan plan = small_plan(model, {tensor, 2, v ? 2 : 1, 2}, 5);
        plan.schedule = schedule;
        plan.sequence_length = 8;
        plan.sequence = tensor > 1;
        plan.sharding = Sharding::kOptimizer;
        plan.bucket_elements = 500;
        plan.overlap.gradient_reduce = plan.overlap.parameter_gather = true;
        plan.recompute.layer = tied;
        expect_as_one_rank(model, in_fp32(plan));
      }
    }
  }
}

// Layers that are computed again but for what stays, with and without the end that nothing reads.
// Rows that no token has change nothing.
TEST(VocabularyTables, TrainAsPaddedOnes) {
  for (std::uint64_t seed = 52'000; seed < 52'004; ++seed) {
    Rng rng(seed);
    Drawn drawn = draw_small(rng, DrawnKind::kBuckets);
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(drawn.model, drawn.plan));
    drawn.plan.loss.vocabulary_multiple = 128;
    const Result<Trained> padded = train<double>(drawn.model, drawn.plan);
    ASSERT_TRUE(padded.ok()) << padded.error().message;
    drawn.plan.loss.vocabulary_multiple = 1;
    const Result<Trained> whole = train<double>(drawn.model, drawn.plan);
    ASSERT_TRUE(whole.ok()) << whole.error().message;
    expect_same(padded.value(), whole.value(), 1e-8);
  }
}

TEST(Recomputation, TrainsAsOneRank) {
  using Flag = bool Recompute::*;
  for (const Model& model : {narrow_gpt(), narrowed(small_llama(), 4)}) {
    for (const Flag flag : {&Recompute::early_stop, &Recompute::keep_heads, &Recompute::keep_core,
                            &Recompute::keep_projection, &Recompute::keep_up}) {
      for (const bool cut : {false, true}) {
        Plan plan = small_plan(model, {cut ? 2 : 1, cut ? 2 : 1, 1, cut ? 1 : 2}, 4);
        plan.sequence_length = 8;
        plan.sequence = cut;
        plan.dropout = cut ? 0.1 : 0;
        plan.recompute.layer = plan.recompute.*flag = true;
        if (cut) plan.recompute.keep_heads = plan.recompute.keep_up = true;
        expect_as_one_rank(model, in_fp32(plan));
      }
    }
  }
}

Plan ring_plan(const Model& model, std::int64_t tensor) {
  const bool tied = model.tied_embeddings;
  Plan plan = small_plan(model, {tensor, tied ? 2 : 1, 1, tied ? 1 : 2}, 4);
  plan.sequence_length = 8;
  plan.micro_batch = tied ? 2 : 1;
  if (!tied) plan.context = 2;
  plan.global_batch = plan.micro_batch * plan.batch_ranks() * 4;
  plan.sequence = plan.overlap.tensor = true;
  plan.overlap.tensor_backward = tied;
  plan.dropout = 0.1;
  plan.recompute.layer = tied;
  if (tied) plan.schedule = Schedule::kZbH1;
  return plan;
}

// Tensor ranks that exchange parts of tokens under their products: parts that are whole sequences
// and parts of them, in passes of their own for gradients of weights, beside context ranks.
TEST(TensorRings, TrainAsOneRank) {
  for (Model model : {narrow_gpt(), narrowed(small_llama(), 4)}) {
    for (const std::int64_t tensor : {2, 4}) {
      for (const bool tied : {false, true}) {
        model.tied_embeddings = tied;
        expect_as_one_rank(model, in_fp32(ring_plan(model, tensor)));
      }
    }
  }
}

Model tiny_moe() {
  Model model = narrowed(small_moe(), 2);
  model.experts = Experts{8, 2, 8, 8, 1, 1, false};
  return model;
}

// Experts on two and four ranks, whole and cut, beside tensor, pipeline and data parallelism; in
// turn and as the router chooses, which gives ranks and experts unequal numbers of tokens.
TEST(ExpertParallel, TrainsAsOneRank) {
  struct Case {
    PlanDegrees degrees;
    std::int64_t expert, cut;
  };
  const Case cases[] = {{{1, 1, 1, 2}, 2, 1}, {{1, 1, 1, 4}, 4, 1}, {{1, 1, 1, 4}, 2, 2},
                        {{2, 1, 1, 2}, 4, 1}, {{2, 1, 1, 2}, 2, 1}, {{1, 2, 1, 2}, 2, 1},
                        {{2, 2, 1, 1}, 2, 1}, {{4, 1, 1, 1}, 1, 4}};
  const Model model = tiny_moe();
  for (const Case& c : cases) {
    for (const Dispatcher dispatcher : {Dispatcher::kAllToAll, Dispatcher::kAllGather}) {
      for (const Routing routing : {Routing::kBalanced, Routing::kCapacity}) {
        Plan plan = in_fp32(small_plan(model, c.degrees, 2));
        plan.sequence_length = 16;
        plan.sequence = plan.tensor > 1;
        plan.experts = ExpertPlan{c.expert, c.cut, dispatcher, routing, 1};
        if (routing == Routing::kCapacity) plan.experts.factor = 4;
        expect_as_one_rank(model, plan);
      }
    }
  }
}

// Passes that hide each other's exchanges: pairs of one stage, of stages and chunks, of DualPipe.
TEST(PairedPasses, TrainAsOneRank) {
  Model model = tiny_moe();
  model.tied_embeddings = false;
  struct Case {
    PlanDegrees degrees;
    Schedule schedule;
  };
  for (const Case& c :
       {Case{{1, 1, 1, 2}, Schedule::k1F1B}, Case{{1, 2, 1, 2}, Schedule::k1F1B},
        Case{{1, 2, 2, 2}, Schedule::kInterleaved}, Case{{1, 2, 1, 2}, Schedule::kDualPipe}}) {
    for (const bool recompute : {false, true}) {
      Plan plan = in_fp32(small_plan(model, c.degrees, 4));
      plan.schedule = c.schedule;
      plan.sequence_length = 16;
      plan.experts.expert = 2;
      plan.overlap.passes = c.schedule != Schedule::kDualPipe;
      plan.overlap.expert = recompute;
      plan.recompute.layer = recompute;
      expect_as_one_rank(model, plan);
    }
  }
}

/// What the host backend says of the plan.
std::string refusal(const Model& model, const Plan& plan) {
  const Status status = check_executable(lower(model, in_fp32(plan)));
  EXPECT_FALSE(status.ok());
  return status.ok() ? "" : status.error().message;
}

TEST(Refusals, Experts) {
  Model model = tiny_moe();
  Plan plan = small_plan(model, {1, 1, 1, 2}, 1);
  plan.experts.expert = 2;
  plan.experts.routing = Routing::kNatural;
  EXPECT_NE(refusal(model, plan).find("set moe.routing to balanced"), std::string::npos);
  plan.experts.routing = Routing::kBalanced;
  plan.experts.dispatcher = Dispatcher::kDeepEp;
  EXPECT_NE(refusal(model, plan).find("moe.dispatcher"), std::string::npos);
  plan.experts.dispatcher = Dispatcher::kAllToAll;
  plan.sequence_length = 6;
  EXPECT_NE(refusal(model, plan).find("8 experts do not divide 6 x 2"), std::string::npos);
  plan.sequence_length = 16;
  ASSERT_TRUE(check_executable(lower(model, in_fp32(plan))).ok());
  model.experts.bias = true;
  ASSERT_TRUE(check_executable(lower(model, in_fp32(plan))).ok());
  plan.experts.expert = 1;
  plan.experts.tensor = 2;
  EXPECT_NE(refusal(model, plan).find("biases of experts whose matrices are cut"),
            std::string::npos);
  plan.experts.expert = 2;
  plan.experts.tensor = 1;
  model.experts.bias = false;
  model.predict_layers = 1;
  EXPECT_NE(refusal(model, plan).find("multi-token prediction"), std::string::npos);
  Model latent = small_latent();
  EXPECT_NE(refusal(latent, small_plan(latent, {}, 1)).find("latent attention"), std::string::npos);
}

// Sequences cut among two and four ranks, in every exchange, beside the other ways.
TEST(ContextParallel, TrainsAsOneRank) {
  struct Case {
    PlanDegrees degrees;  ///< data: ranks of the context group too
    std::int64_t context;
  };
  const Case cases[] = {{{1, 1, 1, 2}, 2},
                        {{1, 1, 1, 4}, 4},
                        {{1, 1, 1, 4}, 2},
                        {{2, 1, 1, 2}, 2},
                        {{1, 2, 1, 2}, 2}};
  for (const Case& c : cases) {
    for (const ContextExchange exchange :
         {ContextExchange::kRing, ContextExchange::kAllGather, ContextExchange::kAllToAll}) {
      for (const Model& wide : {small_gpt(), small_llama(), small_moe()}) {
        Model model = narrowed(wide, 2);
        model.heads = model.kv_heads = 8;
        if (model.has_experts()) model.experts = Experts{4, 2, 8, 8, 1, 1, false};
        if (model.positions > 0) model.positions = 16;
        if (model.has_experts()) model.position = Position::kAlibi;
        Plan plan = in_fp32(small_plan(model, c.degrees, 2));
        plan.context = c.context;
        plan.context_exchange = exchange;
        plan.sequence_length = 16;
        plan.micro_batch = 2;
        plan.global_batch = plan.micro_batch * plan.batch_ranks() * 2;
        plan.sequence = plan.tensor > 1;
        plan.dropout = 0.1;
        plan.recompute.attention = exchange != ContextExchange::kRing;
        expect_as_one_rank(model, plan);
      }
    }
  }
}

// Heads exchanged among two and four neighbours, keys around a ring of two and four such groups.
TEST(ContextParallel, HeadsWithinARingTrainAsOneRank) {
  struct Case {
    std::int64_t context, inner, tensor;
  };
  for (const Case& c : {Case{4, 2, 1}, Case{4, 2, 2}, Case{8, 2, 1}, Case{8, 4, 1}}) {
    for (const Model& wide : {small_gpt(), small_llama(), small_moe()}) {
      Model model = narrowed(wide, 2);
      model.heads = 8;
      model.kv_heads = wide.has_experts() ? 8 : 4;
      if (model.has_experts()) model.experts = Experts{4, 2, 8, 8, 1, 1, false};
      if (model.has_experts()) model.position = Position::kAlibi;
      if (model.positions > 0) model.positions = 32;
      Plan plan = in_fp32(small_plan(model, {c.tensor, 1, 1, c.context}, 2));
      plan.context = c.context;
      plan.context_inner = c.inner;
      plan.sequence_length = 32;
      plan.micro_batch = 2;
      plan.global_batch = plan.micro_batch * plan.batch_ranks() * 2;
      plan.sequence = plan.tensor > 1;
      plan.dropout = 0.1;
      plan.recompute.attention = c.inner == 2 && c.context == 8;
      expect_as_one_rank(model, plan);
    }
  }
}

// Windows shorter than a chunk and longer than two, in all layers and in every other one.
TEST(ContextParallel, TrainsWithinWindowsAsOneRank) {
  for (const std::int64_t context : {2, 4}) {
    for (const std::int64_t window : {1, 3, 5, 11}) {
      for (const ContextExchange exchange :
           {ContextExchange::kAllGather, ContextExchange::kAllToAll}) {
        Model model = narrowed(window == 5 ? small_gpt() : small_llama(), 2);
        model.heads = model.kv_heads = 4;
        model.sliding_window = window;
        if (window == 3) model.full_attention = {true, false};
        if (model.positions > 0) model.positions = 16;
        Plan plan = in_fp32(small_plan(model, {1, 1, 1, context}, 2));
        plan.context = context;
        plan.context_exchange = exchange;
        plan.sequence_length = 16;
        plan.micro_batch = 2;
        plan.global_batch = plan.micro_batch * plan.batch_ranks() * 2;
        plan.dropout = 0.1;
        plan.recompute.attention = window == 11;
        expect_as_one_rank(model, plan);
      }
    }
  }
}

// States at the host and in files, shards of parameters too, and what layers keep: the same weights
// as on one rank that offloads nothing.
TEST(Offloading, TrainsAsOneRank) {
  const Model model = narrowed(small_llama(), 3);
  for (const Sharding sharding : {Sharding::kGradients, Sharding::kParameters}) {
    for (const Memory states : {Memory::kHost, Memory::kStorage}) {
      for (const Memory parameters : {Memory::kDevice, Memory::kHost, Memory::kStorage}) {
        if (parameters != Memory::kDevice && sharding != Sharding::kParameters) continue;
        for (const std::int64_t tensor : {1, 2}) {
          Plan plan = in_fp32(small_plan(model, {tensor, 1, 1, 2}, 2));
          plan.sequence_length = 8;
          plan.sharding = sharding;
          plan.units.narrow_shards = true;
          plan.units.reduce = DType::kFp32;
          plan.units.reduce_each = tensor == 1;
          plan.precision.master = states == Memory::kHost;
          plan.clip_norm = 0.3;
          plan.offload.optimizer = states;
          plan.offload.parameters = parameters;
          plan.offload.activation_layers = 2;
          ASSERT_TRUE(lower(model, plan).programs[0].streams.size() > 4);
          expect_as_one_rank(model, plan);
        }
      }
    }
  }
}

// The device updates a share of the layers, the host the rest.
TEST(SharesOnTheDevice, TrainAsOneRank) {
  const Model model = narrowed(small_llama(), 4);
  for (const Sharding sharding : {Sharding::kGradients, Sharding::kParameters}) {
    for (const Memory parameters : {Memory::kDevice, Memory::kHost}) {
      if (parameters != Memory::kDevice && sharding != Sharding::kParameters) continue;
      for (const double share : {0.5, 0.75, 1.0}) {
        Plan plan = in_fp32(small_plan(model, {1, 1, 1, 4}, 2));
        plan.sequence_length = 8;
        plan.sharding = sharding;
        plan.units.narrow_shards = true;
        plan.units.reduce = DType::kFp32;
        plan.units.persist_elements = share > 0.5 ? 8 : 0;
        plan.clip_norm = share > 0.5 ? 0.3 : 0;
        plan.offload.optimizer = Memory::kHost;
        plan.offload.parameters = parameters;
        plan.offload.device_share = share;
        plan.offload.page = 256;
        expect_as_one_rank(model, plan);
      }
    }
  }
}

// Each pass's gradients in an array of their own, added to the others' when it has ended.
TEST(SumsAfterPasses, TrainAsOneRank) {
  for (const PlanDegrees& degrees :
       {PlanDegrees{1, 1, 1, 1}, PlanDegrees{1, 2, 1, 2}, PlanDegrees{2, 2, 2, 1}}) {
    for (const bool tied : {false, true}) {
      Model model = narrowed(small_gpt(), 4);
      model.tied_embeddings = tied;
      Plan plan = in_fp32(small_plan(model, degrees, 4));
      plan.sequence_length = 8;
      plan.sharding = plan.data > 1 ? Sharding::kOptimizer : Sharding::kNone;
      plan.recompute.layer = tied;
      plan.clip_norm = 0.3;
      plan.sums_after_pass = plan.retain_outputs = true;
      expect_as_one_rank(model, plan);
    }
  }
}

// Backward passes gather what forward passes kept among neighbours.
TEST(SecondCopy, TrainsAsOneRank) {
  const Model model = narrowed(small_llama(), 3);
  for (const std::int64_t tensor : {1, 2}) {
    Plan plan = in_fp32(small_plan(model, {tensor, 1, 1, 4}, 2));
    plan.sequence_length = 8;
    plan.sharding = Sharding::kParameters;
    plan.units.reduce = DType::kFp32;
    plan.units.secondary = 2;
    plan.clip_norm = 0.3;
    expect_as_one_rank(model, plan);
  }
}

// Small parameters stay gathered, beside a second copy of the rest or offloaded shards.
TEST(PersistentParameters, TrainAsOneRank) {
  const Model model = narrowed(small_gpt(), 3);
  for (const std::int64_t most : {8, 64, 1 << 20}) {
    for (const std::int64_t tensor : {1, 2}) {
      Plan plan = in_fp32(small_plan(model, {tensor, 1, 1, 4 / tensor}, 2));
      plan.sequence_length = 8;
      plan.sequence = tensor > 1;
      plan.sharding = Sharding::kParameters;
      plan.units.reduce = DType::kFp32;
      plan.units.persist_elements = most;
      plan.clip_norm = 0.3;
      expect_as_one_rank(model, plan);
      plan.units.secondary = 2;
      plan.overlap.parameter_gather = true;
      expect_as_one_rank(model, plan);
      plan.units.secondary = 0;
      plan.units.narrow_shards = true;
      for (const Memory parameters : {Memory::kDevice, Memory::kHost}) {
        plan.offload.optimizer = Memory::kHost;
        plan.offload.parameters = parameters;
        plan.overlap.parameter_gather = false;
        expect_as_one_rank(model, plan);
      }
    }
  }
}

// Parameters come across groups, then from the neighbours.
TEST(GathersInLevels, TrainAsOneRank) {
  const Model model = narrowed(small_llama(), 3);
  for (const std::int64_t level : {2, 4}) {
    for (const std::int64_t group : {0, 4}) {
      if (group == level) continue;
      Plan plan = in_fp32(small_plan(model, {1, 1, 1, 8}, 1));
      plan.sequence_length = 8;
      plan.sharding = Sharding::kParameters;
      plan.shard_group = group;
      plan.units.reduce = DType::kFp32;
      plan.units.inner_group = level;
      plan.units.persist_elements = group;
      expect_as_one_rank(model, plan);
      plan.units.narrow_shards = true;
      plan.offload.optimizer = plan.offload.parameters = Memory::kHost;
      expect_as_one_rank(model, plan);
    }
  }
}

TEST(Refusals, NarrowUnits) {
  const Model model = small_llama();
  Plan plan = small_plan(model, {1, 1, 1, 2}, 1);
  plan.sharding = Sharding::kParameters;
  plan.units.reduce = DType::kFp32;
  ASSERT_TRUE(check_executable(lower(model, in_fp32(plan))).ok());
  plan.units.quantized_reduction = true;
  EXPECT_NE(refusal(model, plan).find("reduce_dtype int4"), std::string::npos);
}

TEST(Refusals, Offloading) {
  const Model model = small_llama();
  Plan plan = small_plan(model, {1, 1, 1, 2}, 1);
  plan.sharding = Sharding::kGradients;
  plan.units.narrow_shards = true;
  plan.units.reduce = DType::kFp32;
  plan.offload.optimizer = Memory::kHost;
  ASSERT_TRUE(check_executable(lower(model, in_fp32(plan))).ok());
  plan.offload.delayed_update = true;
  EXPECT_NE(refusal(model, plan).find("offload.delayed_update"), std::string::npos);
  plan.offload.delayed_update = false;
  plan.optimizer = Optimizer::kLamb;
  EXPECT_NE(refusal(model, plan).find("optimizers other than Adam"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Plans, Training, ::testing::Range(0, kPlans));

}  // namespace
}  // namespace foretrain
