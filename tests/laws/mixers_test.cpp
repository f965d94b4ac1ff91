// Do layers of other mixers have the parameters, FLOPs and collectives that their definition says?
#include <gtest/gtest.h>

#include "models/lower.h"
#include "sim/program/read_work.h"
#include "sim/program/scan.h"
#include "sim/program/verify.h"
#include "tests/support/op_flops.h"
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

/// Elements of the matrices that GEMMs multiply a token with: all but those of convolutions.
double multiplied(const Model& model, const Plan& plan) {
  double out = static_cast<double>(round_up(model.vocabulary, 128 * plan.tensor) * model.hidden);
  for (const LayersOfKind& of : model.kinds(false)) {
    for (const Parameter& p : layer_parameters(model, of.kind)) {
      const bool convolution = p.name.ends_with(".conv.weight");
      if (p.cols > 1 && !convolution) out += static_cast<double>(of.layers * p.count());
    }
  }
  return out;
}

/// The scan of a token in a layer's mixer, whose `batch` is 0 where there is none.
Scan scan_of(const Model& model, Mixer mixer) {
  const StateSpace& s = model.hybrid.state_space;
  const DeltaNet& d = model.hybrid.delta;
  const SelectiveScan& c = model.hybrid.selective;
  if (mixer == Mixer::kMamba2 || mixer == Mixer::kBeside) {
    return {false, 1, s.chunk, s.heads, s.groups, s.head_dim, s.state, s.chunk};
  }
  if (mixer == Mixer::kDelta) {
    return {false,       1,         d.chunk, d.value_heads, d.value_heads,
            d.value_dim, d.key_dim, d.chunk, DType::kBf16,  ScanRule::kDelta};
  }
  if (mixer == Mixer::kMamba1) {
    return {false, 1, 1, c.width, 1, 1, c.state, 1, DType::kBf16, ScanRule::kSelective};
  }
  return {false, 0};
}

/// FLOPs of the scans of a token, forward and backward.
double scanned(const Model& model) {
  double out = 0;
  for (const LayerKind& kind : model.hybrid.layers) {
    Scan one = scan_of(model, kind.mixer);
    if (one.batch == 0) continue;
    for (const bool backward : {false, true}) {
      one.backward = backward;
      out += flops_of(Work{one}) / static_cast<double>(one.length);
    }
  }
  return out;
}

/// A small model whose layers have mixers of these kinds.
Model with_mixers(std::vector<Mixer> mixers) {
  Model model = small_hybrid(false);
  model.hybrid.delta = {2, 4, 16, 16, 4, 0, 16};
  model.hybrid.selective = {2 * model.hidden, 8, 4, 4, true, false, true};
  for (std::size_t l = 0; l < model.hybrid.layers.size(); ++l) {
    model.hybrid.layers[l].mixer = mixers[l % mixers.size()];
  }
  return model;
}

/// The same with decays of every channel.
Model with_channel_decays() {
  Model model = with_mixers({Mixer::kDelta, Mixer::kAttention});
  model.hybrid.delta = {4, 4, 16, 16, 4, 8, 16};
  return model;
}

/// Attention of two shapes, one of which has values that are its keys.
Model with_shapes() {
  Model model = small_llama();
  model.qk_norm = true;
  model.hybrid.shapes = {{model.heads, 2, 2 * model.head_dim, model.intermediate / 2, true}};
  model.hybrid.layers.assign(static_cast<std::size_t>(model.layers), {});
  model.hybrid.layers[0].shape = 1;
  return model;
}

Model with_gate(OutputGate gate) {
  Model model = small_llama();
  model.attention.gate = gate;
  return model;
}

