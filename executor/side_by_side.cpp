#include "executor/side_by_side.h"

#include <algorithm>

#include "sim/base/threads.h"

namespace foretrain {

Result<Executed> measure_and_execute_rank(const std::vector<MicroOp>& ops, const Workload& workload,
                                          RankId rank, Transport& micro, Transport& transport,
                                          const SideBySideOptions& options, Profile& profile) {
  const auto ranks = static_cast<std::int64_t>(workload.ranks.size());
  const std::int64_t rounds = std::max<std::int64_t>(1, options.rounds);
  CalibrateOptions how = options.calibrate;
  how.seconds /= static_cast<double>(rounds);
  Calibration calibration(ops, ranks, rank, micro, how);
  FT_ASSIGN(const auto execution, Execution::create(workload, rank, transport, options.execute));
  std::int64_t done = 0;
  for (std::int64_t round = 0; round < rounds; ++round) {
    FT_TRY(calibration.round(profile));
    const std::int64_t until = options.execute.steps * (round + 1) / rounds;
    FT_TRY(execution->run(until - done));
    done = until;
  }
  return execution->result();
}

Result<Executed> measure_and_execute_threads(const std::vector<MicroOp>& ops,
                                             const Workload& workload,
                                             const SideBySideOptions& options, Profile& profile) {
  const Workload world = micro_ranks(static_cast<std::int64_t>(workload.ranks.size()));
  const std::unique_ptr<Transport> micro = make_thread_transport(world);
  const std::unique_ptr<Transport> transport = make_thread_transport(workload);
  std::vector<Result<Executed>> results(workload.ranks.size(), Executed{});
  std::vector<Profile> others(results.size());
  FT_TRY(all_at_once(results.size(), [&](std::size_t r) {
    results[r] = or_want([&] {
      return measure_and_execute_rank(ops, workload, RankId(r), *micro, *transport, options,
                                      r == 0 ? profile : others[r]);
    });
    if (results[r].ok()) return;
    micro->abort(results[r].error().message);
    transport->abort(results[r].error().message);
  }));
  for (const Result<Executed>& result : results) {
    if (!result.ok()) return result.error();
  }
  return std::move(results[0]);
}

}  // namespace foretrain
