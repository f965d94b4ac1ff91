// Does context parallelism share the work of attention equally and move the keys it has to?
#include <gtest/gtest.h>

#include <algorithm>

#include "hardware/cluster.h"
#include "hardware/hardware_cost_model.h"
#include "hardware/local_cost.h"
#include "models/lower.h"
#include "models/slots.h"
#include "sim/base/json.h"
#include "sim/engine/prepared.h"
#include "sim/engine/replay.h"
#include "sim/program/context_pairs.h"
#include "sim/program/verify.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

Plan context_plan(const Model& model, std::int64_t context, ContextExchange exchange,
                  std::int64_t inner = 1) {
  Plan plan = small_plan(model, {1, 1, 1, context}, 1);
  plan.context_inner = inner;
  plan.context = context;
  plan.context_exchange = exchange;
  plan.global_batch = 1;
  return plan;
}

struct Sums {
  double forward_flops = 0, backward_flops = 0;
  Bytes sent = 0;
  double collective = 0;  ///< bytes of full arrays
};

void add(const Op& op, const Work& work, Sums& out) {
  if (const auto* a = std::get_if<Attention>(&work)) {
    (a->backward ? out.backward_flops : out.forward_flops) += flops_of(work);
  }
  if (op.category != Category::kContext) return;
  if (const auto* batch = std::get_if<P2PBatch>(&work)) {
    for (const Message& m : batch->messages) out.sent += m.send ? m.bytes : 0;
  }
  if (const auto* c = std::get_if<Collective>(&work)) {
    out.collective += static_cast<double>(bytes_of(c->dtype, c->count));
  }
}

Sums sums_of(const Program& program) {
  Sums out;
  for (const Call& call : program.calls) {
    for (const Op& op : program.segments[call.segment.index()].ops) {
      add(op, program.works[op.work.index()], out);
    }
  }
  return out;
}

class Context : public testing::TestWithParam<std::int64_t> {};

// s^2 / 2c pairs a rank, whatever the exchange; one rank has s^2 / 2.
TEST_P(Context, SharesTheWorkOfAttentionEqually) {
  const Model model = small_llama();
  const std::int64_t c = GetParam();
  const Plan alone = small_plan(model, {1, 1, 1, 1}, 1);
  const Sums whole = sums_of(lower(model, alone).programs[0]);
  for (const auto exchange :
       {ContextExchange::kRing, ContextExchange::kAllGather, ContextExchange::kAllToAll}) {
    if (exchange == ContextExchange::kAllToAll && model.kv_heads % c != 0) continue;
    const Plan plan = context_plan(model, c, exchange);
    const Workload workload = lower(model, plan);
    ASSERT_EQ(workload.ranks.size(), static_cast<std::size_t>(c));
    const Status status = verify(workload);
    ASSERT_TRUE(status.ok()) << status.error().message;
    const Sums part = sums_of(workload.programs[0]);
    EXPECT_DOUBLE_EQ(part.forward_flops * static_cast<double>(c), whole.forward_flops);
    EXPECT_DOUBLE_EQ(part.backward_flops * static_cast<double>(c), whole.backward_flops);
  }
}

/// Area where 0 <= x - y < window, x in the queries of chunk `i` of `chunk` tokens: diagonal cells
/// and those at the window's edge are half seen.
double counted(std::int64_t i, std::int64_t chunk, std::int64_t window) {
  double sum = 0;
  for (std::int64_t q = i * chunk; q < (i + 1) * chunk; ++q) {
    for (std::int64_t k = std::max<std::int64_t>(0, q - window); k <= q; ++k) {
      sum += k == q || k == q - window ? 0.5 : 1;
    }
  }
  return sum;
}

