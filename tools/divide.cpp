#include "tools/divide.h"

#include <algorithm>
#include <map>
#include <utility>

#include "models/lower.h"
#include "sim/engine/prepared.h"

namespace foretrain {
namespace {

bool of_pass(const Op& op) {
  const bool pass =
      op.phase == Phase::kForward || op.phase == Phase::kBackward || op.phase == Phase::kRecompute;
  switch (op.category) {
    case Category::kCompute:
    case Category::kTensor:
    case Category::kExpert:
    case Category::kContext:
      return pass;
    default:
      return false;
  }
}

/// In ps, exact up to 2^53.
struct PassTime {
  double device = 0, host = 0;
  void operator+=(const PassTime& other) {
    device += other.device;
    host += other.host;
  }
};

/// Of the device from its begin to the end of its last op, with all that it waits for from
/// elsewhere there; nothing where no op is of a pass.
PassTime time_alone(const Program& program, const Segment& segment,
                    const std::vector<Cost>& costs) {
  std::map<std::pair<std::int16_t, std::int16_t>, double> recorded;
  std::vector<double> streams(program.streams.size());
  PassTime out;
  for (const Op& op : segment.ops) {
    const Cost& cost = costs[op.work.index()];
    out.host += static_cast<double>(cost.launch.ps);
    if (!of_pass(op)) continue;
    double& stream = streams[op.stream.index()];
    for (const EventRef& wait : op.waits) {
      const auto found = recorded.find({wait.frame, wait.event});
      if (found != recorded.end()) stream = std::max(stream, found->second);
    }
    stream += static_cast<double>(cost.duration.ps);
    if (op.records.valid()) recorded[{op.records.frame, op.records.event}] = stream;
    out.device = std::max(out.device, stream);
  }
  return out.device == 0 ? PassTime{} : out;
}

/// Of the embedding, of each layer, of the head.
using Items = std::vector<PassTime>;

/// Where the time of a call counts; null: nowhere.
PassTime* item_of(const Call& call, const Segment& segment, Items& items) {
  if (call.layer >= 0) {
    return &items[std::min(static_cast<std::size_t>(call.layer) + 1, items.size() - 1)];
  }
  if (segment.name.starts_with("embedding")) return &items.front();
  return segment.name.starts_with("head") ? &items.back() : nullptr;
}

void add_passes(const Program& program, const std::vector<Cost>& costs, Items& items) {
  std::vector<PassTime> alone;
  for (const Segment& segment : program.segments) {
    alone.push_back(time_alone(program, segment, costs));
  }
  for (const Call& call : program.calls) {
    PassTime* item = item_of(call, program.segments[call.segment.index()], items);
    if (item != nullptr) *item += alone[call.segment.index()];
  }
}

/// In integers whose sums hold in 63 bits. A step so long that times must be made smaller for it is
/// refused (tools/predict.cpp).
std::vector<LayerWeights> weights_of(const Items& items) {
  constexpr double kMost = 1e18;
  double sum = 1;
  for (const PassTime& item : items) sum += item.device + item.host;
  const double factor = std::min(1.0, kMost / sum);
  std::vector<LayerWeights> out;
  for (double PassTime::*const kind : {&PassTime::device, &PassTime::host}) {
    std::vector<std::int64_t> whole;
    for (const PassTime& item : items) {
      whole.push_back(static_cast<std::int64_t>(item.*kind * factor));
    }
    out.push_back({whole.front(), whole.back(), {whole.begin() + 1, whole.end() - 1}});
  }
  return out;
}

}  // namespace

Result<std::vector<LayerWeights>> pass_times(const Run& run) {
  Plan even = run.plan;
  even.pipeline_layout = default_layout(run.model.layers, even.chunks(), !even.shares_vocabulary());
  even.offload.device_share = std::max(even.offload.device_share, 0.0);  // not yet known
  const Workload workload = lower(run.model, even);
  const std::unique_ptr<CostModel> model = cost_model_of(run, price_options(run));
  FT_ASSIGN(const Prepared prepared, prepare(workload, *model, false));
  Items items(static_cast<std::size_t>(run.model.layers + 2));
  for (std::int64_t stage = 0; stage < even.pipeline; ++stage) {
    const RankId rank = rank_at(even, {0, 0, stage});
    const auto actor = static_cast<std::size_t>(prepared.quotient.actor_of[rank.index()]);
    const Program& program = workload.programs[prepared.quotient.actors[actor].program.index()];
    const auto prices = static_cast<std::size_t>(prepared.prices_of[actor]);
    add_passes(program, prepared.prices[prices].costs, items);
  }
  // Every stage has as much of them.
  if (even.shares_vocabulary()) items.front() = items.back() = PassTime{};
  return weights_of(items);
}

Status divide_by_time(Run& run) {
  Plan& p = run.plan;
  if (p.partition != Partition::kProfiled || p.chunks() == 1) return ok_status();
  FT_ASSIGN(const std::vector<LayerWeights> times, pass_times(run));
  p.pipeline_layout = balanced_layout(times, p.chunks());
  return ok_status();
}

}  // namespace foretrain
