// Attention sinks and soft caps of scores and logits, on the host.
#include <gtest/gtest.h>

#include <cmath>

#include "executor/kernels.h"
#include "executor/thread_run.h"
#include "models/lower.h"
#include "tests/execution/derivatives.h"
#include "tests/execution/one_rank.h"
#include "tests/execution/pieces/kernel_call.h"
#include "tests/support/small_plans.h"

namespace foretrain::attention_pieces {
namespace {

constexpr std::int64_t kBatch = 2, kLength = 66, kHeads = 2, kKeys = 1, kDim = 2;
constexpr std::int64_t kWidth = (kHeads + 2 * kKeys) * kDim;

Attention work_of(bool backward, double cap, bool sinks) {
  Attention out;
  out.backward = backward;
  out.batch = kBatch;
  out.q_heads = kHeads;
  out.kv_heads = kKeys;
  out.q_len = out.kv_len = kLength;
  out.head_dim = kDim;
  out.score.cap = cap;
  out.score.sinks = sinks;
  return out;
}

/// Of packed queries, keys and values, and logits that no key has.
Numbers attend(const std::vector<Numbers>& in, double cap, bool sinks) {
  const Numbers& qkv = in[0];
  const std::int64_t group = kHeads / kKeys;
  Numbers out;
  for (std::int64_t row = 0; row < kBatch * kLength; ++row) {
    for (std::int64_t h = 0; h < kHeads; ++h) {
      const std::int64_t of_group = h / group * (group + 2) * kDim;
      const auto at = [&](std::int64_t token, std::int64_t place, std::int64_t c) {
        return qkv[static_cast<std::size_t>(token * kWidth + of_group + place * kDim + c)];
      };
      double sum = sinks ? std::exp(in[1][static_cast<std::size_t>(h)]) : 0;
      Numbers values(kDim, 0);
      for (std::int64_t key = row / kLength * kLength; key <= row; ++key) {
        double score = 0;
        for (std::int64_t c = 0; c < kDim; ++c) score += at(row, h % group, c) * at(key, group, c);
        score /= std::sqrt(static_cast<double>(kDim));
        if (cap > 0) score = cap * std::tanh(score / cap);
        sum += std::exp(score);
        for (std::int64_t c = 0; c < kDim; ++c) {
          values[static_cast<std::size_t>(c)] += std::exp(score) * at(key, group + 1, c);
        }
      }
      for (const double value : values) out.push_back(value / sum);
    }
  }
  return out;
}

TEST(AttentionPieces, AreThoseOfTheDefinition) {
  for (const auto& [cap, sinks] :
       {std::pair{0.0, true}, std::pair{1.5, false}, std::pair{0.8, true}}) {
    const Definition definition = [cap = cap, sinks = sinks](const std::vector<Numbers>& in) {
      return attend(in, cap, sinks);
    };
    const std::int64_t rows = kBatch * kLength;
    std::vector<Numbers> inputs = {drawn(1, rows * kWidth)};
    if (sinks) inputs.push_back(drawn(2, kHeads));
    const OpContext context = context_of(kBatch, kLength);
    const KernelCall forward(inputs, {rows * kHeads * kDim, rows * kHeads});
    run_attention(work_of(false, cap, sinks), context, forward.operands());
    expect_near(forward.written(0), definition(inputs), 1e-12);

    const Numbers d_out = drawn(3, rows * kHeads * kDim);
    std::vector<Numbers> reads = {d_out, inputs[0], forward.written(0), forward.written(1)};
    std::vector<std::int64_t> writes = {rows * kWidth};
    if (sinks) {
      reads.push_back(inputs[1]);
      writes.push_back(rows * kHeads);
    }
    const KernelCall backward(reads, writes);
    run_attention(work_of(true, cap, sinks), context, backward.operands());
    if (!sinks) {
      expect_gradient(definition, inputs, 0, d_out, backward.written(0));
      continue;
    }
    Numbers of_sinks(kHeads, 0);
    for (std::int64_t i = 0; i < rows * kHeads; ++i) {
      of_sinks[static_cast<std::size_t>(i % kHeads)] +=
          backward.written(1)[static_cast<std::size_t>(i)];
    }
    expect_gradient(definition, inputs, 1, d_out, of_sinks);
  }
}

Model with_sinks() {
  Model model = probed(small_llama());
  model.attention.sinks = true;
  return model;
}

Model with_caps() {
  Model model = probed(small_llama());
  model.attention.score_cap = 0.02;  // such that it bends scores as small as those of a start
  model.ends.logit_cap = 0.05;
  return model;
}

TEST(AttentionPieces, GradientsOfSinks) {
  for (const AttentionKernel kernel : {AttentionKernel::kFlash, AttentionKernel::kUnfused}) {
    expect_derivatives(with_sinks(), plan_of(with_sinks(), kernel, 0));
    expect_derivatives(with_sinks(), plan_of(with_sinks(), kernel, 0.2));
  }
}

TEST(AttentionPieces, GradientsUnderCaps) {
  for (const AttentionKernel kernel : {AttentionKernel::kFlash, AttentionKernel::kUnfused}) {
    Plan plan = plan_of(with_caps(), kernel, kernel == AttentionKernel::kFlash ? 0 : 0.2);
    expect_derivatives(with_caps(), plan);
    plan.loss.chunks = 2;
    expect_derivatives(with_caps(), plan);
  }
}

// Heads and vocabularies over tensor ranks, stages, shards of everything, layers computed again.
TEST(AttentionPieces, TrainAsOneRank) {
  for (Model model : {narrowed(with_sinks(), 4), narrowed(with_caps(), 4)}) {
    model.heads = 8;
    model.kv_heads = 4;
    model.sliding_window = model.attention.sinks ? 3 : 0;
    for (const PlanDegrees degrees : {PlanDegrees{2, 1, 1, 2}, PlanDegrees{1, 2, 1, 2},
                                      PlanDegrees{2, 2, 2, 1}, PlanDegrees{1, 1, 1, 4}}) {
      Plan plan = in_fp32(small_plan(model, degrees, 4));
      plan.sequence_length = 8;
      plan.sequence = degrees.tensor > 1;
      plan.recompute.layer = degrees.pipeline > 1;
      plan.attention = degrees.tensor > 1 ? AttentionKernel::kUnfused : AttentionKernel::kFlash;
      plan.dropout = degrees.tensor > 1 ? 0.1 : 0;
      if (degrees.data == 4) {
        plan.sharding = Sharding::kParameters;
        plan.units.reduce = DType::kFp32;
      }
      expect_as_one_rank(model, plan);
    }
  }
}

TEST(AttentionPieces, SinksOverPartsOfSequencesAreRefused) {
  const Model model = narrowed(with_sinks(), 2);
  Plan plan = in_fp32(small_plan(model, {1, 1, 1, 2}, 2));
  plan.context = 2;
  plan.sequence_length = 16;
  plan.global_batch = 2;
  const Status status = check_executable(lower(model, plan));
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("attention sinks"), std::string::npos);
  EXPECT_NE(status.error().message.find("set parallel.context to 1"), std::string::npos);
}

}  // namespace
}  // namespace foretrain::attention_pieces
