// Does the step wait where the allocator has to give memory back, and nowhere else?
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "models/lower.h"
#include "sim/program/allocator.h"
#include "sim/program/memory.h"
#include "sim/program/verify.h"
#include "tests/support/recording.h"
#include "tests/support/small_plans.h"
#include "tests/support/test_prices.h"

namespace foretrain {
namespace {

constexpr Time kPerGib{1'000'000'000'000};  // a second

struct Stalls {
  std::int64_t delays = 0;
  Time host;  ///< of all of them
};

/// What `workload` says of its first rank's stalls; each begins when all before it has ended.
Stalls stalls_of(const Workload& workload, const Replayed& replayed) {
  Stalls out;
  const Program& program = workload.programs[0];
  for (const Call& call : program.calls) {
    for (const Op& op : program.segments[call.segment.index()].ops) {
      if (op.name != "allocator.retry") continue;
      ++out.delays;
      out.host = out.host + std::get<HostDelay>(program.works[op.work.index()]).time;
    }
  }
  std::map<std::int32_t, Time> begins;  // of calls
  std::map<std::int32_t, Time> ends;
  for (const OpTimes& t : replayed.sink.of(0)) {
    const auto known = begins.emplace(t.call, t.start).first;
    known->second = std::min(known->second, t.start);
    ends[t.call] = max(ends[t.call], t.end);
  }
  Time ended;
  for (std::size_t c = 0; c < program.calls.size(); ++c) {
    const auto call = static_cast<std::int32_t>(c);
    const bool stall =
        program.segments[program.calls[c].segment.index()].name == "allocator retries";
    if (c > 0 &&
        program.segments[program.calls[c - 1].segment.index()].name == "allocator retries") {
      EXPECT_GE(begins[call], ended);
    }
    if (!stall) ended = max(ended, ends[call]);
  }
  return out;
}

// Of drawn plans, with less memory than the allocator would like: the Program stays well-formed,
// has a wait for each retry, the host's time is what the bytes given back take, and what follows
// begins after all before it.
TEST(AllocatorRetries, HoldTheStepUp) {
  int found = 0;
  for (int seed = 0; seed < 300; ++seed) {
    Rng rng(static_cast<std::uint64_t>(seed));
    const Drawn drawn = seed % 2 == 0 ? draw_plan(rng) : draw_sharded_plan(rng);
    SCOPED_TRACE(describe(drawn.model, drawn.plan));
    Workload workload = lower(drawn.model, drawn.plan);
    Program& program = workload.programs[0];
    AllocatorRules rules;
    rules.small_limit = 1 << 10;
    rules.small_segment = 2 << 10;
    rules.middle_limit = 10 << 10;
    rules.middle_segment = 20 << 10;
    rules.large_round = 2 << 10;
    const Bytes lives = memory_peak(program).bytes;
    const Bytes most = caching_allocator(program, rules, 0).reserved;
    const AllocatorUse use = caching_allocator(program, rules, lives + (most - lives) / 4);
    if (!use.fits || use.retries.empty()) continue;
    ++found;
    TestPrices prices(plain_rates());
    const Result<Replayed> before = replay_all(workload, prices, false);
    ASSERT_TRUE(before.ok()) << before.error().message;
    const std::size_t calls = program.calls.size();
    program = with_retries(std::move(program), use.retries, kPerGib);
    EXPECT_EQ(program.calls.size(), calls + use.retries.size());
    const Status status = verify(workload);
    ASSERT_TRUE(status.ok()) << status.error().message;
    const Result<Replayed> after = replay_all(workload, prices, false);
    ASSERT_TRUE(after.ok()) << after.error().message;
    const Stalls stalls = stalls_of(workload, after.value());
    EXPECT_EQ(stalls.delays, std::ssize(use.retries));
    Bytes given_back = 0;
    for (const AllocatorRetry& retry : use.retries) given_back += retry.given_back;
    const double seconds = static_cast<double>(given_back) / (1 << 30);
    EXPECT_NEAR(stalls.host.seconds(), seconds, 1e-9);
    EXPECT_GE(after.value().replay.end, before.value().replay.end);
  }
  EXPECT_GT(found, 20);
}

TEST(AllocatorRetries, NoneChangeNothing) {
  const Workload workload = lower(small_gpt(), small_plan(small_gpt(), {1, 1, 1, 2}, 2));
  EXPECT_EQ(with_retries(workload.programs[0], {}, kPerGib), workload.programs[0]);
}

}  // namespace
}  // namespace foretrain
