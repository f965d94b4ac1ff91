// Two sides, family by family and phase by phase, and what differs most.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "hardware/profile.h"
#include "tools/compare/side.h"

namespace foretrain {

struct FamilyRow {
  std::string family;
  std::optional<FamilyTime> a, b;  ///< none: the side has nothing of it
};

struct PhaseRow {
  std::string phase;
  FamilyRow all;                    ///< `family` is not used
  std::vector<FamilyRow> families;  ///< of the phase
};

struct Comparison {
  Side a;
  std::optional<Side> b;            ///< none: A alone
  std::vector<FamilyRow> families;  ///< the longest first
  std::vector<PhaseRow> phases;     ///< in the order of a step; empty where nothing tells them
  std::vector<std::string> findings;
  std::vector<std::string> notes;
};

/// Where one side is a result, which knows parts of a breakdown alone, both are put into these.
/// Where one side was measured, recomputation and reductions of gradients count as backward: a
/// profiler does not tell them.
Comparison compare_sides(Side a, std::optional<Side> b);

/// What differs most and why it may, in sentences. A alone: where the time goes.
std::vector<std::string> findings_of(const Comparison& comparison);

Json comparison_json(const Comparison& comparison);
std::string comparison_text(const Comparison& comparison);

/// Both sides as one timeline, A's tracks before B's.
Timeline merged_timeline(const Comparison& comparison);

/// Kernels that a profile can say: products and attention whose operands the trace has.
struct MeasuredProfile {
  Profile profile;
  std::int64_t taken = 0, left_out = 0;  ///< calls of operators
};
/// From the traces of a side that keeps them (SideOptions::shapes). `device`: the preset where the
/// trace names none that is known; "": none. `command` stands in the profile. An error where no
/// shape or no device is known. Left out: collectives, whose times hold waiting for partners.
Result<MeasuredProfile> profile_of(const Side& side, const std::string& device,
                                   const std::string& command);

}  // namespace foretrain
