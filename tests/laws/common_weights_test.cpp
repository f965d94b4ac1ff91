// Weights that several layers multiply with: one copy of them, the work and the activations of all.
#include <gtest/gtest.h>

#include "models/layers/layer.h"
#include "models/lower.h"
#include "models/plan/plan_tensor.h"
#include "sim/program/verify.h"
#include "tests/support/op_flops.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

/// Two blocks by turns in front of three of four Mamba-2 layers, as Zamba2 has them.
Model small_zamba(std::int64_t rank, bool heads_too) {
  Model model = small_llama();
  model.layers = 4;
  model.kv_heads = model.heads;
  model.hybrid.state_space = {8, 16, 32, 2, 4, 16};
  model.hybrid.layers.assign(4, {Mixer::kMamba2, FeedForward::kNone});
  model.hybrid.shared = {2, rank, heads_too};
  model.hybrid.layers[0].shared = 1;
  model.hybrid.layers[2].shared = 2;
  model.hybrid.layers[3].shared = 1;
  model.hybrid.layers[3].last_use = true;
  return model;
}

/// Every layer has the weights of the first.
Model small_albert() {
  Model model = small_llama();
  model.hybrid.one_layer = true;
  return model;
}

Plan plan_for(const Model& model, std::int64_t microbatches) {
  return small_plan(model, {1, 1, 1, 2}, microbatches);
}

Workload lowered(const Model& model, const Plan& plan) {
  Workload out = lower(model, plan);
  const Status fault = verify(out);
  EXPECT_TRUE(fault.ok()) << fault.error().message;
  return out;
}

/// Elements of the rank's buffers of a kind that live from step to step.
std::int64_t elements_of(const Workload& workload, BufferKind kind) {
  std::int64_t out = 0;
  const Program& program = workload.programs[0];
  for (const Frame& frame : program.frames) {
    if (frame.alias_of.valid()) continue;
    for (const Buffer& buffer : program.layouts[frame.layout.index()].buffers) {
      if (buffer.kind == kind && buffer.persistent) out += buffer.count;
    }
  }
  return out;
}

std::int64_t matrices_of(const std::vector<Parameter>& parameters, const char* prefix) {
  std::int64_t out = 0;
  for (const Parameter& p : parameters) {
    if (p.cols > 1 && p.name.starts_with(prefix)) out += p.count();
  }
  return out;
}

// A block: norms of 2 h and of h, 3 (2 h)^2, 2 h h, 3 h f. A use: h^2, and r (h + 2 f) for the way
// up, 3 x 2 (2 h) r for queries, keys and values.
TEST(SharedBlocks, HaveTheParametersOfTheirDefinition) {
  const std::int64_t h = 256;
  const std::int64_t f = 512;
  const std::int64_t block = 2 * h + h + 3 * 4 * h * h + 2 * h * h + 3 * h * f;
  for (const bool heads_too : {false, true}) {
    const Model model = small_zamba(16, heads_too);
    Model without = model;
    without.hybrid.shared = {};
    for (LayerKind& kind : without.hybrid.layers) kind.shared = 0, kind.last_use = false;
    const std::int64_t use = h * h + 16 * (h + 2 * f) + (heads_too ? 3 * 2 * 2 * h * 16 : 0);
    EXPECT_EQ(parameter_count(model) - parameter_count(without), 2 * block + 3 * use);
  }
}

TEST(SharedBlocks, AreMultipliedWithAtEveryUseAndHeldOnce) {
  const Model model = small_zamba(16, true);
  for (const std::int64_t microbatches : {1, 3}) {
    const Plan plan = plan_for(model, microbatches);
    const Workload workload = lowered(model, plan);
    const auto tokens = static_cast<double>(plan.tokens() * microbatches);
    const double of_block =
        static_cast<double>(matrices_of(shared_block_parameters(model, 1), "shared") +
                            matrices_of(layer_parameters(model, model.kind(0)), "block."));
    EXPECT_DOUBLE_EQ(flops_of_ops<Gemm>(workload, "block."), 3 * 6 * tokens * of_block);
    const double of_adapters =
        static_cast<double>(matrices_of(layer_parameters(model, model.kind(0)), "adapter."));
    EXPECT_DOUBLE_EQ(flops_of_ops<Gemm>(workload, "adapter."), 3 * 6 * tokens * of_adapters);
    // Padding apart: of the vocabulary to 1,024 rows of 256.
    EXPECT_EQ(elements_of(workload, BufferKind::kParameters),
              parameter_count(model) + (1024 - 1000) * 256 * (model.tied_embeddings ? 1 : 2));
  }
}

