// Does the step wait where the allocator has to give memory back, and nowhere else?
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>

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

bool is_stall(const Program& program, const Call& call) {
  return program.segments[call.segment.index()].name == "allocator retries";
}

/// The streams that stalls wait for.
std::set<std::string> waited_for(const Program& program) {
  std::set<std::string> waited;
  for (const Call& call : program.calls) {
    if (!is_stall(program, call)) continue;
    for (const Op& op : program.segments[call.segment.index()].ops) {
      if (op.name == "allocator.wait") waited.insert(program.streams[op.stream.index()]);
    }
  }
  return waited;
}

struct Stalls {
  std::int64_t calls = 0;
  Time host;  ///< of all of them
};

/// What `workload` says of its first rank's stalls. What follows one begins when all that the
/// device's streams were given before it has ended.
Stalls stalls_of(const Workload& workload, const Replayed& replayed) {
  Stalls out;
  const Program& program = workload.programs[0];
  for (const Call& call : program.calls) {
    if (!is_stall(program, call)) continue;
    ++out.calls;
    const Op& retry = program.segments[call.segment.index()].ops.back();
    EXPECT_EQ(retry.name, "allocator.retry");
    out.host = out.host + std::get<HostDelay>(program.works[retry.work.index()]).time;
  }
  std::map<std::int32_t, Time> begins;  // of calls
  std::map<std::int32_t, Time> ends;    // of what the device does in them
  for (const OpTimes& t : replayed.sink.of(0)) {
    const Call& call = program.calls[static_cast<std::size_t>(t.call)];
    const Op& op = program.segments[call.segment.index()].ops[static_cast<std::size_t>(t.op)];
    const auto known = begins.emplace(t.call, t.start).first;
    known->second = std::min(known->second, t.start);
    const std::string& stream = program.streams[op.stream.index()];
    const bool left_out = stream == "host update" || stream.starts_with("storage") ||
                          stream.starts_with("receive") || stream.starts_with("send");
    if (!left_out) ends[t.call] = max(ends[t.call], t.end);
  }
  Time ended;
  for (std::size_t c = 0; c < program.calls.size(); ++c) {
    const auto call = static_cast<std::int32_t>(c);
    if (c > 0 && is_stall(program, program.calls[c - 1])) {
      EXPECT_GE(begins[call], ended);
    }
    if (!is_stall(program, program.calls[c])) ended = max(ended, ends[call]);
  }
  return out;
}

// Of drawn plans, with less memory than the allocator would like: the Program stays well-formed,
// waits once in each call with retries, the host's time is what the bytes given back take, and what
// follows begins after all that the device had to do.
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
    std::set<std::int32_t> places;
    for (const AllocatorRetry& retry : use.retries) places.insert(retry.call);
    EXPECT_EQ(program.calls.size(), calls + places.size());
    const Status status = verify(workload);
    ASSERT_TRUE(status.ok()) << status.error().message;
    const Result<Replayed> after = replay_all(workload, prices, false);
    ASSERT_TRUE(after.ok()) << after.error().message;
    const Stalls stalls = stalls_of(workload, after.value());
    EXPECT_EQ(stalls.calls, std::ssize(places));
    Bytes given_back = 0;
    for (const AllocatorRetry& retry : use.retries) given_back += retry.given_back;
    const double seconds = static_cast<double>(given_back) / (1 << 30);
    EXPECT_NEAR(stalls.host.seconds(), seconds, 1e-9);
    EXPECT_GE(after.value().replay.end, before.value().replay.end);
  }
  EXPECT_GT(found, 20);
}

// Messages are posted ahead: a stage that waited for them could wait for what depends on it.
TEST(AllocatorRetries, LeaveMessagesAlone) {
  const Model model = small_llama();
  const Plan plan = small_plan(model, {1, 2, 1, 1}, 4);
  const Program program = with_retries(lower(model, plan).programs[1], {{3, 1 << 20}}, kPerGib);
  const std::set<std::string> waited = waited_for(program);
  EXPECT_EQ(waited.count("compute"), 1U);
  EXPECT_EQ(waited.count("receive activations"), 0U);
  EXPECT_EQ(waited.count("send gradients"), 0U);
}

// Freeing the device's memory does not wait for what the host updates beside the passes, and for
// what it reads from storage.
TEST(AllocatorRetries, LeaveTheHostsStreamsAlone) {
  const Model model = small_llama();
  Plan plan = small_plan(model, {1, 1, 1, 2}, 1);
  plan.sharding = Sharding::kGradients;
  plan.units.reduce = plan.precision.gradients = DType::kBf16;
  plan.units.narrow_shards = true;
  plan.offload.optimizer = Memory::kStorage;
  plan.offload.delayed_update = true;
  const Program program = with_retries(lower(model, plan).programs[0], {{3, 1 << 20}}, kPerGib);
  const std::set<std::string> waited = waited_for(program);
  const std::set<std::string> expected = {"compute", "data", "to host", "from host"};
  EXPECT_EQ(waited, expected);
}

TEST(AllocatorRetries, NoneChangeNothing) {
  const Workload workload = lower(small_gpt(), small_plan(small_gpt(), {1, 1, 1, 2}, 2));
  EXPECT_EQ(with_retries(workload.programs[0], {}, kPerGib), workload.programs[0]);
}

}  // namespace
}  // namespace foretrain
