// The gated delta rule, rows of length one and repeated heads, and layers of them.
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

namespace foretrain::delta_nets {
namespace {

constexpr std::int64_t kSequences = 2, kLength = 7, kHeads = 3, kKey = 2, kValue = 4;
constexpr std::int64_t kTokens = kSequences * kLength;

/// Queries and keys, values, inputs of decays and strengths, a and the bias: token after token, S =
/// exp(g) S, then S += b (v - S k) k^T, y = S q / sqrt(key).
Numbers delta_rule(const std::vector<Numbers>& in) {
  const auto value = [&in](std::size_t operand, std::int64_t i) {
    return in[operand][static_cast<std::size_t>(i)];
  };
  Numbers out(static_cast<std::size_t>(kTokens * kHeads * kValue));
  for (std::int64_t h = 0; h < kHeads; ++h) {
    Numbers state;
    for (std::int64_t t = 0; t < kTokens; ++t) {
      if (t % kLength == 0) state.assign(kValue * kKey, 0);
      const double step = std::log(1 + std::exp(value(2, t * kHeads + h) + value(5, h)));
      const double factor = std::exp(-std::exp(value(4, h)) * step);
      const double strength = 1 / (1 + std::exp(-value(3, t * kHeads + h)));
      const std::int64_t q = (2 * t * kHeads + h) * kKey;
      const std::int64_t k = ((2 * t + 1) * kHeads + h) * kKey;
      for (std::int64_t v = 0; v < kValue; ++v) {
        double* row = state.data() + v * kKey;
        double found = 0;
        for (std::int64_t i = 0; i < kKey; ++i) found += (row[i] *= factor) * value(0, k + i);
        const std::int64_t at = (t * kHeads + h) * kValue + v;
        const double change = strength * (value(1, at) - found);
        double y = 0;
        for (std::int64_t i = 0; i < kKey; ++i) {
          row[i] += change * value(0, k + i);
          y += row[i] * value(0, q + i);
        }
        out[static_cast<std::size_t>(at)] = y / std::sqrt(static_cast<double>(kKey));
      }
    }
  }
  return out;
}

// In chunks that the length divides into, that it cuts, and in one.
TEST(DeltaRules, AreThoseOfTheDefinition) {
  const std::vector<Numbers> inputs = {drawn(1, kTokens * 2 * kHeads * kKey, 0.7),
                                       drawn(2, kTokens * kHeads * kValue),
                                       drawn(3, kTokens * kHeads),
                                       drawn(4, kTokens * kHeads),
                                       drawn(5, kHeads),
                                       drawn(6, kHeads)};
  for (const std::int64_t chunk : {1, 3, 7, 16}) {
    Scan work{false,  kSequences, kLength, kHeads,       kHeads,
              kValue, kKey,       chunk,   DType::kFp32, ScanRule::kDelta};
    const KernelCall forward(
        inputs, {kTokens * kHeads * kValue, kTokens * kHeads, kTokens * kHeads * chunk});
    run_scan(work, forward.operands());
    expect_near(forward.written(0), delta_rule(inputs), 1e-12);

    const Numbers d_out = drawn(7, kTokens * kHeads * kValue);
    work.backward = true;
    const KernelCall backward({d_out, inputs[0], inputs[1], inputs[2], inputs[3], inputs[4],
                               forward.written(1), forward.written(2), inputs[5]},
                              {kTokens * 2 * kHeads * kKey, kTokens * kHeads * kValue,
                               kTokens * kHeads, kTokens * kHeads, kHeads, kHeads});
    run_scan(work, backward.operands());
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      expect_gradient(delta_rule, inputs, i, d_out, backward.written(i));
    }
  }
}

Kernel kernel_of_kind(KernelKind kind, std::int64_t rows, std::int64_t cols) {
  Kernel out;
  out.kind = kind;
  out.rows = rows;
  out.cols = cols;
  out.head_dim = kKey;
  return out;
}

TEST(UnitRows, AreThoseOfTheDefinition) {
  constexpr std::int64_t kRows = 5, kCols = 4;
  const Definition definition = [](const std::vector<Numbers>& in) {
    Numbers out;
    for (std::size_t i = 0; i < in[0].size(); ++i) {
      double square = 1e-6;
      const std::size_t begin = i / kCols * kCols;
      for (std::size_t c = begin; c < begin + kCols; ++c) square += in[0][c] * in[0][c];
      out.push_back(in[0][i] / std::sqrt(square));
    }
    return out;
  };
  const std::vector<Numbers> inputs = {drawn(1, kRows * kCols)};
  const OpContext context = context_of(1, kRows);
  const KernelCall forward(inputs, {kRows * kCols, kRows});
  run_kernel(kernel_of_kind(KernelKind::kUnitRows, kRows, kCols), context, forward.operands());
  expect_near(forward.written(0), definition(inputs), 1e-13);
  const Numbers d_out = drawn(2, kRows * kCols);
  const KernelCall backward({d_out, forward.written(0), forward.written(1)}, {kRows * kCols});
  run_kernel(kernel_of_kind(KernelKind::kUnitRowsBackward, kRows, kCols), context,
             backward.operands());
  expect_gradient(definition, inputs, 0, d_out, backward.written(0));
}

// Each of a token's two heads three times, one copy behind the other.
TEST(RepeatedHeads, AreThoseOfTheDefinition) {
  const OpContext context = context_of(1, 1);
  const KernelCall forward({{1, 2, 3, 4}}, {12});
  run_kernel(kernel_of_kind(KernelKind::kRepeatHeads, 1, 12), context, forward.operands());
  EXPECT_EQ(forward.written(0), Numbers({1, 2, 1, 2, 1, 2, 3, 4, 3, 4, 3, 4}));
  const KernelCall backward({forward.written(0)}, {4});
  run_kernel(kernel_of_kind(KernelKind::kRepeatHeadsBackward, 1, 4), context, backward.operands());
  EXPECT_EQ(backward.written(0), Numbers({3, 6, 9, 12}));
}

TEST(SigmoidGates, AreThoseOfTheDefinition) {
  constexpr std::int64_t kRows = 3, kCols = 6;
  for (const std::int64_t gates : {kRows, kRows * 2, kRows * kCols}) {
    const Definition definition = [](const std::vector<Numbers>& in) {
      const std::size_t width = in[0].size() / in[1].size();
      Numbers out;
      for (std::size_t i = 0; i < in[0].size(); ++i) {
        out.push_back(in[0][i] / (1 + std::exp(-in[1][i / width])));
      }
      return out;
    };
    const std::vector<Numbers> inputs = {drawn(1, kRows * kCols), drawn(2, gates)};
    const OpContext context = context_of(1, kRows);
    const KernelCall forward(inputs, {kRows * kCols});
    run_kernel(kernel_of_kind(KernelKind::kSigmoidGate, kRows, kCols), context, forward.operands());
    expect_near(forward.written(0), definition(inputs), 1e-13);
    const Numbers d_out = drawn(3, kRows * kCols);
    const KernelCall backward({d_out, inputs[0], inputs[1]}, {kRows * kCols, gates});
    run_kernel(kernel_of_kind(KernelKind::kSigmoidGateBackward, kRows, kCols), context,
               backward.operands());
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      expect_gradient(definition, inputs, i, d_out, backward.written(i));
    }
  }
}

