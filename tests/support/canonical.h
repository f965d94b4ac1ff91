// Programs and replays in a form that does not know in which order the lowering registered things.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "sim/cost/cost_model.h"
#include "sim/program/program.h"

namespace foretrain {

/// A Program as text. Frames, layouts, segments, formal frames and events are numbered by their
/// first use; equal layouts are one, equal segments are one. Streams and slots stand by their
/// names. Left out: what no call uses, and the names of segments, layouts, buffers and events. The
/// waits of a call stand in one order, each once.
std::string canonical_text(const Program& program);

/// FNV-1a over 64 bits.
std::uint64_t hash_of(std::string_view text, std::uint64_t seed = 14695981039346656037ULL);

/// Of a Workload: its Programs, and what every rank's slots mean.
std::string canonical_text(const Workload& workload);

/// When every op of every stream of every actor runs, and the memory that each Program takes.
/// A replay that fails is the text of its error.
std::string replayed_text(const Workload& workload, CostModel& prices);

/// The memory that a Program takes: peaks by place and by kind, where they are reached left out.
std::string memory_text(const Program& program);

}  // namespace foretrain
