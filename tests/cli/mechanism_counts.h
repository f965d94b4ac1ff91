// What tests of data-parallel systems share: the small model's parameters as they lie in buckets
// and units, and what a Program does in operations of a name.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/cli/mechanism_pipelines.h"

namespace foretrain {

/// The small model's matrices as its linears lie in memory, with another width of the residual
/// stream if need be.
struct Sizes {
  static constexpr std::int64_t kRanks = 4, kLayers = 3;
  std::int64_t hidden = SmallModel::kHidden, inner = SmallModel::kInner;
  std::int64_t table() const { return SmallModel::kVocabulary * hidden; }
  std::vector<std::int64_t> matrices() const {
    return {3 * hidden * hidden, hidden * hidden, 2 * hidden * inner, hidden * inner};
  }
  std::int64_t of_matrices() const;
  std::int64_t layer() const { return of_matrices() + 2 * hidden; }
  std::int64_t ends() const { return 2 * table() + hidden; }
  std::int64_t all() const { return kLayers * layer() + ends(); }
};

/// "all-reduce 0".
std::string numbered(const char* kind, std::int64_t number);

/// "all-reduce 0: 8 B on data".
std::string on_data(const char* kind, std::int64_t number, std::int64_t bytes);

/// What a step does in the operations whose names end so.
struct RanOps {
  std::int64_t times = 0;
  Bytes read = 0, written = 0;
  Time host;
};
RanOps ran(const Program& program, const std::string& ending);

/// Every operation of the segments of a name in the order of issue: "name on stream".
Lines issued(const Program& program, const std::string& segment);

/// What each call of a segment waits for on one stream: passes, "layer forward 0" or "".
Lines awaited(const Program& program, const std::string& segment, const std::string& stream);

/// Launches of memory-bound kernels in a segment.
std::int64_t kernels_of(const Program& program, const std::string& segment);

/// Persistent bytes of a kind.
Bytes kept(const Program& program, BufferKind kind);

}  // namespace foretrain
