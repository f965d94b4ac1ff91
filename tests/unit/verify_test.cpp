// Does verify catch every kind of fault, each planted alone into a sound Program or Workload?
#include "sim/program/verify.h"

#include <gtest/gtest.h>

#include "models/lower.h"
#include "sim/program/builder.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

constexpr Bytes kSize = 64;

Kernel fill() {
  Kernel kernel;
  kernel.rows = 1;
  kernel.cols = kSize;
  kernel.bytes = kSize;
  return kernel;
}
View all(std::int16_t buffer) { return View{0, buffer, 0, kSize, 1, GroupSlot()}; }

Op op_of(ProgramBuilder& builder, const char* stream, Work work, const char* name) {
  Op op;
  op.stream = builder.stream(stream);
  op.work = builder.work(std::move(work));
  op.name = name;
  return op;
}

/// compute: writes buffer 0 (event 0); side: waits, copies it to buffer 1 (event 1); compute:
/// waits, reads buffer 1. Buffer 2 is persistent.
Program two_streams() {
  ProgramBuilder builder("two streams");
  FrameLayout layout;
  layout.name = "frame";
  for (const char* name : {"a", "b", "kept"}) {
    Buffer buffer;
    buffer.name = name;
    buffer.dtype = DType::kUint8;
    buffer.count = kSize;
    buffer.persistent = std::string(name) == "kept";
    layout.buffers.push_back(buffer);
  }
  layout.events = {"written", "copied"};
  const LayoutId id = builder.layout(std::move(layout));
  Segment segment;
  segment.name = "all";
  segment.frames = {id};
  Op write = op_of(builder, "compute", fill(), "write");
  write.writes = {all(0)};
  write.records = EventRef{0, 0};
  Op copy = op_of(builder, "side", Copy{Memory::kDevice, Memory::kDevice, kSize}, "copy");
  copy.reads = {all(0)};
  copy.writes = {all(1)};
  copy.waits = {EventRef{0, 0}};
  copy.records = EventRef{0, 1};
  Op read = op_of(builder, "compute", fill(), "read");
  read.reads = {all(1)};
  read.waits = {EventRef{0, 1}};
  segment.ops = {write, copy, read};
  const SegmentId s = builder.segment(std::move(segment));
  builder.call(Call{s, -1, -1, {builder.frame(id)}, {}});
  return std::move(builder).build();
}

void expect_fault(const Program& program, const std::string& part) {
  const Status status = verify(program);
  ASSERT_FALSE(status.ok()) << "expected: " << part;
  EXPECT_NE(status.error().message.find(part), std::string::npos) << status.error().message;
}

TEST(Verify, AcceptsASoundProgram) {
  const Status status = verify(two_streams());
  EXPECT_TRUE(status.ok()) << status.error().message;
}

TEST(Verify, RaceOfAReadWithAWrite) {
  Program p = two_streams();
  p.segments[0].ops[1].waits.clear();
  expect_fault(p, "race");
}

TEST(Verify, RaceOfAWriteWithARead) {
  Program p = two_streams();
  // Writes the buffer that the side stream may still be reading.
  p.segments[0].ops[1].frees.clear();
  p.segments[0].ops[2].waits.clear();
  p.segments[0].ops[2].reads.clear();
  p.segments[0].ops[2].writes = {all(0)};
  expect_fault(p, "race");
}

TEST(Verify, RaceOfTwoWrites) {
  Program p = two_streams();
  p.segments[0].ops[1].waits.clear();
  p.segments[0].ops[1].reads.clear();
  p.segments[0].ops[1].writes = {all(0)};
  expect_fault(p, "race");
}

TEST(Verify, RaceOfAFreeWithAUse) {
  Program p = two_streams();
  // Frees buffer a on the compute stream while the side stream may still be reading it.
  p.segments[0].ops[1].frees.clear();
  Op& read = p.segments[0].ops[2];
  read.waits.clear();
  read.frees = {BufferRef{0, 0}};
  read.reads = {all(2)};
  expect_fault(p, "freed while");
}

