// What a sliding window leaves of attention whose keys are gathered from context-parallel ranks.
#pragma once

#include "sim/program/work.h"

namespace foretrain {

/// Tokens of the sequence of which `work` (ContextPart::kAll) has the queries of one member.
inline std::int64_t whole_length(const Attention& work) { return 2 * work.kv_len; }

/// Whether `work` attends to the keys of all members (ContextPart::kAll) within a window that is
/// shorter than the sequence.
bool windows_gathered(const Attention& work);

/// Query-key pairs of one head and one sequence.
struct ContextPairs {
  double mean = 0;  ///< over the c members: times c, those of the whole sequence
  double most = 0;  ///< of the member that has most
};

/// A member asks for chunks i and 2c-1-i of 2c. A query at position x sees min(x, window) keys; so
/// members whose first chunk begins within the window have fewer pairs than others.
ContextPairs gathered_pairs(const Attention& work);

}  // namespace foretrain
