// Mamba-2's scan, its gated norm, and layers of it.
#include <gtest/gtest.h>

#include <cmath>

#include "executor/kernels.h"
#include "executor/mixers/mixers.h"
#include "executor/thread_run.h"
#include "models/lower.h"
#include "tests/execution/derivatives.h"
#include "tests/execution/one_rank.h"
#include "tests/execution/pieces/kernel_call.h"
#include "tests/support/small_plans.h"

namespace foretrain::state_spaces {
namespace {

/// Of `rows` rows of y and z and the weights of `groups` of them.
Numbers norm_with_gate(const std::vector<Numbers>& in, std::int64_t rows, bool behind) {
  const auto cols = std::ssize(in[0]) / rows;
  Numbers out;
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto at = [&](std::int64_t c) { return static_cast<std::size_t>(r * cols + c); };
    const auto gate = [&](std::int64_t c) { return in[1][at(c)] / (1 + std::exp(-in[1][at(c)])); };
    double square = 0;
    for (std::int64_t c = 0; c < cols; ++c) {
      square += std::pow(in[0][at(c)] * (behind ? 1 : gate(c)), 2);
    }
    const double root = std::sqrt(square / static_cast<double>(cols) + kNormEpsilon);
    for (std::int64_t c = 0; c < cols; ++c) {
      out.push_back(in[0][at(c)] * gate(c) / root * in[2][at(c) % in[2].size()]);
    }
  }
  return out;
}

TEST(GatedNorms, AreThoseOfTheDefinition) {
  constexpr std::int64_t kRows = 6, kCols = 5;
  for (const bool behind : {false, true}) {
    for (const std::int64_t groups : {1, 2}) {
      const Definition definition = [behind](const std::vector<Numbers>& in) {
        return norm_with_gate(in, kRows, behind);
      };
      const std::vector<Numbers> inputs = {drawn(1, kRows * kCols), drawn(2, kRows * kCols),
                                           drawn(3, groups * kCols)};
      Kernel work;
      work.kind = KernelKind::kGatedNorm;
      work.rows = kRows;
      work.cols = kCols;
      work.value = behind ? 1 : 0;
      const OpContext context = context_of(1, kRows);
      const KernelCall forward(inputs, {kRows * kCols, kRows});
      run_kernel(work, context, forward.operands());
      expect_near(forward.written(0), definition(inputs), 1e-12);

      const Numbers d_out = drawn(4, kRows * kCols);
      work.kind = KernelKind::kGatedNormBackward;
      const KernelCall backward({d_out, inputs[0], inputs[1], forward.written(1), inputs[2]},
                                {kRows * kCols, kRows * kCols, groups * kCols});
      run_kernel(work, context, backward.operands());
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        expect_gradient(definition, inputs, i, d_out, backward.written(i));
      }
    }
  }
}

constexpr std::int64_t kSequences = 2, kLength = 7, kHeads = 4, kGroups = 2, kDim = 3, kState = 2;
constexpr std::int64_t kTokens = kSequences * kLength;
constexpr std::int64_t kPacked = kHeads * kDim + 2 * kGroups * kState;

/// The recurrence itself: h = exp(a dt) h + dt x B^T, y = h C + D x.
Numbers scan_tokens(const std::vector<Numbers>& in) {
  const auto value = [&in](std::size_t operand, std::int64_t i) {
    return in[operand][static_cast<std::size_t>(i)];
  };
  Numbers out(static_cast<std::size_t>(kTokens * kHeads * kDim));
  for (std::int64_t h = 0; h < kHeads; ++h) {
    Numbers state;
    for (std::int64_t t = 0; t < kTokens; ++t) {
      if (t % kLength == 0) state.assign(kDim * kState, 0);
      const double dt = std::log(1 + std::exp(value(1, t * kHeads + h) + value(4, h)));
      const double factor = std::exp(-std::exp(value(2, h)) * dt);
      for (std::int64_t p = 0; p < kDim; ++p) {
        const double x = value(0, t * kPacked + h * kDim + p);
        double y = value(3, h) * x;
        for (std::int64_t n = 0; n < kState; ++n) {
          const std::int64_t b = t * kPacked + kHeads * kDim + h / (kHeads / kGroups) * kState + n;
          double& of_state = state[static_cast<std::size_t>(p * kState + n)];
          of_state = factor * of_state + dt * x * value(0, b);
          y += of_state * value(0, b + kGroups * kState);
        }
        out[static_cast<std::size_t>((t * kHeads + h) * kDim + p)] = y;
      }
    }
  }
  return out;
}

