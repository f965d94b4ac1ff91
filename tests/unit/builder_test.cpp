// Does the builder intern, fill in bytes and find the lives of buffers?
#include "sim/program/builder.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace foretrain
