#include "models/layers/kernel_forms.h"

#include <gtest/gtest.h>

#include "hardware/kernel_constants.h"
#include "hardware/local_cost.h"
#include "hardware/presets.h"
#include "models/lower.h"
#include "sim/cost/host_operations.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

Attention scores_kept(DType type, bool backward) {
  Attention work;
  work.batch = 16;
  work.q_heads = work.kv_heads = 12;
  work.q_len = work.kv_len = 128;
  work.head_dim = 64;
  work.causal = false;
  work.dropout = 0.1;
  work.kernel = AttentionKernel::kUnfused;
  work.dtype = type;
  work.backward = backward;
  return work;
}

/// One operation: elements, and the bytes of each that it reads and writes.
struct Moved {
  std::int64_t elements = 0, read = 0, written = 0;
};

Bytes sum(const std::vector<Moved>& operations) {
  Bytes out = 0;
  for (const Moved& m : operations) out += m.elements * (m.read + m.written);
  return out;
}

constexpr std::int64_t kHeads = 16 * 128 * 768;        // elements of queries
constexpr std::int64_t kScores = 16 * 12 * 128 * 128;  // and of scores
constexpr Moved kFp32Softmax{kScores, 4, 4}, kFp32Dropout{kScores, 4, 5};

// BertSelfAttention in PyTorch's operations, less its products, one by one.
TEST(AttentionForm, MovesWhatItsOperationsDo) {
  Plan plan;
  plan.fusion = Fusion::kEager;
  const Moved heads{kHeads, 4, 4}, half_heads{kHeads, 2, 2};
  const AttentionForm forward = attention_form(plan, scores_kept(DType::kFp32, false));
  EXPECT_EQ(forward.kernels, 6);
  EXPECT_EQ(forward.bytes, sum({heads, heads, heads, heads, {kScores, 4, 4}, {kScores, 4, 4}}));
  const AttentionForm backward = attention_form(plan, scores_kept(DType::kFp32, true));
  EXPECT_EQ(backward.kernels, 5);
  EXPECT_EQ(backward.bytes, sum({heads, heads, heads, heads, {kScores, 4, 4}}));

  // Softmax and dropout of what the fused form has, r2 w2 and r2 w3, are in fp32.
  const AttentionForm half = attention_form(plan, scores_kept(DType::kFp16, false));
  EXPECT_EQ(half.kernels, 7);
  EXPECT_EQ(half.bytes + sum({{kScores, 2, 2}, {kScores, 2, 3}}), sum({half_heads,
                                                                       half_heads,
                                                                       half_heads,
                                                                       half_heads,
                                                                       {kScores, 2, 2},
                                                                       {kScores, 2, 4},
                                                                       kFp32Softmax,
                                                                       kFp32Dropout,
                                                                       {kScores, 4, 2}}));
  const AttentionForm back = attention_form(plan, scores_kept(DType::kFp16, true));
  EXPECT_EQ(back.kernels, 7);
  EXPECT_EQ(back.bytes + sum({{kScores, 4, 2}, {kScores, 3, 2}}), sum({half_heads,
                                                                       half_heads,
                                                                       half_heads,
                                                                       half_heads,
                                                                       {kScores, 2, 4},
                                                                       {kScores, 5, 4},
                                                                       {kScores, 8, 4},
                                                                       {kScores, 4, 2},
                                                                       {kScores, 2, 2}}));
}

TEST(AttentionForm, RepeatsGroupedKeys) {
  Plan plan;
  plan.fusion = Fusion::kEager;
  Attention work = scores_kept(DType::kFp32, false);
  const Bytes all = attention_form(plan, work).bytes;
  work.kv_heads = 3;  // a quarter is read of keys and values
  EXPECT_EQ(all - attention_form(plan, work).bytes, 2 * 4 * kHeads * 3 / 4);
}

