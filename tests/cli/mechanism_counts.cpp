#include "tests/cli/mechanism_counts.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "sim/program/memory.h"

namespace foretrain {
namespace {

Bytes bytes_of_views(const std::vector<View>& views) {
  Bytes out = 0;
  for (const View& view : views) out += view.bytes;
  return out;
}

}  // namespace

std::int64_t Sizes::of_matrices() const {
  const std::vector<std::int64_t> all = matrices();
  return std::accumulate(all.begin(), all.end(), std::int64_t{0});
}

std::string numbered(const char* kind, std::int64_t number) {
  return kind + (" " + std::to_string(number));
}

std::string on_data(const char* kind, std::int64_t number, std::int64_t bytes) {
  return numbered(kind, number) + ": " + std::to_string(bytes) + " B on data";
}

RanOps ran(const Program& program, const std::string& ending) {
  RanOps out;
  for (const Call& call : program.calls) {
    for (const Op& op : program.segments[call.segment.index()].ops) {
      if (!op.name.ends_with(ending)) continue;
      ++out.times;
      out.read += bytes_of_views(op.reads);
      out.written += bytes_of_views(op.writes);
      const auto* delay = std::get_if<HostDelay>(&program.works[op.work.index()]);
      if (delay != nullptr) out.host += delay->time;
    }
  }
  return out;
}

Lines issued(const Program& program, const std::string& segment) {
  Lines out;
  for (const Call& call : program.calls) {
    const Segment& s = program.segments[call.segment.index()];
    if (s.name != segment) continue;
    for (const Op& op : s.ops) out.push_back(op.name + " on " + program.streams[op.stream.index()]);
  }
  return out;
}

Lines awaited(const Program& program, const std::string& segment, const std::string& stream) {
  Lines out;
  std::map<std::pair<std::int32_t, std::int16_t>, std::string> recorded;
  for (const Call& call : program.calls) {
    const Segment& s = program.segments[call.segment.index()];
    if (s.name == segment) {
      std::string& waits = out.emplace_back();
      for (const StreamWait& wait : call.waits) {
        if (program.streams[wait.stream.index()] != stream) continue;
        waits += (waits.empty() ? "" : ", ") + recorded[{wait.frame.value, wait.event}];
      }
    }
    for (const Op& op : s.ops) {
      if (!op.records.valid()) continue;
      const FrameId frame = call.frames[static_cast<std::size_t>(op.records.frame)];
      recorded[{frame.value, op.records.event}] = numbered(s.name.c_str(), call.layer);
    }
  }
  return out;
}

std::int64_t kernels_of(const Program& program, const std::string& segment) {
  const auto found = std::find_if(program.segments.begin(), program.segments.end(),
                                  [&](const Segment& s) { return s.name == segment; });
  std::int64_t out = 0;
  if (found == program.segments.end()) return out;
  for (const Op& op : found->ops) {
    const auto* kernel = std::get_if<Kernel>(&program.works[op.work.index()]);
    if (kernel != nullptr) out += kernel->launches;
  }
  return out;
}

Bytes kept(const Program& program, BufferKind kind) {
  return persistent_bytes(program)[static_cast<std::size_t>(kind)];
}

}  // namespace foretrain