// Of windows as short as a key and as long as the sequence: no pair is lost or counted twice.
TEST_P(Context, SharesTheWorkOfWindows) {
  Model model = small_llama();
  const std::int64_t c = GetParam();
  for (const std::int64_t window : {1, 5, 16, 40, 64, 100, 127, 128, 200}) {
    model.sliding_window = window;
    const Sums whole = sums_of(lower(model, small_plan(model, {1, 1, 1, 1}, 1)).programs[0]);
    for (const auto exchange : {ContextExchange::kAllGather, ContextExchange::kAllToAll}) {
      if (exchange == ContextExchange::kAllToAll && model.kv_heads % c != 0) continue;
      const Workload workload = lower(model, context_plan(model, c, exchange));
      ASSERT_TRUE(verify(workload).ok());
      const Sums part = sums_of(workload.programs[0]);
      EXPECT_DOUBLE_EQ(part.forward_flops * static_cast<double>(c), whole.forward_flops) << window;
      EXPECT_DOUBLE_EQ(part.backward_flops * static_cast<double>(c), whole.backward_flops);
    }
  }
}

TEST_P(Context, CountsThePairsOfAWindow) {
  const std::int64_t c = GetParam();
  Attention work;
  work.part = ContextPart::kAll;
  work.causal = false;
  work.q_len = 128 / c;
  work.kv_len = 64;
  for (std::int64_t window = 1; window < 128; ++window) {
    work.window = window;
    ASSERT_TRUE(windows_gathered(work));
    double sum = 0, most = 0;
    for (std::int64_t i = 0; i < c; ++i) {
      const double pairs = counted(i, 64 / c, window) + counted(2 * c - 1 - i, 64 / c, window);
      sum += pairs;
      most = std::max(most, pairs);
    }
    EXPECT_DOUBLE_EQ(gathered_pairs(work).mean * static_cast<double>(c), sum) << window;
    EXPECT_DOUBLE_EQ(gathered_pairs(work).most, most) << window;
  }
  work.window = 128;
  EXPECT_FALSE(windows_gathered(work));
}

// A longer window is never cheaper, and none costs as much as all keys.
TEST_P(Context, LongerWindowsOfGatheredKeysTakeLonger) {
  const DeviceSpec device = read_device(Json("h200-sxm-141gb"), "test", "").value();
  for (const bool backward : {false, true}) {
    for (const std::int64_t length : {4096, 32768}) {
      Attention work;
      work.part = ContextPart::kAll;
      work.backward = backward;
      work.causal = false;
      work.q_heads = work.kv_heads = 16;
      work.head_dim = 128;
      work.q_len = length / GetParam();
      work.kv_len = length / 2;
      const Time all = attention_cost(device, work, nullptr).value().duration;
      Time least;
      for (work.window = 64; work.window <= length; work.window += 64) {
        const Time time = attention_cost(device, work, nullptr).value().duration;
        EXPECT_GE(time, least) << work.window << " of " << length;
        least = time;
      }
      EXPECT_EQ(least, all);
      work.window = length / 16;
      EXPECT_LT(attention_cost(device, work, nullptr).value().compute.ps * 2, all.ps);
    }
  }
}

// Ring: keys and values c-1 times forward and again backward, their gradients c times.
// All-gather: gathered twice, reduced once. All-to-all: forward qkv and out, backward qkv, out and
// both gradients.
TEST_P(Context, MovesKeysValuesAndTheirGradients) {
  const Model model = small_llama();
  const std::int64_t c = GetParam();
  const std::int64_t tokens = 128 / c;
  const Bytes kv = 2 * tokens * 2 * model.kv_heads * model.head_dim;
  const Bytes q = 2 * tokens * model.heads * model.head_dim;
  const Sums ring =
      sums_of(lower(model, context_plan(model, c, ContextExchange::kRing)).programs[0]);
  EXPECT_EQ(ring.sent, model.layers * kv * (3 * c - 2));
  const Sums gather =
      sums_of(lower(model, context_plan(model, c, ContextExchange::kAllGather)).programs[0]);
  EXPECT_EQ(gather.collective, static_cast<double>(model.layers * kv * c * 3));
  EXPECT_EQ(gather.sent, 0);
  if (model.kv_heads % c != 0) return;
  const Sums heads =
      sums_of(lower(model, context_plan(model, c, ContextExchange::kAllToAll)).programs[0]);
  EXPECT_EQ(heads.collective, static_cast<double>(model.layers * (2 * (q + kv) + 2 * q)));
}

