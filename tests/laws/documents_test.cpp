// Do packed documents leave attention the work inside each, and its slowest rank the pace?
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "hardware/local_cost.h"
#include "models/lower.h"
#include "models/plan/documents.h"
#include "sim/program/documents.h"
#include "sim/program/verify.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

using Lengths = std::vector<std::int64_t>;

struct AttentionFlops {
  double forward = 0, backward = 0;
};

AttentionFlops attention_flops_of(const Program& program) {
  AttentionFlops out;
  for (const Call& call : program.calls) {
    for (const Op& op : program.segments[call.segment.index()].ops) {
      const Work& work = program.works[op.work.index()];
      const auto* a = std::get_if<Attention>(&work);
      if (a != nullptr) (a->backward ? out.backward : out.forward) += flops_of(work);
    }
  }
  return out;
}

Plan plan_of(const Model& model, std::int64_t context, ContextExchange exchange, Lengths lengths) {
  Plan plan = small_plan(model, {1, 1, 1, context}, 1);
  plan.context = context;
  plan.context_exchange = exchange;
  plan.global_batch = 1;
  plan.documents = std::move(lengths);
  return plan;
}

// sum d^2 / s^2 of the whole square, in all passes, and nothing else of the Program changes; so too
// shared by context ranks.
TEST(Documents, LeaveTheirSquares) {
  const Model model = small_llama();
  for (const Lengths& lengths : {Lengths{64, 64}, Lengths{1, 127}, Lengths{40, 8, 80},
                                 Lengths{16, 16, 16, 16, 16, 16, 16, 16}}) {
    const Plan plain = plan_of(model, 1, ContextExchange::kRing, {});
    ASSERT_EQ(plain.sequence_length,
              std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0}));
    const AttentionFlops whole = attention_flops_of(lower(model, plain).programs[0]);
    double share = 0;
    for (const std::int64_t d : lengths) share += static_cast<double>(d * d) / (128.0 * 128.0);
    for (const std::int64_t context : {1, 2, 4}) {
      for (const auto exchange :
           {ContextExchange::kAllGather, ContextExchange::kAllToAll, ContextExchange::kRing}) {
        if (exchange == ContextExchange::kAllToAll && model.kv_heads % context != 0) continue;
        Plan plan = plan_of(model, context, exchange, lengths);
        if (!found_by(check_documents, model, plan).empty()) continue;
        if (context == 4 && exchange == ContextExchange::kRing) plan.context_inner = 2;
        const Workload workload = lower(model, plan);
        ASSERT_TRUE(verify(workload).ok());
        const AttentionFlops part = attention_flops_of(workload.programs[0]);
        const auto c = static_cast<double>(context);
        EXPECT_NEAR(part.forward * c / (whole.forward * share), 1, 1e-12);
        EXPECT_NEAR(part.backward * c / (whole.backward * share), 1, 1e-12);
      }
    }
  }
}

// Pieces of documents need the arrays that those of whole sequences do.
TEST(Documents, AroundARingKeepItsArrays) {
  const Model model = small_llama();
  for (const std::int64_t context : {2, 4}) {
    const Plan whole = plan_of(model, context, ContextExchange::kRing, {});
    const Plan packed = plan_of(model, context, ContextExchange::kRing, {64, 24, 40});
    ASSERT_TRUE(found_by(check_documents, model, packed).empty());
    const Program a = lower(model, whole).programs[0];
    const Program b = lower(model, packed).programs[0];
    EXPECT_EQ(a.layouts, b.layouts);
    EXPECT_EQ(a.frames, b.frames);
    EXPECT_EQ(a.calls, b.calls);
    EXPECT_EQ(b.batch.documents, packed.documents);
  }
}

TEST(Documents, AroundARingDivideIntoItsChunks) {
  const Model model = small_llama();
  const Plan plan = plan_of(model, 4, ContextExchange::kRing, {64, 20, 44});
  const Violations found = found_by(check_documents, model, plan);
  ASSERT_EQ(found.all().size(), 1U);
  EXPECT_NE(found.all()[0].message.find("20 tokens is not a multiple of twice context 4"),
            std::string::npos);
  const Plan whole_chunks = plan_of(model, 2, ContextExchange::kRing, {64, 20, 44});
  EXPECT_TRUE(found_by(check_documents, model, whole_chunks).empty());
}

/// Area where y < x, both in one document, x in the chunks of `member`: cells of the diagonal half.
double counted(const Attention& work, std::int64_t member) {
  const std::int64_t members = 2 * work.kv_len / work.q_len;
  double sum = 0;
  std::int64_t begin = 0;
  for (const std::int64_t length : work.documents) {
    for (std::int64_t x = begin; x < begin + length; ++x) {
      const std::int64_t chunk = x / (work.q_len / 2);
      if (chunk != member && chunk != 2 * members - 1 - member) continue;
      sum += static_cast<double>(x - begin) + 0.5;
    }
    begin += length;
  }
  return sum;
}

TEST(Documents, TheSlowestMemberHasMostPairs) {
  for (const std::int64_t members : {1, 2, 4, 8}) {
    for (const Lengths& lengths :
         {Lengths{64, 64}, Lengths{1, 127}, Lengths{40, 8, 80}, Lengths{100, 20, 8}}) {
      Attention work;
      work.part = ContextPart::kAll;
      work.causal = false;
      work.q_len = 128 / members;
      work.kv_len = 64;
      work.documents = lengths;
      double sum = 0, most = 0, found = 0;
      for (std::int64_t i = 0; i < members; ++i) {
        sum += counted(work, i);
        most = std::max(most, counted(work, i));
      }
      std::int64_t queries = 0;
      for (const DocumentPart& part : slowest_documents(work)) {
        found += part.pairs;
        queries += part.queries;
      }
      EXPECT_DOUBLE_EQ(found, most);
      EXPECT_EQ(queries, work.q_len);
      EXPECT_DOUBLE_EQ(mean_document_pairs(work) * static_cast<double>(members), sum);
    }
  }
}

