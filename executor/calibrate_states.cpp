// Operations timed while the device is busy for long, and beside held SMs.
#include <algorithm>
#include <cmath>

#include "executor/calibrate.h"

namespace foretrain {
namespace {

double passed_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Whether a value is that of before, but for so much of it; both 0: not known, so it does not
/// tell.
bool holds_still(double value, double before, double drift) {
  return std::abs(value - before) <= drift * before;
}

}  // namespace

/// What one op takes: what it took in a burst, else what it takes in a second step. Of all ranks.
Result<double> Calibration::guess_seconds(std::size_t i, const Sample* burst) {
  const MicroOp& micro = op_of(i);
  std::vector<std::int64_t> nanoseconds = {0};
  if (burst != nullptr) nanoseconds[0] = std::llround(burst->median_us * 1e3);
  FT_TRY(x_transport.broadcast(x_self, nanoseconds));
  if (nanoseconds[0] == 0) {
    const Turns turns{2, 2, turns_of(micro).members};
    const Workload workload = micro_workload(micro, x_ranks, turns.sets, turns.repeats);
    FT_ASSIGN(const auto rank, make_op_rank(workload, micro, turns));
    OpTimings timings;
    FT_TRY(step(*rank, i, turns.members, nullptr));
    FT_TRY(step(*rank, i, turns.members, &timings));
    Sample second;
    summarize(timings, second);
    nanoseconds[0] = std::max<std::int64_t>(1, std::llround(second.median_us * 1e3));
    FT_TRY(x_transport.broadcast(x_self, nanoseconds));
  }
  return static_cast<double>(nanoseconds[0]) * 1e-9;
}

Status Calibration::measure_sustained(std::size_t i, const Sample* burst, Sample& out) {
  constexpr double kMostRepeats = 2000;
  const MicroOp& micro = op_of(i);
  Turns turns = turns_of(micro);
  FT_ASSIGN(const double seconds, guess_seconds(i, burst));
  const auto fewest = static_cast<double>(turns.sets);
  turns.repeats = static_cast<std::int64_t>(
      std::clamp(x_options.long_step / seconds, fewest, std::max(fewest, kMostRepeats)));
  const Workload workload = micro_workload(micro, x_ranks, turns.sets, turns.repeats);
  FT_ASSIGN(const auto rank, make_op_rank(workload, micro, turns));
  FT_TRY(step(*rank, i, turns.members, nullptr));
  FT_ASSIGN(const bool settled, settle(*rank, i, turns.members));
  FT_TRY(repeat(*rank, i, turns.members, out));
  if (!settled) out.stopped = "drifting";
  return ok_status();
}

/// Steps until time and clock drift no more. Whether they came to that.
Result<bool> Calibration::settle(RankRunner& rank, std::size_t i, std::int64_t members) {
  const double least = x_heated ? x_options.settle : x_options.heat;
  const auto begin = Clock::now();
  auto window_begin = begin;
  OpTimings window;
  double time_before = 0;
  double clock_before = 0;
  bool settled = false;
  bool more = true;
  while (more) {
    FT_TRY(step(rank, i, members, &window));
    if (x_self.value == 0 && passed_since(window_begin) >= x_options.window) {
      Sample now;
      summarize(window, now);
      const double clock = now.ran_at.clock_mhz.value_or(0);
      const double passed = passed_since(begin);
      settled = passed >= least && holds_still(now.median_us, time_before, x_options.drift) &&
                holds_still(clock, clock_before, x_options.drift);
      more = !settled && passed < x_options.most_settle && !stop_asked();
      time_before = now.median_us;
      clock_before = clock;
      window = {};
      window_begin = Clock::now();
    }
    FT_ASSIGN(more, agree(more));
  }
  x_heated = true;
  return settled;
}

/// A step alone, a step beside them, in turns, three times or more; the sample is of the latter.
Status Calibration::measure_beside(std::size_t i, Sample& out) {
  constexpr int kFewestPairs = 3;
  const MicroOp& micro = op_of(i);
  const Turns turns = turns_of(micro);
  const Workload workload = micro_workload(micro, x_ranks, turns.sets, turns.repeats);
  FT_ASSIGN(const auto rank, make_op_rank(workload, micro, turns));
  FT_TRY(step(*rank, i, turns.members, nullptr));
  OpTimings alone;
  OpTimings& beside = x_timings[i];
  const auto begin = Clock::now();
  bool more = true;
  double moved = 0;
  for (int pairs = 1; more; ++pairs) {
    FT_TRY(step(*rank, i, turns.members, &alone));
    FT_TRY(rank->hold_sms(micro.key.sms, !micro.key.spin));
    FT_TRY(step(*rank, i, turns.members, &beside));
    if (x_self.value == 0) {
      Sample without;
      const double spread_alone = summarize(alone, without);
      const double spread = summarize(beside, out);
      out.alone_us = without.price_us();
      moved += rank->held_gb_per_s();
      out.beside_gb_per_s = moved / pairs;
      const bool enough = pairs >= kFewestPairs;
      const bool over = enough && passed_since(begin) > 2 * x_options.seconds;
      const bool close = enough && spread >= 0 && spread_alone >= 0 &&
                         spread <= x_options.spread * out.median_us &&
                         spread_alone <= x_options.spread * without.median_us;
      if (close && !over) out.stopped = "spread";
      more = !over && !close && !stop_asked();
      if (!more && !enough) out.count = 0;
    }
    FT_ASSIGN(more, agree(more));
  }
  return ok_status();
}

}  // namespace foretrain
