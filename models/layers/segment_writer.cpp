#include "models/layers/segment_writer.h"

#include "sim/base/check.h"

namespace foretrain {

Op& SegmentWriter::compute(const std::string& name, Work work, std::vector<View> reads,
                           std::vector<View> writes) {
  Op op;
  op.stream = x_compute;
  op.work = x_builder.work(std::move(work));
  op.name = name;
  op.phase = phase;
  op.reads = std::move(reads);
  op.writes = std::move(writes);
  op.waits = std::move(x_pending);
  x_pending.clear();
  x_last = static_cast<int>(x_segment.ops.size());
  x_segment.ops.push_back(std::move(op));
  return x_segment.ops.back();
}

EventRef SegmentWriter::last_compute() {
  if (x_last < 0) return EventRef();
  Op& op = x_segment.ops[static_cast<std::size_t>(x_last)];
  if (!op.records.valid()) op.records = x_events.event(op.name + " done");
  return op.records;
}

void SegmentWriter::pause(const std::string& name, Time time) {
  if (time.ps > 0) compute(name, HostDelay{time}, {}, {}).category = Category::kHost;
}

EventRef SegmentWriter::on_stream(const std::string& stream, const std::string& name,
                                  Category category, Work work, std::vector<View> reads,
                                  std::vector<View> writes) {
  Op op;
  op.stream = x_builder.stream(stream);
  op.work = x_builder.work(std::move(work));
  op.name = name;
  op.category = category;
  op.phase = phase;
  op.reads = std::move(reads);
  op.writes = std::move(writes);
  // What compute still has to wait for, this op has to wait for too; compute goes on waiting.
  op.waits = x_pending;
  if (const EventRef done = last_compute(); done.valid()) op.waits.push_back(done);
  op.records = x_events.event(name + " done");
  x_segment.ops.push_back(std::move(op));
  return x_segment.ops.back().records;
}

EventRef SegmentWriter::exchange(const std::string& stream, const std::string& name,
                                 Category category, const std::string& to, const std::string& from,
                                 const View& out, const View& in, bool copied) {
  P2PBatch batch{{Message{true, x_builder.channel(to), out.bytes, copied},
                  Message{false, x_builder.channel(from), out.bytes, copied}}};
  return on_stream(stream, name, category, std::move(batch), {out}, {in});
}

void SegmentWriter::record(EventRef event) {
  FT_CHECK(x_last >= 0, "no op to record the event");
  Op& op = x_segment.ops[static_cast<std::size_t>(x_last)];
  FT_CHECK(!op.records.valid(), "the op records another event");
  op.records = event;
}

void keep_until_released(SegmentWriter& w, const std::string& name, const Ref& kept) {
  if (!kept.valid()) return;
  w.compute(name + ".keep", HostDelay{}, {}, {kept.view()}).category = Category::kHost;
}

void release_kept(SegmentWriter& w, const std::string& name, const Ref& kept) {
  if (!kept.valid()) return;
  w.compute(name + ".release", HostDelay{}, {kept.part(0, 0)}, {}).category = Category::kHost;
}

}  // namespace foretrain
