// Traces of failures as tables: lines of cells that commas part, the names of the columns first.
// Empty lines and lines that begin with # are remarks.
//
//   at_s,component,nodes,repair_s          at_s,live
//   5000,hbm,1,3600                        0,64
//   90000,software,,                       3600,61
//
// The second form is what a cloud says of nodes that it takes and gives back: as many as `live`
// falls by are preempted, and each is back when `live` has risen by one for it, the first first.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/json.h"

namespace foretrain {

/// A failure as a JSON trace has it, and the line of the table that tells of it.
struct TableRow {
  std::int64_t line = 0;
  Json failure;
};

/// Whether a text that should be a trace is a table: it begins with no bracket.
bool is_table(std::string_view text);

/// The rows in order. Wrong columns and lines of another length are errors; what cells hold is
/// checked by who reads the failures, in a table of `live` here. Instances that never come back
/// have no `repair_s`.
Result<std::vector<TableRow>> trace_of_table(std::string_view text, const std::string& source);

/// "SOURCE, line 3".
std::string line_of_table(const std::string& source, std::int64_t line);

}  // namespace foretrain
