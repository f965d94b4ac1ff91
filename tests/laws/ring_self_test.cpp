// Does ring self-attention compute, move and keep what its paper (Li et al., arXiv 2105.13120) and
// RingQK and RingAV of Colossal-AI say?
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "hardware/local_cost.h"
#include "models/lower.h"
#include "sim/program/verify.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

Plan ring_self(const Model& model, std::int64_t context) {
  Plan plan = small_plan(model, {1, 1, 1, context}, 1);
  plan.context = context;
  plan.context_exchange = ContextExchange::kRingSelf;
  plan.attention = AttentionKernel::kUnfused;
  plan.micro_batch = plan.global_batch = 2;
  return plan;
}

/// Calls visit(op, its work) for every op that a rank issues in a step, in that order.
template <typename Visit>
void each_issued_op(const Program& program, Visit visit) {
  for (const Call& call : program.calls) {
    for (const Op& op : program.segments[call.segment.index()].ops) {
      visit(op, program.works[op.work.index()]);
    }
  }
}

class RingSelf : public testing::TestWithParam<std::int64_t> {};

// Forward 2 (P - 1) exchanges of a block of b a (s / P) d, backward as many, and two all-reduces of
// b a s d; grouped keys have fewer heads a.
TEST_P(RingSelf, MovesKeysAndValues) {
  const std::int64_t p = GetParam();
  for (const Model& model : {small_gpt(), small_llama()}) {
    const Plan plan = ring_self(model, p);
    const Workload workload = lower(model, plan);
    const Status status = verify(workload);
    ASSERT_TRUE(status.ok()) << status.error().message;
    const Bytes whole =
        2 * plan.micro_batch * model.kv_heads * plan.sequence_length * model.head_dim;
    std::vector<Bytes> sent(2), reduced(2);
    each_issued_op(workload.programs[0], [&](const Op& op, const Work& work) {
      if (op.category != Category::kContext) return;
      const std::size_t pass = op.phase == Phase::kForward ? 0 : 1;
      if (const auto* batch = std::get_if<P2PBatch>(&work)) {
        ASSERT_EQ(batch->messages.size(), 2U);
        for (const Message& m : batch->messages) EXPECT_EQ(m.bytes, whole / p);
        sent[pass] += whole / p;
      } else if (const auto* c = std::get_if<Collective>(&work)) {
        EXPECT_EQ(c->kind, CollectiveKind::kAllReduce);
        reduced[pass] += bytes_of(c->dtype, c->count);
      }
    });
    const Bytes exchanged = model.layers * 2 * (p - 1) * (whole / p);
    EXPECT_EQ(sent, (std::vector<Bytes>{exchanged, exchanged}));
    EXPECT_EQ(reduced, (std::vector<Bytes>{0, model.layers * 2 * whole}));
  }
}

// No pair is left out for the mask: all ranks together multiply what one does that stores scores.
TEST_P(RingSelf, ComputesWholeRectangles) {
  const Model model = small_llama();
  Plan alone = ring_self(model, 1);
  const auto flops = [&model](const Plan& plan) {
    std::vector<double> out(2);
    each_issued_op(lower(model, plan).programs[0], [&out](const Op&, const Work& work) {
      if (const auto* a = std::get_if<Attention>(&work)) out[a->backward ? 1 : 0] += flops_of(work);
    });
    return out;
  };
  const std::vector<double> whole = flops(alone);
  const std::vector<double> part = flops(ring_self(model, GetParam()));
  for (const std::size_t pass : {0U, 1U}) {
    EXPECT_GT(part[pass], 0);
    EXPECT_DOUBLE_EQ(part[pass] * static_cast<double>(GetParam()), whole[pass]);
  }
}

