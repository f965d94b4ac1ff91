#include "tools/predict/ready_lists.h"

#include <map>
#include <utility>

#include "models/lower.h"
#include "models/slots.h"
#include "sim/engine/prepared.h"
#include "sim/engine/replay.h"

namespace foretrain {
namespace {

/// When each op of the first actor ended.
class EndSink : public SpanSink {
 public:
  void span(const OpTimes& times) override {
    if (times.actor == 0) x_ends[{times.call, times.op}] = times.end;
  }
  Time end_of(std::int32_t call, std::int32_t op) const { return x_ends.at({call, op}); }

 private:
  std::map<std::pair<std::int32_t, std::int32_t>, Time> x_ends;
};

/// When what each reduction waits for is recorded, in order.
std::vector<Time> ready_times(const Program& program, const EndSink& ends) {
  std::map<std::pair<std::int32_t, std::int16_t>, Time> recorded;
  std::vector<Time> out;
  for (std::size_t c = 0; c < program.calls.size(); ++c) {
    const Call& call = program.calls[c];
    const Segment& segment = program.segments[call.segment.index()];
    if (segment.name == kReduceGradients && !call.waits.empty()) {
      const StreamWait& wait = call.waits.front();
      const auto found = recorded.find({wait.frame.value, wait.event});
      if (found != recorded.end()) out.push_back(found->second);
    }
    for (std::size_t o = 0; o < segment.ops.size(); ++o) {
      const EventRef event = segment.ops[o].records;
      if (!event.valid()) continue;
      const FrameId frame = call.frames[static_cast<std::size_t>(event.frame)];
      recorded[{frame.value, event.event}] =
          ends.end_of(static_cast<std::int32_t>(c), static_cast<std::int32_t>(o));
    }
  }
  return out;
}

}  // namespace

std::vector<ReadyList> lists_at_cycles(const std::vector<Time>& ready, Time cycle) {
  std::vector<ReadyList> out;
  if (ready.empty() || cycle.ps <= 0) return out;
  Time turn = ready.front() + Time{cycle.ps / 2};
  Time last_turn{-1};
  for (const Time at : ready) {
    if (turn < at) turn = turn + Time{(at.ps - turn.ps + cycle.ps - 1) / cycle.ps * cycle.ps};
    if (turn == last_turn) {
      ++out.back().parts;
      out.back().wait = turn - at;
    } else {
      out.push_back({1, turn - at});
    }
    last_turn = turn;
  }
  return out;
}

Status list_ready(Run& run) {
  const Plan& p = run.plan;
  const GradientBuckets& b = p.buckets;
  const bool one_chunk = p.chunks() == 1 && p.directions() == 1 && !run.model.has_experts();
  if (b.cycle.ps == 0 || b.cut != Bucketing::kReady || !b.last_pass_only) return ok_status();
  if (!one_chunk || !p.overlap.gradient_reduce || p.data == 1) return ok_status();
  Plan alone = p;
  alone.buckets.bytes = alone.buckets.first_bytes = Bytes{1} << 60;  // one bucket for each part
  FT_TRY(lowerable(run.model, alone));
  const Workload workload = lower(run.model, alone);
  const std::unique_ptr<CostModel> model = cost_model_of(run, price_options(run));
  FT_ASSIGN(const Prepared prepared, prepare(workload, *model, false));
  EndSink ends;
  FT_TRY(replay(workload, prepared, &ends));
  run.plan.buckets.lists = lists_at_cycles(ready_times(workload.programs[0], ends), b.cycle);
  return ok_status();
}

}  // namespace foretrain
