// Does autocast cast what PyTorch's does, as often, and keep what it keeps?
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "models/layers/layer.h"
#include "models/lower.h"
#include "models/plan/plan_precision.h"
#include "sim/program/memory.h"
#include "sim/program/verify.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

/// Eager, with scores, dropout and PyTorch's loss, as a Trainer runs BERT.
Plan eager_plan(const Model& model, PlanDegrees degrees, std::int64_t microbatches) {
  Plan plan = small_plan(model, degrees, microbatches);
  plan.precision.compute = plan.precision.matrix = plan.precision.linear = DType::kFp16;
  plan.fusion = Fusion::kEager;
  plan.loss.form = LossForm::kTorch;
  plan.attention = AttentionKernel::kUnfused;
  plan.optimizer = Optimizer::kAdam;
  plan.dropout = 0.1;
  return plan;
}

Program lowered_program(const Model& model, const Plan& plan) {
  const Workload workload = lower(model, plan);
  const Status status = verify(workload);
  EXPECT_TRUE(status.ok()) << status.error().message;
  return workload.programs.front();
}

const Segment& segment_of(const Program& program, const std::string& name) {
  for (const Segment& segment : program.segments) {
    if (segment.name == name) return segment;
  }
  ADD_FAILURE() << "no segment " << name;
  return program.segments.front();
}

std::vector<std::string> names_in(const Program& program, const std::string& segment) {
  std::vector<std::string> out;
  for (const Op& op : segment_of(program, segment).ops) out.push_back(op.name);
  return out;
}

bool is_cast(const Op& op) { return op.name.find(".cast_") != std::string::npos; }

struct Casts {
  std::int64_t count = 0;
  Bytes bytes = 0;
};

Casts casts_in(const Program& program, const std::string& segment) {
  Casts out;
  for (const Op& op : segment_of(program, segment).ops) {
    if (!is_cast(op)) continue;
    const auto& kernel = std::get<Kernel>(program.works[op.work.index()]);
    EXPECT_EQ(kernel.kind, KernelKind::kCast) << op.name;
    ++out.count;
    out.bytes += kernel.bytes;
  }
  return out;
}

/// Bytes that a layer keeps from its forward to its backward pass.
Bytes bytes_kept(const Program& program) {
  const Segment& segment = segment_of(program, "layer forward");
  Bytes sum = 0;
  for (const Buffer& b : program.layouts[segment.frames[kSaved].index()].buffers) sum += b.bytes();
  return sum;
}

/// Elements of the linears' matrices and biases of a layer.
struct LinearSizes {
  std::int64_t matrices = 0, biases = 0;
};
LinearSizes linears_of(const Model& model) {
  LinearSizes out;
  for (const Parameter& p : layer_parameters(model)) {
    if (p.name.find("norm") != std::string::npos) continue;
    (p.cols > 1 ? out.matrices : out.biases) += p.count();
  }
  return out;
}

