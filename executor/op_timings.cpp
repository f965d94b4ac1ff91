#include "executor/op_timings.h"

#include <algorithm>
#include <cmath>

namespace foretrain {
namespace {

/// The value below which that share lies; `us` is sorted.
double at_share(const std::vector<double>& us, double share) {
  if (us.empty()) return 0;
  return us[static_cast<std::size_t>(std::lround(share * static_cast<double>(us.size() - 1)))];
}

/// Mean of what is at most three times the median: a step adds up means; what is longer was
/// somebody else's doing.
double mean_of(const std::vector<double>& us) {
  const double limit = 3 * at_share(us, 0.5);
  double sum = 0;
  std::int64_t count = 0;
  for (const double value : us) {
    if (value > limit) break;
    sum += value;
    ++count;
  }
  return count == 0 ? 0 : sum / static_cast<double>(count);
}

}  // namespace

double summarize(const OpTimings& times, Sample& out) {
  out.ran_at = median_state(times.states);
  out.clean = times.clean.size() >= std::min(kFewestTimings, times.all.size());
  std::vector<double> us = out.clean ? times.clean : times.all;
  std::sort(us.begin(), us.end());
  out.count = static_cast<std::int64_t>(us.size());
  out.median_us = at_share(us, 0.5);
  out.p10_us = at_share(us, 0.1);
  out.p90_us = at_share(us, 0.9);
  out.mean_us = mean_of(us);
  out.stopped = "time";
  if (!out.clean || us.size() < kFewestTimings) return -1;
  return at_share(us, 0.75) - at_share(us, 0.25);
}

std::vector<std::int64_t> durations_of(const RankRunner& rank) {
  std::vector<std::int64_t> out;
  for (const OpRecord& r : rank.records()[0]) {
    const std::int64_t wall = (r.work.ps > 0 ? r.work : r.end - r.begin).ps;
    out.push_back(r.disturbed() ? -std::max<std::int64_t>(1, r.cpu.ps)
                                : std::max<std::int64_t>(1, wall));
  }
  return out;
}

std::vector<std::int64_t> gaps_of(const RankRunner& rank) {
  std::vector<OpRecord> all;
  for (const auto& stream : rank.records()) all.insert(all.end(), stream.begin(), stream.end());
  Time busy;
  bool marked = false;
  bool known = rank.step_seconds() > 0 && !all.empty();
  for (const OpRecord& record : all) {
    known = known && record.work.ps > 0;
    marked = marked || record.end.ps > 0;
    busy = busy + record.work;
  }
  if (known) {
    const Time rest = Time::from_seconds(rank.step_seconds()) - busy;
    return {std::max<std::int64_t>(1, rest.ps / static_cast<std::int64_t>(all.size()))};
  }
  if (!marked) return {};
  std::sort(all.begin(), all.end(),
            [](const OpRecord& a, const OpRecord& b) { return a.begin < b.begin; });
  std::vector<std::int64_t> out;
  for (std::size_t i = 1; i < all.size(); ++i) {
    out.push_back(std::max<std::int64_t>(1, (all[i].begin - all[i - 1].end).ps));
  }
  return out;
}

std::vector<std::int64_t> launches_of(const RankRunner& rank) {
  std::size_t ops = 0;
  for (const auto& stream : rank.records()) ops += stream.size();
  const double seconds = rank.issue_seconds();
  if (seconds <= 0 || ops == 0) return {};
  return {std::max<std::int64_t>(1, Time::from_seconds(seconds / static_cast<double>(ops)).ps)};
}

void add_times(const std::vector<std::vector<std::int64_t>>& gathered, std::int64_t members,
               OpTimings& out) {
  const auto group = static_cast<std::size_t>(members);
  for (std::size_t r = 0; r + group <= gathered.size(); r += group) {
    for (std::size_t i = 0; i < gathered[r].size(); ++i) {
      std::int64_t least = gathered[r][i];
      for (std::size_t m = 1; m < group; ++m) least = std::min(least, gathered[r + m][i]);
      if (least == 0) continue;
      const double us = std::abs(static_cast<double>(least)) * 1e-6;
      out.all.push_back(us);
      if (least > 0) out.clean.push_back(us);
    }
  }
}

}  // namespace foretrain