// With dropout and f = 4 h, of b s / P tokens: 34 h, as without scores, and 5 a s for the
// probabilities, their mask, and what it leaves of them.
TEST_P(RingSelf, KeepsRowsOfScores) {
  const Model model = small_gpt();
  Plan plan = ring_self(model, GetParam());
  plan.dropout = 0.1;
  const Program program = lower(model, plan).programs[0];
  Bytes kept = 0;
  for (const FrameLayout& layout : program.layouts) {
    if (layout.name != "saved" && layout.name != "hidden") continue;
    for (const Buffer& buffer : layout.buffers) {
      const bool statistic = buffer.name.find("statistics") != std::string::npos;
      if (buffer.saved && !statistic) kept += buffer.bytes();
    }
  }
  const std::int64_t tokens = plan.micro_batch * plan.sequence_length / GetParam();
  EXPECT_EQ(kept, tokens * (34 * model.hidden + 5 * model.heads * plan.sequence_length));
}

// Blocks of other members come and go one by one.
TEST_P(RingSelf, HoldsBlocksOneByOne) {
  const Model model = small_llama();
  const Plan plan = ring_self(model, GetParam());
  const Program program = lower(model, plan).programs[0];
  const std::int64_t block = plan.tokens() * model.kv_heads * model.head_dim;
  std::int64_t blocks = 0;
  for (const FrameLayout& layout : program.layouts) {
    for (const Buffer& buffer : layout.buffers) {
      if (buffer.name != "context keys" && buffer.name != "context values") continue;
      EXPECT_EQ(buffer.count, block);
      ++blocks;
    }
  }
  EXPECT_EQ(blocks, 2 * 2 * GetParam());
  const Segment& forward =
      *std::find_if(program.segments.begin(), program.segments.end(),
                    [](const Segment& s) { return s.name == "layer forward"; });
  std::int64_t held = 0, most = 0;
  for (const Op& op : forward.ops) {
    const auto keys = [&](const BufferRef& ref) {
      const FrameLayout& layout =
          program.layouts[forward.frames[static_cast<std::size_t>(ref.frame)].index()];
      return layout.buffers[static_cast<std::size_t>(ref.buffer)].name == "context keys";
    };
    held += std::count_if(op.allocates.begin(), op.allocates.end(), keys);
    most = std::max(most, held);
    held -= std::count_if(op.frees.begin(), op.frees.end(), keys);
  }
  EXPECT_EQ(held, 0);
  EXPECT_EQ(most, 2);
}

INSTANTIATE_TEST_SUITE_P(PlanDegrees, RingSelf, testing::Values(2, 4, 8));

/// Of one layer, what belongs to attention between its linears: names, and what is done.
std::vector<std::string> attention_ops_of(const Program& program, const char* segment, bool host) {
  std::vector<std::string> out;
  for (const Segment& s : program.segments) {
    if (s.name != segment) continue;
    for (const Op& op : s.ops) {
      const bool context = op.name.starts_with("attention.context");
      if (!context && !op.name.starts_with("attention.core")) continue;
      if (!host && op.category == Category::kHost) continue;
      out.push_back(op.name.substr(std::string("attention.").size()));
    }
  }
  return out;
}

using Names = std::vector<std::string>;

TEST(RingSelfAttention, GoesAroundBeforeAndAfterSoftmax) {
  const Model model = small_llama();
  Plan plan = ring_self(model, 3);
  plan.sequence_length = 96;
  plan.host_waits = HostWaits::kTransfers;
  const Program program = lower(model, plan).programs[0];
  EXPECT_EQ(
      attention_ops_of(program, "layer forward", false),
      (Names{"context.pack", "core.scores", "context.exchange_keys", "core.scores",
             "context.exchange_keys", "core.scores", "core.softmax", "core.values",
             "context.exchange_values", "core.values", "context.exchange_values", "core.values"}));
  EXPECT_EQ(
      attention_ops_of(program, "layer backward", false),
      (Names{"context.pack_again", "core.values_gradient", "context.reduce_values",
             "core.probability_gradient", "context.exchange_values", "core.probability_gradient",
             "context.exchange_values", "core.probability_gradient", "core.softmax_gradient",
             "core.keys_gradient", "context.reduce_keys", "core.query_gradient",
             "context.exchange_keys", "core.query_gradient", "context.exchange_keys",
             "core.query_gradient", "context.unpack_gradient"}));
  // The host stops at every exchange.
  EXPECT_EQ(attention_ops_of(program, "layer forward", true).size(), 12U + 4U);
  EXPECT_EQ(attention_ops_of(program, "layer backward", true).size(), 17U + 4U);
}

