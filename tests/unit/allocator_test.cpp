// Does the caching allocator's model lay blocks out by the rules it names?
#include "sim/program/allocator.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "models/lower.h"
#include "sim/program/memory.h"
#include "tests/support/sanitized.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

constexpr Bytes kMebi = 1 << 20;

/// One call after the other; each takes buffers, and gives back those that `frees` names.
struct Step {
  std::vector<std::int16_t> takes, frees;
};

Program program_of(const std::vector<Bytes>& sizes, const std::vector<Step>& steps) {
  Program program;
  FrameLayout layout;
  for (const Bytes size : sizes) {
    Buffer buffer;
    buffer.dtype = DType::kUint8;
    buffer.count = size;
    layout.buffers.push_back(buffer);
  }
  program.layouts = {layout};
  Frame frame;
  frame.layout = LayoutId(0);
  program.frames = {frame};
  for (const Step& step : steps) {
    Op op;
    for (const std::int16_t b : step.takes) op.allocates.push_back(BufferRef{0, b});
    for (const std::int16_t b : step.frees) op.frees.push_back(BufferRef{0, b});
    Segment segment;
    segment.frames = {LayoutId(0)};
    segment.ops = {op};
    program.calls.push_back({SegmentId(program.segments.size()), -1, -1, {FrameId(0)}, {}});
    program.segments.push_back(segment);
  }
  return program;
}

AllocatorUse use_of(const std::vector<Bytes>& sizes, const std::vector<Step>& steps,
                    bool expandable = false, Bytes limit = 0) {
  AllocatorRules rules;
  rules.expandable = expandable;
  return caching_allocator(program_of(sizes, steps), rules, limit);
}

// What a block of one pool leaves is of no use to another.
TEST(Allocator, PoolsShareNothing) {
  for (const bool expandable : {false, true}) {
    AllocatorRules rules;
    rules.expandable = expandable;
    Program program = program_of({40 * kMebi, 40 * kMebi}, {{{0}, {0}}, {{1}, {1}}});
    EXPECT_EQ(caching_allocator(program, rules, 0).reserved, 40 * kMebi);
    program.layouts[0].buffers[1].pool = 1;
    const AllocatorUse use = caching_allocator(program, rules, 0);
    EXPECT_EQ(use.reserved, 80 * kMebi);
    EXPECT_EQ(use.allocated, 40 * kMebi);
  }
}

Bytes reserved(const std::vector<Bytes>& sizes, const std::vector<Step>& steps,
               bool expandable = false) {
  return use_of(sizes, steps, expandable).reserved;
}

// record_stream: what a gather let go is of use to the next one when the host waits for that pass
// before it, when it waits for the device, or when there is no room; else the next one takes more.
TEST(Allocator, HoldsWhatOtherStreamsMayRead) {
  const auto gathers = [](bool waits, bool synchronizes) {
    Program program = program_of({40 * kMebi, 40 * kMebi}, {{{0}, {0}}, {{1}, {1}}});
    program.works = {Work{Kernel{}}, Work{HostSync{}}};
    for (Buffer& buffer : program.layouts[0].buffers) buffer.pool = Buffer::kGatherPool;
    program.layouts[0].events = {"over"};
    for (Segment& segment : program.segments) segment.ops[0].work = WorkId(0);
    program.segments[0].ops[0].records = EventRef{0, 0};
    if (waits) program.calls[1].waits = {StreamWait{StreamId(0), FrameId(0), 0}};
    if (synchronizes) program.segments[0].ops[0].work = WorkId(1);
    return program;
  };
  AllocatorRules rules;
  const auto reserved = [&rules](const Program& program) {
    return caching_allocator(program, rules, 0).reserved;
  };
  EXPECT_EQ(reserved(gathers(false, false)), 40 * kMebi);
  rules.records_streams = true;
  // Two blocks a step, of which none came back in two steps.
  EXPECT_EQ(reserved(gathers(false, false)), 160 * kMebi);
  // The second step begins with what the first one's last pass still holds.
  EXPECT_EQ(reserved(gathers(true, false)), 80 * kMebi);
  EXPECT_EQ(reserved(gathers(false, true)), 80 * kMebi);
  const AllocatorUse full = caching_allocator(gathers(false, false), rules, 100 * kMebi);
  EXPECT_TRUE(full.fits);
  EXPECT_EQ(full.reserved, 80 * kMebi);
  const std::vector<AllocatorRetry> retries = {{0, 80 * kMebi}};
  EXPECT_EQ(full.retries, retries);
}

