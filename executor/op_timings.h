// Times of one operation, and what a sample says of them.
#pragma once

#include <cstdint>
#include <vector>

#include "executor/rank_runner.h"
#include "hardware/profile.h"

namespace foretrain {

inline constexpr std::size_t kFewestTimings = 10;  ///< operations that a sample should be of

/// In us: of the repeats that nobody disturbed, and of all (CPU time where disturbed); and what the
/// machine ran at meanwhile.
struct OpTimings {
  std::vector<double> clean, all;
  std::vector<MachineState> states;
};

/// Fills in the sample; the distance between the quartiles in us, or -1 where too few were clean.
double summarize(const OpTimings& times, Sample& out);

/// By operation of the last step, in ps: its time; where it was disturbed its CPU time, negative.
std::vector<std::int64_t> durations_of(const RankRunner& rank);
/// In ps, from the end of one op to the begin of the next: on average, the time of the step less
/// that in which ops ran, where a device knows both; else of every op, where they were marked.
std::vector<std::int64_t> gaps_of(const RankRunner& rank);
/// Host time of a launch in ps, on average; none where the host runs the ops itself.
std::vector<std::int64_t> launches_of(const RankRunner& rank);

/// Adds what ranks gave: of every group of `members` ranks the shortest.
void add_times(const std::vector<std::vector<std::int64_t>>& gathered, std::int64_t members,
               OpTimings& out);

}  // namespace foretrain