// Products with a block have its keys, those for the keys of all members and softmax have all.
TEST(RingSelfAttention, MultipliesBlocksAndWholeRows) {
  const Model model = small_llama();
  Plan plan = ring_self(model, 4);
  plan.dropout = 0.1;
  int products = 0;
  each_issued_op(lower(model, plan).programs[0], [&](const Op& op, const Work& work) {
    const auto* a = std::get_if<Attention>(&work);
    if (a == nullptr) return;
    const bool whole = a->step == AttentionStep::kSoftmax ||
                       a->step == AttentionStep::kValueGradient ||
                       a->step == AttentionStep::kKeyGradient;
    EXPECT_EQ(a->q_len, plan.sequence_length / 4) << op.name;
    EXPECT_EQ(a->kv_len, plan.sequence_length / (whole ? 1 : 4)) << op.name;
    EXPECT_EQ(a->batch, plan.micro_batch);
    const double pairs = static_cast<double>(a->batch * a->q_heads * a->q_len * a->kv_len);
    const bool softmax = a->step == AttentionStep::kSoftmax;
    EXPECT_EQ(flops_of(work), softmax ? 0 : 2 * pairs * static_cast<double>(a->head_dim));
    EXPECT_EQ(a->dropout, softmax ? 0.1 : 0.0) << op.name;
    if (!softmax) ++products;
  });
  EXPECT_EQ(products, model.layers * (2 * 4 + 2 * 4 + 2));
}

// An exchange begins behind the product before it, and the next product waits for it.
TEST(RingSelfAttention, ExchangesAndProductsTakeTurns) {
  const Model model = small_llama();
  const Program program = lower(model, ring_self(model, 4)).programs[0];
  int exchanges = 0;
  for (const Segment& s : program.segments) {
    for (std::size_t i = 1; i + 1 < s.ops.size(); ++i) {
      if (!s.ops[i].name.starts_with("attention.context.exchange")) continue;
      ++exchanges;
      const auto waits = [&s](std::size_t op, std::size_t before) {
        const auto& events = s.ops[op].waits;
        return std::find(events.begin(), events.end(), s.ops[before].records) != events.end();
      };
      EXPECT_TRUE(waits(i, i - 1)) << s.ops[i - 1].name;
      EXPECT_TRUE(waits(i + 1, i)) << s.ops[i + 1].name;
    }
  }
  EXPECT_EQ(exchanges, 4 * 3);
}

// One block that is the whole sequence costs what unfused attention in one op does, and more only
// what blocks take to come together.
TEST(RingSelfAttention, StepsCostWhatTheWholeDoes) {
  const DeviceSpec device = read_device(Json("a100-sxm-80gb"), "test", "").value();
  using Step = AttentionStep;
  const std::vector<std::vector<Step>> passes = {
      {Step::kScores, Step::kSoftmax, Step::kValues},
      {Step::kValueGradient, Step::kProbabilityGradient, Step::kSoftmax, Step::kKeyGradient,
       Step::kQueryGradient}};
  for (const bool backward : {false, true}) {
    Attention work;
    work.backward = backward;
    work.batch = 4;
    work.q_heads = work.kv_heads = 16;
    work.q_len = work.kv_len = 1024;
    work.head_dim = 64;
    work.dropout = 0.1;
    work.dtype = DType::kFp16;
    work.kernel = AttentionKernel::kUnfused;
    const double whole = attention_cost(device, work, nullptr).value().duration.us();
    double sum = 0, with_blocks = 0;
    for (const Step step : passes[backward ? 1 : 0]) {
      work.step = step;
      work.more.kernels = 0;
      work.more.bytes = 0;
      sum += attention_cost(device, work, nullptr).value().duration.us();
      work.more.kernels = 1;
      work.more.bytes = 1'000'000;
      with_blocks += attention_cost(device, work, nullptr).value().duration.us();
    }
    EXPECT_NEAR(sum, whole, 1e-5 * whole);
    EXPECT_GT(with_blocks, whole);
  }
}

}  // namespace
}  // namespace foretrain
