// A stage while its Program is written: what it holds, the segments that have been written so far,
// and the frames that values have at this point of the step.
//
// The tasks of a step (models/step) say what is done in which order; the functions over a Stage say
// how. Each mechanism has a file with the functions that only it needs.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "models/holdings/chunk.h"
#include "models/layers/encoder_decoder.h"
#include "models/slots.h"
#include "models/step/passes.h"

namespace foretrain {

/// Elements [begin, end) of a chunk's gradients, whose sum over `group` they are parts of.
struct GridPart {
  std::int64_t begin = 0, end = 0;
  const char* group = nullptr;
};

/// What stands between two blocks of a network, and its gradient.
struct BetweenBlocks {
  ImageShape shape;
  LayoutId output, gradient;
};

/// Copies of a part's gradients into a contiguous bucket, and the bucket that is reduced before.
struct CopyIn {
  int reduced = -1;
  SegmentId segment;
};

/// What one kernel of the update touches, in formal frames of the update's segment.
struct UpdatedArrays {
  View gradient, weights;
  std::int16_t states = 0;            ///< frame of the optimizer states
  std::int16_t first = 0;             ///< its first buffer that is a state
  std::int64_t begin = 0, count = 0;  ///< elements of the states
  bool master = false;                ///< the last state is a copy of the weights
  bool expert = false;
  std::int64_t factors = 0;  ///< elements of states that matrices share by row and column
};

/// Adds a buffer to a layout: its name, type and elements.
using AddBuffer = std::function<void(const char*, DType, std::int64_t)>;
/// Adds an op to a segment, with its operands.
using PushOp = std::function<void(Op, std::vector<View> reads, const View& write)>;

/// Formal frames of segments, by what they hold.
namespace formal {
// Of a segment that knows the loss and the norms: it is the first.
inline constexpr std::int16_t kScalars = 0;
// Of messages, and of what is done with what is sent.
inline constexpr std::int16_t kResidual = 0, kKeptPart = 0;
// Of a sum of two streams.
inline constexpr std::int16_t kEmbedded = 0, kReturnedOutput = 1, kSum = 2;
// Of a copy to another memory.
inline constexpr std::int16_t kNear = 0, kFar = 1;
// Of buckets: gradients (or parameters) of a chunk, the events of a bucket, what is copied.
inline constexpr std::int16_t kChunk = 0, kEvents = 1, kStaging = 2;
// Of copies between arrays of gradients.
inline constexpr std::int16_t kPassGradients = 0, kTotal = 1;
// Of copies of buckets back, and of a bucket on its way to the host.
inline constexpr std::int16_t kBackFrom = 1, kHostSums = 2;
// Of units: their whole arrays, the rank's part.
inline constexpr std::int16_t kUnit = 0, kShard = 1;
// Of loading what the host has updated.
inline constexpr std::int16_t kStates = 0, kLoaded = 1;
}  // namespace formal

/// The first buffer of a layout, where it has but one.
inline constexpr std::int16_t kOnlyBuffer = 0;

/// One microbatch in one chunk.
struct MicrobatchState {
  std::vector<FrameId> hidden;  ///< residual stream: before layer 0, after layer 0, ...
  std::vector<FrameId> saved;   ///< by layer
  FrameId embedding_saved, head_saved;
  FrameId embedding_local;     ///< of its backward pass, where that is two
  FrameId embedded, returned;  ///< where an earlier pass's output is added
  FrameId memory;              ///< the encoder's output, where a decoder reads it
  FrameId memory_gradient;     ///< of that, or of the embedding that blocks of several layers read
  FrameId gradient;            ///< of the residual stream, as the backward pass comes down
  /// Copies on the host or in storage of what layer `first` keeps: its input where `second`.
  std::map<std::pair<std::int64_t, bool>, FrameId> on_host;
  FrameId part;                ///< of what was sent, where that is all of it that is kept
  StreamWait done, head_done;  ///< the last backward op so far; the head's
};

/// Where other tasks find what a task has done.
struct TaskDone {
  StreamWait output, end;
};
inline TaskDone done_at(FrameId frame, std::int16_t event) {
  return {StreamWait{StreamId(), frame, event}, StreamWait{StreamId(), frame, event}};
}

/// A layer's pass in slices of a microbatch: by slice its blocks.
struct SlicedPass {
  Call call;
  std::vector<std::vector<SegmentId>> blocks;
  std::size_t last() const { return blocks.front().size() - 1; }
};

/// Layouts of what the stage holds, and its chunks.
struct Holdings {
  LayerLayouts layer;               ///< of a decoder: the residual stream's layouts alone
  std::vector<LayerLayouts> kinds;  ///< of a decoder, by kind of layer
  EndLayouts embedding, head;
  LayerLayouts turn, cross, decoder;  ///< of an encoder-decoder
  MemoryLayouts memory;
  std::vector<LayerLayouts> blocks;      ///< of a network, by kind
  std::vector<std::size_t> block_kinds;  ///< by layer
  std::vector<BetweenBlocks> between;
  LayoutId inputs, scalars, bucket, marks;
  LayoutId ends;                    ///< of a tied table's gradients, with contiguous buckets
  std::vector<ShardLayout> shapes;  ///< of sharded units
  FrameId scalar_values;
  std::vector<Chunk> chunks;  ///< experts' chunks behind the others
};

/// Segments, each written when it is first called.
struct WrittenSegments {
  /// By kind, whether its backward pass is the first of them, recomputed, shape of the unit.
  std::map<std::tuple<Stack, bool, bool, std::size_t>, LayerSegments> of_stacks;
  std::vector<LayerSegments> of_blocks;  ///< of a network, by kind
  /// By kind, window, recomputed, shape of the unit and of what stays gathered (0: none).
  std::map<std::tuple<LayerKind, bool, bool, std::size_t, std::size_t>, LayerSegments> of_layers;
  std::optional<EndSegments> embedding, head;
  std::map<std::int32_t, HostCopies> host_copies;  ///< by layout on the device
  std::array<SegmentId, 2> load;                   ///< by direction of the pipeline
  std::array<SegmentId, 2> host_waits;             ///< forward, backward
  /// Of share_scales, with its frame: by largest values and direction.
  std::map<std::pair<std::int64_t, bool>, std::pair<SegmentId, FrameId>> scales;
  /// By whether it is sent, goes up the pipeline and carries gradients.
  std::array<std::array<std::array<SegmentId, 2>, 2>, 2> messages;
  std::array<SegmentId, 2> message_gathers, pass_pauses;  ///< forward, backward
  std::pair<SegmentId, LayoutId> part, output;  ///< of a copy of what is sent; gathered again
  std::map<SegmentId, std::vector<SegmentId>> blocks_of;
  SegmentId adds_returned, checkpoint;
  std::map<LayoutId, SegmentId> lets_go;  ///< of autocast's copies that such a frame holds
};

struct HashOfPair {
  std::size_t operator()(const std::pair<std::int32_t, std::int32_t>& key) const {
    return static_cast<std::size_t>(key.second) * 4096 + static_cast<std::size_t>(key.first);
  }
};

/// The frames of values that tasks hand on.
struct StepValues {
  std::vector<TaskDone> done;  ///< by task
  /// Gradients of weights that are still to come: by chunk, microbatch and layer; -1 the head.
  std::map<std::tuple<std::int32_t, std::int32_t, std::int64_t>, Call> weights;
  std::map<TaskId, SlicedPass> sliced;  ///< by the task of the first blocks
  /// By the task that copied them out: frames, and those on the host.
  std::map<TaskId, std::vector<std::pair<FrameId, FrameId>>> moved;
  /// First call of each pass that runs as one with others, and whether it is a forward pass.
  std::vector<std::pair<std::size_t, bool>> joined_begins;
  /// Gradients of the residual stream between two chunks of this stage that follow each other.
  std::map<std::int32_t, FrameId> turned;
  std::unordered_map<std::pair<std::int32_t, std::int32_t>, MicrobatchState, HashOfPair>
      passages;  ///< by chunk and microbatch
  std::map<std::int32_t, FrameId> input_frames;
  std::map<std::int32_t, FrameId> returned;  ///< outputs of one stage that come back to it
};

/// The buffers of contiguous buckets: models/gradients/contiguous.cpp.
struct ContiguousBuffers {
  LayoutId copied;  ///< of a copy's event
  FrameId buffers;
  int filling = -1;      ///< the bucket that was copied into last
  StreamWait last_copy;  ///< where that is recorded
  std::array<StreamWait, 2> buffer_free;
  std::map<std::pair<LayoutId, std::int64_t>, std::vector<CopyIn>> copies;
};

struct Stage {
  const Model& model;
  const Plan& plan;
  std::int64_t number;
  ProgramBuilder builder;
  Holdings holds = {};
  WrittenSegments segments = {};
  StageStep step = {};
  StepValues values = {};
  ContiguousBuffers contiguous = {};
};

inline bool by_units(const Stage& stage) { return stage.plan.by_units(); }
inline bool sharded_parameters(const Stage& stage) { return stage.plan.shards_parameters(); }
inline bool sliced(const Stage& stage) { return stage.plan.overlap.tensor_slices > 1; }
/// Whether states of these ranks' buckets are sharded.
inline bool sharded(const Stage& stage, const ReplicaGroup& holders) {
  return !stage.plan.by_units() && holders.shards > 1;
}
inline LayoutId layout_of(const Stage& stage, FrameId frame) {
  return stage.builder.program().frames[frame.index()].layout;
}
/// Experts' squares are summed over other ranks than the rest.
inline bool own_expert_norm(const Stage& stage) {
  return stage.model.has_experts() && stage.plan.sharding == Sharding::kNone;
}

/// The group of the ranks that share one copy of the states.
inline const char* shard_group(const Stage& stage) {
  return stage.plan.replicas() > 1 ? kShardGroup : kDataGroup;
}

/// The kind of layer `l` of a chunk: its layouts.
const LayerLayouts& kind_of(const Stage& stage, const Chunk& chunk, std::int64_t l);
/// Of all layers of a chunk; of one of experts none.
std::vector<const LayerLayouts*> kinds_of(const Stage& stage, const Chunk& chunk);
std::size_t block_kind(const Stage& stage, const Chunk& chunk, std::int64_t l);

}  // namespace foretrain