/// Experts of half the hidden width's space, or beside an MLP with norms of its own.
Model with_latent_experts() {
  Model model = small_moe();
  model.experts.more.latent = model.hidden / 2;
  return model;
}
Model with_mlp_beside(bool norms) {
  Model model = small_moe();
  model.experts.more.beside = true;
  model.experts.shared_width = model.hidden;
  model.experts.more.norms_after = model.experts.more.scales = norms;
  return model;
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

// Delta nets, Mamba's mixers, attention beside a state space, gates and shapes: every rank has its
// share of the products of all matrices, and of the scans.
TEST(Mixers, RanksShareProductsAndScans) {
  struct Case {
    Model model;
    std::int64_t most;
  };
  const Case cases[] = {{with_mixers({Mixer::kDelta, Mixer::kAttention}), 2},
                        {with_mixers({Mixer::kBeside}), 2},
                        {with_mixers({Mixer::kMamba1, Mixer::kAttention}), 1},
                        {with_channel_decays(), 1},
                        {with_shapes(), 2},
                        {with_gate(OutputGate::kElements), 2},
                        {with_gate(OutputGate::kHeads), 2}};
  for (const Case& one : cases) {
    for (std::int64_t tensor = 1; tensor <= one.most; ++tensor) {
      Plan plan = small_plan(one.model, {tensor, 1, 1, 1}, 1);
      plan.sequence = tensor > 1;
      const Workload workload = lower(one.model, plan);
      const Status fault = verify(workload);
      ASSERT_TRUE(fault.ok()) << fault.error().message;
      const double tokens = static_cast<double>(plan.global_batch * plan.sequence_length);
      EXPECT_DOUBLE_EQ(flops_on_rank<Gemm>(workload) * static_cast<double>(tensor),
                       6 * tokens * multiplied(one.model, plan));
      EXPECT_DOUBLE_EQ(flops_on_rank<Scan>(workload) * static_cast<double>(tensor),
                       tokens * scanned(one.model));
    }
  }
}

// A convolution over a few tokens is a product of its own weights with every token, forward once
// and backward twice: 6 FLOPs a weight and token, as those of matrices. Mamba-2 keeps no result of
// its own (mamba_ssm's combined function): the backward pass has that of the forward pass, too.
TEST(Mixers, ConvolutionsMultiplyEveryTokenWithTheirWeights) {
  for (const Mixer mixer : {Mixer::kConv, Mixer::kDelta, Mixer::kMamba1, Mixer::kMamba2}) {
    const Model model = with_mixers({mixer, Mixer::kAttention});
    const Plan plan = small_plan(model, {}, 1);
    const Workload workload = lower(model, plan);
    double weights = 0;
    for (const LayersOfKind& of : model.kinds(false)) {
      for (const Parameter& p : layer_parameters(model, of.kind)) {
        if (!p.name.ends_with("conv.weight") && p.name != "conv.taps.weight") continue;
        weights += static_cast<double>(of.layers * p.count());
      }
    }
    ASSERT_GT(weights, 0) << static_cast<int>(mixer);
    double flops = 0;
    const Program& program = workload.programs[0];
    for (const Call& call : program.calls) {
      for (const Op& op : program.segments[call.segment.index()].ops) {
        const auto* kernel = std::get_if<Kernel>(&program.works[op.work.index()]);
        const bool convolution =
            kernel != nullptr && (kernel->kind == KernelKind::kCausalConv ||
                                  kernel->kind == KernelKind::kCausalConvBackward ||
                                  kernel->kind == KernelKind::kGatedConv ||
                                  kernel->kind == KernelKind::kGatedConvBackward);
        if (convolution) flops += static_cast<double>(kernel->flops);
      }
    }
    const double tokens = static_cast<double>(plan.global_batch * plan.sequence_length);
    const double each = mixer == Mixer::kMamba2 ? 8 : 6;
    EXPECT_DOUBLE_EQ(flops, each * tokens * weights) << static_cast<int>(mixer);
  }
}

// A gated delta net (arXiv 2412.06464; Hugging Face's qwen3_next): its norm, a linear to queries,
// keys, values, gates and two numbers a value head, the convolution, two numbers a head, the norm
// of one head, the linear back. Kimi's has two low ranks in place of gates and decays.
TEST(Mixers, DeltaNetsHaveTheParametersOfTheirDefinition) {
  const Model model = with_mixers({Mixer::kDelta});
  const std::int64_t h = model.hidden;
  const std::int64_t k = 2 * 16;
  const std::int64_t v = 4 * 16;
  EXPECT_EQ(elements(model, {Mixer::kDelta, FeedForward::kNone}),
            h + h * (2 * k + 2 * v + 2 * 4) + 4 * (2 * k + v) + 2 * 4 + 16 + v * h);
  const Model kimi = with_channel_decays();
  EXPECT_EQ(elements(kimi, {Mixer::kDelta, FeedForward::kNone}),
            h + h * (3 * v + 4 + 2 * 8) + 4 * 3 * v + 4 + v + 2 * 8 * v + 16 + v * h);
}

TEST(Mixers, SelectiveScansHaveTheParametersOfTheirDefinition) {
  const Model model = with_mixers({Mixer::kMamba1});
  const std::int64_t h = model.hidden;
  const std::int64_t d = 2 * h;
  EXPECT_EQ(elements(model, {Mixer::kMamba1, FeedForward::kNone}),
            h + 2 * h * d + 5 * d + (4 + 16) * d + (4 + 16) + 5 * d + 8 * d + d + d * h);
}

// The linears of both mixers: their products are the sums of either.
TEST(Mixers, AttentionBesideAStateSpaceHasTheParametersOfBoth) {
  const Model model = with_mixers({Mixer::kBeside});
  const LayerKind both{Mixer::kBeside, FeedForward::kNone};
  EXPECT_EQ(elements(model, both),
            elements(model, kAttentionAlone) + elements(model, kMamba) - model.hidden);
}

// q, k and v per token and head: states 6 q v, squares 4 C v + 21/4 C k + C^2 / 2, forward.
TEST(Scans, DeltaRulesHaveTheFlopsOfTheirKernels) {
  Scan scan{false, 1, 64, 2, 2, 32, 16, 64, DType::kBf16, ScanRule::kDelta};
  const double token = 2 * (6.0 * 16 * 32 + 4.0 * 64 * 32 + 5.25 * 64 * 16 + 64.0 * 64 / 2);
  EXPECT_DOUBLE_EQ(flops_of(Work{scan}), 64 * token);
  scan.backward = true;
  const double back = 2 * (16.0 * 16 * 32 + 10.0 * 64 * 32 + 18.0 * 64 * 16 + 4.0 * 64 * 64);
  EXPECT_DOUBLE_EQ(flops_of(Work{scan}), 64 * back);
  Scan channels = scan;
  channels.rule = ScanRule::kChannelDelta;
  EXPECT_DOUBLE_EQ(flops_of(Work{channels}), flops_of(Work{scan}));
  for (std::size_t i = 0; i < kernels_of(scan).size(); ++i) {
    EXPECT_GE(kernels_of(channels)[i].bytes, kernels_of(scan)[i].bytes);
  }
  const Scan selective{false, 1, 10, 6, 1, 1, 8, 1, DType::kBf16, ScanRule::kSelective};
  EXPECT_DOUBLE_EQ(flops_of(Work{selective}), 9.0 * 10 * 6 * 8);
}

TEST(Scans, AreReadAsTheyAreWritten) {
  for (const ScanRule rule :
       {ScanRule::kStateSpace, ScanRule::kSelective, ScanRule::kDelta, ScanRule::kChannelDelta}) {
    const Work work = Scan{true, 2, 64, 4, 2, 8, 16, 32, DType::kBf16, rule};
    const Result<Work> read = read_work(text_of(work));
    ASSERT_TRUE(read.ok()) << text_of(work);
    EXPECT_EQ(read.value(), work);
  }
}

// Where a linear's columns go, and what a softmax has besides, is said and costs nothing.
TEST(Blocks, AndFormsOfScoresAreReadAsTheyAreWritten) {
  Gemm product{64, 96, 32, 1, false, true, false, DType::kBf16, DType::kBf16};
  product.columns.blocks = {48, 32, 16};
  Attention attention;
  attention.score = {true, 50};
  for (const Work& work : {Work{product}, Work{attention}}) {
    const Result<Work> read = read_work(text_of(work));
    ASSERT_TRUE(read.ok()) << text_of(work);
    EXPECT_EQ(read.value(), work);
  }
  Gemm plain = product;
  plain.columns = {};
  EXPECT_EQ(flops_of(Work{product}), flops_of(Work{plain}));
}

// Experts work on latent tokens: matrices to the latent space and back for every token, experts'
// matrices of that width.
TEST(LatentExperts, MultiplyInTheirSpace) {
  const Model model = with_latent_experts();
  const Experts& e = model.experts;
  const LayerKind sparse{Mixer::kNone, FeedForward::kExperts};
  const std::int64_t l = model.hidden / 2;
  EXPECT_EQ(elements(model, sparse) - elements(small_moe(), sparse),
            2 * l * model.hidden - e.count * 3 * e.width * (model.hidden - l));
  for (const std::int64_t tensor : {1, 2}) {
    Plan plan = small_plan(model, {tensor, 1, 1, 1}, 1);
    plan.sequence = tensor > 1;
    const Status fault = verify(lower(model, plan));
    EXPECT_TRUE(fault.ok()) << fault.error().message;
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
  add([](Model& m) { m.experts.more.shared_gate = true; }, small_moe());
  add([](Model& m) { m.norms.after = true, m.norms.before = false; }, small_moe());
  add([](Model& m) { m.hybrid.layers[1] = {Mixer::kNone, FeedForward::kMlp}; }, small_hybrid(true));
  add([](Model& m) { m.hybrid.layers[0] = {Mixer::kConv}; }, small_hybrid(false));
  add([](Model& m) { m.hybrid.layers[0] = {Mixer::kConv}, m.hybrid.conv_bias = true; },
      small_hybrid(false));
  for (const Mixer mixer : {Mixer::kDelta, Mixer::kMamba1, Mixer::kBeside}) {
    models.push_back(with_mixers({mixer, Mixer::kAttention}));
  }
  models.push_back(with_channel_decays());
  models.push_back(with_shapes());
  models.push_back(with_gate(OutputGate::kElements));
  models.push_back(with_latent_experts());
  add([](Model& m) { m.experts.shared_width = 0; }, with_latent_experts());
  models.push_back(with_mlp_beside(false));
  models.push_back(with_mlp_beside(true));
  add([](Model& m) { m.hybrid.state_space.norm = false; }, with_mixers({Mixer::kBeside}));
  add([](Model& m) { m.attention.gate = OutputGate::kElements, m.position = Position::kNone; },
      llama);
  add([](Model& m) { m.ends.transform = m.biases.head = true; }, llama);
  add([](Model& m) { m.ends.final_norm = false; }, llama);
  add([](Model& m) { m.attention.value_dim = m.head_dim / 2; }, llama);
  add([](Model& m) { m.latent.index_heads = 2, m.latent.index_dim = 32, m.latent.index_keys = 48; },
      small_latent());
  for (const bool transform : {false, true}) {
    add([transform](Model& m) { m.ends.embedding_width = 64, m.ends.transform = transform; },
        llama);
  }
  for (const Model& model : models) {
    const bool whole = model.has_mixer(Mixer::kMamba1) || model.hybrid.delta.by_channel();
    for (const std::int64_t tensor : {1, 2}) {
      if (whole && tensor > 1) continue;
      for (const int variant : {0, 1, 2, 3, 4, 5}) {
        Plan plan = small_plan(model, {tensor, variant == 2 ? 1 : 2, 1, 2}, 2);
        plan.sequence = tensor > 1 && variant != 4;
        plan.overlap.tensor_backward = variant == 4;
        if (variant == 5 && !model.biases.head && model.ends.masked == 0) plan.loss.chunks = 2;
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

/// The small model of latent attention with an indexer that chooses 48 of 128 keys.
Model with_indexer() {
  Model model = small_latent();
  model.latent.index_heads = 2;
  model.latent.index_dim = 32;
  model.latent.index_keys = 48;
  return model;
}

// Every tensor rank has the whole indexer, of all tokens: linears forward and, since nothing goes
// through their inputs, the gradients of their weights.
TEST(Indexers, AreWholeOnEveryTensorRank) {
  const Model model = with_indexer();
  const LatentAttention& l = model.latent;
  for (const std::int64_t tensor : {1, 2}) {
    Plan plan = small_plan(model, {tensor, 1, 1, 1}, 1);
    plan.sequence = tensor > 1;
    const Workload workload = lower(model, plan);
    const Status fault = verify(workload);
    ASSERT_TRUE(fault.ok()) << fault.error().message;
    const std::int64_t from = l.q_rank > 0 ? l.q_rank : model.hidden;
    const std::int64_t matrices = 64 * from + (32 + 2) * model.hidden;
    EXPECT_DOUBLE_EQ(flops_of_ops<Gemm>(workload, "attention.index."),
                     static_cast<double>(model.layers * 4 * 128 * matrices));
  }
}

// All keys are scored, 48 at most are attended to: of 128 queries the first 48 see as many as there
// are.
TEST(Indexers, ChooseTheKeysThatAttentionSees) {
  const Model model = with_indexer();
  const LatentAttention& l = model.latent;
  const Workload workload = lower(model, small_plan(model, {1, 1, 1, 1}, 1));
  const auto layers = static_cast<double>(model.layers);
  const double all = 128.0 * 128 / 2;
  const double seen = 128.0 * 48 - 48.0 * 48 / 2;
  const auto score = [](const Workload& of, const char* op) {
    return flops_of_ops<Attention>(of, op);
  };
  const double scores = score(workload, "attention.index.scores_gradient");
  EXPECT_NEAR(score(workload, "attention.index.scores") - scores, layers * all * 2 * 2 * 33,
              layers * 128 * 2 * 2 * 33);
  EXPECT_NEAR(scores, layers * seen * 2 * 2 * (3 * 32 + 2), layers * 48 * 2 * 2 * 98);
  const double heads = 2 * static_cast<double>(model.heads);
  const auto key = static_cast<double>(l.kv_rank + l.rope);
  const auto value = static_cast<double>(l.kv_rank);
  EXPECT_NEAR(score(workload, "attention.core"), layers * seen * heads * (4 * key + 3 * value),
              layers * 48 * heads * (4 * key + 3 * value));
}

// No more keys are chosen than there are; then only the indexer's work comes on top.
TEST(Indexers, ChooseAllOfAShortSequence) {
  Model model = with_indexer();
  model.latent.index_keys = 4096;
  for (const Work& work : lower(model, small_plan(model, {1, 1, 1, 1}, 1)).programs[0].works) {
    const auto* attention = std::get_if<Attention>(&work);
    EXPECT_TRUE(attention == nullptr || attention->window == 0);
  }
}

// 6 P and 12 L h s of at most 48 keys; scores of all keys once and of the chosen twice.
TEST(Indexers, CountInModelFlops) {
  const Model model = with_indexer();
  Model without = model;
  without.latent.index_keys = 128;
  const auto layers = static_cast<double>(model.layers);
  const double pair = layers * 2 * 2 * 32;
  const double attended =
      layers * 12 * static_cast<double>(model.query_width() + model.value_width()) / 2;
  const FlopConventions some = model_flops(model, 1, 128);
  const FlopConventions every = model_flops(without, 1, 128);
  EXPECT_NEAR(every.full - some.full, attended * (128 - 48) + pair * 2 * (128 - 48), 1);
}

// A head of values half as wide as its keys: rows of the linear, columns of the linear back,
// products of attention.
TEST(Values, MayBeNarrowerThanKeys) {
  Model narrow = small_llama();
  narrow.attention.value_dim = narrow.head_dim / 2;
  const Model wide = small_llama();
  const auto tokens = 128.0;
  for (const std::int64_t tensor : {1, 2}) {
    const Plan plan = small_plan(wide, {tensor, 1, 1, 1}, 1);
    const Workload of_narrow = lower(narrow, plan);
    const Workload of_wide = lower(wide, plan);
    const auto h = static_cast<double>(wide.hidden);
    const auto layers = static_cast<double>(wide.layers);
    const double kv = static_cast<double>(wide.kv_width() / 2 / tensor);
    const double q = static_cast<double>(wide.query_width() / 2 / tensor);
    EXPECT_DOUBLE_EQ(
        flops_of_ops<Gemm>(of_wide, "attention.") - flops_of_ops<Gemm>(of_narrow, "attention."),
        layers * 6 * tokens * h * (kv + q));
    const double core = flops_of_ops<Attention>(of_wide, "attention.core");
    EXPECT_NEAR(flops_of_ops<Attention>(of_narrow, "attention.core") / core, 1 - 1.5 / 7, 1e-9);
  }
}

}  // namespace
}  // namespace foretrain
