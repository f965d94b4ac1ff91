// Causal convolutions over a few tokens: before scans, and between two gates (LFM2).
#include <gtest/gtest.h>

#include <cmath>

#include "executor/kernels.h"
#include "tests/execution/derivatives.h"
#include "tests/execution/one_rank.h"
#include "tests/execution/pieces/kernel_call.h"
#include "tests/support/small_plans.h"

namespace foretrain::short_convolutions {
namespace {

constexpr std::int64_t kSequences = 2, kLength = 7, kChannels = 5, kTaps = 3;
constexpr std::int64_t kRows = kSequences * kLength;

Kernel kernel_of_kind(KernelKind kind) {
  Kernel out;
  out.kind = kind;
  out.rows = kRows;
  out.cols = kChannels;
  return out;
}

/// The last weight of a channel meets the token itself.
Numbers convolve(const Numbers& x, const Numbers& taps, const Numbers& bias) {
  Numbers out;
  for (std::int64_t row = 0; row < kRows; ++row) {
    for (std::int64_t c = 0; c < kChannels; ++c) {
      double sum = bias.empty() ? 0 : bias[static_cast<std::size_t>(c)];
      for (std::int64_t u = 0; u < kTaps; ++u) {
        const std::int64_t from = row - (kTaps - 1) + u;
        if (from < row / kLength * kLength) continue;
        sum += taps[static_cast<std::size_t>(c * kTaps + u)] *
               x[static_cast<std::size_t>(from * kChannels + c)];
      }
      out.push_back(sum);
    }
  }
  return out;
}

TEST(ShortConvolutions, BeforeScansAreThoseOfTheDefinition) {
  for (const bool bias : {false, true}) {
    const Definition definition = [bias](const std::vector<Numbers>& in) {
      Numbers out = convolve(in[0], in[1], bias ? in[2] : Numbers());
      for (double& value : out) value /= 1 + std::exp(-value);
      return out;
    };
    std::vector<Numbers> inputs = {drawn(1, kRows * kChannels), drawn(2, kChannels * kTaps)};
    if (bias) inputs.push_back(drawn(3, kChannels));
    const OpContext context = context_of(kSequences, kLength);
    const KernelCall forward(inputs, {kRows * kChannels});
    run_kernel(kernel_of_kind(KernelKind::kCausalConv), context, forward.operands());
    expect_near(forward.written(0), definition(inputs), 1e-13);

    const Numbers d_out = drawn(4, kRows * kChannels);
    std::vector<Numbers> reads = inputs;
    reads.insert(reads.begin(), d_out);
    std::vector<std::int64_t> writes = {kRows * kChannels, kChannels * kTaps};
    if (bias) writes.push_back(kChannels);
    const KernelCall backward(reads, writes);
    run_kernel(kernel_of_kind(KernelKind::kCausalConvBackward), context, backward.operands());
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      expect_gradient(definition, inputs, i, d_out, backward.written(i));
    }
  }
}

// Of two arrays the first has the first columns of every row.
TEST(ShortConvolutions, WriteColumnsApart) {
  const std::vector<Numbers> inputs = {drawn(1, kRows * kChannels), drawn(2, kChannels * kTaps)};
  const OpContext context = context_of(kSequences, kLength);
  const KernelCall whole(inputs, {kRows * kChannels});
  run_kernel(kernel_of_kind(KernelKind::kCausalConv), context, whole.operands());
  Kernel cut = kernel_of_kind(KernelKind::kCausalConv);
  cut.head_dim = 2;
  const KernelCall apart(inputs, {kRows * kChannels});
  run_kernel(cut, context, apart.operands());
  for (std::int64_t row = 0; row < kRows; ++row) {
    for (std::int64_t c = 0; c < kChannels; ++c) {
      const std::int64_t at = c < 2 ? row * 2 + c : kRows * 2 + row * (kChannels - 2) + (c - 2);
      EXPECT_EQ(apart.written(0)[static_cast<std::size_t>(at)],
                whole.written(0)[static_cast<std::size_t>(row * kChannels + c)]);
    }
  }
}

/// c conv(b x) of a token's packed b, c and x.
Numbers gated(const std::vector<Numbers>& in) {
  Numbers product;
  Numbers gates;
  for (std::int64_t row = 0; row < kRows; ++row) {
    for (std::int64_t c = 0; c < kChannels; ++c) {
      const auto at = static_cast<std::size_t>(3 * row * kChannels + c);
      product.push_back(in[0][at] * in[0][at + 2 * kChannels]);
      gates.push_back(in[0][at + kChannels]);
    }
  }
  Numbers out = convolve(product, in[1], in.size() > 2 ? in[2] : Numbers());
  for (std::size_t i = 0; i < out.size(); ++i) out[i] *= gates[i];
  return out;
}

TEST(ShortConvolutions, BetweenGatesAreThoseOfTheDefinition) {
  for (const bool bias : {false, true}) {
    std::vector<Numbers> inputs = {drawn(1, 3 * kRows * kChannels), drawn(2, kChannels * kTaps)};
    if (bias) inputs.push_back(drawn(3, kChannels));
    const std::int64_t count = kRows * kChannels;
    const OpContext context = context_of(kSequences, kLength);
    const KernelCall forward(inputs, {count, count, count});
    run_kernel(kernel_of_kind(KernelKind::kGatedConv), context, forward.operands());
    expect_near(forward.written(0), gated(inputs), 1e-13);

    const Numbers d_out = drawn(4, count);
    std::vector<std::int64_t> writes = {3 * count, kChannels * kTaps};
    if (bias) writes.push_back(kChannels);
    const KernelCall backward({d_out, inputs[0], forward.written(1), forward.written(2), inputs[1]},
                              writes);
    run_kernel(kernel_of_kind(KernelKind::kGatedConvBackward), context, backward.operands());
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      expect_gradient(gated, inputs, i, d_out, backward.written(i));
    }
  }
}

/// LFM2 in small: convolutions and attention by turns, an MLP behind each.
Model small_lfm2(Model model) {
  model.qk_norm = true;
  model.hybrid.conv_taps = 3;
  model.hybrid.layers.clear();
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    model.hybrid.layers.push_back({layer % 2 == 0 ? Mixer::kConv : Mixer::kAttention});
  }
  return model;
}

TEST(ShortConvolutions, GradientsOfAModel) {
  const Model model = small_lfm2(probed(small_llama()));
  expect_derivatives(model, plan_of(model, AttentionKernel::kFlash, 0));
}

TEST(ShortConvolutions, TrainAsOneRank) {
  Model model = small_lfm2(narrowed(small_llama(), 4));
  for (const PlanDegrees degrees : {PlanDegrees{2, 1, 1, 2}, PlanDegrees{1, 2, 1, 2},
                                    PlanDegrees{4, 1, 1, 1}, PlanDegrees{1, 1, 1, 4}}) {
    for (const bool again : {false, true}) {
      Plan plan = in_fp32(small_plan(model, degrees, 4));
      plan.sequence_length = 8;
      plan.sequence = degrees.tensor > 1;
      plan.recompute.layer = again;
      plan.clip_norm = 0.3;
      if (degrees.data == 4) {
        plan.sharding = again ? Sharding::kParameters : Sharding::kOptimizer;
        plan.units.reduce = DType::kFp32;
      }
      expect_as_one_rank(model, plan);
    }
  }
}

}  // namespace
}  // namespace foretrain::short_convolutions
