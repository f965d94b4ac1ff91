// FLOPs of operations of one kind of work, by how their names begin.
#pragma once

#include <string_view>
#include <variant>

#include "sim/program/program.h"

namespace foretrain {

/// Of all calls of a rank of the workload's first Program, or of another.
template <typename Kind>
double flops_of_ops(const Workload& workload, std::string_view prefix, std::size_t at = 0) {
  double out = 0;
  const Program& program = workload.programs[at];
  for (const Call& call : program.calls) {
    for (const Op& op : program.segments[call.segment.index()].ops) {
      const Work& work = program.works[op.work.index()];
      const bool named = std::string_view(op.name).starts_with(prefix);
      if (named && std::holds_alternative<Kind>(work)) out += flops_of(work);
    }
  }
  return out;
}

}  // namespace foretrain