TEST(Verify, RaceOfAWriteWithTheAllocation) {
  Program p = two_streams();
  // Buffer b is allocated by the side stream's op; the compute stream writes it without a wait.
  Op& late = p.segments[0].ops[2];
  late.waits.clear();
  late.reads.clear();
  late.writes = {all(1)};
  expect_fault(p, "before there may be room");
}

// Shards that are named by hops are parts of their own; the rank's own shard may be any of them.
TEST(Verify, RacesOfShards) {
  const auto with = [](std::int32_t written, std::int32_t read) {
    Program p = two_streams();
    const auto part = [](std::int16_t buffer, std::int32_t hops) {
      View view = all(buffer);
      view.bytes /= 2;
      view.shards = 2;
      view.hops = hops;
      return view;
    };
    p.segments[0].ops[1].frees.clear();
    p.segments[0].ops[1].reads = {part(0, read)};
    Op& late = p.segments[0].ops[2];
    late.waits.clear();
    late.reads.clear();
    late.work = p.segments[0].ops[1].work;
    late.writes = {part(0, written)};
    late.frees.clear();
    return verify(p);
  };
  const auto races = [](const Status& status) {
    return !status.ok() && status.error().message.find("race") != std::string::npos;
  };
  EXPECT_FALSE(races(with(1, 2)));
  EXPECT_FALSE(races(with(2, 1)));
  EXPECT_TRUE(races(with(1, 1)));
  EXPECT_TRUE(races(with(2, 2)));
  EXPECT_TRUE(races(with(0, 1)));
  EXPECT_TRUE(races(with(1, 0)));
  EXPECT_NE(with(3, 1).error().message.find("leaves buffer"), std::string::npos);
}

TEST(Verify, DoubleAllocation) {
  Program p = two_streams();
  p.segments[0].ops[1].allocates.push_back(BufferRef{0, 0});
  expect_fault(p, "allocates a buffer that is live");
}

TEST(Verify, AllocationOfAPersistentBuffer) {
  Program p = two_streams();
  p.segments[0].ops[0].allocates.push_back(BufferRef{0, 2});
  expect_fault(p, "allocates a buffer that is live");
}

TEST(Verify, DoubleFree) {
  Program p = two_streams();
  p.segments[0].ops[2].frees.push_back(BufferRef{0, 0});
  expect_fault(p, "frees a buffer that is not live");
}

TEST(Verify, FreeOfAPersistentBuffer) {
  Program p = two_streams();
  p.segments[0].ops[2].frees.push_back(BufferRef{0, 2});
  expect_fault(p, "frees a persistent buffer");
}

TEST(Verify, UseAfterFree) {
  Program p = two_streams();
  p.segments[0].ops[2].reads = {all(0)};
  expect_fault(p, "not live");
}

TEST(Verify, UseBeforeAllocation) {
  Program p = two_streams();
  p.segments[0].ops[0].allocates.clear();
  expect_fault(p, "not live");
}

TEST(Verify, Leak) {
  Program p = two_streams();
  p.segments[0].ops[2].frees.clear();
  expect_fault(p, "never freed");
}

TEST(Verify, ReadOfWhatNothingWrote) {
  Program p = two_streams();
  p.segments[0].ops[1].writes[0].bytes = kSize - 1;
  expect_fault(p, "nothing has written");
}

TEST(Verify, EventRecordedTwice) {
  Program p = two_streams();
  p.segments[0].ops[2].records = EventRef{0, 0};
  expect_fault(p, "a second time");
}

TEST(Verify, EventNeverRecorded) {
  Program p = two_streams();
  p.segments[0].ops[0].records = EventRef{};
  expect_fault(p, "not recorded yet");
}

TEST(Verify, StreamWaitForAnEventNotRecorded) {
  Program p = two_streams();
  p.calls[0].waits.push_back(StreamWait{StreamId(0), FrameId(0), 1});
  expect_fault(p, "not recorded yet");
}

TEST(Verify, KernelBytes) {
  Program p = two_streams();
  for (Work& work : p.works) {
    if (auto* kernel = std::get_if<Kernel>(&work)) kernel->bytes += 1;
  }
  expect_fault(p, "bytes are not those of its operands");
}

