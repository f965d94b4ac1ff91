// The parameters of one pipeline chunk in contiguous buffers, and their gradient buckets.
//
// [ shared by all tensor ranks | token table | layers, first to last | output matrix ], padded so
// that it divides among the data-parallel ranks. Gradients lie alike, in their own type. Buckets
// are ranges of it, cut from the end, because the backward pass finishes the end first.
//
// The experts of a chunk are a Chunk of their own, without ends: their gradients are summed over
// other ranks.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "models/holdings/byte_map.h"
#include "models/layers/ends.h"
#include "models/layers/layer.h"

namespace foretrain {

/// Where the part of one layer (or of an end) lies.
struct PartFrames {
  FrameId weights, gradients, shared, shared_gradients;
  FrameId quantized;  ///< copies of the weights in less than 16 bits, once they are cast
  std::int64_t cut_begin = 0, cut_end = 0;  ///< elements in the buffer
  std::int64_t shared_begin = 0;            ///< in a unit, whose frames come and go
};

/// The ranks that hold the same parameters: their gradients are summed, their states sharded.
struct ReplicaGroup {
  const char* group = nullptr;
  const char* shard_group = nullptr;  ///< those that share one copy of the states
  const char* stream = nullptr;
  std::int64_t ranks = 1, shards = 1;
  bool expert = false;
  const char* replica_group = nullptr;  ///< the same shard of other copies, where there are any
};

/// A parameter of a chunk, as a matrix on this rank.
struct ParameterRange {
  std::int64_t begin = 0, rows = 0, cols = 1;
};

/// Elements [begin, begin + count) of a buffer of the staging frame.
struct Staged {
  std::int64_t begin = 0, count = 0;
  std::int16_t buffer = 0;  ///< of copies
};

struct Bucket {
  std::int64_t begin = 0, end = 0;  ///< elements
  ReplicaGroup holders;
  FrameId frame;         ///< its events: kReduced, kGathered
  bool last = false;     ///< waits for everything: holds shared or tied parameters
  bool issued = false;   ///< its reduction stands in the Program
  std::size_t list = 0;  ///< of a coordinator's lists
  bool first_of_list = true;
  Staged copied;             ///< its copy, padded; count 0: there is none
  Staged staged;             ///< what of it travels whole beside factors, or its signs
  Staged left, right;        ///< the factors of its matrices, where they travel instead
  std::int64_t work = 0;     ///< multiply-adds of one factor
  SegmentId sum, sum_again;  ///< of a contiguous bucket: of the first pass, of others
  LayoutId flat;             ///< the copy of it that is reduced; invalid: it is itself
  FrameId sums, previous;    ///< at the host, where that updates: gradients, last step's
  FrameId states;
  std::array<SegmentId, 2> to_host;  ///< of the first pass, of others
};
inline constexpr std::int16_t kReduced = 0;
inline constexpr std::int16_t kGathered = 1;
inline constexpr std::int16_t kScattered = 2;  ///< where shards have replicas
inline constexpr std::int16_t kCopied = 2;     ///< where compute copies gradients into buckets

/// The stream of a coordinator's cycles, and the event of a bucket at the end of one.
inline constexpr const char* kCoordinator = "coordinator";
inline constexpr std::int16_t kTurn = 3;
/// fp32 words that a coordinator exchanges in a cycle.
inline constexpr std::int64_t kReadinessElements = 64;

/// Event of the scalars on a grid, after those of an update.
inline constexpr std::int16_t kLossSummed = 3;

/// Event of a chunk's marks: what tensor ranks hold alike is summed.
inline constexpr std::int16_t kSharedMark = 0;

/// The streams of copies to the host and back, to storage and back.
inline constexpr const char* kOut = "to host";
inline constexpr const char* kIn = "from host";
inline constexpr const char* kStorageWrite = "storage write";
inline constexpr const char* kStorageRead = "storage read";

/// Events of a unit's weights; its gradients record kReduced.
inline constexpr std::int16_t kGatheredUnit = 0;
inline constexpr std::int16_t kFromHost = 1;  ///< the rank's part is on the device
/// Events of a unit's or a bucket's gradients on their way to the host, after others.
inline constexpr std::int16_t kPartReady = 3;
inline constexpr std::int16_t kAtHost = 4;
inline constexpr std::int16_t kSummedAtHost = 5;  ///< of a bucket
/// Event of a unit's or a bucket's states: what the host updated is on the device.
inline constexpr std::int16_t kWeightsLoaded = 2;

using ElementRange = std::pair<std::int64_t, std::int64_t>;  ///< [begin, end)

/// The parameters of a unit, as they lie in it.
struct UnitContent {
  std::int64_t elements = 0;
  std::vector<Piece> pieces;
  std::vector<ElementRange> alike, partial;
  std::vector<std::int64_t> ends;  ///< of each parameter
  std::int64_t experts = 1;        ///< parameters that a buffer holds, one behind the other
  void append(const UnitContent& back);
};

/// Where among the cut parameters of an end a tied table lies (models/units/tied.cpp).
ElementRange tied_table(const ParameterLayouts& end);

/// How a unit's parameters come.
struct UnitGather {
  SegmentId all;
  SegmentId again;  ///< for backward passes, from the second copy; invalid: as forward
  std::vector<std::int64_t> calls;  ///< elements of each of its all-gathers, if they may be apart
  std::map<std::pair<std::int16_t, std::int16_t>, SegmentId> parts;  ///< calls [first, second)
};

/// Layouts and segments of the units of one shape; see models/units/units.cpp.
struct ShardLayout {
  ReplicaGroup holders;
  bool root = false;
  std::int64_t layers = 0;
  std::int64_t filled = 0, elements = 0;  ///< parameters; with padding up to equal shards
  /// Of so many elements each, of which every holder has its part; none: all are one.
  std::vector<std::int64_t> runs;
  std::int64_t tensors = 0;           ///< parameters in it
  bool whole = false;                 ///< its parameters stay gathered
  bool on_host = false;               ///< the host keeps its states and updates them
  std::vector<ElementRange> alike;    ///< what all tensor ranks hold
  std::vector<ElementRange> partial;  ///< of it what they compute in parts
  ElementRange tied;                  ///< a table that another stage holds too
  LayoutId weights, gradients, shards, states;
  UnitGather gather;
  SegmentId reduce_first, reduce_next;
  SegmentId copy_out;  ///< where gathered parameters are copied out of what they came in
  Ref secondary;       ///< the rank's part of the second copy, in a frame of `states`
};

/// Of a unit's runs those that travel together: elements [begin, begin + count).
struct UnitRuns {
  std::int64_t begin = 0, count = 0;
  std::vector<std::int64_t> runs;
  std::vector<std::int64_t> several() const {  ///< as Collective has them
    return runs.size() > 1 ? runs : std::vector<std::int64_t>();
  }
};

/// Parameters that are gathered and reduced together: a run of layers, or the ends of a chunk.
struct Unit {
  std::size_t shape = 0;                  ///< in the stage's list of shapes
  std::int64_t first = 0, last = 0;       ///< layers [first, last) of the chunk; none of the root
  FrameId previous;                       ///< the last step's gradients, with a delayed update
  FrameId states, shards;                 ///< the rank's part: optimizer states, gradients
  FrameId weights, gradients;             ///< the whole arrays as long as they live
  std::map<std::int32_t, FrameId> fresh;  ///< in place of gradients: by microbatch, until reduced
  FrameId reduced;                        ///< where the event of the last reduction is
  bool waited = false;                    ///< compute has waited for it
  std::int16_t begun = 0;                 ///< all-gathers issued, where more are to come
};

/// What the host updates of a rank, or the device beside it: the formal frame of its gradients, of
/// which they are the first buffer; that of its states follows where the host updates.
struct UpdatedPart {
  std::int16_t gradients = 0;
  DType type = DType::kBf16;  ///< of the gradients
  std::int64_t own = 0;       ///< elements
};

struct Chunk {
  ReplicaGroup holders;
  std::int64_t first_layer = 0, layers = 0;
  std::int64_t layers_before = 0;    ///< in earlier chunks of this stage
  bool first = false, last = false;  ///< of the pipeline: nothing comes in, nothing goes on
  bool has_embedding = false, has_head = false;  ///< holds of their parameters
  std::int64_t elements = 0;                     ///< of the whole buffer, padding included
  std::int64_t shared_elements = 0;
  std::int64_t factor_elements = 0;  ///< rows and columns of its matrices
  PartFrames embedding, head;
  std::vector<PartFrames>
      parts;         ///< by layer of the chunk; of experts' chunks empty where none are
  int experts = -1;  ///< which chunk of the stage holds its experts
  FrameId parameters, gradients, optimizer;
  FrameId written;  ///< what backward passes write: `gradients`, or one pass's alone
  FrameId summed;   ///< the sum of all microbatches' gradients where each is reduced alone
  FrameId staging;  ///< copies of buckets, and what a coordinator exchanges
  bool summed_once = false;
  FrameId ends;     ///< the gradient of a tied table in one pass, with contiguous buckets
  FrameId own;      ///< sums of contiguous buckets: the rank's part of each
  FrameId own_now;  ///< likewise of one pass, `own` in the first
  LayoutId own_of_pass;
  SegmentId adds_own;
  std::int64_t filled = 0;        ///< elements without padding
  ByteMap weights;                ///< of the parameters, where some are in fp8 alone
  Bytes weight_bytes = 0;         ///< then also: of all, padding included
  std::vector<Replica> replicas;  ///< of the gradients
  std::vector<ParameterRange> ranges;
  std::vector<Bucket> buckets;  ///< in the order in which they become ready
  std::vector<Unit> units;      ///< by their layers, then the root, then what stays gathered
  int root = -1, small = -1;    ///< which unit holds the ends, which stays gathered; -1: none
  std::vector<const char*> grid_groups;  ///< those of a grid that compute parts of its gradients
  FrameId marks;                         ///< events of the reductions over small groups
};

/// Every rank holds the parameters of such a unit from step to step.
inline bool stays_whole(const Plan& plan, const ShardLayout& shape) {
  return !plan.shards_parameters() || shape.whole;
}

/// The unit of a layer of the chunk, by its number; -1 where its parameters are in none, as of
/// experts' chunks where a layer has no experts.
std::int32_t unit_of_layer(const Chunk& chunk, std::int64_t layer);

/// Where its parameters begin, in falling order, element 0 last.
std::vector<std::int64_t> parameter_begins(const Chunk& chunk);

/// Whether buckets travel cast, in arrays of their own that live meanwhile.
bool casts_buckets(const Plan& plan);

/// Whether compute copies gradients into buckets of their type, which stay.
bool copies_on_compute(const Plan& plan);

/// Of what a layer keeps: its frame on the host, the copies out and in, and what lets go of it;
/// where it goes on to storage its frame there and the copies to it and back.
struct HostCopies {
  LayoutId layout, stored;
  SegmentId out, in, let_go, write, read;
};

}  // namespace foretrain
