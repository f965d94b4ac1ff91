// Where the time of one rank goes. The parts add up to the step exactly.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "sim/timeline/timeline.h"

namespace foretrain {

/// At every instant the first that applies: a kernel runs (its family; what is computed again and
/// the optimizer apart), else a transfer runs (exposed communication), else storage is read or
/// written, else the host updates what is offloaded, else a partner is awaited (bubble), else the
/// host prepares a microbatch's data, else it has not issued the next op.
enum class Part : std::uint8_t {
  kGemm,
  kAttention,
  kMemoryBound,
  kRecompute,
  kOptimizer,
  kCopy,
  kExposedTensor,
  kExposedData,
  kExposedPipeline,
  kExposedExpert,
  kExposedContext,
  kStorage,     ///< reads and writes of storage, and nothing else
  kHostUpdate,  ///< the host works on offloaded states and gradients
  kBubble,      ///< waiting for another rank, or done before the others are
  kData,        ///< the host loads and prepares data (`host.data_us`)
  kHost,
  kCount
};
std::string_view name_of(Part part);

using Breakdown = std::array<Time, static_cast<std::size_t>(Part::kCount)>;

/// Breakdown of one track over [0, timeline.end].
Breakdown break_down(const Timeline& timeline, std::int32_t track);

/// The part that a span counts for while it runs.
Part part_of(const SpanInfo& info);
/// How long the host prepares data before it issues what follows such a span; zero for most.
Time data_delay(const SpanInfo& info);

/// All that a breakdown needs to know of a span.
struct PartSpan {
  Part part = Part::kHost;
  Time data;  ///< `data_delay`
  Time begin, start, end;
};

/// Breakdown over [0, end] of a rank whose streams ran these, each in order.
Breakdown break_down(const std::vector<std::vector<PartSpan>>& streams, Time end);

}  // namespace foretrain