Attention large(AttentionKernel kernel, bool backward, std::int64_t length) {
  Attention work;
  work.kernel = kernel;
  work.backward = backward;
  work.q_heads = work.kv_heads = 16;
  work.head_dim = 128;
  work.q_len = work.kv_len = length;
  return work;
}

// Every cut of a document saves time, and no more than its pairs: short ones run at lower rates.
TEST(Documents, ShorterOnesTakeLessTime) {
  const DeviceSpec device = read_device(Json("h200-sxm-141gb"), "test", "").value();
  for (const bool backward : {false, true}) {
    for (const ContextPart part :
         {ContextPart::kWhole, ContextPart::kOwn, ContextPart::kMember, ContextPart::kAll}) {
      Attention work = large(AttentionKernel::kFlash, backward, 32768);
      work.part = part;
      if (part != ContextPart::kWhole) work.q_len = work.kv_len = 8192;
      if (part == ContextPart::kMember) work.kv_len = 4096;
      if (part == ContextPart::kAll) work.kv_len = 16384;
      work.causal = part == ContextPart::kWhole || part == ContextPart::kOwn;
      const Time whole = attention_cost(device, work, nullptr).value().compute;
      Time last = whole;
      // Around a ring pieces of less than a block would take a block.
      const bool pieces = part == ContextPart::kOwn || part == ContextPart::kMember;
      const std::int64_t most = pieces ? work.kv_len / 128 : 256;
      for (std::int64_t n = 2; n <= most; n *= 2) {
        work.documents.assign(static_cast<std::size_t>(n), 32768 / n);
        const Time time = attention_cost(device, work, nullptr).value().compute;
        EXPECT_LT(time, last) << n;
        // Whole squares keep 1/n of their pairs.
        EXPECT_TRUE(part != ContextPart::kWhole || time.ps * n > whole.ps - n) << n;
        last = time;
      }
    }
  }
}

// A document shorter than a block takes a block, whether the rank has its own keys or all: as many
// tokens in twice as many documents take twice as long.
TEST(Documents, ShorterThanABlockTakeABlock) {
  const DeviceSpec device = read_device(Json("h200-sxm-141gb"), "test", "").value();
  for (const ContextPart part : {ContextPart::kWhole, ContextPart::kAll}) {
    Attention work = large(AttentionKernel::kFlash, false, 32768);
    work.part = part;
    work.causal = part == ContextPart::kWhole;
    if (part == ContextPart::kAll) {
      work.q_len = 8192;
      work.kv_len = 16384;
    }
    const auto seconds = [&](std::int64_t length) {
      work.documents.assign(static_cast<std::size_t>(32768 / length), length);
      return attention_cost(device, work, nullptr).value().compute.seconds();
    };
    EXPECT_NEAR(seconds(64) / seconds(128), 2, 0.1);
    EXPECT_NEAR(seconds(32) / seconds(64), 2, 0.1);
  }
}

// One long document among short ones lies in few chunks: ranks that hold none of it wait.
TEST(Documents, UnequalMembersWait) {
  const DeviceSpec device = read_device(Json("h200-sxm-141gb"), "test", "").value();
  Attention work = large(AttentionKernel::kFlash, false, 32768);
  work.part = ContextPart::kAll;
  work.causal = false;
  work.q_len = 8192;
  work.kv_len = 16384;
  work.documents = {4096, 16384, 4096, 4096, 4096};
  const double pairs = mean_document_pairs(work);
  double most = 0;
  for (const DocumentPart& part : slowest_documents(work)) most += part.pairs;
  EXPECT_GT(most, 1.2 * pairs);
  Attention equal = work;
  equal.documents.assign(8, 4096);
  EXPECT_LT(attention_cost(device, equal, nullptr).value().compute,
            attention_cost(device, work, nullptr).value().compute);
}

// Scores of the whole square are computed and masked.
TEST(Documents, UnfusedAttentionComputesTheSquare) {
  const DeviceSpec device = read_device(Json("h200-sxm-141gb"), "test", "").value();
  Attention work = large(AttentionKernel::kUnfused, false, 2048);
  const Cost whole = attention_cost(device, work, nullptr).value();
  const double flops = flops_of(Work{work});
  work.documents = {1024, 1024};
  EXPECT_EQ(attention_cost(device, work, nullptr).value().duration, whole.duration);
  EXPECT_EQ(flops_of(Work{work}), flops);
}

TEST(Documents, ModelFlopsCountWhatTokensSee) {
  Model model = small_llama();
  for (const std::int64_t window : {0, 24}) {
    model.sliding_window = window;
    const FlopConventions two = model_flops(model, 128, 128, 0, {64, 64});
    const FlopConventions apart = model_flops(model, 128, 64);
    EXPECT_DOUBLE_EQ(two.causal, apart.causal);
    EXPECT_DOUBLE_EQ(two.full, apart.full);
    EXPECT_DOUBLE_EQ(two.recomputed, apart.recomputed);
  }
}

}  // namespace
}  // namespace foretrain