// In the order of autocast's own: a linear casts its input, its weight, its bias, then multiplies;
// backward the product's weight gradient is cast, then that of the input.
TEST(Autocast, CastsBesideTheirLinears) {
  const Program program =
      lowered_program(small_gpt(), under_autocast(eager_plan(small_gpt(), {}, 1)));
  const std::vector<std::string> forward = {"attention.norm",
                                            "attention.qkv.cast_input",
                                            "attention.qkv.cast_weight",
                                            "attention.qkv.cast_bias",
                                            "attention.qkv",
                                            "attention.core",
                                            "attention.projection.cast_weight",
                                            "attention.projection.cast_bias",
                                            "attention.projection",
                                            "attention.residual",
                                            "mlp.norm",
                                            "mlp.up.cast_input",
                                            "mlp.up.cast_weight",
                                            "mlp.up.cast_bias",
                                            "mlp.up",
                                            "mlp.activation",
                                            "mlp.down.cast_weight",
                                            "mlp.down.cast_bias",
                                            "mlp.down",
                                            "mlp.residual"};
  EXPECT_EQ(names_in(program, "layer forward"), forward);
  const std::vector<std::string> backward = {"mlp.down.cast_output_gradient",
                                             "mlp.down.dropout_gradient",
                                             "mlp.down.bias_gradient",
                                             "mlp.down.input_gradient",
                                             "mlp.down.weight_gradient",
                                             "mlp.down.cast_gradient",
                                             "mlp.activation_gradient",
                                             "mlp.up.bias_gradient",
                                             "mlp.up.input_gradient",
                                             "mlp.up.weight_gradient",
                                             "mlp.up.cast_gradient",
                                             "mlp.up.cast_input_gradient",
                                             "mlp.norm.gradient",
                                             "attention.projection.cast_output_gradient",
                                             "attention.projection.dropout_gradient",
                                             "attention.projection.bias_gradient",
                                             "attention.projection.input_gradient",
                                             "attention.projection.weight_gradient",
                                             "attention.projection.cast_gradient",
                                             "attention.core_gradient",
                                             "attention.qkv.bias_gradient",
                                             "attention.qkv.input_gradient",
                                             "attention.qkv.weight_gradient",
                                             "attention.qkv.cast_gradient",
                                             "attention.qkv.cast_input_gradient",
                                             "attention.norm.gradient"};
  EXPECT_EQ(names_in(program, "layer backward"), backward);
}

// Compiled, what is beside a linear reads and writes 16 bits itself: of a layer's casts those of
// parameters and of their gradients are left, and without dropout, which would write it, that of
// the stream's gradient.
TEST(Autocast, CompiledKernelsCastOnTheirWay) {
  const Model model = small_gpt();
  Plan plan = eager_plan(model, {}, 1);
  plan.fusion = Fusion::kCompiled;
  for (const double dropout : {0.0, 0.1}) {
    plan.dropout = dropout;
    const Program program = lowered_program(model, under_autocast(plan));
    const LinearSizes of = linears_of(model);
    const Casts forward = casts_in(program, "layer forward");
    EXPECT_EQ(forward.count, 8);
    EXPECT_EQ(forward.bytes, 6 * (of.matrices + of.biases));
    const Casts backward = casts_in(program, "layer backward");
    const std::int64_t streams = dropout > 0 ? 0 : 2;
    EXPECT_EQ(backward.count, 4 + streams);
    EXPECT_EQ(backward.bytes, 6 * (of.matrices + streams * plan.tokens() * model.hidden));
    for (const Op& op : segment_of(program, "layer forward").ops) {
      if (op.name != "mlp.norm") continue;
      const auto& norm = std::get<Kernel>(program.works[op.work.index()]);
      const std::int64_t flat = plan.tokens() * model.hidden;
      EXPECT_EQ(norm.bytes, (4 + 2) * flat + 4 * (2 * model.hidden + 2 * plan.tokens()));
    }
  }
}

// T tokens of width h, W elements of matrices and b of biases. Forward the inputs of two packed
// linears, r4 w2, and what the four hold; backward two gradients of the stream to 16 bits, two of
// inputs and W of weights to fp32. Apart q, k, v and gate, up cast three more inputs, and backward
// as many gradients, r2 w4, which are added, r8 w4.
TEST(Autocast, CountsAndBytesOfCasts) {
  for (const Model& model : {small_gpt(), small_llama()}) {
    for (const bool apart : {false, true}) {
      Plan plan = under_autocast(eager_plan(model, {}, 1));
      plan.separate_projections = apart;
      const Program program = lowered_program(model, plan);
      const LinearSizes of = linears_of(model);
      const std::int64_t flat = plan.tokens() * model.hidden;
      const std::int64_t more = apart ? (model.gated() ? 3 : 2) : 0;
      const Casts forward = casts_in(program, "layer forward");
      EXPECT_EQ(forward.count, 2 + more + 4 + more + (of.biases > 0 ? 4 + more : 0));
      EXPECT_EQ(forward.bytes, 6 * ((2 + more) * flat + of.matrices + of.biases));
      const Casts backward = casts_in(program, "layer backward");
      EXPECT_EQ(backward.count, 2 + 2 + 4 + more);
      EXPECT_EQ(backward.bytes, 6 * (4 * flat + of.matrices) + more * (6 + 12) * flat);
    }
  }
}