// Half of p = [ x ; x0 ] is the embedding, whose gradient is written once and added to twice.
TEST(SharedBlocks, PassGradientsToTheEmbedding) {
  const Workload workload = lowered(small_zamba(0, false), plan_for(small_zamba(0, false), 1));
  const Program& program = workload.programs[0];
  int written = 0;
  int added = 0;
  bool joined = false;
  for (const Call& call : program.calls) {
    for (const Op& op : program.segments[call.segment.index()].ops) {
      if (std::string_view(op.name) == "block.embedded_gradient") {
        EXPECT_FALSE(joined);
        (op.reads.size() == 1 ? written : added) += 1;
        EXPECT_GE(written, 1) << "the last use comes first";
      }
      joined |= std::string_view(op.name) == "embedding.blocks_gradient";
    }
  }
  EXPECT_EQ(written, 1);
  EXPECT_EQ(added, 2);
  EXPECT_TRUE(joined);
}

TEST(SharedBlocks, AreComputedAgainWithTheirLayer) {
  const Model model = small_zamba(16, true);
  Plan plan = plan_for(model, 2);
  const double kept = flops_of_ops<Gemm>(lowered(model, plan), "block.");
  plan.recompute.layer = true;
  EXPECT_DOUBLE_EQ(flops_of_ops<Gemm>(lowered(model, plan), "block."), kept * 4 / 3);
}

TEST(SharedBlocks, AreRefusedWhereTheyAreNotModelled) {
  const Model model = small_zamba(16, true);
  const auto faults = [&model](auto change, PlanDegrees degrees = {1, 1, 1, 2}) {
    Plan plan = small_plan(model, degrees, 2);
    change(plan);
    return found_by(check_tensor, model, plan).all().size();
  };
  EXPECT_EQ(faults([](Plan&) {}), 0U);
  EXPECT_GE(faults([](Plan&) {}, {1, 2, 1, 1}), 1U);
  EXPECT_GE(faults([](Plan&) {}, {2, 1, 1, 1}), 1U);
  EXPECT_GE(faults([](Plan& p) { p.sharding = Sharding::kParameters; }), 1U);
  EXPECT_GE(faults([](Plan& p) { p.attention = AttentionKernel::kUnfused; }), 1U);
  EXPECT_GE(faults([](Plan& p) { p.sums_after_pass = true; }), 1U);
}

TEST(OneLayerForAll, IsHeldOnceAndMultipliedWithByAll) {
  const Model model = small_albert();
  Model apart = small_llama();
  const std::int64_t layer = (parameter_count(apart) - parameter_count(model)) / (apart.layers - 1);
  EXPECT_EQ(parameter_count(model), parameter_count(apart) - (apart.layers - 1) * layer);
  for (const std::int64_t tensor : {1, 2}) {
    const Plan plan = small_plan(model, {tensor, 1, 1, 2}, 2);
    const Workload shared = lowered(model, plan);
    const Workload own = lowered(apart, plan);
    EXPECT_DOUBLE_EQ(flops_of_ops<Gemm>(shared, ""), flops_of_ops<Gemm>(own, ""));
    for (const BufferKind kind : {BufferKind::kParameters, BufferKind::kGradients}) {
      const std::int64_t saved = elements_of(own, kind) - elements_of(shared, kind);
      // Norms are on every tensor rank.
      const std::int64_t norms = 2 * model.hidden;
      EXPECT_EQ(saved, (apart.layers - 1) * ((layer - norms) / tensor + norms));
    }
  }
}

// The gradients of all layers are one layer's: they are reduced behind the first layer's pass.
TEST(OneLayerForAll, IsReducedBehindTheLastBackwardPass) {
  const Model model = small_albert();
  Plan plan = plan_for(model, 1);
  plan.overlap.gradient_reduce = true;
  plan.bucket_elements = 1 << 16;
  const Program program = lowered(model, plan).programs[0];
  std::int64_t passes = 0;
  std::int64_t reduced = 0;
  for (const Call& call : program.calls) {
    const Segment& segment = program.segments[call.segment.index()];
    passes += segment.name.starts_with("layer backward") ? 1 : 0;
    for (const Op& op : segment.ops) {
      const auto* work = std::get_if<Collective>(&program.works[op.work.index()]);
      if (work == nullptr || op.category != Category::kData) continue;
      // The head's bucket may go before; the layer's own not.
      if (passes > 0 && passes < model.layers) ++reduced;
    }
  }
  EXPECT_EQ(passes, model.layers);
  EXPECT_LE(reduced, round_up(1000, 128) * model.hidden / plan.bucket_elements + 1);
}

}  // namespace
}  // namespace foretrain