// FSDP: where gathers are limited what is held beside those in use does not depend on how many
// layers there are; without a limit a step's gathers all are.
TEST(Allocator, HoldsTwoUnitsWhereGathersAreLimited) {
  Model model = small_gpt();
  model.hidden = 512;
  model.head_dim = 128;
  model.intermediate = 2048;
  const auto beyond = [&model](std::int64_t layers, std::int64_t limit) {
    model.layers = layers;
    Plan plan = small_plan(model, {1, 1, 1, 2}, 1);
    plan.sharding = Sharding::kParameters;
    plan.units.gathers_in_flight = limit;
    const Program program = lower(model, plan).programs[0];
    AllocatorRules rules;
    const Bytes before = caching_allocator(program, rules, 0).reserved;
    rules.records_streams = true;
    return caching_allocator(program, rules, 0).reserved - before;
  };
  EXPECT_GT(beyond(8, 2), 0);
  EXPECT_EQ(beyond(16, 2), beyond(8, 2));
  EXPECT_GT(beyond(8, 0), beyond(8, 2));
  EXPECT_GT(beyond(16, 0), beyond(8, 0));
}

TEST(CachingAllocator, RoundsBlocksAndSegments) {
  EXPECT_EQ(use_of({1, 513}, {{{0, 1}, {}}, {{}, {0, 1}}}).allocated, 512 + 1024);
  EXPECT_EQ(reserved({1, 513}, {{{0, 1}, {}}, {{}, {0, 1}}}), 2 * kMebi);
  EXPECT_EQ(reserved({3 * kMebi, 3 * kMebi}, {{{0, 1}, {}}, {{}, {0, 1}}}), 20 * kMebi);
  EXPECT_EQ(reserved({11 * kMebi}, {{{0}, {}}, {{}, {0}}}), 12 * kMebi);
  EXPECT_EQ(reserved({11 * kMebi, kMebi}, {{{0, 1}, {}}, {{}, {0, 1}}}), 14 * kMebi);
}

// The rest of a large block is of use above 1 MiB only.
TEST(CachingAllocator, SplitsLargeBlocks) {
  const auto second = [](Bytes request, Bytes third) {
    return reserved({30 * kMebi, request, third},
                    {{{0}, {}}, {{}, {0}}, {{1, 2}, {}}, {{}, {1, 2}}});
  };
  EXPECT_EQ(second(20 * kMebi, 10 * kMebi), 30 * kMebi);
  EXPECT_EQ(second(20 * kMebi, 10 * kMebi + 1), 42 * kMebi);
  EXPECT_EQ(second(28 * kMebi, 2 * kMebi), 30 * kMebi);
  EXPECT_EQ(second(29 * kMebi, 2 * kMebi), 50 * kMebi);
}

// Neighbours in a segment become one block again; segments never do, unless they can grow.
TEST(CachingAllocator, MergesNeighbours) {
  const std::vector<Bytes> parts = {40 * kMebi, 15 * kMebi, 15 * kMebi, 40 * kMebi};
  const std::vector<Step> inside = {{{0}, {}}, {{}, {0}}, {{1, 2}, {}}, {{}, {1}},
                                    {{}, {2}}, {{3}, {}}, {{}, {3}}};
  EXPECT_EQ(reserved(parts, inside), 40 * kMebi);
  const std::vector<Bytes> apart = {30 * kMebi, 30 * kMebi, 60 * kMebi};
  const std::vector<Step> across = {{{0, 1}, {}}, {{}, {0, 1}}, {{2}, {}}, {{}, {2}}};
  EXPECT_EQ(reserved(apart, across), 120 * kMebi);
  EXPECT_EQ(reserved(apart, across, true), 60 * kMebi);
}