// Beside what the 16-bit plan keeps (mixed precision of Megatron-LM's kind): 2 bytes more for every
// element of the stream between the blocks and of the probabilities, and the linears' copies. Of
// the normed inputs both keep 16 bits.
TEST(Autocast, BytesKept) {
  for (const Model& model : {small_gpt(), small_llama()}) {
    for (const double dropout : {0.0, 0.1}) {
      Plan plan = eager_plan(model, {}, 1);
      plan.dropout = dropout;
      const Bytes narrow = bytes_kept(lowered_program(model, plan));
      const Bytes wide = bytes_kept(lowered_program(model, under_autocast(plan)));
      const LinearSizes of = linears_of(model);
      const std::int64_t flat = plan.tokens() * model.hidden;
      const std::int64_t scores = plan.tokens() * model.heads * plan.sequence_length;
      // Without dropout the 16-bit copy of the probabilities is one more array.
      const Bytes probabilities = scores * (dropout > 0 ? 2 : 4);
      EXPECT_EQ(wide - narrow, 2 * flat + probabilities + 2 * (of.matrices + of.biases));
      // Apart every linear keeps the copy of its input.
      plan.separate_projections = true;
      const Bytes apart = bytes_kept(lowered_program(model, under_autocast(plan)));
      EXPECT_EQ(apart - wide, (model.gated() ? 3 : 2) * 2 * flat);
    }
  }
}

// Composed of operations, each of a layer's two RMS norms keeps its input in fp32 in place of 16
// bits beside what is kept anyway, and a gated activation the activated gate. Layer norms and gelu
// are one operation in eager code too; what is computed again is not kept.
TEST(EagerForms, KeepWhatTheirGradientsRead) {
  for (const bool llama : {true, false}) {
    const Model model = llama ? small_llama() : small_gpt();
    for (const bool again : {false, true}) {
      Plan plan = eager_plan(model, {}, 1);
      plan.recompute.layer = again;
      const auto kept = [&](Fusion fusion) {
        plan.fusion = fusion;
        const Program program = lowered_program(model, plan);
        return memory_peak(program).saved;
      };
      const Bytes norms = model.layers * 2 * 4 * plan.tokens() * model.hidden;
      const Bytes gates = model.layers * 2 * plan.tokens() * model.intermediate;
      const bool more = llama && !again;
      EXPECT_EQ(kept(Fusion::kEager) - kept(Fusion::kFused), more ? norms + gates : 0);
      EXPECT_EQ(kept(Fusion::kNorms) - kept(Fusion::kFused), more ? gates : 0);
    }
  }
}

// fp32 parameters and gradients, two states and no copy: 16 bytes a parameter. Stages exchange
// fp32.
TEST(Autocast, StatesAndMessages) {
  Model model = small_gpt();
  model.vocabulary = 1024;
  const Plan plan = under_autocast(eager_plan(model, {}, 1));
  const BytesByKind bytes = persistent_bytes(lowered_program(model, plan));
  const std::int64_t p = parameter_count(model);
  EXPECT_EQ(bytes[static_cast<std::size_t>(BufferKind::kParameters)], 4 * p);
  EXPECT_EQ(bytes[static_cast<std::size_t>(BufferKind::kGradients)], 4 * p);
  EXPECT_EQ(bytes[static_cast<std::size_t>(BufferKind::kOptimizer)], 8 * p);
  const Plan staged = under_autocast(eager_plan(model, {1, 2, 1, 1}, 2));
  const Program first = lowered_program(model, staged);
  int messages = 0;
  for (const Work& work : first.works) {
    const auto* batch = std::get_if<P2PBatch>(&work);
    if (batch == nullptr) continue;
    ++messages;
    EXPECT_EQ(batch->messages.front().bytes, 4 * staged.tokens() * model.hidden);
  }
  EXPECT_EQ(messages, 2);
}

