// Contiguous buckets: gradients of which a rank keeps its own part are copied into a buffer as they
// come, which is reduced when the next parameter would not fit (DeepSpeed's
// runtime/zero/stage_1_and_2.py with contiguous_gradients: reduce_independent_p_g_buckets_and_...,
// average_tensor, allreduce_bucket, copy_grads_in_partition, independent_gradient_partition_...).
//
// With sharding.level gradients (ZeRO-2) what a backward pass makes lives until it is copied, each
// microbatch's is reduced, and the rank's parts are added up; with optimizer (ZeRO-1) the sums of
// all microbatches are copied when they are complete. A bucket of n parameters goes: copy in,
// division by the ranks (gradients.average before), a flat copy of what lies in several ranks'
// parts, the reduction, and of n / d parameters a copy back and one that stays. Compute does all of
// it and waits for the reduction, or with overlap.gradient_reduce all but the first copy goes on
// the reductions' stream, with two buffers by turns.
// The buffers have room for bucket_elements, however few there are.
// Where the host updates, what is kept goes there instead, bucket by bucket, and is added up there.
//
// Left out: a parameter that is larger than a bucket is reduced where it lies (here the buffer is
// as large); the rank's part is a range of all parameters, so that one rank copies all of a bucket
// while others wait, where here each copies 1/d of it (as boundaries then divide among the ranks, a
// bucket ends up to d - 1 elements early); buffers are let go of for the update; the sums of ZeRO-1
// are taken in the order of the parameters; norms and biases, which lie at the begin of all, go
// last; with overlap.gradient_reduce the host waits for the device at the end of a pass.
#include <algorithm>

#include "models/emit/update.h"
#include "models/gradients/buckets.h"
#include "models/units/units.h"