// A hole in front of what lives is lost to larger blocks either way.
TEST(CachingAllocator, HolesStay) {
  const std::vector<Bytes> sizes = {40 * kMebi, 20 * kMebi, 60 * kMebi};
  const std::vector<Step> steps = {{{0, 1}, {}}, {{}, {0}}, {{2}, {}}, {{}, {1, 2}}};
  EXPECT_EQ(reserved(sizes, steps), 120 * kMebi);
  EXPECT_EQ(reserved(sizes, steps, true), 120 * kMebi);
}

// Whole segments that are cached are given back before memory runs out.
TEST(CachingAllocator, GivesSegmentsBack) {
  const std::vector<Bytes> sizes = {50 * kMebi, 50 * kMebi, 70 * kMebi, 44 * kMebi};
  const std::vector<Step> steps = {{{0, 1}, {}}, {{}, {0, 1}}, {{2, 3}, {}}, {{}, {2, 3}}};
  // The first step ends with segments of 70 and 44. In the second one 50 comes from 70, and 44 goes
  // for the other 50.
  const AllocatorUse tight = use_of(sizes, steps, false, 124 * kMebi);
  EXPECT_TRUE(tight.fits);
  EXPECT_EQ(tight.reserved, 120 * kMebi);
  ASSERT_EQ(tight.retries.size(), 1U);
  EXPECT_EQ(tight.retries[0].call, 0);
  EXPECT_EQ(tight.retries[0].given_back, 44 * kMebi);
  const AllocatorUse wide = use_of(sizes, steps, false, 170 * kMebi);
  EXPECT_TRUE(wide.fits);
  EXPECT_EQ(wide.reserved, 170 * kMebi);
  EXPECT_TRUE(wide.retries.empty());
  EXPECT_FALSE(use_of(sizes, steps, false, 118 * kMebi).fits);
}

// Of segments that grow, the pages of a hole, which are had again when the hole is filled.
TEST(CachingAllocator, GivesPagesBack) {
  const std::vector<Bytes> sizes = {40 * kMebi, 20 * kMebi, 60 * kMebi};
  const std::vector<Step> steps = {{{0, 1}, {}}, {{}, {0}}, {{2}, {}}, {{}, {1, 2}}};
  const AllocatorUse tight = use_of(sizes, steps, true, 90 * kMebi);
  EXPECT_TRUE(tight.fits);
  EXPECT_EQ(tight.reserved, 80 * kMebi);
  ASSERT_EQ(tight.retries.size(), 1U);
  EXPECT_EQ(tight.retries[0].given_back, 40 * kMebi);
  EXPECT_FALSE(use_of(sizes, steps, true, 78 * kMebi).fits);
}

// Of drawn plans: nothing is reserved twice, and nothing that lives is left out.
TEST(CachingAllocator, HoldsWhatLives) {
  for (int seed = 0; seed < cases(200, 20); ++seed) {
    Rng rng(static_cast<std::uint64_t>(seed));
    const Drawn drawn = seed % 2 == 0 ? draw_plan(rng) : draw_sharded_plan(rng);
    SCOPED_TRACE(describe(drawn.model, drawn.plan));
    for (const Program& program : lower(drawn.model, drawn.plan).programs) {
      const Bytes lives = memory_peak(program).bytes;
      AllocatorRules rules;
      const AllocatorUse use = caching_allocator(program, rules, 0);
      EXPECT_GE(use.allocated, lives);
      EXPECT_GE(use.reserved, use.allocated);
      EXPECT_EQ(use.reserved % rules.small_segment, 0);
      EXPECT_TRUE(use.retries.empty());
      const AllocatorUse same = caching_allocator(program, rules, use.reserved);
      EXPECT_TRUE(same.fits);
      EXPECT_EQ(same.reserved, use.reserved);
      rules.expandable = true;
      EXPECT_GE(caching_allocator(program, rules, 0).reserved, lives);
      ASSERT_GT(lives, 1);
      EXPECT_FALSE(caching_allocator(program, rules, lives - 1).fits);
    }
  }
}

}  // namespace
}  // namespace foretrain