// In chunks that the length divides into, that it cuts, and in one.
TEST(StateSpaces, AreThoseOfTheDefinition) {
  const std::vector<Numbers> inputs = {drawn(1, kTokens * kPacked), drawn(2, kTokens * kHeads),
                                       drawn(3, kHeads), drawn(4, kHeads), drawn(5, kHeads)};
  for (const std::int64_t chunk : {1, 3, 7, 16}) {
    Scan work{false, kSequences, kLength, kHeads, kGroups, kDim, kState, chunk, DType::kFp32};
    const KernelCall forward(inputs, {kTokens * kHeads * kDim});
    run_scan(work, forward.operands());
    expect_near(forward.written(0), scan_tokens(inputs), 1e-12);

    const Numbers d_out = drawn(6, kTokens * kHeads * kDim);
    std::vector<Numbers> reads = inputs;
    reads.insert(reads.begin(), d_out);
    work.backward = true;
    const KernelCall backward(reads, {kTokens * kPacked, kTokens * kHeads, kHeads, kHeads, kHeads});
    run_scan(work, backward.operands());
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      expect_gradient(scan_tokens, inputs, i, d_out, backward.written(i));
    }
  }
}

/// Mamba-2 alone, an MLP alone, attention alone, as Nemotron-H has them; or an MLP behind every
/// mixer, as Granite 4 does.
Model small_mamba(Model model, bool alone) {
  model.hybrid.state_space = {8, 4, 3, 4, 4, 4};
  model.position = Position::kNone;
  constexpr LayerKind kAlone[] = {{Mixer::kMamba2, FeedForward::kNone},
                                  {Mixer::kNone, FeedForward::kMlp},
                                  {Mixer::kAttention, FeedForward::kNone}};
  constexpr LayerKind kPairs[] = {{Mixer::kMamba2}, {}};
  model.hybrid.layers.clear();
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    model.hybrid.layers.push_back(alone ? kAlone[layer % 3] : kPairs[layer % 2]);
  }
  return model;
}

TEST(StateSpaces, GradientsOfAModel) {
  for (const bool norm : {false, true}) {
    Model model = probed(small_llama());
    model.layers = 3;
    model = small_mamba(model, norm);
    model.hybrid.state_space.norm = model.hybrid.state_space.conv_bias = norm;
    model.activation = norm ? Activation::kRelu2 : Activation::kSwiglu;
    expect_derivatives(model, plan_of(model, AttentionKernel::kFlash, 0));
  }
}

TEST(StateSpaces, TrainAsOneRank) {
  for (const bool alone : {false, true}) {
    const Model model = small_mamba(narrowed(small_llama(), 6), alone);
    for (const PlanDegrees degrees : {PlanDegrees{2, 1, 1, 2}, PlanDegrees{1, 2, 1, 2},
                                      PlanDegrees{4, 1, 1, 1}, PlanDegrees{1, 1, 1, 4}}) {
      Plan plan = in_fp32(small_plan(model, degrees, 4));
      plan.sequence_length = 8;
      plan.sequence = degrees.tensor == 2;
      plan.recompute.layer = degrees.pipeline > 1;
      plan.clip_norm = 0.3;
      plan.dropout = alone ? 0.1 : 0;
      if (degrees.data == 4) {
        plan.sharding = alone ? Sharding::kParameters : Sharding::kGradients;
        plan.units.reduce = DType::kFp32;
      }
      expect_as_one_rank(model, plan);
    }
  }
}

// Steps start between 0.001 and 0.1, decays between 1 and 16, on every plan alike.
TEST(StateSpaces, StartAsMambaDoes) {
  const Model model = small_mamba(narrowed(small_llama(), 2), false);
  const Plan plan = in_fp32(small_plan(model, {}, 1));
  const Workload workload = lower(model, plan);
  const auto run = ThreadRun<double>::create(workload, HostOptions());
  ASSERT_TRUE(run.ok()) << run.error().message;
  std::int64_t seen = 0;
  for (const auto& [key, tensor] : run.value()->weights()) {
    for (const double value : tensor.values) {
      if (key.first.ends_with("mamba.step.bias")) {
        const double step = std::log1p(std::exp(value));
        EXPECT_GE(step, 0.001 - 1e-9);
        EXPECT_LE(step, 0.1 + 1e-7);
        ++seen;
      } else if (key.first.ends_with("mamba.decay")) {
        EXPECT_GE(std::exp(value), 1);
        EXPECT_LE(std::exp(value), 16 + 1e-5);
        ++seen;
      }
    }
  }
  EXPECT_EQ(seen, 2 * 8);
}

TEST(StateSpaces, GoNotFromDocumentToDocument) {
  const Model model = small_mamba(narrowed(small_llama(), 2), false);
  Plan plan = in_fp32(small_plan(model, {}, 1));
  plan.sequence_length = 8;
  plan.documents = {4, 4};
  const Status status = check_executable(lower(model, plan));
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("leave batch.documents out"), std::string::npos);
}

}  // namespace
}  // namespace foretrain::state_spaces
