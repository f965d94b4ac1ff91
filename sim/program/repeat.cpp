#include "sim/program/repeat.h"

#include <utility>

namespace foretrain {
namespace {

FrameId shifted(FrameId id, std::size_t by) { return id.valid() ? FrameId(id.index() + by) : id; }

void repeat(Program& program, std::int32_t times) {
  const std::vector<Frame> frames = program.frames;
  const std::vector<Call> calls = program.calls;
  for (std::int32_t k = 1; k < times; ++k) {
    const std::size_t by = program.frames.size();
    for (Frame frame : frames) {
      frame.alias_of = shifted(frame.alias_of, by);
      program.frames.push_back(frame);
    }
    for (Call call : calls) {
      for (FrameId& frame : call.frames) frame = shifted(frame, by);
      for (StreamWait& wait : call.waits) wait.frame = shifted(wait.frame, by);
      program.calls.push_back(std::move(call));
    }
  }
}

}  // namespace

Workload repeated(const Workload& step, std::int32_t times) {
  Workload out = step;
  for (Program& program : out.programs) repeat(program, times);
  return out;
}

}  // namespace foretrain
