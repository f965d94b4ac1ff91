// Traces of PyTorch's profiler (Kineto), streamed: .json or .json.gz of any size.
#pragma once

#include <string>
#include <vector>

#include "traces/activity.h"
#include "traces/byte_stream.h"

namespace foretrain {

/// One trace for each GPU whose kernels the file holds. Memory is that of the GPU's events and
/// their launches, about 70 bytes an event; other events are read over.
///
/// A kernel's launch is the runtime event of the same correlation. Its phase is what encloses the
/// launch on its thread: an annotation named after a phase (`Optimizer.step#...`, `## forward ##`,
/// `mlp(B)`), else backward on threads of autograd, else forward where there are such threads.
/// Times are taken to the nanosecond, whether written as numbers or texts.
///
/// Errors name the file and the byte: no JSON, cut off, times out of range, no GPU events. Events
/// of negative duration are left out, with a note.
Result<std::vector<ActivityTrace>> read_kineto(ByteStream& bytes, const ActivityOptions& options);

/// Microseconds, as written, in nanoseconds, rounded; nothing if that is no number below 2^62 ns.
bool parse_us(std::string_view text, std::int64_t& ns);

}  // namespace foretrain