// Autograd keeps one microbatch's gradient as it was cast, and adds others to it in fp32.
TEST(Autocast, AddsWhereThereIsSomethingToAdd) {
  for (const std::int64_t microbatches : {1, 3}) {
    const Model model = small_llama();
    const Program program =
        lowered_program(model, under_autocast(eager_plan(model, {}, microbatches)));
    std::map<std::string, int> found;
    for (const std::string& name : names_in(program, "layer backward")) ++found[name];
    for (const char* of : {"attention.qkv", "attention.projection", "mlp.up", "mlp.down"}) {
      const std::string name = of;
      EXPECT_EQ(found[name + ".cast_gradient"], 1);
      EXPECT_EQ(found[name + ".accumulate"], microbatches > 1 ? 1 : 0);
    }
    for (const Op& op : segment_of(program, "layer backward").ops) {
      const auto* gemm = std::get_if<Gemm>(&program.works[op.work.index()]);
      if (gemm == nullptr) continue;
      EXPECT_EQ(gemm->in, DType::kFp16);
      EXPECT_EQ(gemm->out, DType::kFp16);
      EXPECT_FALSE(gemm->accumulate) << op.name;
    }
  }
}

// A layer that is computed again casts again, keeps none of its copies, and when it stops early has
// cast what its last linear reads.
TEST(Autocast, CastsAgainWithTheLayer) {
  for (const bool early : {false, true}) {
    const Model model = small_llama();
    Plan plan = under_autocast(eager_plan(model, {}, 1));
    plan.recompute.layer = true;
    plan.recompute.early_stop = early;
    plan.dropout = 0;
    const Program program = lowered_program(model, plan);
    const Segment& backward = segment_of(program, "layer backward recomputed");
    std::vector<std::string> again;
    for (const Op& op : backward.ops) {
      if (is_cast(op) && op.phase == Phase::kRecompute) again.push_back(op.name);
    }
    const std::vector<std::string> expected = {
        "attention.qkv.cast_input", "attention.qkv.cast_weight", "attention.projection.cast_weight",
        "mlp.up.cast_input",        "mlp.up.cast_weight",        "mlp.down.cast_weight"};
    EXPECT_EQ(again, expected);
    const FrameLayout& saved = program.layouts[backward.frames[kSaved].index()];
    Bytes bytes = 0;
    for (const Buffer& b : saved.buffers) bytes += b.bytes();
    EXPECT_EQ(bytes, 2 * linears_of(model).matrices);  // gone before: see below
  }
}

// The cache is cleared when the forward pass of a microbatch is over: the copies of layers that are
// computed again live as long, after the head's own.
TEST(Autocast, HoldsCopiesToTheEndOfTheForwardPass) {
  const Model model = small_gpt();
  Plan plan = under_autocast(eager_plan(model, {}, 2));
  plan.recompute.layer = true;
  plan.recompute.layers = 3;
  const Program program = lowered_program(model, plan);
  std::vector<Bytes> freed;
  std::vector<std::int32_t> layers;
  bool after_head = false;
  const std::vector<MemoryChange> changes = memory_changes(program);
  for (std::size_t c = 0; c < program.calls.size(); ++c) {
    const Call& call = program.calls[c];
    const std::string& name = program.segments[call.segment.index()].name;
    if (name == "head forward") after_head = true;
    if (name == "head backward") after_head = false;
    if (name != "let go of casts") continue;
    EXPECT_TRUE(after_head);
    layers.push_back(call.layer);
    Bytes sum = 0;
    for (const MemoryChange& change : changes) {
      if (change.call == static_cast<std::int32_t>(c)) sum += change.bytes;
    }
    freed.push_back(sum);
  }
  const LinearSizes of = linears_of(model);
  EXPECT_EQ(layers, std::vector<std::int32_t>({0, 1, 2, 0, 1, 2}));
  EXPECT_EQ(freed, std::vector<Bytes>(6, -2 * (of.matrices + of.biases)));
}

