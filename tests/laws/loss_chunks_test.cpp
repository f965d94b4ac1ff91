// Does a loss in parts take the time of a whole one, and the memory of a part?
#include <gtest/gtest.h>

#include "models/lower.h"
#include "sim/program/memory.h"
#include "sim/program/verify.h"
#include "tests/support/recording.h"
#include "tests/support/small_plans.h"
#include "tests/support/test_prices.h"

namespace foretrain {
namespace {

/// What lives in the head at its peak: everything as wide as the vocabulary.
Bytes most_memory(const Workload& workload) {
  return memory_peak(workload.programs.front(), Memory::kDevice).bytes;
}

/// Arithmetic of all products of a Program.
double products(const Workload& workload) {
  double out = 0;
  const Program& program = workload.programs.front();
  for (const Call& call : program.calls) {
    for (const Op& op : program.segments[call.segment.index()].ops) {
      const auto* gemm = std::get_if<Gemm>(&program.works[op.work.index()]);
      if (gemm == nullptr) continue;
      out += 2.0 * static_cast<double>(gemm->m) * static_cast<double>(gemm->n) *
             static_cast<double>(gemm->k);
    }
  }
  return out;
}

Workload lowered(std::int64_t chunks) {
  Model model = small_llama();
  model.vocabulary = 50'000;  // wider than all else is long
  Plan plan = small_plan(model, {1, 1, 1, 1}, 2);
  plan.loss.chunks = chunks;
  Workload out = lower(model, plan);
  const Status status = verify(out);
  EXPECT_TRUE(status.ok()) << status.error().message;
  return out;
}

// The products are the same; what is as wide as the vocabulary, exponentials in fp32 and beside
// them logits or their gradient in the compute type, is as long as a part. A part of n goes without
// (n - 1) / n of them.
TEST(LossChunks, TakesAPartOfTheMemoryAndTheSameProducts) {
  const Workload whole = lowered(1);
  const Workload unchunked = lowered(0);
  EXPECT_EQ(products(whole), products(unchunked));
  EXPECT_LE(most_memory(whole), most_memory(unchunked));
  Model model = small_llama();
  const Plan plan = small_plan(model, {1, 1, 1, 1}, 2);
  const std::int64_t logits = plan.tokens() * 50'000;
  const Bytes wide = bytes_of(plan.precision.branch(), logits) + bytes_of(DType::kFp32, logits);
  for (const std::int64_t chunks : {2, 4}) {
    const Workload parts = lowered(chunks);
    EXPECT_EQ(products(parts), products(unchunked)) << chunks;
    const double saved = static_cast<double>(most_memory(whole) - most_memory(parts));
    EXPECT_NEAR(saved / static_cast<double>(wide - wide / chunks), 1, 0.05) << chunks;
  }
}

}  // namespace
}  // namespace foretrain
