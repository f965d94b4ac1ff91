// The Program: what one rank does in one training step, written once and shared by every rank that
// does the same. Two interpreters replay it: the simulator (prices) and the executor (real
// kernels).
//
// Shape. A Program lists Calls in issue order. Each Call runs one Segment (a list of Ops, say one
// layer's forward) on the Frames it binds. A Frame is an instance of a FrameLayout: buffers and
// events. An op is identified by (call, index in its segment).
//
// Meaning, which is CUDA's. Ops of one stream run in issue order. Across streams an op waits for
// events; an event is recorded when its op ends. The host issues ops in order and never waits, save
// at HostSync. No two ops that are unordered by these rules touch the same bytes unless both read:
// `verify` checks. A collective starts when every member of its group has reached it, and ends for
// all at once.
//
// Left out: control flow that depends on data; a step is a straight line.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/base/id.h"
#include "sim/program/work.h"

namespace foretrain {

using StreamId = Id<struct StreamTag>;
using WorkId = Id<struct WorkTag>;
using SegmentId = Id<struct SegmentTag>;
using LayoutId = Id<struct LayoutTag>;
using FrameId = Id<struct FrameTag>;
using TensorId = Id<struct TensorTag>;
using ProgramId = Id<struct ProgramTag>;
using RankId = Id<struct RankTag>;
using GroupId = Id<struct GroupTag>;
using ChannelId = Id<struct ChannelTag>;

/// What a buffer holds, as memory reports name it.
enum class BufferKind : std::uint8_t {
  kParameters,
  kGradients,
  kOptimizer,
  kActivations,
  kCommunication,
  kWorkspace,
  kInputs,
  kCount
};
std::string_view name_of(BufferKind kind);

/// How a logical tensor of the model starts. Values are drawn by a counter-based generator on
/// global element indices, so that every plan starts from the same weights.
/// kDecay: the logarithm of a number uniform on [1, 16]. kStep: b with softplus(b) = dt, whose
/// logarithm is uniform from that of 0.001 to that of 0.1. Both as mamba_ssm draws its decays and
/// the biases of its steps (modules/mamba2.py).
enum class Init : std::uint8_t { kZeros, kOnes, kNormal, kDecay, kStep };

/// A parameter of the model as the whole model knows it: [rows, cols], row-major.
struct Tensor {
  std::string name;
  std::int64_t rows = 0, cols = 0;
  Init init = Init::kNormal;
  double deviation = 0.02;
  bool operator==(const Tensor&) const = default;
};

/// One of `of` equal parts.
struct PartOf {
  std::int32_t index = 0, of = 1;
  bool operator==(const PartOf&) const = default;
};

/// Part of a buffer that holds a slice of a logical tensor: rows [m row_count, (m+1) row_count) and
/// columns [n col_count, ...) where m or n is the rank's place in `group` (0 where the dimension is
/// not split). For part `row_part` of the rank's rows m is that place times `of` plus `index`;
/// columns likewise. Elements follow each other from `offset` elements on. The tensor is that of
/// the frame's layer plus `layer`.
struct Piece {
  TensorId tensor;
  std::int32_t layer = 0;
  std::int64_t offset = 0, row_count = 0, col_count = 0;
  GroupSlot rows_split_over, cols_split_over;
  PartOf row_part, col_part;
  bool operator==(const Piece&) const = default;
};

/// Elements [begin, end) of a gradient buffer that every rank of `group` holds alike: the norm of
/// the whole gradient counts them once.
struct Replica {
  std::int64_t begin = 0, end = 0;
  GroupSlot group;
  bool operator==(const Replica&) const = default;
};

struct Buffer {
  std::string name;
  BufferKind kind = BufferKind::kActivations;
  DType dtype = DType::kBf16;
  std::int64_t count = 0;  ///< elements
  bool persistent =
      false;           ///< lives from the start to the end of the step; never allocated by an op
  bool saved = false;  ///< kept from forward to backward (for the theoretical memory metric)
  Memory memory = Memory::kDevice;  ///< where it lives
  /// PyTorch's allocator has a pool for every stream: that of compute, or one beside it whose
  /// blocks compute does not get (what is allocated while another stream is the current one).
  std::int8_t pool = 0;
  /// Of gathers, whose calls the host holds back until what they wait for has happened
  /// (`limit_all_gathers`), and of reductions.
  static constexpr std::int8_t kGatherPool = 1, kReducePool = 2, kPools = 3;
  /// With `shards` > 1 the buffer is the rank's own of so many equal parts of an array, by its
  /// place in `shard_group`; pieces and replicas count elements of the whole array.
  std::int32_t shards = 1;
  GroupSlot shard_group;
  /// That array is cut into runs of so many elements, of each of which the rank has its part, one
  /// after the other; none: it is one.
  std::vector<std::int64_t> runs;
  std::vector<Piece> pieces;      ///< initial content of a parameter
  std::vector<Replica> replicas;  ///< of gradients
  Bytes bytes() const { return bytes_of(dtype, count); }
  /// Elements of the buffer, from `at` on, that lie together in the array, from `first` on.
  struct Part {
    std::int64_t at = 0, first = 0, count = 0;
  };
  /// What the buffer holds of the array, in order, `place` being the rank's place.
  std::vector<Part> parts(std::int64_t place) const {
    if (runs.empty()) return {{0, place * count, count}};
    std::vector<Part> out;
    std::int64_t at = 0;
    for (const std::int64_t run : runs) {
      const std::int64_t own = run / shards;
      out.push_back({at, at * shards + place * own, own});
      at += own;
    }
    return out;
  }
  bool operator==(const Buffer&) const = default;
};

/// The buffers and events that belong together: the weights of a layer, what a layer saves of one
/// microbatch, a gradient bucket.
struct FrameLayout {
  std::string name;
  std::vector<Buffer> buffers;
  std::vector<std::string> events;
  bool operator==(const FrameLayout&) const = default;
};

/// A contiguous interval of a buffer of one of the frames that the Call binds. With `shards` > 1
/// the interval is the rank's own of `shards` equal ones: it starts at offset + place * bytes,
/// where place is the rank's index in `shard_group`; with `hops` that of the member so many places
/// before it, in turn.
struct View {
  std::int16_t frame = 0;   ///< which of the segment's formal frames
  std::int16_t buffer = 0;  ///< which buffer of its layout
  Bytes offset = 0, bytes = 0;
  std::int32_t shards = 1;
  GroupSlot shard_group;
  /// 0 .. shards. The rank's own at 0 and, where other members' intervals are named too, at
  /// `shards`.
  std::int32_t hops = 0;
  bool operator==(const View&) const = default;
};

struct BufferRef {
  std::int16_t frame = 0, buffer = 0;
  bool operator==(const BufferRef&) const = default;
};
struct EventRef {
  std::int16_t frame = -1, event = -1;
  bool valid() const { return frame >= 0; }
  bool operator==(const EventRef&) const = default;
};

/// What an op is for; also its colour in traces.
enum class Category : std::uint8_t {
  kCompute,
  kTensor,
  kPipeline,
  kData,
  kExpert,
  kContext,
  kMemory,
  kHost,
  kCount
};
enum class Phase : std::uint8_t {
  kForward,
  kBackward,
  kRecompute,
  kGradients,
  kOptimizer,
  kInput,
  kCount
};
std::string_view name_of(Category category);
std::string_view name_of(Phase phase);

struct Op {
  StreamId stream;
  WorkId work;
  std::string name;  ///< module path within the segment's layer: "attention.qkv"
  Category category = Category::kCompute;
  Phase phase = Phase::kForward;
  std::vector<View> reads, writes;
  std::vector<BufferRef> allocates;  ///< before it runs
  std::vector<BufferRef> frees;      ///< after it ran
  std::vector<EventRef> waits;
  EventRef records;
  bool captured = false;  ///< in a graph that the host launches as one; eager where the step is
  bool operator==(const Op&) const = default;
};

struct Segment {
  std::string name;
  std::vector<LayoutId> frames;  ///< formal frames
  std::vector<Op> ops;
  bool operator==(const Segment&) const = default;
};

/// A stream waits for an event of a frame before it goes on (cudaStreamWaitEvent).
struct StreamWait {
  StreamId stream;
  FrameId frame;
  std::int16_t event = 0;
  bool operator==(const StreamWait&) const = default;
};

/// One run of a segment.
struct Call {
  SegmentId segment;
  std::int32_t layer = -1;        ///< global layer index, -1 where none
  std::int32_t microbatch = -1;   ///< -1 where none
  std::vector<FrameId> frames;    ///< actual frames, one for each formal; none where it is not used
  std::vector<StreamWait> waits;  ///< before the first op of the call on that stream
  bool operator==(const Call&) const = default;
};

/// An instance of a layout. An alias owns no memory: its buffers lie one after another in buffer
/// `alias_buffer` of frame `alias_of`, from byte `alias_offset` on (a layer's part of the
/// contiguous parameter buffer). The aliased frame is not an alias itself.
struct Frame {
  LayoutId layout;
  std::int32_t layer = -1, microbatch = -1;
  FrameId alias_of;
  std::int16_t alias_buffer = 0;
  Bytes alias_offset = 0;
  bool operator==(const Frame&) const = default;
};

/// What a step trains on. Of the sequences of the global batch, rank place d of n data-parallel
/// ones takes, as its microbatch m, those from (m n + d) sequences on. Under context parallelism
/// the ranks of `context` share each of them: place i of c holds chunks i and 2c - 1 - i of 2c.
struct Batch {
  std::int64_t sequences = 1;  ///< of a microbatch
  std::int64_t length = 1;     ///< tokens of a sequence
  std::int64_t microbatches = 1;
  std::int64_t vocabulary = 0;  ///< without padding
  GroupSlot split_over;         ///< the ranks that take other sequences; none when there is one
  GroupSlot context;            ///< none when every rank holds whole sequences
  /// Members of `context` hold one run of tokens each; else chunks i and 2c-1-i of 2c.
  bool contiguous = false;
  /// Lengths of a sequence's documents where each of them is so cut instead; else empty.
  std::vector<std::int64_t> documents = {};
  bool operator==(const Batch&) const = default;
};

struct Program {
  std::string name;
  std::vector<std::string> streams;
  std::vector<std::string> group_slots;    ///< names: "tensor", "data", ...
  std::vector<std::string> channel_slots;  ///< names: "activations to next", ...
  std::vector<Tensor> tensors;
  std::vector<Work> works;  ///< interned: no two are equal
  std::vector<FrameLayout> layouts;
  std::vector<Segment> segments;
  std::vector<Frame> frames;
  std::vector<Call> calls;
  Batch batch;
  bool operator==(const Program&) const = default;
};

/// A directed path for messages; they arrive in the order sent.
struct Channel {
  RankId source, destination;
  ChannelSlot source_slot, destination_slot;
  bool operator==(const Channel&) const = default;
};

/// What a rank's slots mean.
struct RankBinding {
  ProgramId program;
  std::vector<GroupId> groups;      ///< by GroupSlot
  std::vector<ChannelId> channels;  ///< by ChannelSlot
  bool operator==(const RankBinding&) const = default;
};

struct Workload {
  std::vector<Program> programs;
  std::vector<RankBinding> ranks;
  std::vector<std::vector<RankId>> groups;  ///< members in order; a rank's place is its index
  std::vector<Channel> channels;
  bool operator==(const Workload&) const = default;
};

/// Bytes that a memory-bound kernel moves: the sum of its views; of a table that is looked up (the
/// first read of an embedding, the first write of its backward) only the `rows` rows touched count,
/// and of packed qkv whose keys or queries are taken only these.
Bytes kernel_bytes(const Kernel& kernel, const Op& op);

/// Ops of one Program, counted over its calls.
std::int64_t count_ops(const Program& program);

/// A stable text of the Program, for people and goldens. Segments are printed once, then the calls.
std::string text_of(const Program& program);

}  // namespace foretrain
