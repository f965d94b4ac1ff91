#include "sim/engine/account.h"

#include <algorithm>
#include <optional>

namespace foretrain {
namespace {

/// What the ops of a Program count for, each worked out when it is first met.
class OpParts {
 public:
  struct OpPart {
    Part part = Part::kHost;
    Time data;
    WorkId work;
  };

  explicit OpParts(const Program& program) : x_program(program), x_parts(program.segments.size()) {}

  const OpPart& of(SegmentId segment, std::int32_t op) {
    auto& parts = x_parts[segment.index()];
    const std::vector<Op>& ops = x_program.segments[segment.index()].ops;
    if (parts.empty()) parts.resize(ops.size());
    std::optional<OpPart>& known = parts[static_cast<std::size_t>(op)];
    if (known) return *known;
    const Op& one = ops[static_cast<std::size_t>(op)];
    SpanInfo info;
    info.work = text_of(x_program.works[one.work.index()]);
    info.category = one.category;
    info.phase = one.phase;
    return known.emplace(OpPart{part_of(info), data_delay(info), one.work});
  }

 private:
  const Program& x_program;
  std::vector<std::vector<std::optional<OpPart>>> x_parts;  ///< by segment and op
};

}  // namespace

Account Accountant::take(const Workload& workload, const Prepared& prepared, Time begin,
                         Time length) const {
  const auto actor = static_cast<std::size_t>(x_actor);
  const Program& program = workload.programs[prepared.quotient.actors[actor].program.index()];
  const PreparedPrices& prices =
      prepared.prices[static_cast<std::size_t>(prepared.prices_of[actor])];
  OpParts parts(program);
  const Time end = begin + length;
  const auto in_window = [&](Time at) { return std::clamp(at, begin, end) - begin; };
  Account out;
  std::vector<std::vector<PartSpan>> streams;
  for (const OpLog& of_stream : x_streams) {
    std::vector<PartSpan>& spans = streams.emplace_back();
    spans.reserve(of_stream.count());
    OpLog::Reader ops(of_stream);
    for (; ops.get() != nullptr; ops.next()) {
      const OpLog::Entry& times = *ops.get();
      if (times.end <= begin) continue;
      const Call& call = program.calls[static_cast<std::size_t>(times.call)];
      const OpParts::OpPart& op = parts.of(call.segment, times.op);
      // The host may prepare data within the window for an op that begins behind the window.
      const Time data = max(Time(), op.data - max(Time(), times.begin - end));
      const PartSpan& span = spans.emplace_back(PartSpan{
          op.part, data, in_window(times.begin), in_window(times.start), in_window(times.end)});
      const Cost& cost = prices.costs[op.work.index()];
      const double seconds = (span.end - span.start).seconds();
      out.busy_s[static_cast<std::size_t>(op.part)] += seconds;
      out.error_s[static_cast<std::size_t>(op.part)] +=
          seconds * static_cast<double>(cost.deviation);
      out.provenance_s[static_cast<std::size_t>(cost.provenance)] += seconds;
      out.all_s += seconds;
    }
  }
  out.breakdown = break_down(streams, length);
  return out;
}

}  // namespace foretrain
