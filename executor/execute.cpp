#include "executor/execute.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <fstream>

#include "executor/kernels.h"
#include "executor/measured.h"
#include "sim/base/threads.h"
#include "sim/program/memory.h"

namespace foretrain {
namespace {

/// A rank's step as numbers, for `gather`.
std::vector<std::int64_t> pack(const RankRunner& rank) {
  std::vector<std::int64_t> out = {std::bit_cast<std::int64_t>(rank.loss()),
                                   std::bit_cast<std::int64_t>(rank.cpu_seconds()),
                                   std::bit_cast<std::int64_t>(rank.wall_seconds()),
                                   std::bit_cast<std::int64_t>(rank.queued_seconds()),
                                   std::bit_cast<std::int64_t>(rank.step_seconds())};
  bool marked = false;
  for (const auto& stream : rank.records()) {
    for (const OpRecord& r : stream) marked = marked || r.end.ps > 0;
  }
  if (!marked) return out;
  for (std::size_t s = 0; s < rank.records().size(); ++s) {
    for (const OpRecord& r : rank.records()[s]) {
      out.insert(out.end(), {static_cast<std::int64_t>(s), r.call, r.op, r.begin.ps, r.end.ps});
    }
  }
  return out;
}

StepMeasure unpack(const Workload& workload, const std::vector<std::vector<std::int64_t>>& gathered,
                   std::vector<RankRecords>& ranks) {
  StepMeasure out;
  out.marks = false;
  Time end;
  double seconds = 0;
  for (std::size_t r = 0; r < gathered.size(); ++r) {
    const std::vector<std::int64_t>& values = gathered[r];
    const auto loss = std::bit_cast<double>(values[0]);
    const auto cpu = std::bit_cast<double>(values[1]);
    const auto wall = std::bit_cast<double>(values[2]);
    if (!std::isnan(loss)) out.loss = loss;
    if (wall > 0) out.clean = std::min(out.clean, cpu / wall);
    out.queued = std::fmax(out.queued, std::bit_cast<double>(values[3]));
    seconds = std::max(seconds, std::bit_cast<double>(values[4]));
    const Program& program = workload.programs[workload.ranks[r].program.index()];
    RankRecords records(program.streams.size());
    for (std::size_t i = 5; i + 4 < values.size(); i += 5) {
      const OpRecord record{static_cast<std::int32_t>(values[i + 1]),
                            static_cast<std::int32_t>(values[i + 2]),
                            Time{values[i + 3]},
                            Time{values[i + 4]},
                            Time{},
                            Time{}};
      records[static_cast<std::size_t>(values[i])].push_back(record);
      end = max(end, record.end);
      out.marks = true;
    }
    ranks.push_back(std::move(records));
  }
  out.seconds = seconds > 0 ? seconds : end.seconds();
  return out;
}

Result<std::unique_ptr<RankRunner>> make_host_rank(const Workload& workload, RankId rank,
                                                   Transport& transport,
                                                   const HostOptions& options) {
  use_one_blas_thread();
  return std::unique_ptr<RankRunner>(
      std::make_unique<HostRank<float>>(workload, rank, transport, options));
}

}  // namespace

struct Execution::Step {
  StepMeasure measure;
  std::vector<RankRecords> ranks;
};

Execution::Execution(const Workload& workload, RankId rank, Transport& transport,
                     const ExecuteOptions& options)
    : x_workload(workload), x_rank(rank), x_transport(transport), x_options(options) {}

Execution::~Execution() = default;

Result<std::unique_ptr<Execution>> Execution::create(const Workload& workload, RankId rank,
                                                     Transport& transport,
                                                     const ExecuteOptions& options) {
  auto made = options.make_rank ? options.make_rank(workload, rank, transport, options.host)
                                : make_host_rank(workload, rank, transport, options.host);
  Status ready = made.ok() ? made.value()->set_up() : Status(made.error());
  std::optional<StateMeasure> load;
  const std::int64_t first = options.host.training.first_step;
  if (ready.ok() && options.states && first > 0) {
    const auto read = load_state(*options.states, *made.value(), rank, transport, first);
    if (read.ok()) {
      load = read.value();
    } else {
      ready = read.error();
    }
  }
  if (!ready.ok()) {
    transport.abort("rank " + std::to_string(rank.value) + ": " + ready.error().message);
    return ready.error();
  }
  std::unique_ptr<Execution> out(new Execution(workload, rank, transport, options));
  out->x_runner = std::move(made).value();
  out->x_load = load;
  return out;
}  // NOLINT(clang-analyzer-cplusplus.NewDeleteLeaks): `made` gave its value away, or still owns it

Status Execution::run(std::int64_t steps) {
  for (std::int64_t s = 0; s < steps; ++s) {
    const bool last = s + 1 == steps;
    const bool marks = x_options.host.records || (last && (steps > 1 || !x_shown));
    x_runner->mark_ops(marks);
    FT_TRY(x_runner->step());
    x_shown = x_shown || (marks && x_done > 0);
    ++x_done;
    FT_TRY(save_after_step());
    FT_ASSIGN(const auto gathered, x_transport.gather(x_rank, pack(*x_runner)));
    if (x_rank.value != 0) continue;
    Step step;
    step.measure = unpack(x_workload, gathered, step.ranks);
    x_steps.push_back(std::move(step));
  }
  return ok_status();
}

Status Execution::save_after_step() {
  const std::int64_t done = x_options.host.training.first_step + x_done;
  if (!x_options.states || done % x_options.states->every != 0) return ok_status();
  Result<StateMeasure> saved =
      save_state(*x_options.states, x_workload, *x_runner, x_rank, x_transport, done);
  if (!saved.ok()) {
    x_transport.abort("rank " + std::to_string(x_rank.value) + ": " + saved.error().message);
    return saved.error();
  }
  x_saves.push_back(saved.value());
  return ok_status();
}

std::vector<std::size_t> counted_steps(const std::vector<StepMeasure>& steps) {
  std::vector<std::size_t> all;
  std::vector<std::size_t> without_marks;
  for (std::size_t s = steps.size() > 1 ? 1 : 0; s < steps.size(); ++s) {
    all.push_back(s);
    if (!steps[s].marks) without_marks.push_back(s);
  }
  return without_marks.empty() ? all : without_marks;
}

Executed Execution::result() const {
  Executed out;
  if (x_steps.empty()) return out;
  out.saves = x_saves;
  out.load = x_load;
  for (const Step& step : x_steps) out.steps.push_back(step.measure);
  const auto sort = [&out](std::vector<std::size_t>& steps) {
    std::sort(steps.begin(), steps.end(), [&](std::size_t a, std::size_t b) {
      return out.steps[a].seconds < out.steps[b].seconds;
    });
  };
  std::vector<std::size_t> counted = counted_steps(out.steps);
  sort(counted);
  const auto at = [&](double share) {
    const double place = share * static_cast<double>(counted.size() - 1);
    return counted[static_cast<std::size_t>(std::lround(place))];
  };
  out.median_seconds = out.steps[at(0.5)].seconds;
  out.spread = (out.steps[at(0.9)].seconds - out.steps[at(0.1)].seconds) /
               std::max(out.median_seconds, 1e-12);
  // What warms up is shown where nothing else can be.
  std::vector<std::size_t> shown;
  for (std::size_t s = 1; s < out.steps.size(); ++s) {
    if (out.steps[s].marks) shown.push_back(s);
  }
  if (shown.empty()) shown.push_back(0);
  sort(shown);
  out.median =
      shown[static_cast<std::size_t>(std::lround(0.5 * static_cast<double>(shown.size() - 1)))];
  out.timeline = measured_timeline(x_workload, x_steps[out.median].ranks, x_options.name_of);
  return out;
}

Result<Executed> execute_rank(const Workload& workload, RankId rank, Transport& transport,
                              const ExecuteOptions& options) {
  FT_ASSIGN(const auto execution, Execution::create(workload, rank, transport, options));
  FT_TRY(execution->run(options.steps));
  return execution->result();
}

Result<Executed> execute_threads(const Workload& workload, const ExecuteOptions& options) {
  const std::unique_ptr<Transport> transport = make_thread_transport(workload, options.silence);
  std::vector<Result<Executed>> results(workload.ranks.size(), Executed{});
  FT_TRY(all_at_once(results.size(), [&](std::size_t r) {
    results[r] = or_want([&] { return execute_rank(workload, RankId(r), *transport, options); });
    if (!results[r].ok()) transport->abort(results[r].error().message);
  }));
  for (const Result<Executed>& result : results) {
    if (!result.ok()) return result.error();
  }
  return std::move(results[0]);
}

Status check_memory(const Workload& workload, std::int64_t ranks_here) {
  std::ifstream file("/proc/meminfo");
  std::string key;
  std::string rest;
  double available = 0;
  while (file >> key) {
    if (key == "MemAvailable:") file >> available;
    std::getline(file, rest);
  }
  if (available <= 0) return ok_status();
  double largest = 0;
  for (const Program& program : workload.programs) {
    largest = std::max(largest, static_cast<double>(memory_peak(program).bytes));
  }
  const double needed = largest * static_cast<double>(ranks_here) / kGiB;
  const double have = available * 1024 / kGiB;
  if (needed <= have) return ok_status();
  const auto text = [](double gib) { return std::to_string(std::lround(gib * 10) / 10) + " GiB"; };
  return input_error("out of memory: " + std::to_string(ranks_here) + " ranks need " +
                     text(needed) + ", this machine has " + text(have) +
                     " free; use a smaller model or a smaller batch");
}

}  // namespace foretrain