TEST(Verify, ViewsOutOfRange) {
  const std::vector<View> views = {
      {0, 0, 1, kSize, 1, GroupSlot()},     {0, 0, -1, 4, 1, GroupSlot()},
      {0, 0, 0, kSize + 1, 1, GroupSlot()}, {0, 0, 0, kSize, 2, GroupSlot(0)},
      {0, 0, 0, -1, 1, GroupSlot()},        {0, 0, 0, kSize, 0, GroupSlot()},
      {0, 3, 0, 1, 1, GroupSlot()},         {1, 0, 0, 1, 1, GroupSlot()}};
  for (const View& view : views) {
    Program p = two_streams();
    p.segments[0].ops[1].reads.push_back(view);
    EXPECT_FALSE(verify(p).ok()) << view.frame << "." << view.buffer << " " << view.offset;
  }
}

TEST(Verify, IdsOutOfRange) {
  const auto planted = [](auto plant) {
    Program p = two_streams();
    plant(p);
    EXPECT_FALSE(verify(p).ok());
  };
  planted([](Program& p) { p.segments[0].ops[0].stream = StreamId(2); });
  planted([](Program& p) { p.segments[0].ops[0].work = WorkId(9); });
  planted([](Program& p) { p.segments[0].ops[0].work = WorkId(); });
  planted([](Program& p) { p.segments[0].ops[0].records = EventRef{0, 2}; });
  planted([](Program& p) { p.segments[0].ops[1].waits = {EventRef{1, 0}}; });
  planted([](Program& p) { p.segments[0].ops[1].waits = {EventRef{}}; });
  planted([](Program& p) { p.segments[0].ops[0].frees = {BufferRef{0, 7}}; });
  planted([](Program& p) { p.segments[0].frames[0] = LayoutId(4); });
  planted([](Program& p) { p.calls[0].segment = SegmentId(1); });
  planted([](Program& p) { p.calls[0].frames.clear(); });
  planted([](Program& p) { p.calls[0].frames[0] = FrameId(5); });
  planted([](Program& p) { p.calls[0].frames[0] = FrameId(); });
  planted([](Program& p) { p.calls[0].waits = {StreamWait{StreamId(7), FrameId(0), 0}}; });
  planted([](Program& p) { p.calls[0].waits = {StreamWait{StreamId(0), FrameId(3), 0}}; });
  planted([](Program& p) { p.calls[0].waits = {StreamWait{StreamId(0), FrameId(0), 5}}; });
  planted([](Program& p) { p.frames[0].layout = LayoutId(1); });
}

TEST(Verify, AliasesOutOfRange) {
  // Frame 1 lies in the persistent buffer of frame 0; its own 3 buffers need 3 x 64 bytes.
  Program p = two_streams();
  p.frames.push_back(p.frames[0]);
  p.frames[1].alias_of = FrameId(0);
  p.frames[1].alias_buffer = 2;
  expect_fault(p, "alias");
  p = two_streams();
  p.frames[0].alias_of = FrameId(0);
  expect_fault(p, "alias");
}

// --- Workloads

Workload sound() {
  Plan plan = small_plan(small_llama(), {2, 2, 1, 2}, 2);
  plan.sharding = Sharding::kOptimizer;
  return lower(small_llama(), plan);
}

void expect_fault(const Workload& workload, const std::string& part) {
  const Status status = verify(workload);
  ASSERT_FALSE(status.ok()) << "expected: " << part;
  EXPECT_NE(status.error().message.find(part), std::string::npos) << status.error().message;
}

/// A program of its own for rank 0, to plant a fault in one member only.
Program& program_of_rank_0(Workload& w) {
  w.programs.push_back(w.programs[0]);
  w.ranks[0].program = ProgramId(w.programs.size() - 1);
  return w.programs.back();
}

TEST(VerifyWorkload, AcceptsASoundOne) {
  Workload w = sound();
  program_of_rank_0(w);
  const Status status = verify(w);
  EXPECT_TRUE(status.ok()) << status.error().message;
}

