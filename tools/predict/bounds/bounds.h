// What a simulation takes of the machine that it runs on, estimated from counts before it is spent,
// and what it may take.
//
// A step is lowered (a Program a pipeline stage), folded (classes of ranks), priced and replayed.
// Before Programs are written two small ones of a stage in the middle say what all would take;
// before the replay Programs and classes are there, and are counted. Left out: reading the RUN,
// and what reports, traces and pages take.
#pragma once

#include <cstdint>
#include <string>

#include "tools/predict/lowered_step.h"
#include "tools/predict/run_file.h"

namespace foretrain {

/// What a simulation may take; 0: any.
struct SimulationBounds {
  double seconds = 0;
  double gib = 0;
  bool of_machine = false;  ///< `gib` is what the machine has to give, no one asked for it
};

/// What it takes: seconds of one core at the speed of the one that was measured (bounds.cpp), and
/// most memory at once.
struct SimulationCost {
  double seconds = 0, gib = 0;
  std::int64_t operations = 0;  ///< lowered, or replayed
  bool within(const SimulationBounds& bounds) const {
    return (bounds.seconds <= 0 || seconds <= bounds.seconds) &&
           (bounds.gib <= 0 || gib <= bounds.gib);
  }
};

/// Memory that the machine has to give to this process, less a tenth, in GiB: what the kernel calls
/// available (/proc/meminfo), at most what is left of the limits of the control group (version 2)
/// and of the address space (`ulimit -v`); at least 0.25. 0 where nothing says so.
double available_memory_gib();

/// Bytes that the control group of this folder (version 2) may still take, with what it would give
/// back (`memory.stat`); < 0 where it has no limit.
double free_of_group(const std::string& folder);

/// The least that a step with so many microbatches takes, that of one class of ranks a stage: from
/// Programs of the stage in the middle.
SimulationCost cost_of_lowering(const Model& model, const Plan& plan, std::int64_t microbatches);

/// Whether lowering takes so little that no Program has to be written to know that it is within
/// `bounds`.
bool surely_within(const Model& model, const Plan& plan, std::int64_t microbatches,
                   const SimulationBounds& bounds);

/// Of the whole simulation of a step whose Programs are there: what these took, and one replay of
/// the classes of ranks.
SimulationCost cost_of_replay(const LoweredStep& step, const Quotient& quotient);

/// Bytes of a Program.
double bytes_of(const Program& program);

/// An error that names the estimate, the bound, and what to do, where `cost` is not within them.
Status check_bounds(const std::string& source, const SimulationBounds& bounds,
                    const SimulationCost& cost, const std::string& of_what);

}  // namespace foretrain
