#include <utility>

#include "sim/program/allocator.h"
#include "sim/program/builder.h"

namespace foretrain {
namespace {

/// Whether the device does it; a stream with pauses is another thread's of the host.
bool is_of_device(const Work& work) {
  if (const auto* copy = std::get_if<Copy>(&work)) {
    return copy->from == Memory::kDevice || copy->to == Memory::kDevice;
  }
  if (const auto* opaque = std::get_if<Opaque>(&work)) return opaque->where == Memory::kDevice;
  return !std::holds_alternative<HostSync>(work) && !std::holds_alternative<HostDelay>(work) &&
         !std::holds_alternative<Pause>(work);
}

/// The streams that freeing the device's memory waits for. Not those of messages: Programs
/// post them far ahead, and another stage may take part only after what this one has yet to do.
std::vector<std::size_t> device_streams(const Program& program) {
  std::vector<std::uint8_t> device(program.streams.size());
  std::vector<std::uint8_t> left_out(program.streams.size());
  for (const Segment& segment : program.segments) {
    for (const Op& op : segment.ops) {
      const Work& work = program.works[op.work.index()];
      const auto* pause = std::get_if<Pause>(&work);
      if (is_of_device(work)) device[op.stream.index()] = 1;
      const bool waits = pause != nullptr && pause->time.ps > 0;
      if (waits || std::holds_alternative<P2PBatch>(work)) left_out[op.stream.index()] = 1;
    }
  }
  std::vector<std::size_t> out;
  for (std::size_t s = 0; s < device.size(); ++s) {
    if (device[s] != 0 && left_out[s] == 0) out.push_back(s);
  }
  return out;
}

SegmentId add_stall(Program& program, const std::vector<std::size_t>& streams, Bytes given_back,
                    Time per_gib) {
  constexpr double kGiB = 1 << 30;
  const double gib = static_cast<double>(given_back) / kGiB;
  Segment stall;
  stall.name = "allocator retries";
  const auto add = [&](std::size_t stream, const char* name, const Work& work) {
    Op op;
    op.stream = StreamId(stream);
    op.work = interned(program, work);
    op.name = name;
    op.category = Category::kHost;
    stall.ops.push_back(std::move(op));
  };
  for (const std::size_t s : streams) add(s, "allocator.wait", HostSync{});
  const double ps = gib * static_cast<double>(per_gib.ps);
  add(0, "allocator.retry", HostDelay{Time{static_cast<std::int64_t>(ps)}});
  program.segments.push_back(std::move(stall));
  return SegmentId(program.segments.size() - 1);
}

}  // namespace

Program with_retries(Program program, const std::vector<AllocatorRetry>& retries, Time per_gib) {
  if (retries.empty()) return program;
  std::vector<Call> calls;
  const std::vector<std::size_t> streams = device_streams(program);
  auto next = retries.begin();
  for (std::size_t c = 0; c < program.calls.size(); ++c) {
    Bytes given_back = 0;
    const auto first = next;
    for (; next != retries.end() && next->call == static_cast<std::int32_t>(c); ++next) {
      given_back += next->given_back;
    }
    if (next != first) {
      Call stall;
      stall.segment = add_stall(program, streams, given_back, per_gib);
      stall.layer = program.calls[c].layer;
      stall.microbatch = program.calls[c].microbatch;
      calls.push_back(std::move(stall));
    }
    calls.push_back(std::move(program.calls[c]));
  }
  program.calls = std::move(calls);
  return program;
}

}  // namespace foretrain
