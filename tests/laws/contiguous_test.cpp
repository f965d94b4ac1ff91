// Do gradients that are copied into contiguous buckets go when the next one would not fit, in the
// order and with the bytes of DeepSpeed's stage_1_and_2.py?
#include <gtest/gtest.h>

#include <algorithm>

#include "models/lower.h"
#include "models/layers/slots.h"
#include "sim/program/verify.h"
#include "tests/laws/bucket_plans.h"
#include "tests/support/recording.h"
#include "tests/support/small_plans.h"
#include "tests/support/test_prices.h"

namespace foretrain {
namespace {

constexpr std::int64_t kBucket = 700'000;  // elements

Plan contiguous(Sharding level, std::int64_t microbatches) {
  Plan plan = small_plan(model_for_buckets(), {1, 1, 1, kBucketRanks}, microbatches);
  plan.sharding = level;
  plan.reduction = GradientReduction::kAllReduce;
  plan.buckets.cut = Bucketing::kContiguous;
  plan.bucket_elements = kBucket;
  plan.buckets.averages = true;
  plan.precision.gradients = plan.units.reduce = plan.precision.compute;
  return plan;
}

/// Names and elements of what is done to gradients between passes, in issue order.
std::vector<std::pair<std::string, std::int64_t>> done_to_gradients(const Workload& workload) {
  std::vector<std::pair<std::string, std::int64_t>> out;
  const Program& program = workload.programs[0];
  for (const Call& call : program.calls) {
    for (const Op& op : program.segments[call.segment.index()].ops) {
      if (op.phase != Phase::kGradients || !op.name.starts_with("gradients.")) continue;
      const Work& work = program.works[op.work.index()];
      const auto* moved = std::get_if<Collective>(&work);
      const auto* kernel = std::get_if<Kernel>(&work);
      if (moved != nullptr) out.emplace_back(op.name, moved->count);
      if (kernel != nullptr) out.emplace_back(op.name, kernel->rows * kernel->cols);
    }
  }
  return out;
}

/// As the backward pass makes them: matrices of the layers from the last on (a tied table is the
/// embedding's), then what lies at the begin: norms and biases, taken at once.
std::vector<std::int64_t> backward_counts(std::int64_t* at_begin) {
  const Model model = model_for_buckets();
  std::vector<std::int64_t> out;
  *at_begin = 0;
  const auto add = [&](const std::vector<Parameter>& list) {
    for (const Parameter& p : list) {
      if (p.split == Split::kNone) {
        *at_begin += p.count();
      } else {
        out.push_back(p.count());
      }
    }
  };
  add(embedding_parameters(model));
  for (std::int64_t l = 0; l < model.layers; ++l) add(layer_parameters(model));
  add(head_parameters(model));
  std::reverse(out.begin(), out.end());
  return out;
}

// A bucket goes when its elements and the next parameter's are more than reduce_bucket_size. What
// stands at the begin may fill up what the last one leaves.
TEST(ContiguousBuckets, GoWhenTheNextWouldNotFit) {
  std::int64_t rest = 0;
  std::vector<std::int64_t> expected = {0};
  for (const std::int64_t count : backward_counts(&rest)) {
    if (expected.back() + count > kBucket) expected.push_back(0);
    expected.back() += count;
  }
  for (const Sharding level : {Sharding::kOptimizer, Sharding::kGradients}) {
    const std::vector<std::int64_t> sizes =
        collective_sizes(lowered_buckets(contiguous(level, 1)), "gradients.reduce");
    ASSERT_GE(sizes.size(), expected.size());
    ASSERT_GT(expected.size(), 3U);
    // The first holds the padding, the last what lies at the begin.
    for (std::size_t b = 1; b + 1 < expected.size(); ++b) EXPECT_EQ(sizes[b], expected[b]);
    std::int64_t sum = 0;
    for (const std::int64_t size : sizes) {
      EXPECT_LE(size, kBucket);
      sum += size;
    }
    const std::int64_t unit = 128 * kBucketRanks;
    const std::int64_t all = parameter_count(model_for_buckets());
    EXPECT_EQ(sum, (all + unit - 1) / unit * unit);
    EXPECT_EQ(sizes.front(), expected.front() + sum - all);
  }
}

// ZeRO-2 by default: in every microbatch 2 n bytes all-reduced, 2 n gathered once after the update;
// ZeRO-1 reduces once. What a rank keeps is 1 / d of each bucket.
TEST(ContiguousBuckets, MoveTwiceWhatTheyHold) {
  for (const std::int64_t microbatches : {1, 3}) {
    for (const Sharding level : {Sharding::kOptimizer, Sharding::kGradients}) {
      const Workload workload = lowered_buckets(contiguous(level, microbatches));
      const auto total = [&workload](const char* name) {
        std::int64_t sum = 0;
        for (const std::int64_t count : collective_sizes(workload, name)) sum += count;
        return sum;
      };
      const std::int64_t unit = 128 * kBucketRanks;
      const std::int64_t all = (parameter_count(model_for_buckets()) + unit - 1) / unit * unit;
      EXPECT_EQ(total("gradients.reduce"),
                all * (level == Sharding::kGradients ? microbatches : 1));
      EXPECT_EQ(total("parameters.gather"), all);
      std::int64_t kept = 0;
      for (const auto& [name, count] : done_to_gradients(workload)) {
        if (name == "gradients.keep") kept += count;
      }
      EXPECT_EQ(kept * kBucketRanks, total("gradients.reduce"));
    }
  }
}

// What is done to one bucket: compute does it but for the reduction, which it waits for; a bucket
// within one rank's part of all parameters is reduced where it lies.
TEST(ContiguousBuckets, AreReducedByCompute) {
  const Workload workload = lowered_buckets(contiguous(Sharding::kGradients, 2));
  const Program& program = workload.programs[0];
  std::int64_t buckets = 0;
  for (const Call& call : program.calls) {
    const Segment& segment = program.segments[call.segment.index()];
    if (segment.name != "reduce gradients") continue;
    std::vector<std::string> names;
    for (const Op& op : segment.ops) {
      names.push_back(op.name);
      const bool moves = op.name == "gradients.reduce";
      EXPECT_EQ(program.streams[op.stream.index()], moves ? "data" : "compute");
      const bool after = names.size() > 1 && names[names.size() - 2] == "gradients.reduce";
      EXPECT_EQ(op.waits.size(), moves || after ? 1U : 0U) << op.name;
    }
    const std::vector<std::string> divided = {"gradients.average", "gradients.flatten",
                                              "gradients.reduce", "gradients.unflatten",
                                              "gradients.keep"};
    const std::vector<std::string> whole = {"gradients.average", "gradients.reduce",
                                            "gradients.keep"};
    EXPECT_TRUE(names == divided || names == whole);
    ++buckets;
  }
  EXPECT_GT(buckets, 6);
  // The parts of the second microbatch are added to those of the first, bucket by bucket.
  std::int64_t added = 0;
  for (const auto& [name, count] : done_to_gradients(workload)) {
    if (name == "gradients.accumulate") added += count;
  }
  EXPECT_GE(added * kBucketRanks, parameter_count(model_for_buckets()));
}

// With overlap_comm the reductions have a stream of their own: the first begins before the backward
// pass ends, and a third bucket is copied in once the first, whose buffer it takes, is reduced.
TEST(ContiguousBuckets, OverlapWithTwoBuffers) {
  Plan plan = contiguous(Sharding::kGradients, 1);
  plan.overlap.gradient_reduce = true;
  const Workload workload = lowered_buckets(plan);
  TestPrices prices(plain_rates());
  const Result<Replayed> result = replay_all(workload, prices, false);
  ASSERT_TRUE(result.ok()) << result.error().message;
  const Program& program = workload.programs[0];
  Time last_backward{};
  std::vector<Time> reduced;
  std::vector<Time> kept;
  std::vector<std::pair<std::size_t, Time>> copied;  // buffer and begin
  for (const OpTimes& t : result.value().sink.of(0)) {
    const Call& call = program.calls[static_cast<std::size_t>(t.call)];
    const Op& op = program.segments[call.segment.index()].ops[static_cast<std::size_t>(t.op)];
    if (op.phase == Phase::kBackward) last_backward = max(last_backward, t.end);
    if (op.name == "gradients.reduce") reduced.push_back(t.start);
    if (op.name == "gradients.keep") kept.push_back(t.end);
    if (op.name == "gradients.copy") {
      copied.emplace_back(static_cast<std::size_t>(op.writes[0].buffer), t.start);
    }
  }
  ASSERT_GT(kept.size(), 4U);
  EXPECT_LT(reduced.front(), last_backward);
  std::size_t bucket = 0;
  for (std::size_t i = 1; i < copied.size(); ++i) {
    if (copied[i].first == copied[i - 1].first) continue;
    ++bucket;
    if (bucket < 2) continue;
    EXPECT_GE(copied[i].second, kept[bucket - 2]);
  }
  EXPECT_EQ(bucket + 1, kept.size());
}

/// Bytes of gradients and of buckets that live for the whole step.
Bytes held(const Workload& workload) {
  const Program& program = workload.programs[0];
  Bytes out = 0;
  for (const Frame& frame : program.frames) {
    if (frame.alias_of.valid()) continue;
    for (const Buffer& buffer : program.layouts[frame.layout.index()].buffers) {
      const bool counts =
          buffer.kind == BufferKind::kGradients || buffer.kind == BufferKind::kCommunication;
      if (counts && buffer.persistent) out += buffer.bytes();
    }
  }
  return out;
}

// Gradients of ZeRO-2 take a bucket (two with overlap_comm) of bucket_elements, 1/d of themselves,
// and here the norms and biases of one pass; a larger bucket costs its size.
TEST(ContiguousBuckets, HoldABucketAndAPart) {
  std::int64_t rest = 0;
  backward_counts(&rest);
  Plan plan = contiguous(Sharding::kGradients, 2);
  const std::int64_t unit = 128 * kBucketRanks;
  const std::int64_t all = (parameter_count(model_for_buckets()) + unit - 1) / unit * unit;
  EXPECT_EQ(held(lowered_buckets(plan)), 2 * (kBucket + all / kBucketRanks + rest));
  plan.overlap.gradient_reduce = true;
  EXPECT_EQ(held(lowered_buckets(plan)), 2 * (2 * kBucket + all / kBucketRanks + rest));
  plan.bucket_elements = 500'000'000;
  EXPECT_EQ(held(lowered_buckets(plan)), 2 * (1'000'000'000 + all / kBucketRanks + rest));
  // ZeRO-1 holds all gradients beside.
  EXPECT_EQ(held(lowered_buckets(contiguous(Sharding::kOptimizer, 2))),
            2 * (all + kBucket + all / kBucketRanks));
}

}  // namespace
}  // namespace foretrain
