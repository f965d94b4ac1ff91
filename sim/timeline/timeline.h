// The Timeline: what both interpreters return and everything else reads or compares.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/base/units.h"
#include "sim/program/program.h"

namespace foretrain {

enum class Provenance : std::uint8_t;

/// What a span executes, shared by all spans of that kind.
struct SpanInfo {
  std::string name;  ///< module path: "attention.qkv"
  std::string work;  ///< `text_of` of its Work
  Category category = Category::kCompute;
  Phase phase = Phase::kForward;
  Bytes bytes = 0;  ///< moved by communication, copies and memory-bound kernels; 0 for others
  double flops = 0;
  bool operator==(const SpanInfo&) const = default;
};

/// One op on one rank. `begin`: it was launched and held its stream; `start`: all partners were
/// there (equals begin for local work); `end`. No two spans of a stream overlap.
struct Span {
  std::int32_t track = 0;  ///< index into Timeline::tracks
  StreamId stream;
  std::int32_t info = 0;            ///< index into Timeline::infos
  std::int32_t call = -1, op = -1;  ///< identity in the Program; -1 in imported traces
  std::int32_t layer = -1, microbatch = -1;
  Time begin, start, end;
  Provenance provenance{};
  bool operator==(const Span&) const = default;
};

/// What a rank's host does meanwhile: it launches the ops of a call, prepares data, or waits for
/// the device. Nothing is known of it where a step was measured.
struct IssueSpan {
  std::int32_t track = 0;
  std::int32_t info = 0;
  std::int32_t layer = -1, microbatch = -1;
  Time begin, end;
  bool operator==(const IssueSpan&) const = default;
};

/// A message: from the span that sends to the span that receives (indices into Timeline::spans).
struct Flow {
  std::int32_t from = 0, to = 0;
  bool operator==(const Flow&) const = default;
};

/// Bytes of one kind that are live on a track from `at` on.
struct MemorySample {
  std::int32_t track = 0;
  BufferKind kind = BufferKind::kActivations;
  Time at;
  Bytes bytes = 0;
  bool operator==(const MemorySample&) const = default;
};

/// One rank that is shown, standing for `ranks_alike` ranks whose times are the same.
struct Track {
  RankId rank;
  std::string name;  ///< "rank 0: tensor 0, data 0, pipeline 0"
  std::int64_t ranks_alike = 1;
  std::vector<std::string> streams;
  bool operator==(const Track&) const = default;
};

/// Spans are sorted by (track, stream, begin); memory samples by (track, at), spans of hosts by
/// (track, begin).
struct Timeline {
  std::string name;
  std::vector<SpanInfo> infos;
  std::vector<Track> tracks;
  std::vector<Span> spans;
  std::vector<Flow> flows;
  std::vector<MemorySample> memory;
  std::vector<IssueSpan> host;
  Time end;  ///< of the step
  bool operator==(const Timeline&) const = default;
};

}  // namespace foretrain