// Heads are exchanged among neighbours, keys of all their tokens but of fewer heads go around: as
// many bytes a hop, and fewer hops.
TEST(ContextGroups, HeadsAreExchangedWithinARing) {
  Model model = small_llama();
  model.heads = 8;
  model.kv_heads = 4;
  const Sums whole = sums_of(lower(model, small_plan(model, {1, 1, 1, 1}, 1)).programs[0]);
  for (const auto& [c, inner] : {std::pair{4, 2}, std::pair{8, 2}, std::pair{8, 4}}) {
    const Workload workload = lower(model, context_plan(model, c, ContextExchange::kRing, inner));
    const Status status = verify(workload);
    ASSERT_TRUE(status.ok()) << status.error().message;
    const Sums part = sums_of(workload.programs[0]);
    EXPECT_DOUBLE_EQ(part.forward_flops * c, whole.forward_flops);
    EXPECT_DOUBLE_EQ(part.backward_flops * c, whole.backward_flops);
    const Bytes kv = 2 * (128 / c) * 2 * model.kv_heads * model.head_dim;
    const Bytes q = 2 * (128 / c) * model.heads * model.head_dim;
    EXPECT_EQ(part.sent, model.layers * kv * (3 * (c / inner) - 2));
    EXPECT_EQ(part.collective, static_cast<double>(model.layers * (2 * (q + kv) + 2 * q)));
    for (const Channel& channel : workload.channels) {
      EXPECT_EQ(channel.source.index() % static_cast<std::size_t>(inner),
                channel.destination.index() % static_cast<std::size_t>(inner));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(PlanDegrees, Context, testing::Values(2, 4, 8));

// Gradients are reduced, and optimizer states cut, over data- and context-parallel ranks together.
TEST(ContextGroups, ParametersAreSharedWithDataParallelRanks) {
  const Model model = small_llama();
  Plan plan = small_plan(model, {2, 1, 1, 4}, 2);
  plan.context = 2;
  plan.global_batch = 4;
  EXPECT_EQ(plan.microbatches(), 2);
  plan.rank_order = {"tp", "cp", "ep", "dp", "pp"};
  const Workload workload = lower(model, plan);
  const auto& slots = workload.programs[0].group_slots;
  const auto slot = [&slots](const char* name) {
    return static_cast<std::size_t>(std::find(slots.begin(), slots.end(), name) - slots.begin());
  };
  ASSERT_LT(slot(kDataGroup), slots.size());
  const GroupId data = workload.ranks[0].groups[slot(kDataGroup)];
  const std::vector<RankId> expected = {RankId(0), RankId(2), RankId(4), RankId(6)};
  EXPECT_EQ(workload.groups[data.index()], expected);
}

// Far messages take no less time than those of each pair, and few hops of a ring are longer.
TEST(ContextRings, OfManyLeavesFoldWithFarMessages) {
  constexpr std::int64_t kRanks = 512;  // on 64 nodes of two leaves
  const Model model = small_llama();
  Plan plan = context_plan(model, kRanks, ContextExchange::kRing);
  plan.sequence_length = 4 * kRanks;
  const Workload workload = lower(model, plan);
  const Result<Json> json = parse_json(R"({"preset": "dgx-h100", "accelerators": 512})", "test");
  const Cluster cluster = read_cluster(json.value(), "test", "").value();
  struct Timed {
    std::size_t actors = 0;
    double seconds = 0;
  };
  const auto timed = [&](bool far) -> Timed {
    PriceOptions options;
    options.far_messages = far;
    const std::unique_ptr<CostModel> prices = make_cost_model(cluster, options);
    const Result<Prepared> prepared = prepare(workload, *prices, false);
    EXPECT_TRUE(prepared.ok());
    const Result<Replay> replayed = replay(workload, prepared.value(), nullptr);
    EXPECT_TRUE(replayed.ok());
    return {prepared.value().quotient.actors.size(), replayed.value().end.seconds()};
  };
  const Timed each = timed(false);
  const Timed far = timed(true);
  EXPECT_EQ(far.actors, 8);     // the places of a node
  EXPECT_EQ(each.actors, 256);  // the places of a leaf: two leaves are alike
  EXPECT_GE(far.seconds, each.seconds);
  EXPECT_LT(far.seconds, 1.05 * each.seconds);
}

}  // namespace
}  // namespace foretrain
