// What kernels lose at least to communication beside them.
#include "tools/search/bounds/sharing_bound.h"

#include <gtest/gtest.h>

#include <vector>

namespace foretrain {
namespace {

constexpr int kSms = 100;

/// Untiled arithmetic of so many microseconds.
Cost arithmetic(std::int64_t microseconds) {
  Cost out;
  out.duration = out.compute = Time{microseconds * 1'000'000};
  return out;
}

Cost communication(std::int64_t microseconds, std::int32_t sms) {
  Cost out;
  out.duration = Time{microseconds * 1'000'000};
  out.sms_held = sms;
  return out;
}

TEST(SharingBound, AKernelLosesTheShareOfTheSmsThatAreHeld) {
  EXPECT_NEAR(lost_share(arithmetic(10), communication(1, 20), kSms), 0.2, 1e-6);
  EXPECT_EQ(lost_share(arithmetic(10), communication(1, 0), kSms), 0);
  EXPECT_EQ(lost_share(communication(10, 5), communication(1, 20), kSms), 0) << "holds itself";
  EXPECT_EQ(lost_share(Cost(), communication(1, 20), kSms), 0) << "takes no time";
}

TEST(SharingBound, WhatWasMeasuredNeedNotRise) {
  Cost kernel = arithmetic(10);
  kernel.slowdowns[0] = {8, kWhole * 13 / 10, 0, 0};
  kernel.slowdowns[1] = {16, kWhole * 12 / 10, 0, 0};
  kernel.slowdowns[2] = {24, kWhole * 125 / 100, 0, 0};
  const Time beside_more = duration_beside(kernel, kSms, 17, 0);
  ASSERT_LT(beside_more, duration_beside(kernel, kSms, 8, 0));
  EXPECT_DOUBLE_EQ(lost_share(kernel, communication(1, 8), kSms),
                   1 - kernel.duration.seconds() / beside_more.seconds());
  EXPECT_EQ(lost_share(kernel, communication(1, 0), kSms), 0) << "with SMs nothing is known less";
}

TEST(SharingBound, CommunicationGoesBesideWhatLosesLeast) {
  const std::vector<KernelsBeside> kernels = {{4, 0}, {8, 0.2}, {5, 0.5}};
  EXPECT_DOUBLE_EQ(least_loss_s(kernels, 0), 0);
  EXPECT_DOUBLE_EQ(least_loss_s(kernels, 4), 0);
  EXPECT_DOUBLE_EQ(least_loss_s(kernels, 9), 5 * 0.2);
  // Eight seconds alone are ten beside it, five are ten.
  EXPECT_DOUBLE_EQ(least_loss_s(kernels, 14), 2);
  EXPECT_DOUBLE_EQ(least_loss_s(kernels, 24), 2 + 5);
  EXPECT_DOUBLE_EQ(least_loss_s(kernels, 30), 2 + 5 + 6) << "what is left stands alone";
}

/// A segment: an op on a stream, the event it waits for and the one that it records, -1 none.
struct OpSpec {
  std::int32_t stream;
  Cost cost;
  std::int16_t waits, records;
};

struct Written {
  Segment segment;
  std::vector<Cost> alone;
  std::vector<bool> takes;
};

Written written(const std::vector<OpSpec>& specs) {
  Written out;
  for (const OpSpec& spec : specs) {
    Op op;
    op.stream = StreamId(static_cast<std::size_t>(spec.stream));
    op.work = WorkId(out.alone.size());
    if (spec.waits >= 0) op.waits.push_back({0, spec.waits});
    if (spec.records >= 0) op.records = {0, spec.records};
    out.segment.ops.push_back(op);
    out.alone.push_back(spec.cost);
    out.takes.push_back(true);
  }
  return out;
}

Lost lost_of(const std::vector<OpSpec>& specs) {
  const Written of = written(specs);
  return least_loss(of.segment, of.alone, of.takes, kSms);
}

TEST(SharingBound, OfASegmentCountsWhatMustRunBetweenItsKernels) {
  const Cost kernel = arithmetic(10);
  const Cost hold = communication(4, 50);
  // The second kernel stands beside the exchange, the third waits for it.
  const Lost beside =
      lost_of({{0, kernel, -1, 0}, {1, hold, 0, 1}, {0, kernel, -1, -1}, {0, kernel, 1, -1}});
  EXPECT_NEAR(beside.lost.seconds(), 2e-6, 1e-11);
  EXPECT_EQ(beside.held, hold.duration);
  // Nothing stands beside it: the compute stream waits.
  const Lost waiting = lost_of({{0, kernel, -1, 0}, {1, hold, 0, 1}, {0, kernel, 1, -1}});
  EXPECT_NEAR(waiting.lost.seconds(), 4e-6, 1e-11);
  // What it waits for, or what waits for it, is in another segment: it may run anywhere.
  EXPECT_EQ(lost_of({{1, hold, -1, 1}, {0, kernel, -1, -1}, {0, kernel, 1, -1}}).lost, Time{});
  EXPECT_EQ(lost_of({{0, kernel, -1, 0}, {1, hold, 0, 1}, {0, kernel, -1, -1}}).lost, Time{});
}

TEST(SharingBound, OperationsOfOneStreamAddUpAndTheDearestStreamCounts) {
  const Cost kernel = arithmetic(10);
  const Cost few = communication(4, 10);
  const Cost many = communication(4, 50);
  const std::vector<OpSpec> one_after_another = {
      {0, kernel, -1, 0}, {1, many, 0, -1},   {1, many, -1, 1},  {2, few, 0, 2},
      {0, kernel, -1, 3}, {0, kernel, 1, -1}, {0, kernel, 2, -1}};
  const Lost lost = lost_of(one_after_another);
  EXPECT_NEAR(lost.lost.seconds(), 4e-6, 1e-11);
  EXPECT_EQ(lost.held, many.duration + many.duration);
}

}  // namespace
}  // namespace foretrain
