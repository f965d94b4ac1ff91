#include "tools/calibrate/validation.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <set>

#include "executor/side_by_side.h"
#include "hardware/hardware_cost_model.h"
#include "models/lower.h"
#include "sim/base/printable.h"
#include "tools/calibrate/calibration.h"
#include "tools/report/report.h"
#include "tools/version.h"

namespace foretrain {
namespace {

/// Of what measures and executes; a device's profile is of the cluster's device.
Json identity_of(const HostRun& host) {
  if (!host.on_cuda()) return machine_identity();
  return device_identity(host.cuda, host.run.cluster.device.name);
}

/// The same training on one rank.
Plan on_one_rank(const Plan& plan, const Model& model) {
  Plan one = plan;
  one.tensor = one.pipeline = one.virtual_pipeline = one.data = one.accelerators = 1;
  one.context = one.context_inner = 1;
  one.sequence = false;
  one.tensor_mode = TensorMode::k1D;
  one.tensor_depth = 1;
  one.pipeline_layout = default_layout(model.layers, 1);
  one.stages.clear();
  one.tensors = StageTensors{};
  one.sharding = Sharding::kNone;
  one.shard_group = 0;
  one.recompute = Recompute{};
  one.overlap = Overlap();
  one.experts.expert = one.experts.tensor = 1;
  one.offload = Offload();
  one.schedule = plan.forwards > 1 ? plan.schedule : Schedule::kGpipe;
  return one;
}

Result<std::vector<double>> train_on_one(const HostRun& host, std::size_t steps) {
  const Workload workload = lower(host.run.model, on_one_rank(host.run.plan, host.run.model));
  if (!host.on_cuda()) FT_TRY(check_memory(workload, 1));
  ExecuteOptions options;
  options.steps = static_cast<std::int64_t>(steps);
  options.make_rank = host.cuda.make_rank;
  options.name_of = [](RankId) { return std::string("one rank"); };
  FT_ASSIGN(const Executed executed, execute_threads(workload, options));
  std::vector<double> out;
  for (const StepMeasure& step : executed.steps) out.push_back(step.loss);
  return out;
}

/// A step keeps a device busy: products and attention have the clock that its power then allows,
/// and in a burst they run up to a seventh faster (H200).
std::vector<MicroOp> ops_of(const HostRun& host) {
  std::vector<MicroOp> out = distinct_ops(host.workload);
  for (MicroOp& op : out) {
    if (host.on_cuda() && multiplies(op.work)) op.key.state = kSustained;
  }
  return out;
}

/// The device is hot from the op before, and from steps.
void settle_shortly(double seconds_per_op, SideBySideOptions& how) {
  CalibrateOptions& c = how.calibrate;
  c.settle = c.heat = std::min(0.2, 4 * seconds_per_op);
  c.window = c.settle / 2;
  c.long_step = c.settle / 4;
  c.most_settle = 3 * c.settle;
  how.rounds = std::min<std::int64_t>(how.rounds, 2);
}

/// Measures what the profile lacks and executes, in turns.
Result<Executed> measure_and_execute(const HostRun& host, Job& job, const ValidateOptions& options,
                                     Profile& profile, Validation& out) {
  const std::vector<MicroOp> ops = ops_of(host);
  SideBySideOptions how;
  how.execute = execute_options(host, options.steps);
  how.calibrate = host.on_cuda() ? options_on_device(host.cuda) : options_on_host();
  how.calibrate.seconds = options.seconds_per_op;
  if (host.on_cuda()) settle_shortly(options.seconds_per_op, how);
  std::int64_t shown = 0;
  ProgressLine line(options.quiet || !job.speaks());
  how.calibrate.progress = [&](std::size_t done, std::size_t all, const std::string& what) {
    line.show(done, all, what);
    ++shown;
  };
  const Workload world = micro_ranks(job.ranks);
  Result<Executed> executed = Executed{};
  if (job.joined()) {
    FT_ASSIGN(const MpiWorld micro, join_job(world));
    executed = measure_and_execute_rank(ops, host.workload, micro.rank, *micro.transport,
                                        *job.world.transport, how, profile);
  } else {
    executed = measure_and_execute_threads(ops, host.workload, how, profile);
  }
  if (!executed.ok()) return executed;
  out.measured_now = shown / how.rounds;
  for (const MicroOp& op : ops) {
    const Sample* sample = profile.priced_by(op.key);
    if (sample != nullptr && sample->clean) ++out.measured_clean;
  }
  return executed;
}

void add_times(const Timeline& timeline, double FamilyTimes::*to, Validation& out) {
  for (const Span& span : timeline.spans) {
    const SpanInfo& info = timeline.infos[static_cast<std::size_t>(span.info)];
    const double seconds = (span.end - span.start).seconds();
    out.families[part_of(info)].*to += seconds;
    out.operations[info.work].*to += seconds;
  }
}

std::string share(double predicted, double executed) {
  if (executed <= 0) return "";
  return (predicted >= executed ? "+" : "") + fixed(100 * (predicted / executed - 1), 1) + " %";
}

std::string row(const std::string& name, const std::string& a, const std::string& b,
                const std::string& c) {
  char line[160];
  std::snprintf(line, sizeof line, "  %-32s %11s %11s %9s\n", name.c_str(), a.c_str(), b.c_str(),
                c.c_str());
  return line;
}

}  // namespace

double ProfileTransfer::error_at(double share) const {
  if (operations.empty()) return 0;
  const auto last = static_cast<double>(operations.size() - 1);
  return std::abs(operations[static_cast<std::size_t>(std::lround(share * last))].error());
}

double Validation::loss_difference() const {
  double worst = 0;
  for (std::size_t i = 0; i < std::min(losses.size(), losses_of_one_rank.size()); ++i) {
    worst = std::max(worst, std::abs(losses[i] / losses_of_one_rank[i] - 1));
  }
  return worst;
}

namespace {

Result<Prediction> predict_step(const Run& run) {
  PredictOptions how;
  how.full = how.timeline = true;
  how.verify = how.sensitivity = false;
  return predict(run, how);
}

/// The profile without what it knows of these very shapes.
Profile without_shapes(const Profile& profile, const std::vector<MicroOp>& ops,
                       std::int64_t& held_out) {
  std::set<std::pair<std::string, std::string>> shapes;
  for (const MicroOp& op : ops) shapes.insert({op.key.op, op.key.shape});
  Profile out = profile;
  held_out = static_cast<std::int64_t>(std::erase_if(out.samples, [&](const auto& entry) {
    return shapes.contains({entry.first.op, entry.first.shape});
  }));
  return out;
}

/// `measured` has the run's own shapes.
Result<ProfileTransfer> transfer_of(const HostRun& host, const Profile& measured,
                                    const ValidateOptions& options) {
  ProfileTransfer out;
  out.profile = options.prices_source;
  const std::vector<MicroOp> ops = distinct_ops(host.workload);
  Run run = host.run;
  run.prices_for = PricesFor::kExecution;
  run.profile =
      std::make_shared<const Profile>(without_shapes(*options.prices_from, ops, out.held_out));
  FT_ASSIGN(const Prediction prediction, predict_step(run));
  out.predicted_s = prediction.iteration_time_s;
  const auto model = make_cost_model(run.cluster, price_options(run));
  const ProfileTable table(*run.profile, run.prices_for, model.get());
  for (const MicroOp& op : ops) {
    const Sample* const own = measured.priced_by(op.key);
    const Result<MeasuredPrice> price = table.price(op.work, op.key.ranks);
    if (own == nullptr || own->price_us() <= 0 || !price.ok()) continue;
    out.operations.push_back({op.key.shape, price.value().seconds * 1e6, own->price_us()});
  }
  std::stable_sort(out.operations.begin(), out.operations.end(),
                   [](const ProfileTransfer::Operation& a, const ProfileTransfer::Operation& b) {
                     return std::abs(a.error()) < std::abs(b.error());
                   });
  return out;
}

}  // namespace

Result<Validation> validate_here(HostRun& host, Job& job, const ValidateOptions& options) {
  FT_TRY(check_measurable(distinct_ops(host.workload),
                          static_cast<std::int64_t>(host.workload.ranks.size())));
  Validation out;
  Profile profile;
  if (host.run.profile != nullptr && options.prices_from == nullptr) profile = *host.run.profile;
  const Json here = identity_of(host);
  if (!same_machine(profile.machine, here)) {
    if (!profile.samples.empty() && job.speaks() && !options.quiet) {
      warn(host.run.profile_source +
           " is of another machine or library; everything is measured anew");
    }
    profile = Profile{};
    profile.machine = here;
  }
  FT_ASSIGN(const Executed executed, measure_and_execute(host, job, options, profile, out));
  if (!job.speaks()) return out;
  host.run.profile = std::make_shared<const Profile>(std::move(profile));
  host.run.prices_for = PricesFor::kExecution;
  FT_ASSIGN(const Prediction prediction, predict_step(host.run));
  if (options.prices_from != nullptr) {
    FT_ASSIGN(out.transfer, transfer_of(host, *host.run.profile, options));
  }
  out.predicted_s = prediction.iteration_time_s;
  out.provenance = prediction.provenance;
  out.executed = count_steps(executed);
  add_times(whole_timeline(*prediction.timeline), &FamilyTimes::predicted_s, out);
  add_times(executed.timeline, &FamilyTimes::executed_s, out);
  for (const StepMeasure& step : executed.steps) out.losses.push_back(step.loss);
  FT_ASSIGN(out.losses_of_one_rank,
            train_on_one(host, std::min<std::size_t>(3, out.losses.size())));
  return out;
}

namespace {

std::string transfer_text(const ProfileTransfer& transfer, double executed_s) {
  std::string out = row("step from other shapes", seconds_text(transfer.predicted_s),
                        seconds_text(executed_s), share(transfer.predicted_s, executed_s));
  out += "Composition: the step, by prices of its own shapes. Transfer: from " + transfer.profile +
         ", " + std::to_string(transfer.held_out) + " samples of these shapes left out; of " +
         std::to_string(transfer.operations.size()) + " operations the price is off by " +
         fixed(100 * transfer.error_at(0.5), 1) + " % in the median, " +
         fixed(100 * transfer.error_at(0.9), 1) + " % at the 90th percentile.\n";
  if (transfer.operations.empty()) return out;
  const ProfileTransfer::Operation& worst = transfer.operations.back();
  return out + "Worst: " + worst.work + ", " + fixed(worst.predicted_us, 1) + " us, measured " +
         fixed(worst.measured_us, 1) + " us.\n";
}

Json transfer_json(const ProfileTransfer& transfer, double executed_s) {
  Json out{Json::Object{}};
  out.set("profile", transfer.profile);
  out.set("held_out", transfer.held_out);
  Json predicted{Json::Object{}};
  predicted.set("step_time_s", transfer.predicted_s);
  out.set("predicted", std::move(predicted));
  Json error{Json::Object{}};
  error.set("step_time_s", transfer.predicted_s / executed_s - 1);
  error.set("operations_median", transfer.error_at(0.5));
  error.set("operations_p90", transfer.error_at(0.9));
  Json::Array operations;
  for (const ProfileTransfer::Operation& one : transfer.operations) {
    Json item{Json::Object{}};
    item.set("work", one.work);
    item.set("predicted_us", one.predicted_us);
    item.set("measured_us", one.measured_us);
    operations.push_back(std::move(item));
  }
  error.set("by_operation", std::move(operations));
  out.set("error", std::move(error));
  return out;
}

}  // namespace

std::string validation_table(const HostRun& host, const Job& job, const Validation& result) {
  std::string out = host.run.name + ": " + std::to_string(job.ranks) +
                    (job.ranks == 1 ? " rank" : " ranks") + "\n" +
                    row("", "predicted", "executed", "error");
  for (const auto& [part, times] : result.families) {
    if (times.predicted_s <= 0 && times.executed_s <= 0) continue;
    out += row(std::string(name_of(part)), seconds_text(times.predicted_s),
               seconds_text(times.executed_s), share(times.predicted_s, times.executed_s));
  }
  const CountedSteps& e = result.executed;
  out += row("step", seconds_text(result.predicted_s), seconds_text(e.median_s),
             share(result.predicted_s, e.median_s));
  if (result.transfer) out += transfer_text(*result.transfer, e.median_s);
  out += "Families are sums over all ranks; the step is the median of " +
         std::to_string(e.counted) + (e.busy ? "" : " clean") + " steps, spread " +
         fixed(100 * e.spread, 1) + " %.\n" + std::to_string(result.measured_now) +
         " operations were measured now, " + std::to_string(result.measured_clean) +
         " prices are of undisturbed repeats.\nLoss against one rank: " +
         (result.loss_difference() < 1e-3 ? "equal" : "DIFFERENT") +
         " (largest relative difference ";
  char text[32];
  std::snprintf(text, sizeof text, "%.1e).\n", result.loss_difference());
  out += text;
  if (e.busy) {
    out +=
        "Machine busy: CPU time over wall time was below 0.98 in every step; judge the error "
        "on a quiet machine.\n";
    if (job.ranks == 1 && !host.on_cuda()) {
      out += "By its CPU time the step takes " + seconds_text(e.cpu_s) + " (" +
             share(result.predicted_s, e.cpu_s) + "): what it may take undisturbed.\n";
    }
  }
  return out;
}

Json validation_json(const HostRun& host, const Validation& result) {
  const auto object = [] { return Json{Json::Object{}}; };
  Json families = object();
  for (const auto& [part, times] : result.families) {
    if (times.executed_s <= 0) continue;
    families.set(name_of(part), times.predicted_s / times.executed_s - 1);
  }
  Json predicted = object();
  predicted.set("step_time_s", result.predicted_s);
  Json executed = object();
  executed.set("step_time_s", result.executed.median_s);
  executed.set("spread", result.executed.spread);
  executed.set("clean_repeats", result.executed.clean);
  executed.set("machine_busy", result.executed.busy);
  executed.set("cpu_time_s", result.executed.cpu_s);
  Json error = object();
  error.set("step_time_s", result.step_error());
  error.set("by_family", std::move(families));
  Json::Array operations;
  for (const auto& [work, times] : result.operations) {
    Json one = object();
    one.set("work", work);
    one.set("predicted_s", times.predicted_s);
    one.set("executed_s", times.executed_s);
    operations.push_back(std::move(one));
  }
  error.set("by_operation", std::move(operations));
  Json numerics = object();
  numerics.set("matches_one_rank", result.loss_difference() < 1e-3);
  Json::Array losses;
  for (const double loss : result.losses) losses.emplace_back(loss);
  numerics.set("loss", std::move(losses));
  numerics.set("max_relative_difference", result.loss_difference());
  Json out = object();
  out.set("schema", "foretrain/validation/1");
  out.set("run", host.run.name);
  out.set("predicted", std::move(predicted));
  out.set("executed", std::move(executed));
  out.set("error", std::move(error));
  if (result.transfer) {
    out.set("transfer", transfer_json(*result.transfer, result.executed.median_s));
  }
  out.set("numerics", std::move(numerics));
  out.set("machine", identity_of(host));
  out.set("revision", kRevision);
  return out;
}

}  // namespace foretrain
