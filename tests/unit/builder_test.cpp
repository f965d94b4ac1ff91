// Does the builder intern, fill in bytes and find the lives of buffers?
#include "sim/program/builder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "sim/base/rng.h"
#include "sim/program/memory.h"

namespace foretrain {
namespace {

Buffer bytes(const char* name, std::int64_t count, bool persistent = false) {
  Buffer buffer;
  buffer.name = name;
  buffer.dtype = DType::kUint8;
  buffer.count = count;
  buffer.persistent = persistent;
  return buffer;
}
View view(std::int16_t frame, std::int16_t buffer, Bytes size) {
  return View{frame, buffer, 0, size, 1, GroupSlot()};
}
Op op_of(ProgramBuilder& builder, std::vector<View> reads, std::vector<View> writes) {
  Op op;
  op.stream = builder.stream("compute");
  op.work = builder.work(Kernel{});
  op.reads = std::move(reads);
  op.writes = std::move(writes);
  return op;
}

TEST(Builder, InternsNamesAndWorks) {
  ProgramBuilder builder("p");
  EXPECT_EQ(builder.stream("a"), builder.stream("a"));
  EXPECT_NE(builder.stream("a"), builder.stream("b"));
  EXPECT_EQ(builder.group("a").value, 0);
  EXPECT_EQ(builder.work(HostSync{}), builder.work(HostSync{}));
  EXPECT_NE(builder.work(HostSync{}), builder.work(HostDelay{Time{1}}));
  EXPECT_NE(builder.work(HostDelay{Time{2}}), builder.work(HostDelay{Time{1}}));
}

// A kernel moves the bytes of all of its views: 10 + 20 + 30.
TEST(Builder, FillsInKernelBytes) {
  ProgramBuilder builder("p");
  FrameLayout layout;
  layout.buffers = {bytes("a", 10, true), bytes("b", 20, true), bytes("c", 30, true)};
  Segment segment;
  segment.frames = {builder.layout(layout)};
  segment.ops = {op_of(builder, {view(0, 0, 10), view(0, 1, 20)}, {view(0, 2, 30)})};
  builder.segment(segment);
  const Program& program = builder.program();
  const WorkId work = program.segments[0].ops[0].work;
  EXPECT_EQ(std::get<Kernel>(program.works[work.index()]).bytes, 60);
}

// a (100 B) lives from op 0 to op 1, b (30 B) from op 1 to the second call's op 0, c (7 B) in op 2
// alone; k (1000 B) is persistent. Peak: 1000 + 100 + 30 at op 1.
TEST(Builder, LivesRunFromFirstToLastTouch) {
  ProgramBuilder builder("p");
  FrameLayout layout;
  layout.buffers = {bytes("a", 100), bytes("b", 30), bytes("c", 7), bytes("k", 1000, true)};
  const LayoutId id = builder.layout(layout);
  Segment first;
  first.frames = {id};
  first.ops = {op_of(builder, {view(0, 3, 1000)}, {view(0, 0, 100)}),
               op_of(builder, {view(0, 0, 100)}, {view(0, 1, 30)}),
               op_of(builder, {}, {view(0, 2, 7)})};
  Segment second;
  second.frames = {id};
  second.ops = {op_of(builder, {view(0, 1, 30)}, {view(0, 3, 1000)})};
  const FrameId frame = builder.frame(id);
  builder.call(Call{builder.segment(first), -1, -1, {frame}, {}});
  builder.call(Call{builder.segment(second), -1, -1, {frame}, {}});
  const Program program = std::move(builder).build();
  using Refs = std::vector<BufferRef>;
  const std::vector<Op>& ops = program.segments[0].ops;
  EXPECT_EQ(ops[0].allocates, (Refs{{0, 0}}));
  EXPECT_EQ(ops[0].frees, Refs{});
  EXPECT_EQ(ops[1].allocates, (Refs{{0, 1}}));
  EXPECT_EQ(ops[1].frees, (Refs{{0, 0}}));
  EXPECT_EQ(ops[2].allocates, (Refs{{0, 2}}));
  EXPECT_EQ(ops[2].frees, (Refs{{0, 2}}));
  EXPECT_EQ(program.segments[1].ops[0].frees, (Refs{{0, 1}}));
  const MemoryPeak peak = memory_peak(program);
  EXPECT_EQ(peak.bytes, 1130);
  EXPECT_EQ(peak.persistent, 1000);
  EXPECT_EQ(peak.call, 0);
  EXPECT_EQ(peak.op, 1);
  Bytes sum = 0;
  for (const MemoryChange& change : memory_changes(program)) sum += change.bytes;
  EXPECT_EQ(sum, 0);
}

/// The buffer that a view of a call touches, as (frame, buffer), and how the call names it; none
/// where it is persistent.
struct Touch {
  std::pair<std::int32_t, std::int16_t> buffer;
  BufferRef ref;
};
std::optional<Touch> touch_of(const Program& program, const Call& call, const View& view) {
  const FrameId id = call.frames[static_cast<std::size_t>(view.frame)];
  const Frame& frame = program.frames[id.index()];
  const bool alias = frame.alias_of.valid();
  const FrameId owner = alias ? frame.alias_of : id;
  const std::int16_t buffer = alias ? frame.alias_buffer : view.buffer;
  const FrameLayout& layout = program.layouts[program.frames[owner.index()].layout.index()];
  if (layout.buffers[static_cast<std::size_t>(buffer)].persistent) return std::nullopt;
  const auto bound = std::find(call.frames.begin(), call.frames.end(), owner);
  const auto formal = alias ? static_cast<std::int16_t>(bound - call.frames.begin()) : view.frame;
  return Touch{{owner.value, buffer}, {formal, buffer}};
}

/// By definition: (call, op) of each buffer's first and last touch.
using Op2 = std::pair<std::size_t, std::size_t>;
using Lives = std::map<std::pair<std::int32_t, std::int16_t>, std::pair<Op2, Op2>>;

template <typename Visit>
void each_touch(const Program& program, Visit visit) {
  for (std::size_t c = 0; c < program.calls.size(); ++c) {
    const Call& call = program.calls[c];
    const std::vector<Op>& ops = program.segments[call.segment.index()].ops;
    for (std::size_t o = 0; o < ops.size(); ++o) {
      for (const auto* views : {&ops[o].reads, &ops[o].writes}) {
        for (const View& of_op : *views) {
          const auto touch = touch_of(program, call, of_op);
          if (touch) visit(Op2{c, o}, *touch);
        }
      }
    }
  }
}

std::vector<BufferRef> added(std::vector<BufferRef> refs, BufferRef ref) {
  if (std::find(refs.begin(), refs.end(), ref) == refs.end()) refs.push_back(ref);
  return refs;
}

/// Calls of a few segments on a few frames, some of which lie in others.
Program drawn(Rng& rng) {
  ProgramBuilder builder("p");
  FrameLayout owner{"owner", {bytes("a", 8), bytes("b", 8), bytes("kept", 8, true)}, {}};
  FrameLayout part{"part", {bytes("c", 2), bytes("d", 2)}, {}};
  const LayoutId owners = builder.layout(owner);
  const LayoutId parts = builder.layout(part);
  std::vector<FrameId> frames, inside;
  for (int f = 0; f < 4; ++f) frames.push_back(builder.frame(owners));
  for (const FrameId frame : frames) {
    inside.push_back(builder.alias(parts, frame, static_cast<std::int16_t>(rng.below(3)), 0));
  }
  std::vector<SegmentId> segments;
  for (int g = 0; g < 3; ++g) {
    Segment segment;
    segment.name = std::to_string(g);
    segment.frames = {owners, owners, parts};
    for (std::int64_t o = 0; o < 1 + rng.below(4); ++o) {
      std::vector<View> views;
      for (std::int64_t v = 0; v < rng.below(4); ++v) {
        const auto frame = static_cast<std::int16_t>(rng.below(3));
        views.push_back(view(frame, static_cast<std::int16_t>(rng.below(frame == 2 ? 2 : 3)), 2));
      }
      segment.ops.push_back(op_of(builder, views, {view(0, 0, 8)}));
    }
    segments.push_back(builder.segment(segment));
  }
  for (int c = 0; c < 12; ++c) {
    const auto draw = [&rng] { return static_cast<std::size_t>(rng.below(4)); };
    const std::size_t first = draw();
    builder.call(Call{segments[static_cast<std::size_t>(rng.below(3))],
                      -1,
                      -1,
                      {frames[first], frames[draw()], inside[first]},
                      {}});
  }
  return std::move(builder).build();
}

// Frames that one call binds twice, and those that lie in others, included.
TEST(Builder, LivesAreThoseOfTheDefinition) {
  for (std::uint64_t seed = 1; seed <= 500; ++seed) {
    Rng rng(seed);
    const Program program = drawn(rng);
    Lives lives;
    each_touch(program, [&lives](Op2 at, const Touch& touch) {
      const auto [life, fresh] = lives.try_emplace(touch.buffer, at, at);
      life->second.second = at;
    });
    std::map<Op2, std::vector<BufferRef>> allocates, frees;
    std::map<std::pair<std::int32_t, std::int16_t>, BufferRef> last;
    each_touch(program, [&](Op2 at, const Touch& touch) {
      if (lives[touch.buffer].second == at) last[touch.buffer] = touch.ref;
    });
    std::set<std::pair<std::int32_t, std::int16_t>> begun;
    each_touch(program, [&](Op2 at, const Touch& touch) {
      if (begun.insert(touch.buffer).second) allocates[at].push_back(touch.ref);
      const bool frees_here = lives[touch.buffer].second == at && last[touch.buffer] == touch.ref;
      if (frees_here) frees[at] = added(frees[at], touch.ref);
    });
    for (std::size_t c = 0; c < program.calls.size(); ++c) {
      const std::vector<Op>& ops = program.segments[program.calls[c].segment.index()].ops;
      for (std::size_t o = 0; o < ops.size(); ++o) {
        const Op2 at{c, o};
        EXPECT_EQ(ops[o].allocates, allocates[at]) << seed << " call " << c << " op " << o;
        EXPECT_EQ(ops[o].frees, frees[at]) << seed << " call " << c << " op " << o;
      }
    }
  }
}

}  // namespace
}  // namespace foretrain
