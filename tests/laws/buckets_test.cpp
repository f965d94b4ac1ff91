// Do gradients travel in the sequence and the sizes that each system's code has them travel in?
#include <gtest/gtest.h>

#include <algorithm>

#include "models/lower.h"
#include "models/layers/slots.h"
#include "sim/program/memory.h"
#include "sim/program/verify.h"
#include "tests/laws/bucket_plans.h"
#include "tests/support/recording.h"
#include "tests/support/small_plans.h"
#include "tests/support/test_prices.h"

namespace foretrain {
namespace {

Plan plain(Bucketing cut, Bytes bytes, Bytes first) {
  Plan plan = small_plan(model_for_buckets(), {1, 1, 1, kBucketRanks}, 2);
  plan.overlap.gradient_reduce = true;
  plan.buckets.cut = cut;
  plan.buckets.bytes = bytes;
  plan.buckets.first_bytes = first;
  return plan;
}

/// Ops of the calls that reduce gradients, in order: "name: work".
std::vector<std::string> reductions(const Workload& workload) {
  std::vector<std::string> out;
  const Program& program = workload.programs[0];
  for (const Call& call : program.calls) {
    const Segment& segment = program.segments[call.segment.index()];
    if (segment.name != "reduce gradients") continue;
    for (const Op& op : segment.ops) {
      out.push_back(op.name + ": " + text_of(program.works[op.work.index()]));
    }
  }
  return out;
}

std::int64_t sum(const std::vector<std::int64_t>& values) {
  std::int64_t out = 0;
  for (const std::int64_t v : values) out += v;
  return out;
}

/// Parameters from the last to the first: the output matrix, the matrices of the layers, the token
/// table, then what is not cut among tensor ranks.
std::vector<std::int64_t> parameters_backward() {
  const Model model = model_for_buckets();
  std::vector<std::int64_t> cut;
  std::vector<std::int64_t> alike;
  const auto add = [&](const std::vector<Parameter>& list) {
    for (const Parameter& p : list) {
      (p.split == Split::kNone ? alike : cut).push_back(p.count());
    }
  };
  add(embedding_parameters(model));
  for (std::int64_t l = 0; l < model.layers; ++l) add(layer_parameters(model));
  add(head_parameters(model));
  std::reverse(cut.begin(), cut.end());
  std::reverse(alike.begin(), alike.end());
  cut.insert(cut.end(), alike.begin(), alike.end());
  return cut;
}

// PyTorch DDP: whole parameters from the last one on; a bucket closes once it has its size, 1 MiB
// the first and 25 MiB the others (here a hundredth).
TEST(Buckets, OfWholeParameters) {
  for (const Bytes first : {10'000, 262'144}) {
    const Workload workload = lowered_buckets(plain(Bucketing::kParameters, 2'000'000, first));
    std::vector<std::int64_t> expected = {0};
    for (const std::int64_t count : parameters_backward()) {
      if (4 * expected.back() >= (expected.size() == 1 ? first : 2'000'000)) expected.push_back(0);
      expected.back() += count;
    }
    EXPECT_EQ(collective_sizes(workload, "gradients.reduce"), expected);
    EXPECT_EQ(sum(expected), parameter_count(model_for_buckets()));
  }
}

// The first bucket leaves while the backward pass runs; the last one after it.
TEST(Buckets, LeaveBesideTheBackwardPass) {
  const Workload workload = lowered_buckets(plain(Bucketing::kParameters, 2'000'000, 10'000));
  TestPrices prices(plain_rates());
  const Result<Replayed> result = replay_all(workload, prices, false);
  ASSERT_TRUE(result.ok()) << result.error().message;
  const Program& program = workload.programs[0];
  Time first_reduction{INT64_MAX};
  Time last_reduction{};
  Time last_backward{};
  for (const OpTimes& t : result.value().sink.of(0)) {
    const Call& call = program.calls[static_cast<std::size_t>(t.call)];
    const Op& op = program.segments[call.segment.index()].ops[static_cast<std::size_t>(t.op)];
    if (op.phase == Phase::kBackward) last_backward = max(last_backward, t.end);
    if (op.name != "gradients.reduce") continue;
    if (t.start < first_reduction) first_reduction = t.start;
    last_reduction = max(last_reduction, t.start);
  }
  EXPECT_LT(first_reduction, last_backward);
  EXPECT_GE(last_reduction, last_backward);
}

// Without no_sync every microbatch moves all gradients, and its sum is kept apart.
TEST(Buckets, ReducedWithEveryMicrobatch) {
  Plan plan = plain(Bucketing::kParameters, 2'000'000, 10'000);
  const auto once = collective_sizes(lowered_buckets(plan), "gradients.reduce");
  plan.buckets.last_pass_only = false;
  const Workload workload = lowered_buckets(plan);
  std::vector<std::int64_t> twice = once;
  twice.insert(twice.end(), once.begin(), once.end());
  EXPECT_EQ(collective_sizes(workload, "gradients.reduce"), twice);
}

// Horovod: the coordinator's cycle, its two bit vectors of 1024 entries, the tensors of a layer
// into the fusion buffer, one all-reduce, and back; a tensor alone is reduced where it lies.
TEST(Buckets, OfWhatIsReady) {
  Plan plan = plain(Bucketing::kReady, 128 << 20, 128 << 20);
  plan.buckets.copy = true;
  plan.buckets.cycle = Time::from_us(1000);
  const Workload workload = lowered_buckets(plan);
  const std::vector<std::string> moved = reductions(workload);
  const Model model = model_for_buckets();
  const std::vector<std::string> coordinator = {
      "coordinator.cycle: pause 500000000 ps", "coordinator.ready: all-reduce group 1 32 fp32 max",
      "coordinator.ready: all-reduce group 1 32 fp32 max"};
  std::vector<std::string> table = coordinator;
  table.emplace_back("gradients.reduce: all-reduce group 1 262144 fp32");
  ASSERT_GT(moved.size(), 10U);
  EXPECT_EQ(std::vector<std::string>(moved.begin(), moved.begin() + 4), table);
  std::int64_t matrices = 0;
  for (const Parameter& p : layer_parameters(model)) {
    if (p.split != Split::kNone) matrices += p.count();
  }
  EXPECT_EQ(std::vector<std::string>(moved.begin() + 4, moved.begin() + 7), coordinator);
  EXPECT_EQ(moved[7].substr(0, 15), "gradients.copy:");
  EXPECT_EQ(moved[8], "gradients.reduce: all-reduce group 1 " + std::to_string(matrices) + " fp32");
  EXPECT_EQ(moved[9].substr(0, 20), "gradients.copy_back:");
  const auto each = collective_sizes(workload, "gradients.reduce");
  EXPECT_EQ(static_cast<std::int64_t>(each.size()), model.layers + 3);  // ends, what is not cut
  EXPECT_EQ(sum(each), parameter_count(model));
}

// A list that does not fit into the fusion buffer is cut between tensors.
TEST(Buckets, FitTheFusionBuffer) {
  const Bytes limit = 1'500'000;
  const Workload workload = lowered_buckets(plain(Bucketing::kReady, limit, limit));
  const auto each = collective_sizes(workload, "gradients.reduce");
  EXPECT_EQ(sum(each), parameter_count(model_for_buckets()));
  for (const std::int64_t count : each) EXPECT_LE(4 * count, limit);
}

// Hierarchical all-reduce: n elements within the inner group, n / g over the outer one, n back.
TEST(Buckets, ReducedInTwoLevels) {
  Plan plan = plain(Bucketing::kRanges, 0, 0);
  plan.buckets.inner_group = 2;
  const Workload workload = lowered_buckets(plan);
  const auto inner = collective_sizes(workload, "gradients.inner.reduce");
  const auto outer = collective_sizes(workload, "gradients.outer.reduce");
  EXPECT_EQ(inner, collective_sizes(workload, "gradients.inner.gather"));
  ASSERT_EQ(inner.size(), 1U);
  EXPECT_EQ(inner[0], (parameter_count(model_for_buckets()) + 1) / 2 * 2);
  EXPECT_EQ(outer[0], inner[0] / 2);
}

/// What stays of a step to the next for the gradients' way.
Bytes kept_to_travel(const Workload& workload) {
  return persistent_bytes(
      workload.programs[0])[static_cast<std::size_t>(BufferKind::kCommunication)];
}

// Half the bits, half the bytes: 2 P of 4 P. The cast is of the bucket, which is there as without
// it, and lives while it travels.
TEST(Buckets, InHalfPrecision) {
  const std::int64_t all = parameter_count(model_for_buckets());
  for (const bool copies : {false, true}) {
    Plan plan = plain(Bucketing::kRanges, 0, 0);
    plan.buckets.copy = copies;
    const Bytes without = kept_to_travel(lowered_buckets(plan));
    EXPECT_EQ(without, copies ? 4 * all : 0);
    plan.buckets.compression = Compression::kFp16;
    const Workload workload = lowered_buckets(plan);
    EXPECT_EQ(kept_to_travel(workload), without);
    std::vector<std::string> moved = reductions(workload);
    if (copies) {
      ASSERT_EQ(moved.size(), 4U);
      EXPECT_EQ(moved[0].substr(0, 15), "gradients.copy:");
      moved.erase(moved.begin());
    }
    ASSERT_EQ(moved.size(), 3U);
    EXPECT_EQ(moved[0].substr(0, 17), "gradients.narrow:");
    EXPECT_EQ(moved[1], "gradients.reduce: all-reduce group 1 " + std::to_string(all) + " fp16");
    EXPECT_EQ(moved[2].substr(0, 16), "gradients.widen:");
  }
}

// Factors and signs are made of the buckets that gradients are copied into: 4 P more.
TEST(Buckets, AreThereBesideWhatIsMadeOfThem) {
  for (const Compression compression : {Compression::kPowerSgd, Compression::kOneBit}) {
    Plan plan = plain(Bucketing::kParameters, 2'000'000, 10'000);
    plan.buckets.compression = compression;
    plan.buckets.rank = compression == Compression::kPowerSgd ? 4 : 0;
    const Bytes without = kept_to_travel(lowered_buckets(plan));
    plan.buckets.copy = true;
    const Workload workload = lowered_buckets(plan);
    EXPECT_EQ(kept_to_travel(workload), without + 4 * parameter_count(model_for_buckets()));
    EXPECT_EQ(reductions(workload).front().substr(0, 15), "gradients.copy:");
  }
}

// PowerSGD of rank r sends r (n + m) elements of an n x m matrix, and vectors whole.
TEST(Buckets, AsLowRankFactors) {
  constexpr std::int64_t kRank = 4;
  Plan plan = plain(Bucketing::kParameters, 2'000'000, 10'000);
  plan.buckets.compression = Compression::kPowerSgd;
  plan.buckets.rank = kRank;
  const Workload workload = lowered_buckets(plan);
  std::int64_t left = 0;
  std::int64_t right = 0;
  std::int64_t whole = 0;
  const Model model = model_for_buckets();
  const auto add = [&](const std::vector<Parameter>& list, std::int64_t times) {
    for (const Parameter& p : list) {
      const bool factored = (p.rows + p.cols) * kRank * 2 < p.count();
      left += factored ? times * p.rows * kRank : 0;
      right += factored ? times * p.cols * kRank : 0;
      whole += factored ? 0 : times * p.count();
    }
  };
  add(embedding_parameters(model), 1);
  add(layer_parameters(model), model.layers);
  add(head_parameters(model), 1);
  EXPECT_EQ(sum(collective_sizes(workload, "gradients.left.reduce")), left);
  EXPECT_EQ(sum(collective_sizes(workload, "gradients.right.reduce")), right);
  EXPECT_EQ(sum(collective_sizes(workload, "gradients.reduce")), whole);
}

// 1-bit Adam: an all-to-all and an all-gather of n / 8 bytes each, after the backward pass.
TEST(Buckets, AsSigns) {
  Plan plan = plain(Bucketing::kRanges, 0, 0);
  plan.overlap.gradient_reduce = false;
  plan.buckets.compression = Compression::kOneBit;
  const Workload workload = lowered_buckets(plan);
  const std::int64_t unit = 8 * kBucketRanks;
  const std::int64_t bytes = (parameter_count(model_for_buckets()) + unit - 1) / unit * unit / 8;
  const std::string n = std::to_string(bytes);
  const auto moved = reductions(workload);
  ASSERT_EQ(moved.size(), 5U);
  EXPECT_EQ(moved[1], "gradients.signs.exchange: all-to-all group 1 " + n + " uint8");
  EXPECT_EQ(moved[3], "gradients.signs.gather: all-gather group 1 " + n + " uint8");
}

// fp32 sums cast to the model's type as a whole, summed in it, and cast back: all of it, or of what
// is scattered the rank's own part.
TEST(NarrowedSums, TravelInTheModelsType) {
  const Model model = model_for_buckets();
  for (const Sharding sharding : {Sharding::kNone, Sharding::kOptimizer}) {
    for (const bool scatter : {false, true}) {
      Plan plan = small_plan(model, {1, 1, 1, kBucketRanks}, 2);
      plan.precision.compute = plan.precision.matrix = plan.units.reduce = DType::kBf16;
      plan.precision.gradients = DType::kFp32;
      plan.sharding = sharding;
      if (!scatter) plan.reduction = GradientReduction::kAllReduce;
      const auto ops = reductions(lowered_buckets(plan));
      const bool parts = scatter && sharding == Sharding::kOptimizer;
      ASSERT_EQ(ops.size(), 3U);
      EXPECT_TRUE(ops[0].starts_with("gradients.narrow: cast 1x")) << ops[0];
      EXPECT_NE(ops[0].find(" bf16"), std::string::npos) << ops[0];
      EXPECT_TRUE(ops[1].starts_with(parts ? "gradients.reduce: reduce-scatter"
                                           : "gradients.reduce: all-reduce"))
          << ops[1];
      EXPECT_TRUE(ops[1].ends_with(" bf16")) << ops[1];
      EXPECT_TRUE(ops[2].starts_with("gradients.widen: cast 1x")) << ops[2];
      EXPECT_NE(ops[2].find(" fp32"), std::string::npos) << ops[2];
      const auto elements = [](const std::string& op) {
        return std::stoll(op.substr(op.find("1x") + 2));
      };
      EXPECT_EQ(elements(ops[0]), elements(ops[2]) * (parts ? kBucketRanks : 1));
    }
  }
}

Bytes bytes_of_buckets(const Workload& workload) {
  Bytes out = 0;
  for (const FrameLayout& layout : workload.programs[0].layouts) {
    if (layout.name != "buckets") continue;
    for (const Buffer& buffer : layout.buffers) out += buffer.bytes();
  }
  return out;
}

// Gradients in 16 bits: the same signs and the same errors in fp32; factors and their error half.
TEST(Buckets, CompressNarrowGradients) {
  Plan plan = plain(Bucketing::kParameters, 2'000'000, 10'000);
  plan.buckets.rank = 4;
  for (const Compression c : {Compression::kOneBit, Compression::kPowerSgd}) {
    plan.buckets.compression = c;
    plan.precision.gradients = DType::kFp32;
    const Workload wide = lowered_buckets(plan);
    plan.precision.gradients = DType::kBf16;
    plan.buckets.bytes /= 2;  // the same buckets
    plan.buckets.first_bytes /= 2;
    const Workload narrow = lowered_buckets(plan);
    plan.buckets.bytes *= 2;
    plan.buckets.first_bytes *= 2;
    const bool signs = c == Compression::kOneBit;
    EXPECT_EQ(bytes_of_buckets(wide), bytes_of_buckets(narrow) * (signs ? 1 : 2));
    for (const char* name : {"gradients.signs.exchange", "gradients.left.reduce"}) {
      EXPECT_EQ(collective_sizes(wide, name), collective_sizes(narrow, name));
    }
  }
}

}  // namespace
}  // namespace foretrain