// fp32 forms of what eager PyTorch composes: no casts, twice the bytes elsewhere. Rotary embedding
// behind a 16-bit linear has fp32 products, which attention casts.
TEST(Autocast, FormsOfKernels) {
  const Model model = small_llama();
  const Plan plan = under_autocast(eager_plan(model, {}, 1));
  std::map<KernelKind, std::int64_t> beside;
  const Program program = lowered_program(model, plan);
  for (const Work& work : program.works) {
    if (const auto* k = std::get_if<Kernel>(&work)) beside[k->kind] = k->between.bytes;
  }
  EXPECT_EQ(beside[KernelKind::kRmsNorm], (8 + 4 + 8 + 8) - 8);
  EXPECT_EQ(beside[KernelKind::kRmsNormBackward], (8 + 16 + 8 + 16 + 4 + 12 + 12 + 8) - 16);
  EXPECT_EQ(beside[KernelKind::kRope], (6 + 4 + 4 + 6 + 12 + 6) - 4);
  EXPECT_EQ(beside[KernelKind::kRopeBackward], (6 + 8 + 8 + 6 + 6 + 2 + 4 + 4 + 6 + 6) - 4);
  EXPECT_EQ(beside[KernelKind::kSwiglu], 10 - 6);      // behind a linear: 16 bits
  EXPECT_EQ(beside[KernelKind::kResidualAdd], 2 + 2);  // the dropped branch, too
  const Model gpt = small_gpt();
  const Program layers = lowered_program(gpt, under_autocast(eager_plan(gpt, {}, 1)));
  for (const Work& work : layers.works) {
    if (const auto* k = std::get_if<Kernel>(&work)) beside[k->kind] = k->between.bytes;
  }
  // The gradients of weight and bias read both operands again, the residual's is a sum.
  EXPECT_EQ(beside[KernelKind::kLayerNormBackward], 8 + 8);
}

// What is not modelled is told by name; other precisions stay as they are.
TEST(Autocast, IsDerivedFromTheModelAndThePlan) {
  const Model model = small_llama();
  Plan plan = eager_plan(model, {}, 1);
  Plan derived = plan;
  Violations found;
  derive_autocast(Asked::kYes, model, derived, found);
  EXPECT_EQ(derived, under_autocast(plan));
  derived = plan;
  derive_autocast(Asked::kNo, model, derived, found);
  EXPECT_EQ(derived, plan);
  plan.precision.compute = plan.precision.matrix = plan.precision.linear = DType::kFp32;
  derived = plan;
  derive_autocast(Asked::kYes, model, derived, found);
  EXPECT_EQ(derived, plan);
  Model normed = model;
  normed.qk_norm = true;
  plan = derived = eager_plan(normed, {}, 1);
  derive_autocast(Asked::kWhereModelled, normed, derived, found);
  EXPECT_EQ(derived, plan);
  EXPECT_TRUE(found.empty());
  derive_autocast(Asked::kYes, normed, derived, found);
  ASSERT_EQ(found.all().size(), 1U);
  EXPECT_EQ(found.all()[0].kind, ErrorKind::kUnsupported);
  EXPECT_EQ(found.all()[0].key, "kernels/autocast");
  EXPECT_NE(found.all()[0].message.find("norms of queries and keys"), std::string::npos);
}

}  // namespace
}  // namespace foretrain