/// Delta nets and attention by turns; of every key head `repeats` value heads.
Model small_delta(Model model, std::int64_t repeats) {
  model.hybrid.delta.key_heads = 4;
  model.hybrid.delta.value_heads = 4 * repeats;
  model.hybrid.delta.key_dim = 3;
  model.hybrid.delta.value_dim = 2;
  model.hybrid.delta.chunk = 4;
  model.hybrid.layers.clear();
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    model.hybrid.layers.push_back({layer % 2 == 0 ? Mixer::kDelta : Mixer::kAttention});
  }
  return model;
}

TEST(DeltaRules, GradientsOfAModel) {
  for (const std::int64_t repeats : {1, 2}) {
    const Model model = small_delta(probed(small_llama()), repeats);
    expect_derivatives(model, plan_of(model, AttentionKernel::kFlash, 0));
  }
}

TEST(SigmoidGates, GradientsOfAttentionWithThem) {
  for (const OutputGate gate : {OutputGate::kElements, OutputGate::kHeads}) {
    for (const bool norms : {false, true}) {
      Model model = probed(small_llama());
      model.attention.gate = gate;
      model.qk_norm = norms;
      if (gate == OutputGate::kHeads) model.position = Position::kNone;
      expect_derivatives(model, plan_of(model, AttentionKernel::kFlash, 0));
    }
  }
}

TEST(DeltaRules, TrainAsOneRank) {
  for (const std::int64_t repeats : {1, 2}) {
    Model model = small_delta(narrowed(small_llama(), 4), repeats);
    if (repeats == 2) model.attention.gate = OutputGate::kElements;
    for (const PlanDegrees degrees : {PlanDegrees{2, 1, 1, 2}, PlanDegrees{1, 2, 1, 2},
                                      PlanDegrees{4, 1, 1, 1}, PlanDegrees{1, 1, 1, 4}}) {
      Plan plan = in_fp32(small_plan(model, degrees, 4));
      plan.sequence_length = 8;
      plan.sequence = degrees.tensor == 2;
      plan.recompute.layer = degrees.pipeline > 1;
      plan.clip_norm = 0.3;
      if (degrees.data == 4) {
        plan.sharding = repeats == 2 ? Sharding::kParameters : Sharding::kOptimizer;
        plan.units.reduce = DType::kFp32;
      }
      expect_as_one_rank(model, plan);
    }
  }
}

TEST(DeltaRules, WithDecaysOfChannelsAreRefused) {
  Model model = small_delta(narrowed(small_llama(), 2), 1);
  model.hybrid.delta.gate_rank = 4;
  const Status status = check_executable(lower(model, in_fp32(small_plan(model, {}, 1))));
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("channel-delta"), std::string::npos);
}

}  // namespace
}  // namespace foretrain::delta_nets
