// CUPTI's activity records: when the kernels and copies of each op really ran.
//
// The library is loaded here, so that a machine without it runs as well, with CUDA events alone.
// Its callbacks carry no argument, so what it collects belongs to the process.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "sim/base/result.h"
#include "sim/base/units.h"

namespace foretrain {

/// Whether records can be had; later calls give what the first one gave. The error says what is
/// missing, or what else profiles the process.
Status open_activity();

/// From now on records are collected, or not: they cost every launch about a microsecond.
void collect_activity(bool on);

/// Work that this thread launches between the two belongs to `op` of `rank`. Without effect where
/// nothing is collected.
void begin_activity(int rank, std::size_t op);
void end_activity();

/// By op of `rank`, since the last call: how long its work ran. Empty where nothing is collected,
/// or where records were lost. The device must be idle.
std::vector<Time> take_activity(int rank, std::size_t ops);

}  // namespace foretrain