namespace foretrain {

static FrameId contiguous_frame(Stage& stage);
static std::vector<CopyIn> write_copies(Stage& stage, Chunk& chunk, LayoutId from,
                                        std::int64_t begin);
static void wait_for_buffer(Stage& stage, std::size_t bucket, Call& call);
static SegmentId write_contiguous(Stage& stage, const Chunk& chunk, Bucket& bucket, bool again);
static void add_own(Stage& stage, Chunk& chunk);

namespace {

// Formal frames of a bucket's reduction.
// Of copies into buckets, whose event is alone in its frame; of the sum of a rank's own parts.
constexpr std::int16_t kBufferFrame = 1, kCopiedFrame = 2, kOnlyEvent = 0;
constexpr std::int16_t kOwnSums = 0, kOwnOfPass = 1;
enum Frames : std::int16_t { kSums, kEvents, kBuffers, kOwn, kFlat };
/// Event of a bucket after kCopied.
constexpr std::int16_t kSummed = 3;

/// The buffer of a bucket: one, or two by turns.
std::int16_t turn(const Stage& stage, std::size_t bucket) {
  return static_cast<std::int16_t>(stage.plan.overlap.gradient_reduce ? bucket % 2 : 0);
}

}  // namespace

/// From the last parameter on: a bucket ends before the one with which it would hold more than
/// `bucket_elements`.
std::vector<std::int64_t> contiguous_begins(Stage& stage, const Chunk& chunk) {
  std::vector<std::int64_t> out;
  std::int64_t end = chunk.elements;
  std::int64_t from = end;
  for (const std::int64_t begin : parameter_begins(chunk)) {
    const std::int64_t cut = round_up(from, chunk.holders.shards);
    if (end - begin > stage.plan.bucket_elements && cut < end) {
      out.push_back(cut);
      end = cut;
    }
    from = begin;
  }
  out.push_back(0);
  return out;
}

/// The rank's part of a bucket.
Buffer own_gradients(Stage& stage, const Chunk& chunk, const Bucket& bucket) {
  Buffer own = buffer_of("own", BufferKind::kGradients, stage.plan.precision.gradients,
                         shard_elements(stage, bucket), true);
  if (sharded(stage, bucket.holders)) {
    own.shards = static_cast<std::int32_t>(bucket.holders.shards);
    own.shard_group = stage.builder.group(bucket.holders.shard_group);
  }
  for (Replica alike : chunk.replicas) {
    alike.begin = std::max(alike.begin, bucket.begin) - bucket.begin;
    alike.end = std::min(alike.end, bucket.end) - bucket.begin;
    if (alike.begin < alike.end) own.replicas.push_back(alike);
  }
  return own;
}

void make_own(Stage& stage, Chunk& chunk) {
  if (chunk.elements == 0) return;  // a stage without layers
  FrameLayout kept;
  FrameLayout pass;
  kept.name = "own gradients";
  pass.name = "own gradients of a pass";
  for (Bucket& bucket : chunk.buckets) {
    Buffer own = own_gradients(stage, chunk, bucket);
    own.persistent = !stage.plan.updates_on_host();  // where they stay instead
    kept.buffers.push_back(own);
    own.dtype = stage.plan.precision.compute;
    own.persistent = false;
    own.replicas.clear();
    pass.buffers.push_back(std::move(own));
    const std::int64_t part = chunk.elements / bucket.holders.shards;
    const bool divided = bucket.begin / part != (bucket.end - 1) / part;
    if (!divided && stage.plan.units.reduce == stage.plan.precision.compute) continue;
    LayoutWriter flat("flat bucket", kFlat);
    flat.add("flat", BufferKind::kCommunication, stage.plan.units.reduce,
             bucket.end - bucket.begin);
    bucket.flat = stage.builder.layout(flat.layout());
  }
  chunk.own = chunk.own_now = stage.builder.frame(stage.builder.layout(std::move(kept)));
  if (stage.plan.contiguous_passes()) chunk.own_of_pass = stage.builder.layout(std::move(pass));
}

/// One buffer, or two by turns, for the buckets of all chunks.
FrameId contiguous_frame(Stage& stage) {
  if (stage.contiguous.buffers.valid()) return stage.contiguous.buffers;
  std::int64_t most = stage.plan.bucket_elements;
  for (const Chunk& chunk : stage.holds.chunks) {
    for (const Bucket& bucket : chunk.buckets) most = std::max(most, bucket.end - bucket.begin);
  }
  FrameLayout layout;
  layout.name = "contiguous buckets";
  for (int i = 0; i < (stage.plan.overlap.gradient_reduce ? 2 : 1); ++i) {
    layout.buffers.push_back(
        buffer_of("bucket", BufferKind::kCommunication, stage.plan.precision.compute, most, true));
  }
  LayoutWriter copied("copied", 2);
  copied.event("copied");
  stage.contiguous.copied = stage.builder.layout(copied.layout());
  return stage.contiguous.buffers = stage.builder.frame(stage.builder.layout(std::move(layout)));
}

/// Gradients of an end in one pass. Both ends add to that of a tied table.
void fresh_end(Stage& stage, Chunk& chunk, PartFrames& part, const EndLayouts& end) {
  if (!stage.plan.contiguous_passes()) return;
  if (!stage.holds.ends.valid()) {
    part.gradients = stage.builder.frame(end.gradients);
    return;
  }
  if (&end == &stage.holds.head) chunk.ends = stage.builder.frame(stage.holds.ends);
  part.gradients = stage.builder.alias(end.gradients, chunk.ends, 0, 0);
}

/// The owner of the ends' gradients, where they share one.
void bind_tied(Stage& stage, const Chunk& chunk, bool backward, Call& call) {
  if (stage.holds.ends.valid()) call.frames.push_back(backward ? chunk.ends : FrameId());
}

/// Copies what a pass left in `from`, of parameters from `begin` on, into buckets; full ones go.
void copy_in(Stage& stage, Chunk& chunk, FrameId from, std::int64_t begin, StreamWait after) {
  const FrameId buffers = contiguous_frame(stage);
  const auto key = std::pair(layout_of(stage, from), begin);
  if (stage.contiguous.copies.find(key) == stage.contiguous.copies.end()) {
    stage.contiguous.copies[key] = write_copies(stage, chunk, key.first, begin);
  }
  for (const CopyIn& copy : stage.contiguous.copies[key]) {
    if (copy.reduced >= 0) {
      reduce_bucket(stage, chunk, chunk.buckets[static_cast<std::size_t>(copy.reduced)], FrameId(),
                    0);
      stage.contiguous.filling = copy.reduced + 1;
    }
    if (!copy.segment.valid()) continue;
    stage.contiguous.filling = std::max(stage.contiguous.filling, 0);
    const FrameId mark = stage.builder.frame(stage.contiguous.copied);
    Call call{copy.segment, -1, -1, {from, buffers, mark}, {}};
    if (after.frame.valid()) call.waits.push_back(after);
    wait_for_buffer(stage, static_cast<std::size_t>(stage.contiguous.filling), call);
    stage.builder.call(std::move(call));
    stage.contiguous.last_copy = StreamWait{StreamId(), mark, 0};
  }
}

/// Formal frames: what a pass left, the buffers, the copy's event. The last parameter comes first.
std::vector<CopyIn> write_copies(Stage& stage, Chunk& chunk, LayoutId from, std::int64_t begin) {
  std::vector<CopyIn> out(1);
  Segment segment;
  const auto close = [&] {
    if (segment.ops.empty()) return;
    segment.name = "copy gradients into buckets";
    segment.frames = {from, layout_of(stage, stage.contiguous.buffers), stage.contiguous.copied};
    segment.ops.back().records = EventRef{kCopiedFrame, kOnlyEvent};
    out.back().segment = stage.builder.segment(std::move(segment));
    segment = Segment();
  };
  const auto add = [&](const char* name, KernelKind kind, std::vector<View> reads, const View& to) {
    const DType type = stage.plan.precision.compute;
    const std::int64_t count = to.bytes * 8 / bits_of(type);
    Op op = unit_op(stage, "compute", name, kernel_of(kind, 1, count, type), Phase::kGradients);
    op.category = Category::kCompute;
    op.reads = std::move(reads);
    op.writes = {to};
    segment.ops.push_back(std::move(op));
  };
  const auto place = [&](std::size_t bucket, std::int64_t first, std::int64_t end) {
    return Ref{kBufferFrame, turn(stage, bucket), stage.plan.precision.compute, 0}.part(
        first - chunk.buckets[bucket].begin, end - first);
  };
  int filling = stage.contiguous.filling;
  if (filling < 0 && chunk.filled < chunk.elements) {
    add("gradients.pad", KernelKind::kFill, {}, place(0, chunk.filled, chunk.elements));
  }
  const std::vector<Buffer> buffers = stage.builder.program().layouts[from.index()].buffers;
  std::int64_t end = begin;
  for (const Buffer& buffer : buffers) end += buffer.count;
  for (std::size_t b = buffers.size(); b-- > 0;) {
    const std::int64_t low = end - buffers[b].count;
    while (end > low) {
      auto bucket = static_cast<std::size_t>(std::max(filling, 0));
      if (chunk.buckets[bucket].begin >= end) {
        close();
        out.push_back({static_cast<int>(bucket), SegmentId()});
        ++bucket;
      }
      filling = static_cast<int>(bucket);
      const std::int64_t first = std::max(low, chunk.buckets[bucket].begin);
      const Ref source{0, static_cast<std::int16_t>(b), buffers[b].dtype, buffers[b].count};
      add("gradients.copy", KernelKind::kCast, {source.part(first - low, end - first)},
          place(bucket, first, end));
      end = first;
    }
  }
  close();
  return out;
}

void reduce_contiguous(Stage& stage, Chunk& chunk, Bucket& bucket, StreamWait after) {
  const FrameId buffers = contiguous_frame(stage);
  const bool again = !(chunk.own_now == chunk.own);
  SegmentId& segment = again ? bucket.sum_again : bucket.sum;
  if (!segment.valid()) segment = write_contiguous(stage, chunk, bucket, again);
  Call call{segment, -1, -1, {chunk.gradients, bucket.frame, buffers, chunk.own_now}, {}};
  if (bucket.flat.valid()) call.frames.push_back(stage.builder.frame(bucket.flat));
  const StreamId compute(std::size_t{0});
  const auto index = static_cast<std::size_t>(&bucket - chunk.buckets.data());
  if (stage.plan.contiguous_passes()) {
    after = stage.contiguous.last_copy;
    after.stream = stage.builder.stream(bucket.holders.stream);
    const StreamId first = stage.builder.program().segments[segment.index()].ops.front().stream;
    if (!(first == compute)) call.waits.push_back(after);
  } else {
    after.stream = compute;
    call.waits.push_back(after);
    wait_for_buffer(stage, index, call);
  }
  stage.builder.call(std::move(call));
  stage.contiguous.buffer_free[static_cast<std::size_t>(turn(stage, index))] =
      StreamWait{compute, bucket.frame, kReduced};
  bucket_to_host(stage, chunk, bucket, after);
}

/// Compute copies into a buffer once what it held is reduced, on another stream.
void wait_for_buffer(Stage& stage, std::size_t bucket, Call& call) {
  const StreamWait& free =
      stage.contiguous.buffer_free[static_cast<std::size_t>(turn(stage, bucket))];
  if (stage.plan.overlap.gradient_reduce && free.frame.valid()) call.waits.push_back(free);
}

/// `again`: not of a step's first pass.
SegmentId write_contiguous(Stage& stage, const Chunk& chunk, Bucket& bucket, bool again) {
  const auto index = static_cast<std::size_t>(&bucket - chunk.buckets.data());
  const DType type = stage.plan.precision.compute;
  const std::int64_t count = bucket.end - bucket.begin;
  const std::int64_t own = shard_elements(stage, bucket);
  const StreamId compute(std::size_t{0});
  const StreamId stream =
      stage.plan.overlap.gradient_reduce ? stage.builder.stream(bucket.holders.stream) : compute;
  Segment segment;
  segment.name = kReduceGradients;
  std::int16_t next = kCopied;  // event where another stream goes on
  const auto push = [&](Op op) -> Op& {
    if (!segment.ops.empty() && !(segment.ops.back().stream == op.stream)) {
      segment.ops.back().records = EventRef{kEvents, next};
      op.waits = {segment.ops.back().records};
      next = kSummed;
    }
    segment.ops.push_back(std::move(op));
    return segment.ops.back();
  };
  const auto kernel = [&](StreamId on, const char* name, const Kernel& work, const View& from,
                          const View& to) -> Op& {
    Op op = unit_op(stage, bucket.holders.stream, name, work, Phase::kGradients);
    op.stream = on;
    if (on == compute) op.category = Category::kCompute;
    op.reads = {from};
    op.writes = {to};
    return push(std::move(op));
  };
  const auto cast = [](std::int64_t elements, DType to) {
    return kernel_of(KernelKind::kCast, 1, elements, to);
  };
  const View bucketed = Ref{kBuffers, turn(stage, index), type, 0}.part(0, count);
  const GroupSlot group = stage.builder.group(bucket.holders.shard_group);
  const std::int64_t shards = bucket.holders.shards;
  if (!stage.plan.contiguous_passes()) {
    Kernel copy = cast(count, type);
    const std::vector<std::int64_t> all = parameter_begins(chunk);
    copy.launches = static_cast<std::int32_t>(std::max<std::ptrdiff_t>(
        1, std::count_if(all.begin(), all.end(), [&bucket](std::int64_t at) {
          return bucket.begin <= at && at < bucket.end;
        })));
    kernel(compute, "gradients.copy", copy, gradients_of(stage, bucket), bucketed);
  }
  if (stage.plan.divides_gradients()) {
    kernel(stream, "gradients.average", cast(count, type), bucketed, bucketed);
  }
  View reduced = bucketed;
  DType travelling = type;
  if (bucket.flat.valid()) {
    travelling = stage.plan.units.reduce;
    reduced = Ref{kFlat, kOnlyBuffer, travelling, count}.view();
    kernel(stream, "gradients.flatten", cast(count, travelling), bucketed, reduced);
  }
  const View part = shard_of(reduced, shards, group);
  for (Op& op : sums(stage, bucket, reduced, part, travelling)) push(std::move(op));
  const View back = shard_of(bucketed, shards, group);
  if (bucket.flat.valid()) kernel(stream, "gradients.unflatten", cast(own, type), part, back);
  const DType kept = again ? type : stage.plan.precision.gradients;
  kernel(stream, "gradients.keep", cast(own, kept), back,
         Ref{kOwn, static_cast<std::int16_t>(index), kept, own}.view())
      .records = EventRef{kEvents, kReduced};
  segment.frames = {layout_of(stage, chunk.gradients), stage.holds.bucket,
                    layout_of(stage, stage.contiguous.buffers), layout_of(stage, chunk.own_now)};
  if (bucket.flat.valid()) segment.frames.push_back(bucket.flat);
  return stage.builder.segment(std::move(segment));
}

/// After a microbatch's backward pass: what is left goes, and the rank's parts are added up.
void finish_contiguous(Stage& stage, Chunk& chunk, FrameId frame, std::int16_t event, bool last) {
  copy_in(stage, chunk, stage.holds.ends.valid() ? chunk.ends : chunk.embedding.gradients,
          chunk.embedding.cut_begin);
  StreamWait summed;
  const std::int64_t before = stage.holds.embedding.parameters.shared_elements;
  const std::vector<ElementRange> parts = partial_gradients(
      stage.model, stage.plan, kinds_of(stage, chunk), chunk.shared_elements, before);
  if (!parts.empty()) {
    chunk.marks = stage.builder.frame(stage.holds.marks);
    summed = reduce_parts(stage, "tensor", kTensorGroup, chunk, parts, kSharedMark,
                          StreamWait{StreamId(), frame, event});
  }
  copy_in(stage, chunk, chunk.gradients, 0, summed);
  reduce_bucket(stage, chunk, chunk.buckets.back(), FrameId(), 0);
  if (!(chunk.own_now == chunk.own) && !stage.plan.updates_on_host()) add_own(stage, chunk);
  stage.contiguous.filling = -1;
  if (last) return;
  for (Bucket& bucket : chunk.buckets) {
    bucket.frame = stage.builder.frame(stage.holds.bucket);
  }
  chunk.own_now = stage.builder.frame(chunk.own_of_pass);
}

/// Adds the rank's parts of a pass to those before.
void add_own(Stage& stage, Chunk& chunk) {
  const StreamId compute(std::size_t{0});
  const DType kept = stage.plan.precision.gradients;
  if (!chunk.adds_own.valid()) {
    LayoutWriter events("add", 0);
    SegmentWriter w(stage.builder, "add own gradients", events);
    w.phase = Phase::kGradients;
    w.segment().frames = {layout_of(stage, chunk.own), layout_of(stage, chunk.own_now)};
    for (std::size_t b = 0; b < chunk.buckets.size(); ++b) {
      const std::int64_t count = shard_elements(stage, chunk.buckets[b]);
      const auto buffer = static_cast<std::int16_t>(b);
      const View sum = Ref{kOwnSums, buffer, kept, count}.view();
      const View part = Ref{kOwnOfPass, buffer, stage.plan.precision.compute, count}.view();
      w.compute("gradients.accumulate", kernel_of(KernelKind::kAdd, 1, count, kept), {sum, part},
                {sum});
    }
    chunk.adds_own = stage.builder.segment(std::move(w.segment()));
  }
  Call call{chunk.adds_own, -1, -1, {chunk.own, chunk.own_now}, {}};
  for (const Bucket& bucket : chunk.buckets) {
    call.waits.push_back(StreamWait{compute, bucket.frame, kReduced});
  }
  stage.builder.call(std::move(call));
}

}  // namespace foretrain