// RingQK and RingAV: a block's product is copied into the scores, or added to zeros; composed, the
// steps of a block that is everything move besides what the whole does, but for keys and values,
// whose copies are an op of their own.
TEST(AttentionForm, OfRingSelfAttention) {
  using Part = AttentionStep;
  const auto form = [](Fusion fusion, DType type, bool backward, Part step, std::int32_t hops) {
    Plan plan;
    plan.fusion = fusion;
    Attention work = scores_kept(type, backward);
    work.step = step;
    work.hops = hops;
    return attention_form(plan, work);
  };
  const auto fused = [&form](bool backward, Part step, std::int32_t hops) {
    return form(Fusion::kFused, DType::kFp16, backward, step, hops);
  };
  for (const std::int32_t hops : {0, 1}) {
    const int first = hops == 0 ? 1 : 0;
    EXPECT_EQ(fused(false, Part::kScores, hops).bytes, sum({{kScores, 2, 2}}));
    EXPECT_EQ(fused(false, Part::kScores, hops).kernels, 1);
    EXPECT_EQ(fused(false, Part::kValues, hops).bytes,
              sum({{kHeads, 4, 2}, {first * kHeads, 0, 2}}));
    EXPECT_EQ(fused(false, Part::kValues, hops).kernels, 1 + first);
    // Every block's share of the zeros.
    EXPECT_EQ(fused(true, Part::kProbabilityGradient, hops).bytes,
              sum({{kScores, 4, 2}, {kScores, 0, 2}}));
    EXPECT_EQ(fused(true, Part::kQueryGradient, hops).bytes,
              sum({{kHeads, 4, 2}, {first * kHeads, 0, 2}}));
  }
  for (const Part step : {Part::kSoftmax, Part::kValueGradient, Part::kKeyGradient}) {
    EXPECT_EQ(fused(true, step, 0).bytes, 0);
  }
  for (const DType type : {DType::kFp16, DType::kFp32}) {
    for (const bool backward : {false, true}) {
      AttentionForm more;
      const std::vector<Part> steps =
          backward ? std::vector<Part>{Part::kValueGradient, Part::kProbabilityGradient,
                                       Part::kSoftmax, Part::kKeyGradient, Part::kQueryGradient}
                   : std::vector<Part>{Part::kScores, Part::kSoftmax, Part::kValues};
      for (const Part step : steps) {
        const AttentionForm eager = form(Fusion::kEager, type, backward, step, 0);
        const AttentionForm plain = form(Fusion::kFused, type, backward, step, 0);
        more.kernels += eager.kernels - plain.kernels;
        more.bytes += eager.bytes - plain.bytes;
      }
      const AttentionForm whole = form(Fusion::kEager, type, backward, Part::kWhole, 0);
      EXPECT_EQ(more.kernels, whole.kernels - 2);
      EXPECT_EQ(more.bytes, whole.bytes - bytes_of(type, 2 * 2 * kHeads));
    }
  }
}

// Only where operations are composed and scores stored; fused layers keep what they have.
TEST(AttentionForm, BelongsToEagerLayers) {
  for (const Fusion fusion : {Fusion::kFused, Fusion::kEager, Fusion::kCompiled}) {
    for (const AttentionKernel kernel : {AttentionKernel::kUnfused, AttentionKernel::kFlash}) {
      const Model model = small_gpt();
      Plan plan = small_plan(model, {}, 1);
      plan.fusion = fusion;
      plan.attention = kernel;
      const bool composed = fusion == Fusion::kEager && kernel == AttentionKernel::kUnfused;
      const Workload workload = lower(model, plan);
      int found = 0;
      for (const Work& work : workload.programs.front().works) {
        const auto* attention = std::get_if<Attention>(&work);
        if (attention == nullptr) continue;
        ++found;
        EXPECT_EQ(attention->more.kernels > 0, composed);
        EXPECT_EQ(attention->more.bytes > 0, composed);
      }
      EXPECT_GE(found, 2);
    }
  }
}

// What is moved besides takes its bytes' time and a start for each kernel, and the host an
// operation for every two.
TEST(AttentionForm, IsPriced) {
  const DeviceSpec device = read_device(Json("a100-sxm-80gb"), "test", "").value();
  Attention plain = scores_kept(DType::kFp16, false);
  Attention composed = plain;
  composed.more.kernels = 7;
  composed.more.bytes = 1'000'000'000;
  const MemoryConstants& memory = kernel_constants(device.architecture).memory;
  const double rate = device.memory_gb_per_s * 1e9 *
                      memory.efficiency.at(static_cast<std::size_t>(KernelKind::kResidualAdd));
  const Time more = attention_cost(device, composed, nullptr).value().duration -
                    attention_cost(device, plain, nullptr).value().duration;
  EXPECT_NEAR(more.seconds(), 1e9 / rate + 7 * memory.latency_us * 1e-6, 1e-9);
  EXPECT_EQ(operations_of(composed, {}) - operations_of(plain, {}), 3);
}

}  // namespace
}  // namespace foretrain
