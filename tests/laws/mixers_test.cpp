// Do layers of other mixers have the parameters, FLOPs and collectives that their definition says?
#include <gtest/gtest.h>

#include "models/lower.h"
#include "sim/program/scan.h"
#include "sim/program/verify.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

constexpr LayerKind kMamba{Mixer::kMamba2, FeedForward::kNone};
constexpr LayerKind kAttentionAlone{Mixer::kAttention, FeedForward::kNone};
constexpr LayerKind kMlpAlone{Mixer::kNone, FeedForward::kMlp};

/// Mixers and feed-forwards in layers of their own, as Nemotron-H has them, or in pairs.
Model small_hybrid(bool alone) {
  Model model = small_llama();
  model.layers = 4;
  model.hybrid.state_space = {8, 16, 32, 2, 4, 16};
  if (alone) {
    model.hybrid.layers = {kMamba, kMlpAlone, kAttentionAlone, kMlpAlone};
  } else {
    model.hybrid.layers = {{Mixer::kMamba2}, {Mixer::kMamba2}, {}, {Mixer::kMamba2}};
  }
  return model;
}

std::int64_t elements(const Model& model, LayerKind kind) {
  std::int64_t out = 0;
  for (const Parameter& p : layer_parameters(model, kind)) out += p.count();
  return out;
}

/// Forward and backward FLOPs of the ops of a kind of work on one rank.
template <typename Kind>
double flops_on_rank(const Workload& workload) {
  double out = 0;
  const Program& program = workload.programs[0];
  for (const Call& call : program.calls) {
    for (const Op& op : program.segments[call.segment.index()].ops) {
      const Work& work = program.works[op.work.index()];
      if (std::holds_alternative<Kind>(work)) out += flops_of(work);
    }
  }
  return out;
}

/// Elements of the matrices that GEMMs multiply a token with: all but the convolution's.
double multiplied(const Model& model, const Plan& plan) {
  double out = static_cast<double>(round_up(model.vocabulary, 128 * plan.tensor) * model.hidden);
  for (const LayersOfKind& of : model.kinds(false)) {
    for (const Parameter& p : layer_parameters(model, of.kind)) {
      const bool convolution = p.name == "mamba.conv.weight";
      if (p.cols > 1 && !convolution) out += static_cast<double>(of.layers * p.count());
    }
  }
  return out;
}

/// FLOPs of the scans of a token, forward and backward.
double scanned(const Model& model) {
  const StateSpace& s = model.hybrid.state_space;
  double out = 0;
  for (const bool backward : {false, true}) {
    const Scan one{backward, 1, s.chunk, s.heads, s.groups, s.head_dim, s.state, s.chunk};
    out += flops_of(Work{one}) / static_cast<double>(s.chunk);
  }
  std::int64_t layers = 0;
  for (const LayerKind& kind : model.hybrid.layers) layers += kind.mixer == Mixer::kMamba2 ? 1 : 0;
  return out * static_cast<double>(layers);
}

// A mixer: its norm, a linear to z, x, B, C and steps, the convolution and its bias, three numbers
// a head, the gated norm, the linear back.
TEST(HybridLayers, HaveTheParametersOfTheirKind) {
  const Model model = small_hybrid(true);
  const StateSpace& s = model.hybrid.state_space;
  const std::int64_t d = s.heads * s.head_dim;
  const std::int64_t channels = d + 2 * s.groups * s.state;
  const std::int64_t h = model.hidden;
  EXPECT_EQ(elements(model, kMamba),
            h + h * (d + channels + s.heads) + channels * (s.taps + 1) + 3 * s.heads + d + d * h);
  EXPECT_EQ(elements(model, kMlpAlone) + elements(model, kAttentionAlone), elements(model, {}));
  EXPECT_EQ(parameter_count(model), elements(model, kMamba) + elements(model, kAttentionAlone) +
                                        2 * elements(model, kMlpAlone) + 2 * model.vocabulary * h +
                                        h);
}

TEST(HybridLayers, KindsAreCountedInTheirOrder) {
  const std::vector<LayersOfKind> kinds = small_hybrid(true).kinds(false);
  ASSERT_EQ(kinds.size(), 3U);
  EXPECT_EQ(kinds[0].kind, kMamba);
  EXPECT_EQ(kinds[1].kind, kMlpAlone);
  EXPECT_EQ(kinds[1].layers, 2);
  EXPECT_EQ(kinds[2].kind, kAttentionAlone);
}