TEST(VerifyWorkload, CollectivesThatDiffer) {
  Workload w = sound();
  for (Work& work : program_of_rank_0(w).works) {
    auto* c = std::get_if<Collective>(&work);
    if (c != nullptr && c->kind == CollectiveKind::kReduceScatter) c->count -= 1;
  }
  expect_fault(w, "differ from those of another member");
}

TEST(VerifyWorkload, RootsThatAreNoMembers) {
  for (const std::int32_t root : {-1, 2, 100}) {
    Workload w = sound();
    for (Program& program : w.programs) {
      for (Work& work : program.works) {
        auto* c = std::get_if<Collective>(&work);
        if (c == nullptr || c->kind != CollectiveKind::kReduceScatter) continue;
        c->kind = CollectiveKind::kReduce;
        c->root = root;
      }
    }
    expect_fault(w, "has root " + std::to_string(root) + ", the group has 2 members");
  }
}

TEST(VerifyWorkload, RootsThatDiffer) {
  Workload w = sound();
  for (Work& work : program_of_rank_0(w).works) {
    auto* c = std::get_if<Collective>(&work);
    if (c != nullptr && c->kind == CollectiveKind::kReduceScatter) c->root = 1;
  }
  expect_fault(w, "differ from those of another member");
}

TEST(VerifyWorkload, CollectiveOmitted) {
  Workload w = sound();
  Program& p = program_of_rank_0(w);
  for (Segment& segment : p.segments) {
    if (segment.name != "reduce gradients") continue;
    segment.ops[0].work = p.segments[0].ops[0].work;  // a kernel in its place
  }
  EXPECT_FALSE(verify(w).ok());
}

TEST(VerifyWorkload, GroupOnTwoStreams) {
  Workload w = sound();
  bool moved = false;
  for (Segment& segment : w.programs[0].segments) {
    for (Op& op : segment.ops) {
      const Work& work = w.programs[0].works[op.work.index()];
      if (moved || !std::holds_alternative<Collective>(work)) continue;
      op.stream = StreamId(std::size_t{0});
      moved = true;
    }
  }
  ASSERT_TRUE(moved);
  EXPECT_FALSE(verify(w).ok());
}

TEST(VerifyWorkload, MessagesThatDiffer) {
  Workload w = sound();
  for (Work& work : w.programs[1].works) {
    auto* batch = std::get_if<P2PBatch>(&work);
    if (batch != nullptr && !batch->messages[0].send) batch->messages[0].bytes += 2;
  }
  expect_fault(w, "or other sizes");
}

TEST(VerifyWorkload, MessageNeverReceived) {
  Workload w = sound();
  auto& calls = w.programs[0].calls;
  for (std::size_t c = calls.size(); c-- > 0;) {
    if (w.programs[0].segments[calls[c].segment.index()].name != "send activations") continue;
    calls.push_back(calls[c]);
    break;
  }
  EXPECT_FALSE(verify(w).ok());
}

TEST(VerifyWorkload, Bindings) {
  Workload w = sound();
  w.ranks[3].groups[0] = GroupId();
  expect_fault(w, "used but not bound");
  w = sound();
  for (ChannelId& channel : w.ranks[3].channels) channel = ChannelId();
  expect_fault(w, "used but not bound");
  w = sound();
  w.ranks[2].program = ProgramId(9);
  expect_fault(w, "no such program");
  w = sound();
  w.groups[0].push_back(RankId(7));
  expect_fault(w, "members");
  w = sound();
  std::swap(w.groups[0][0], w.groups[1][0]);  // members that are bound to another group
  expect_fault(w, "members");
  w = sound();
  w.channels[0].destination = RankId(99);
  expect_fault(w, "do not exist");
  w = sound();
  w.groups[0][0] = RankId(99);
  expect_fault(w, "does not exist");
  w = sound();
  w.channels[0].destination_slot = ChannelSlot(99);
  expect_fault(w, "channel");
  w = sound();
  w.channels[0].destination = RankId(1);
  expect_fault(w, "channel");
}

}  // namespace
}  // namespace foretrain
