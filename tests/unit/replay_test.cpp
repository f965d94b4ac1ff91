// Does the replay follow each of its rules to the picosecond?
#include "sim/engine/replay.h"

#include <gtest/gtest.h>

#include "sim/engine/fluid.h"
#include "sim/program/verify.h"
#include "tests/support/hand_workload.h"
#include "tests/support/recording.h"

namespace foretrain {
namespace {

struct Times {
  std::int64_t begin, start, end;
  bool operator==(const Times&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Times& t) {
  return out << "{" << t.begin << ", " << t.start << ", " << t.end << "}";
}

/// The times of every op, by rank.
std::vector<std::vector<Times>> run(const Workload& workload, HandPrices& prices) {
  const Status status = verify(workload);
  EXPECT_TRUE(status.ok()) << status.error().message;
  const Result<Replayed> result = replay_all(workload, prices, true);
  EXPECT_TRUE(result.ok()) << result.error().message;
  std::vector<std::vector<Times>> out(workload.ranks.size());
  if (!result.ok()) return out;
  for (std::size_t r = 0; r < out.size(); ++r) {
    for (const OpTimes& t : result.value().sink.of(static_cast<std::int32_t>(r))) {
      out[r].push_back({t.begin.ps, t.start.ps, t.end.ps});
    }
  }
  return out;
}

using Row = std::vector<Times>;

// Ops of a stream follow each other; across streams they wait for events.
TEST(Replay, StreamsAndEvents) {
  HandPrices prices;
  for (const auto& [name, ps] :
       std::map<std::string, int>{{"a", 10}, {"b", 5}, {"c", 3}, {"d", 2}}) {
    prices.kernel(name, ps);
  }
  HandProgram p("one");
  p.kernel("a", {}, 0);
  p.op("side", Opaque{"b", 0, 0, DType::kBf16}, {0}, 1);
  p.kernel("c").kernel("d", {1});
  EXPECT_EQ(run(workload_of({p.build()}), prices)[0],
            (Row{{0, 0, 10}, {10, 10, 15}, {10, 10, 13}, {15, 15, 17}}));
}

// A set of streams has a bit for each.
TEST(Replay, TakesAsManyStreamsAsItSays) {
  HandPrices prices;
  prices.kernel("a", 10);
  const auto of_streams = [&prices](std::int32_t count) {
    HandProgram p("one");
    for (std::int32_t s = 0; s < count; ++s) {
      p.op("stream " + std::to_string(s), Opaque{"a", 0, 0, DType::kBf16}, {}, -1);
    }
    return replay_all(workload_of({p.build()}), prices, true);
  };
  // A HandProgram has a stream of its own.
  EXPECT_TRUE(of_streams(StreamSet::kMost - 1).ok());
  const Result<Replayed> more = of_streams(StreamSet::kMost);
  ASSERT_FALSE(more.ok());
  EXPECT_NE(more.error().message.find("65 streams; at most 64"), std::string::npos)
      << more.error().message;
}

// The host issues op k at the sum of the launches up to and with it. Launch 4: short ops wait for
// the host, long ones for their stream.
TEST(Replay, HostIssueTimes) {
  HandPrices prices;
  prices.launch = Time{4};
  prices.kernel("short", 1);
  prices.kernel("long", 10);
  HandProgram p("one");
  p.kernel("short").kernel("short").kernel("long").kernel("long").kernel("short");
  EXPECT_EQ(run(workload_of({p.build()}), prices)[0],
            (Row{{4, 4, 5}, {8, 8, 9}, {12, 12, 22}, {22, 22, 32}, {32, 32, 33}}));
}

// A sync ends when its stream is done; the host goes on from there. Issue of `a` 2, its end 12;
// sync issued at 4, over at 12; `b` issued at 12 + 2.
TEST(Replay, HostSync) {
  HandPrices prices;
  prices.launch = Time{2};
  prices.kernel("a", 10);
  prices.kernel("b", 1);
  HandProgram p("one");
  p.kernel("a").op("compute", HostSync{});
  p.op("side", Opaque{"b", 0, 0, DType::kBf16}).op("side", HostSync{}).kernel("b");
  EXPECT_EQ(run(workload_of({p.build()}), prices)[0],
            (Row{{2, 2, 12}, {12, 12, 12}, {14, 14, 15}, {16, 16, 16}, {18, 18, 19}}));
}

// A host delay of 100 holds up the issue of what follows, not what was issued.
TEST(Replay, HostDelay) {
  HandPrices prices;
  prices.launch = Time{2};
  prices.kernel("a", 10);
  HandProgram p("one");
  p.kernel("a").op("compute", HostDelay{Time{100}}).kernel("a");
  EXPECT_EQ(run(workload_of({p.build()}), prices)[0],
            (Row{{2, 2, 12}, {102, 102, 102}, {104, 104, 114}}));
}

// A pause of 100 holds up its stream, and neither the host nor other streams.
TEST(Replay, Pause) {
  HandPrices prices;
  prices.launch = Time{2};
  prices.kernel("a", 10);
  prices.kernel("b", 1);
  HandProgram p("one");
  p.op("side", Pause{Time{100}}).op("side", Opaque{"b", 0, 0, DType::kBf16}).kernel("a");
  const auto rows = run(workload_of({p.build()}), prices)[0];
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(rows, (Row{{0, 0, 100}, {100, 100, 101}, {4, 4, 14}}));
}

// A collective starts at the latest arrival and ends everywhere at once: max(10, 30) + 5.
TEST(Replay, CollectiveStartsWithTheLast) {
  HandPrices prices;
  prices.kernel("a", 10);
  prices.kernel("b", 30);
  HandProgram p("zero");
  p.kernel("a", {}, 0).all_reduce("data", "g", 5, {0}, 1).kernel("a", {1});
  HandProgram q("one");
  q.kernel("b", {}, 0).all_reduce("data", "g", 5, {0}, 1).kernel("b", {1});
  Workload w = workload_of({p.build(), q.build()});
  bind_group(w, {0, 1}, 0);
  const auto times = run(w, prices);
  EXPECT_EQ(times[0], (Row{{0, 0, 10}, {10, 30, 35}, {35, 35, 45}}));
  EXPECT_EQ(times[1], (Row{{0, 0, 30}, {30, 30, 35}, {35, 35, 65}}));
}

// A message starts when both ends are there and ends at both at once.
TEST(Replay, MessageStartsWithBothEnds) {
  HandPrices prices;
  prices.kernel("a", 10);
  HandProgram p("zero");
  p.kernel("a", {}, 0).op("send", P2PBatch{{p.message(true, "out", 7)}}, {0});
  p.op("send", P2PBatch{{p.message(true, "out", 7)}});
  HandProgram q("one");
  q.op("receive", P2PBatch{{q.message(false, "in", 7)}}, {}, 0).kernel("a", {0}, 1);
  q.op("receive", P2PBatch{{q.message(false, "in", 7)}}, {1});
  Workload w = workload_of({p.build(), q.build()});
  bind_channel(w, 0, 0, 1, 0);
  const auto times = run(w, prices);
  // The first meets at 10; the sender is ready for the second at 17, the receiver at 27.
  EXPECT_EQ(times[0], (Row{{0, 0, 10}, {10, 10, 17}, {17, 27, 34}}));
  EXPECT_EQ(times[1], (Row{{0, 10, 17}, {17, 17, 27}, {27, 27, 34}}));
}

// A batch ends with the last of its messages: an exchange of 7 and 9 does not deadlock.
TEST(Replay, BatchOfMessages) {
  HandPrices prices;
  prices.kernel("a", 10);
  HandProgram p("zero");
  p.op("pipe", P2PBatch{{p.message(true, "out", 7), p.message(false, "in", 9)}});
  HandProgram q("one");
  q.kernel("a", {}, 0);
  q.op("pipe", P2PBatch{{q.message(true, "out", 9), q.message(false, "in", 7)}}, {0});
  Workload w = workload_of({p.build(), q.build()});
  bind_channel(w, 0, 0, 1, 1);
  bind_channel(w, 1, 0, 0, 1);
  const auto times = run(w, prices);
  EXPECT_EQ(times[0], (Row{{0, 10, 19}}));
  EXPECT_EQ(times[1], (Row{{0, 0, 10}, {10, 10, 19}}));
}

// S = 16 SMs of which a collective holds 4 from 0 to 60: a kernel of 100 ps takes
// ceil(100 x 16 / 12) = 134 at that rate, floor(2^16 x 100 / 134) = 48907 units a ps. After 60 ps
// 6553600 - 60 x 48907 = 3619180 units are left: ceil(3619180 / 65536) = 56 ps more.
TEST(Replay, KernelBesideACollective) {
  HandPrices prices;
  prices.sms_held = 4;
  prices.kernel("a", 100);
  HandProgram p("one");
  p.all_reduce("data", "g", 60).kernel("a");
  Workload w = workload_of({p.build()});
  bind_group(w, {0}, 0);
  EXPECT_EQ(run(w, prices)[0], (Row{{0, 0, 60}, {0, 0, 116}}));
}

// A second collective holds from 60 to 460: ceil(6553600 / 48907) = 135 ps each. A kernel on a
// stream that has waited since the begin meets it like those before: what is over is forgotten, and
// nothing else.
TEST(Replay, KernelOfALateStreamBesideACollective) {
  HandPrices prices;
  prices.sms_held = 4;
  prices.kernel("a", 100);
  HandProgram p("one");
  p.all_reduce("data", "g", 60).all_reduce("data", "g", 400);
  p.kernel("a").kernel("a", {}, 0);
  p.op("late", Opaque{"a", 0, 0, DType::kBf16}, {0});
  Workload w = workload_of({p.build()});
  bind_group(w, {0}, 0);
  EXPECT_EQ(run(w, prices)[0],
            (Row{{0, 0, 60}, {60, 60, 460}, {0, 0, 135}, {135, 135, 270}, {270, 270, 405}}));
}

// The same with a partner that comes at 20: the collective holds from 0 to 20 + 60, and its end is
// not known when the kernel starts. 6553600 - 80 x 48907 = 2641040: 41 ps more.
//
// One that holds nothing while it waits leaves the kernel alone until 20:
// 6553600 - 20 x 65536 - 60 x 48907 = 2308460 units are left at 80: 36 ps more.
TEST(Replay, KernelBesideACollectiveThatWaits) {
  HandPrices prices;
  prices.sms_held = 4;
  prices.kernel("a", 100);
  prices.kernel("b", 20);
  HandProgram p("zero");
  p.all_reduce("data", "g", 60).kernel("a");
  HandProgram q("one");
  q.kernel("b", {}, 0).all_reduce("data", "g", 60, {0}).kernel("b", {});
  Workload w = workload_of({p.build(), q.build()});
  bind_group(w, {0, 1}, 0);
  const auto times = run(w, prices);
  prices.waits_idle = true;
  EXPECT_EQ(run(w, prices)[0], (Row{{0, 20, 80}, {0, 0, 116}}));
  EXPECT_EQ(times[0], (Row{{0, 20, 80}, {0, 0, 121}}));
  // On rank 1 the second kernel runs from 20 to 47 beside it: ceil(20 x 16 / 12) = 27 alone at
  // rate floor(2^16 x 20 / 27) = 48545; 20 x 2^16 / 48545 = 27.0003, so 28 ps.
  EXPECT_EQ(times[1], (Row{{0, 0, 20}, {20, 20, 80}, {20, 20, 48}}));
}

// What a posted message holds lasts at least until its partner's stream goes on: that waits for a
// kernel of 1,000 ps. Kernels that end before need no queue.
//
// The first takes ceil(6553600 / 48907) = 135 ps. Beside the second one message more holds 4 SMs
// for 7 ps, at 32768 units a ps; of the rest, 6553600 - 7 x 32768, ceil(6324224 / 48907) = 130 ps.
TEST(Replay, KernelBesideAMessageOfALatePartner) {
  HandPrices prices;
  prices.sms_held = 4;
  prices.kernel("a", 100);
  prices.kernel("b", 1000);
  HandProgram p("zero");
  p.op("down", P2PBatch{{p.message(false, "in", 60)}}).kernel("a", {}, 0);
  p.op("up", P2PBatch{{p.message(true, "out", 7)}}, {0}).kernel("a");
  HandProgram q("one");
  q.op("up", P2PBatch{{q.message(false, "in", 7)}}, {}, 0).kernel("b", {0}, 1);
  q.op("down", P2PBatch{{q.message(true, "out", 60)}}, {1});
  Workload w = workload_of({p.build(), q.build()});
  bind_channel(w, 1, 1, 0, 0);
  bind_channel(w, 0, 1, 1, 0);
  const auto times = run(w, prices);
  EXPECT_EQ(times[0], (Row{{0, 1142, 1202}, {0, 0, 135}, {135, 135, 142}, {135, 135, 272}}));
  EXPECT_EQ(times[1], (Row{{0, 135, 142}, {142, 142, 1142}, {1142, 1142, 1202}}));
  const Result<Replayed> replayed = replay_all(w, prices, true);
  ASSERT_TRUE(replayed.ok());
  EXPECT_EQ(replayed.value().replay.events, 0);
}

// An exchange of one stream is over when its own messages are, whoever posts on the same channel
// meanwhile and waits for long: here a second send that the late kernel of its receiver keeps back.
TEST(Replay, ChannelOfTwoStreams) {
  HandPrices prices;
  prices.sms_held = 4;
  prices.kernel("a", 100);
  prices.kernel("b", 1000);
  prices.kernel("c", 300);
  HandProgram c("zero");
  c.kernel("c", {}, 0).op("pipe", P2PBatch{{c.message(true, "to one", 7)}}, {0});
  c.op("pipe", P2PBatch{{c.message(true, "to two", 7)}});
  HandProgram a("one");
  a.op("x", P2PBatch{{a.message(true, "to two", 7), a.message(false, "from zero", 7)}});
  a.op("z", P2PBatch{{a.message(false, "from two", 7)}}, {}, 0);
  a.op("y", P2PBatch{{a.message(true, "to two", 7)}}, {0}).kernel("a", {0});
  HandProgram b("two");
  b.op("x", P2PBatch{{b.message(false, "from one", 7)}}, {}, 0);
  b.op("y", P2PBatch{{b.message(true, "to one", 7)}}, {0});
  b.op("z", P2PBatch{{b.message(false, "from zero", 7)}}, {}, 1).kernel("b", {1}, 2);
  b.op("x", P2PBatch{{b.message(false, "from one", 7)}}, {2});
  Workload w = workload_of({c.build(), a.build(), b.build()});
  bind_channel(w, 1, 0, 2, 0);
  bind_channel(w, 0, 0, 1, 1);
  bind_channel(w, 2, 1, 1, 2);
  bind_channel(w, 0, 1, 2, 2);
  EXPECT_EQ(run(w, prices)[1][0], (Times{0, 300, 307}));
}

// Two messages that ask for 3/4 of one port: together at rate 2^16 / (3/4 + 3/4) = 43690 units a
// ps. The first runs alone from 0 to 40, then needs ceil(60 x 2^16 / 43690) = 91 ps: 131. The
// second has 100 x 2^16 - 91 x 43690 = 2577810 units left then: ceil(.. / 2^16) = 40 ps: 171.
TEST(Replay, TransfersShareAPort) {
  HandPrices prices;
  prices.port_share = 49152;
  prices.ranks_per_nic = 2;
  prices.kernel("wait", 40);
  const auto sender = [](bool late) {
    HandProgram p(late ? "late" : "early");
    if (late) p.kernel("wait", {}, 0);
    p.op("send", P2PBatch{{p.message(true, "out", 100)}},
         late ? std::vector<int>{0} : std::vector<int>{});
    return p.build();
  };
  const auto receiver = [](const char* name) {
    HandProgram p(name);
    p.op("receive", P2PBatch{{p.message(false, "in", 100)}});
    return p.build();
  };
  // Ranks 0 and 1 share a NIC; the receivers 2 and 4 do not.
  Workload w = workload_of({sender(false), sender(true), receiver("two"),
                            HandProgram("three").build(), receiver("four")});
  bind_channel(w, 0, 0, 2, 0);
  bind_channel(w, 1, 0, 4, 0);
  const auto times = run(w, prices);
  EXPECT_EQ(times[0], (Row{{0, 0, 131}}));
  EXPECT_EQ(times[1], (Row{{0, 0, 40}, {40, 40, 171}}));
  EXPECT_EQ(times[2], (Row{{0, 0, 131}}));
  EXPECT_EQ(times[4], (Row{{0, 40, 171}}));
  // With half of the port each there is room for both.
  prices.port_share = 32768;
  EXPECT_EQ(run(w, prices)[1], (Row{{0, 0, 40}, {40, 40, 140}}));
}

// A copy to the host in the place of the second message above.
TEST(Replay, CopiesShareAPort) {
  HandPrices prices;
  prices.port_share = 49152;
  prices.kernel("wait", 40);
  HandProgram sender("both");
  sender.kernel("wait", {}, 0);
  sender.op("send", P2PBatch{{sender.message(true, "out", 100)}});
  sender.op("copy", Copy{Memory::kDevice, Memory::kHost, 100}, {0}, 1);
  sender.kernel("wait", {1});
  HandProgram receiver("receiver");
  receiver.op("receive", P2PBatch{{receiver.message(false, "in", 100)}});
  Workload w = workload_of({sender.build(), receiver.build()});
  bind_channel(w, 0, 0, 1, 0);
  const auto times = run(w, prices);
  EXPECT_EQ(times[0], (Row{{0, 0, 40}, {0, 0, 131}, {40, 40, 171}, {171, 171, 211}}));
  EXPECT_EQ(times[1], (Row{{0, 0, 131}}));
  prices.port_share = 32768;
  EXPECT_EQ(run(w, prices)[0], (Row{{0, 0, 40}, {0, 0, 100}, {40, 40, 140}, {140, 140, 180}}));
}

// Two groups in opposite orders on one stream: each rank waits for the other in another group.
TEST(Replay, DeadlockNamesRanksOpsAndReasons) {
  HandPrices prices;
  HandProgram p("zero");
  p.all_reduce("data", "first", 5).all_reduce("data", "second", 5, {}, 0).kernel("a", {0});
  HandProgram q("one");
  q.all_reduce("data", "second", 5).all_reduce("data", "first", 5);
  prices.kernel("a", 1);
  Workload w = workload_of({p.build(), q.build()});
  bind_group(w, {0, 1}, 0);
  bind_group(w, {0, 1}, 1);
  std::swap(w.ranks[1].groups[0], w.ranks[1].groups[1]);
  const Result<Replayed> result = replay_all(w, prices, true);
  ASSERT_FALSE(result.ok());
  const std::string& text = result.error().message;
  for (const char* part :
       {"deadlock", "rank 0", "rank 1", "stream data", "stream compute", "op 0", "all-reduce",
        "waits for rank 1", "waits for rank 0", "waits for event 0"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
  }
}

TEST(Replay, DeadlockOfMessages) {
  HandPrices prices;
  HandProgram p("zero");
  p.op("pipe", P2PBatch{{p.message(true, "out", 7)}})
      .op("pipe", P2PBatch{{p.message(false, "in", 7)}});
  HandProgram q("one");
  q.op("pipe", P2PBatch{{q.message(true, "out", 7)}})
      .op("pipe", P2PBatch{{q.message(false, "in", 7)}});
  Workload w = workload_of({p.build(), q.build()});
  bind_channel(w, 0, 0, 1, 1);
  bind_channel(w, 1, 0, 0, 1);
  const Result<Replayed> result = replay_all(w, prices, true);
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.error().message.find("waits for rank 1 to receive"), std::string::npos)
      << result.error().message;
}

TEST(Prepare, UnsupportedWorkIsAnError) {
  HandPrices prices;
  HandProgram p("one");
  p.kernel("unknown");
  const Result<Replayed> result = replay_all(workload_of({p.build()}), prices, false);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().kind, ErrorKind::kUnsupported);
}

// latency + max(ceil(tiles / (S - h)) tile, compute S / (S - h), memory / (1 - b)), never less than
// alone.
TEST(DurationBeside, Equation) {
  Cost tiled;
  tiled.latency = Time{5};
  tiled.tiles = 20;
  tiled.tile = Time{100};
  tiled.duration = Time{205};  // 20 tiles on 16 SMs: 2 waves
  EXPECT_EQ(duration_beside(tiled, 16, 0, 0).ps, 205);
  EXPECT_EQ(duration_beside(tiled, 16, 6, 0).ps, 205);    // 10 SMs: still 2 waves
  EXPECT_EQ(duration_beside(tiled, 16, 7, 0).ps, 305);    // 9 SMs: 3 waves
  EXPECT_EQ(duration_beside(tiled, 16, 99, 0).ps, 2005);  // at least one SM is left
  Cost bound;
  bound.latency = Time{5};
  bound.memory = Time{1000};
  bound.duration = Time{1005};
  EXPECT_EQ(duration_beside(bound, 16, 8, 0).ps, 1005);
  EXPECT_EQ(duration_beside(bound, 16, 0, kWhole / 4).ps, 1339);  // 5 + ceil(1000 / (3/4))
  EXPECT_EQ(duration_beside(bound, 16, 0, kWhole).ps, 16005);     // a sixteenth is left
  Cost plain;
  plain.compute = plain.duration = Time{1000};
  EXPECT_EQ(duration_beside(plain, 16, 4, 0).ps, 1334);  // ceil(1000 x 16 / 12)
  EXPECT_EQ(duration_beside(plain, 16, 4, kWhole / 2).ps, 1334);
}

// Communication on SMs draws power, copies do not: arithmetic loses a quarter of its clock, memory
// nothing.
TEST(DurationBeside, ClockLoss) {
  Cost cost;
  cost.latency = Time{5};
  cost.clock_loss = kWhole / 4;
  cost.compute = Time{900};
  cost.memory = Time{1000};
  cost.duration = Time{1005};
  EXPECT_EQ(duration_beside(cost, 16, 0, 0).ps, 1005);
  EXPECT_EQ(duration_beside(cost, 16, 0, kWhole / 4).ps, 1339);
  EXPECT_EQ(duration_beside(cost, 16, 4, 0).ps, 5 + 1600);  // 900 x 16 / 12 / (3/4)
  cost.compute = Time{};
  cost.tiles = 20;
  cost.tile = Time{450};
  EXPECT_EQ(duration_beside(cost, 16, 4, 0).ps, 5 + 1200);  // still 2 waves
  cost.memory = Time{5000};
  EXPECT_EQ(duration_beside(cost, 16, 4, 0).ps, 5005);
}

// duration f(h), f linear from (0, 1) through what was measured and on: 1.25 at 4 SMs, 2 at 8.
TEST(DurationBeside, WhatWasMeasuredInItsPlace) {
  Cost cost;
  cost.compute = cost.duration = Time{1000};
  cost.slowdowns = {Slowdown{4, kWhole * 5 / 4, 0, 0}, Slowdown{8, kWhole * 2, 0, 0}};
  EXPECT_EQ(duration_beside(cost, 16, 0, 0).ps, 1000);
  EXPECT_EQ(duration_beside(cost, 16, 2, 0).ps, 1125);
  EXPECT_EQ(duration_beside(cost, 16, 4, kWhole / 2).ps, 1250);  // its copies are in it
  EXPECT_EQ(duration_beside(cost, 16, 6, 0).ps, 1625);
  EXPECT_EQ(duration_beside(cost, 16, 8, 0).ps, 2000);
  EXPECT_EQ(duration_beside(cost, 16, 12, 0).ps, 2750);
  // Memory alone, without SMs, is the equation's.
  cost.memory = Time{1000};
  EXPECT_EQ(duration_beside(cost, 16, 0, kWhole / 2).ps, 2000);
}

TEST(Progress, RatesAreExactAtOneAndRoundDown) {
  EXPECT_EQ(rate_of(Time{100}, Time{100}), 65536);
  EXPECT_EQ(rate_of(Time{100}, Time{134}), 48907);
  EXPECT_EQ(rate_of(Time{1}, Time{1'000'000}), 1);
  EXPECT_EQ(rate_on_port(65536), 65536);
  EXPECT_EQ(rate_on_port(1), 65536);
  EXPECT_EQ(rate_on_port(65537), 65535);
  EXPECT_EQ(rate_on_port(98304), 43690);
}

TEST(Progress, DoesNotDependOnHowOftenItIsLookedAt) {
  const std::int64_t rate = 43690;
  Progress once(Time{1'000'000});
  Progress often(Time{1'000'000});
  once.advance(Time{777'777}, rate);
  for (int i = 0; i < 777'777; i += 7) often.advance(Time{7}, rate);
  EXPECT_EQ(once.end_at(Time{777'777}, rate).ps, often.end_at(Time{777'777}, rate).ps);
  EXPECT_EQ(Progress(Time{1'000'000}).end_at(Time{}, rate).ps, once.end_at(Time{777'777}, rate).ps);
  EXPECT_EQ(Progress(Time{12345}).end_at(Time{5}, kOneRate).ps, 12350);
}

}  // namespace
}  // namespace foretrain