// Every rank has 1/t of the products and of the scan; ranks of the pipeline share the layers.
TEST(HybridLayers, RanksShareProductsAndScans) {
  for (const bool alone : {false, true}) {
    const Model model = small_hybrid(alone);
    for (const std::int64_t tensor : {1, 2}) {
      for (const bool sequence : {false, true}) {
        if (sequence && tensor == 1) continue;
        Plan plan = small_plan(model, {tensor, 1, 1, 1}, 1);
        plan.sequence = sequence;
        const Workload workload = lower(model, plan);
        const Status fault = verify(workload);
        ASSERT_TRUE(fault.ok()) << fault.error().message;
        const double tokens = static_cast<double>(plan.global_batch * plan.sequence_length);
        EXPECT_DOUBLE_EQ(flops_on_rank<Gemm>(workload) * static_cast<double>(tensor),
                         6 * tokens * multiplied(model, plan));
        const double scans = flops_on_rank<Scan>(workload) * static_cast<double>(tensor);
        EXPECT_DOUBLE_EQ(scans, tokens * scanned(model));
        EXPECT_GT(flops_on_rank<Attention>(workload), 0);
      }
    }
  }
}

// Forward 4 d state + d chunk + 2 groups state chunk a token; backward repeats the states.
TEST(Scans, HaveTheFlopsOfTheirKernels) {
  const Scan forward{false, 2, 64, 8, 2, 16, 32, 16, DType::kBf16};
  const double tokens = 2 * 64;
  const double d = 8 * 16;
  EXPECT_DOUBLE_EQ(flops_of(Work{forward}), tokens * (4 * d * 32 + d * 16 + 2.0 * 2 * 32 * 16));
  Scan backward = forward;
  backward.backward = true;
  EXPECT_DOUBLE_EQ(flops_of(Work{backward}),
                   tokens * (10 * d * 32 + 3 * d * 16 + 6.0 * 2 * 32 * 16));
  for (const Scan& scan : {forward, backward}) {
    for (const ScanKernel& kernel : kernels_of(scan)) EXPECT_GT(kernel.bytes, 0) << kernel.name;
  }
}

TEST(HybridLayers, ComputeAgainWhatARecomputedLayerDidNotKeep) {
  const Model model = small_hybrid(false);
  Plan plan = small_plan(model, {2, 1, 1, 1}, 1);
  const double kept = flops_on_rank<Scan>(lower(model, plan));
  plan.recompute.layer = true;
  const Workload again = lower(model, plan);
  const Status fault = verify(again);
  ASSERT_TRUE(fault.ok()) << fault.error().message;
  const StateSpace& s = model.hybrid.state_space;
  const Scan once{false,
                  1,
                  plan.global_batch * plan.sequence_length,
                  s.heads / 2,
                  s.groups / 2,
                  s.head_dim,
                  s.state,
                  s.chunk,
                  DType::kBf16};
  EXPECT_DOUBLE_EQ(flops_on_rank<Scan>(again), kept + 3 * flops_of(Work{once}));
}

// Every kind of block lowers to a Program that reads nothing before it is written, under every cut.
TEST(Blocks, LowerUnderEveryCut) {
  std::vector<Model> models;
  const auto add = [&models](auto change, Model model) {
    change(model);
    models.push_back(model);
  };
  const Model llama = small_llama();
  add([](Model& m) { m.norms.after = true; }, llama);
  add([](Model& m) { m.norms.after = true, m.norms.before = false; }, llama);
  add([](Model& m) { m.norms.weights = false; }, llama);
  add([](Model& m) { m.biases.head = true; }, llama);
  add([](Model& m) { m.activation = Activation::kGeglu; }, llama);
  add([](Model& m) { m.position = Position::kNone; }, llama);
  for (const HeadNorms heads : {HeadNorms::kEachHead, HeadNorms::kWidth, HeadNorms::kWeightless}) {
    add([heads](Model& m) { m.qk_norm = true, m.norms.heads = heads; }, llama);
  }
  add([](Model& m) { m.experts.shared_gate = true; }, small_moe());
  add([](Model& m) { m.norms.after = true, m.norms.before = false; }, small_moe());
  add([](Model& m) { m.hybrid.layers[1] = {Mixer::kNone, FeedForward::kMlp}; }, small_hybrid(true));
  add([](Model& m) { m.hybrid.layers[0] = {Mixer::kConv}; }, small_hybrid(false));
  add([](Model& m) { m.hybrid.layers[0] = {Mixer::kConv}, m.hybrid.conv_bias = true; },
      small_hybrid(false));
  for (const Model& model : models) {
    for (const std::int64_t tensor : {1, 2}) {
      for (const int variant : {0, 1, 2, 3}) {
        Plan plan = small_plan(model, {tensor, variant == 2 ? 1 : 2, 1, 2}, 2);
        plan.sequence = tensor > 1;
        if (variant == 1) plan.recompute.layer = true;
        if (variant == 2) plan.sharding = Sharding::kParameters;
        if (variant == 3) plan.fused_accumulation = !plan.fused_accumulation;
        const Workload workload = lower(model, plan);
        const Status fault = verify(workload);
        EXPECT_TRUE(fault.ok()) << fault.error().message;
      }
    }
  }
}

}  // namespace
}  // namespace foretrain
