#include "tools/calibrate/run_shapes.h"

#include <algorithm>
#include <map>

#include "hardware/hardware_cost_model.h"
#include "hardware/local_cost.h"
#include "models/lower.h"

namespace foretrain {
namespace {

/// Operations by key, and what they cost.
class ShapeList {
 public:
  /// `first`: before all that are not.
  void add(MicroOp op, double seconds, bool first) {
    const auto [found, fresh] = x_places.try_emplace(op.key, x_all.size());
    if (fresh) x_all.push_back({std::move(op), 0, first});
    x_all[found->second].seconds += seconds;
  }
  /// Another run's, each by its share of that run: a short step counts as much as a long one.
  void add_shares(ShapeList of) {
    double all = 0;
    for (const Valued& one : of.x_all) all += one.seconds;
    for (Valued& one : of.x_all) {
      add(std::move(one.op), all > 0 ? one.seconds / all : 0, one.first);
    }
  }
  std::vector<MicroOp> sorted() && {
    std::stable_sort(x_all.begin(), x_all.end(), [](const Valued& a, const Valued& b) {
      return a.first != b.first ? a.first : a.seconds > b.seconds;
    });
    std::vector<MicroOp> out;
    for (Valued& one : x_all) out.push_back(std::move(one.op));
    return out;
  }

 private:
  struct Valued {
    MicroOp op;
    double seconds = 0;
    bool first = false;
  };
  std::vector<Valued> x_all;
  std::map<SampleKey, std::size_t> x_places;
};

/// Modelled seconds; 0 where the model refuses, so that the op comes last.
double seconds_of(CostModel& model, const Work& work, std::int64_t ranks) {
  const Result<double> seconds = modelled_seconds(model, work, ranks);
  return seconds.ok() ? seconds.value() : 0;
}

/// Calls visit(program, op, work, times in a step of a mean rank) for every op of a segment.
template <typename Visit>
void each_op(const Workload& workload, const Visit& visit) {
  std::vector<double> ranks_of(workload.programs.size(), 0);
  for (const RankBinding& rank : workload.ranks) ++ranks_of[rank.program.index()];
  for (std::size_t p = 0; p < workload.programs.size(); ++p) {
    const Program& program = workload.programs[p];
    std::vector<double> calls(program.segments.size(), 0);
    for (const Call& call : program.calls) ++calls[call.segment.index()];
    const double share = ranks_of[p] / static_cast<double>(workload.ranks.size());
    for (std::size_t s = 0; s < program.segments.size(); ++s) {
      for (const Op& op : program.segments[s].ops) {
        visit(op, program.works[op.work.index()], calls[s] * share);
      }
    }
  }
}

bool multiplied(const Gemm& work, const CalibrationScope& scope) {
  if (work.cutlass || !work.groups.empty()) return false;
  switch (work.in) {
    case DType::kFp32:
    case DType::kTf32:
    case DType::kBf16:
    case DType::kFp16:
      return true;
    case DType::kFp8:
      return scope.fp8;
    default:
      return false;
  }
}

/// The vendor's own part of a work: the products that it is, and cuDNN's attention of its shape.
void add_vendor(const Work& work, double times, CostModel& model, const CalibrationScope& scope,
                ShapeList& out) {
  if (const auto* gemm = std::get_if<Gemm>(&work)) {
    for (Gemm one : gemms_of(alone(*gemm))) {
      if (!multiplied(one, scope)) continue;
      const double products = one.apart ? static_cast<double>(one.batch) : 1;
      if (one.apart) one.batch = 1;
      one.apart = false;
      out.add(micro_gemm(one, 1), times * products * seconds_of(model, Work{one}, 1), true);
    }
  } else if (const auto* attention = std::get_if<Attention>(&work)) {
    const Attention fused = cudnn_twin(*attention);
    if (!scope.cudnn || !cudnn_attends(fused)) return;
    out.add(micro_attention(fused), times * seconds_of(model, work, 1), true);
  }
}

/// Whether one rank can do it without the others.
bool is_alone(const MicroOp& op) {
  const auto whole = [](const std::vector<View>& views) {
    return std::all_of(views.begin(), views.end(),
                       [](const View& view) { return view.shards == 1 && view.hops == 0; });
  };
  if (!whole(op.op.reads) || !whole(op.op.writes)) return false;
  if (std::holds_alternative<Copy>(op.work)) return true;
  const auto* kernel = std::get_if<Kernel>(&op.work);
  return kernel != nullptr && !kernel->cols_split_over.valid() && kernel->rows_of.experts == 0;
}

Status add_on_device(const Run& run, const CalibrationScope& scope, ShapeList& out) {
  const auto model = make_cost_model(run.cluster, price_options(run));
  FT_TRY(lowerable(run.model, run.plan));
  const Workload workload = lower(run.model, run.plan);
  std::map<SampleKey, double> times;
  each_op(workload, [&](const Op&, const Work& work, double count) {
    add_vendor(work, count, *model, scope, out);
    times[sample_key(work, 1)] += count;
  });
  for (MicroOp op : distinct_ops(workload)) {
    op.key.ranks = 1;
    if (!is_alone(op)) continue;
    const double seconds = times[op.key] * seconds_of(*model, op.work, 1);
    out.add(std::move(op), seconds, false);
  }
  return ok_status();
}

Status add_on_host(const Run& run, ShapeList& out) {
  const auto model = make_cost_model(run.cluster, price_options(run));
  FT_TRY(lowerable(run.model, run.plan));
  const Workload workload = lower(run.model, run.plan);
  std::map<std::pair<std::string, std::string>, double> times;
  each_op(workload, [&](const Op&, const Work& work, double count) {
    const SampleKey key = sample_key(work, 1);
    times[{key.op, key.shape}] += count;
  });
  std::vector<MicroOp> ops = distinct_ops(workload);
  FT_TRY(check_measurable(ops, static_cast<std::int64_t>(workload.ranks.size())));
  for (MicroOp& op : ops) {
    const double seconds =
        times[{op.key.op, op.key.shape}] * seconds_of(*model, op.work, op.key.ranks);
    out.add(std::move(op), seconds, false);
  }
  return ok_status();
}

/// Shapes alone matter, whatever they cost.
Result<Run> load_unpriced(const std::string& name) {
  return load_run(name, {}, [](Run&) { return ok_status(); });
}

}  // namespace

Result<std::int64_t> ranks_of_run(const std::string& name) {
  FT_ASSIGN(const Run run, load_unpriced(name));
  return run.cluster.accelerators;
}

Result<std::vector<MicroOp>> shapes_of_runs(const std::vector<std::string>& runs,
                                            const CalibrationScope& scope) {
  ShapeList out;
  for (const std::string& name : runs) {
    FT_ASSIGN(const Run run, load_unpriced(name));
    if (run.model.is_network() || run.model.is_encoder_decoder()) {
      return unsupported(run.source + ": /model: " + run.model.name +
                         " is only simulated; --shapes-of takes models of one stack of layers");
    }
    ShapeList of_run;
    if (scope.on_device) {
      FT_TRY(add_on_device(run, scope, of_run));
    } else if (run.cluster.accelerators == scope.ranks) {
      FT_TRY(add_on_host(run, of_run));
    }
    out.add_shares(std::move(of_run));
  }
  return std::move(out).sorted();
}

}  // namespace foretrain
