// Gradient buckets: where they are cut, and how those that are copied travel.
//
// Three cuts, all from the end of the parameters, which the backward pass finishes first. Equal
// ranges (Megatron-LM). Whole parameters until a size is reached, with another size for the first
// bucket (PyTorch DDP, compute_bucket_assignment_by_size). What the backward passes of one layer or
// of several, those of a coordinator's cycle, make ready, as long as it fits (Horovod:
// models/gradients/coordinator.cpp).
//
// A copied bucket goes: copy in, reduction, copy out. With Horovod's one buffer all of it is on the
// bucket's stream; DDP's buckets have memory of their own, and compute copies. What is compressed
// is made from the bucket, which stays (PyTorch's comm hooks): compute casts it, and beside compute
// what comes back is cast into it. Horovod's buffer is of the type that travels. Left out: norms
// and biases, which lie at the begin of the buffer, go last instead of with their layer; a bucket
// waits for the end of its layer's backward pass; PyTorch casts back on a stream of its own.
#include <algorithm>

#include "models/emit/tasks.h"
#include "models/emit/update.h"
#include "models/gradients/buckets.h"
#include "models/units/units.h"

namespace foretrain {

static std::vector<std::int64_t> bucket_begins(Stage& stage, const Chunk& chunk);
static Bucket new_bucket(Stage& stage, const Chunk& chunk, std::int64_t begin, std::int64_t end);
static void make_staging(Stage& stage, Chunk& chunk);
static StreamWait prepare_bucket(Stage& stage, const Chunk& chunk, const Bucket& bucket,
                                 StreamWait after);
static void write_in_place(Stage& stage, Bucket& bucket, Segment& segment);
static void write_copied(Stage& stage, Bucket& bucket, Segment& segment, const Ref& copy);

bool casts_buckets(const Plan& plan) {
  const Compression c = plan.buckets.compression;
  const bool casts = c == Compression::kFp16 || c == Compression::kBf16;
  return plan.sharding == Sharding::kNone && plan.buckets.cut != Bucketing::kReady && casts;
}

bool copies_on_compute(const Plan& plan) {
  const GradientBuckets& b = plan.buckets;
  return plan.sharding == Sharding::kNone && b.cut != Bucketing::kReady &&
         (b.copy || (b.inner_group > 1 && !casts_buckets(plan)));
}

std::vector<std::int64_t> parameter_begins(const Chunk& chunk) {
  std::vector<std::int64_t> out = {0};
  for (const ParameterRange& range : chunk.ranges) out.push_back(range.begin);
  for (const PartFrames& part : chunk.parts) out.push_back(part.cut_begin);
  std::erase_if(out, [&chunk](std::int64_t begin) { return begin >= chunk.elements; });
  std::sort(out.rbegin(), out.rend());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

/// Begins of the buckets, in the order in which they become ready. What no other rank holds is not
/// reduced: one bucket, or what each layer's backward pass makes ready for the host.
std::vector<std::int64_t> bucket_begins(Stage& stage, const Chunk& chunk) {
  const GradientBuckets& b = stage.plan.buckets;
  std::vector<std::int64_t> out;
  if (chunk.holders.ranks == 1) {
    if (stage.plan.updates_on_host()) {
      if (chunk.has_head) out.push_back(chunk.head.cut_begin);
      for (const PartFrames& part : chunk.parts) out.push_back(part.cut_begin);
    }
    std::erase_if(out, [&chunk](std::int64_t begin) { return begin >= chunk.elements; });
    out.push_back(0);
    std::sort(out.rbegin(), out.rend());
    out.erase(std::unique(out.begin(), out.end()), out.end());
    return out;
  }
  if (b.cut == Bucketing::kRanges) {
    const std::int64_t unit = sharded(stage, chunk.holders) ? chunk.holders.shards * 128 : 1;
    const bool whole = stage.plan.bucket_elements == 0 || !stage.plan.overlap.gradient_reduce;
    const std::int64_t size =
        whole ? chunk.elements : std::max(round_up(stage.plan.bucket_elements, unit), unit);
    for (std::int64_t end = chunk.elements; end > 0; end -= size) {
      out.push_back(std::max<std::int64_t>(0, end - size));
    }
    return out;
  }
  if (b.cut == Bucketing::kContiguous) return contiguous_begins(stage, chunk);
  const DType type = stage.plan.precision.gradients;
  const std::vector<std::int64_t> lists = list_begins(stage, chunk);
  std::int64_t end = chunk.elements;   // of the bucket that is being filled
  std::int64_t from = chunk.elements;  // where it begins so far
  for (const std::int64_t begin : parameter_begins(chunk)) {
    const Bytes limit = out.empty() ? b.first_bytes : b.bytes;
    const bool full = bytes_of(type, end - begin) > limit;
    if (b.cut == Bucketing::kReady && full && from < end) {
      out.push_back(from);
      end = from;
    }
    from = begin;
    const bool closes = b.cut == Bucketing::kReady
                            ? std::find(lists.begin(), lists.end(), begin) != lists.end()
                            : bytes_of(type, end - begin) >= limit;
    if (begin > 0 && !closes) continue;
    out.push_back(begin);
    end = begin;
  }
  return out;
}

Bucket new_bucket(Stage& stage, const Chunk& chunk, std::int64_t begin, std::int64_t end) {
  Bucket bucket;
  bucket.begin = begin;
  bucket.end = end;
  bucket.holders = chunk.holders;
  bucket.frame = stage.builder.frame(stage.holds.bucket);
  return bucket;
}

void make_buckets(Stage& stage, Chunk& chunk) {
  std::int64_t end = chunk.elements;
  for (const std::int64_t begin : bucket_begins(stage, chunk)) {
    Bucket bucket = new_bucket(stage, chunk, begin, end);
    end = begin;
    // With depth all gradients wait for their sum over it.
    bucket.last = bucket.begin < std::max<std::int64_t>(chunk.shared_elements, 1) ||
                  stage.plan.tensor_depth > 1;
    const auto overlaps = [&bucket](const PartFrames& part) {
      return bucket.begin < part.cut_end && part.cut_begin < bucket.end;
    };
    if (tied_across(stage.model, stage.plan) && chunk.has_embedding)
      bucket.last |= overlaps(chunk.embedding);
    if (tied_across(stage.model, stage.plan) && chunk.has_head) bucket.last |= overlaps(chunk.head);
    chunk.buckets.push_back(bucket);
  }
  if (chunk.holders.ranks > 1) {
    number_lists(stage, chunk);
    make_staging(stage, chunk);
    if (stage.plan.contiguous()) make_own(stage, chunk);
  }
  make_host_buckets(stage, chunk);
}

DType travelling_type(Stage& stage) {
  switch (stage.plan.buckets.compression) {
    case Compression::kFp16:
      return DType::kFp16;
    case Compression::kBf16:
      return DType::kBf16;
    default:
      return stage.plan.narrows_gradients() ? stage.plan.units.reduce
                                            : stage.plan.precision.gradients;
  }
}

/// The buffers that buckets are copied into, and the words that a coordinator exchanges.
void make_staging(Stage& stage, Chunk& chunk) {
  const GradientBuckets& b = stage.plan.buckets;
  if (!stage.plan.stages_buckets() && b.cycle.ps == 0) return;
  LayoutWriter layout("buckets", 0);
  const auto add = [&layout](const char* name, DType type, std::int64_t count) {
    layout.add(name, BufferKind::kCommunication, type, count);
    layout.layout().buffers.back().persistent = true;
  };
  const bool one_buffer = b.cut == Bucketing::kReady;
  bool copies = one_buffer || copies_on_compute(stage.plan);
  if (b.compression == Compression::kPowerSgd) {
    stage_factors(stage, chunk, add);
    copies = copies && !one_buffer;
  } else if (b.compression == Compression::kOneBit) {
    stage_signs(chunk, add);
    copies = copies && !one_buffer;
  }
  if (copies) {
    std::int64_t total = 0;
    const bool always = b.inner_group > 1 || b.compression != Compression::kNone;
    const std::int64_t unit = casts_buckets(stage.plan) ? 1 : b.inner_group;
    const std::vector<std::int64_t> begins = parameter_begins(chunk);
    for (Bucket& bucket : chunk.buckets) {
      const auto inside = std::count_if(begins.begin(), begins.end(), [&bucket](std::int64_t at) {
        return bucket.begin <= at && at < bucket.end;
      });
      // A tensor alone needs no fusion.
      if (!stage.plan.stages_buckets() || (one_buffer && inside < 2 && !always)) continue;
      bucket.copied.count = round_up(bucket.end - bucket.begin, unit);
      bucket.copied.begin = one_buffer ? 0 : total;
      bucket.copied.buffer = static_cast<std::int16_t>(layout.layout().buffers.size());
      total = std::max(total, bucket.copied.begin + bucket.copied.count);
    }
    add("copies", one_buffer ? travelling_type(stage) : stage.plan.precision.gradients,
        std::max<std::int64_t>(total, 1));
  }
  if (b.cycle.ps > 0) add("readiness", DType::kFp32, kReadinessElements);
  if (layout.layout().buffers.empty()) return;
  chunk.staging = stage.builder.frame(stage.builder.layout(layout.layout()));
}

void reduce_bucket(Stage& stage, Chunk& chunk, Bucket& bucket, FrameId frame, std::int16_t event) {
  if (bucket.begin == bucket.end) return;
  StreamWait after{StreamId(), frame, event};
  if (stage.plan.contiguous() && bucket.holders.ranks > 1) {
    return reduce_contiguous(stage, chunk, bucket, after);
  }
  after = prepare_bucket(stage, chunk, bucket, after);
  if (bucket.holders.ranks == 1) return bucket_to_host(stage, chunk, bucket, after);
  Segment segment;
  segment.name = kReduceGradients;
  segment.frames = {layout_of(stage, chunk.gradients), stage.holds.bucket};
  Call call{SegmentId(), -1, -1, {chunk.gradients, bucket.frame}, {}};
  if (chunk.staging.valid()) {
    segment.frames.push_back(layout_of(stage, chunk.staging));
    call.frames.push_back(chunk.staging);
  }
  if (stage.plan.buckets.cycle.ps > 0) coordinate(stage, chunk, bucket, segment);
  const bool copied = copies_on_compute(stage.plan);
  bool on_compute = copied;  // what comes before and after the reduction
  Ref copy;
  if (bucket.copied.count > 0) copy = copy_in(stage, bucket, segment);
  const View from = copied ? copy.view() : gradients_of(stage, bucket);
  const std::size_t next = segment.ops.size();
  if (bucket.left.count + bucket.right.count > 0) {
    write_factors(stage, bucket, segment, from);
  } else if (stage.plan.buckets.compression == Compression::kOneBit) {
    write_signs(stage, bucket, segment, from);
  } else if (casts_buckets(stage.plan) || stage.plan.narrows_gradients()) {
    write_narrowed(stage, bucket, segment, call, from);
    on_compute = casts_buckets(stage.plan) || !stage.plan.overlap.gradient_reduce;
  } else if (bucket.copied.count > 0) {
    write_copied(stage, bucket, segment, copy);
  } else {
    write_in_place(stage, bucket, segment);
  }
  if (copied && segment.ops[next].stream.index() > 0) {
    segment.ops[next].waits.push_back(EventRef{formal::kEvents, kCopied});
  }
  call.segment = stage.builder.segment(std::move(segment));
  const auto wait_on = [&call, &after](StreamId stream) {
    call.waits.push_back(StreamWait{stream, after.frame, after.event});
  };
  wait_on(stage.builder.stream(bucket.holders.stream));
  if (stage.plan.buckets.cycle.ps > 0 && bucket.first_of_list) {
    wait_on(stage.builder.stream(kCoordinator));
  }
  if (on_compute) wait_on(StreamId(std::size_t{0}));
  stage.builder.call(std::move(call));
  bucket_to_host(stage, chunk, bucket, after);
}

/// What compute does with a bucket before its reduction, if anything: its norm, which the host
/// waits for (Megatron Core's check_for_nan_in_grad), and the division by the ranks. The loss is a
/// mean over all ranks here: a copy of the bucket onto itself stands for the division's time.
/// Returns what comes after it.
StreamWait prepare_bucket(Stage& stage, const Chunk& chunk, const Bucket& bucket,
                          StreamWait after) {
  const bool narrows = casts_buckets(stage.plan) || stage.plan.narrows_gradients();
  const bool apart = narrows && bucket.holders.ranks > 1;
  const bool divides = stage.plan.divides_gradients() && !apart;
  if (!divides && !stage.plan.buckets.checks) return after;
  LayoutWriter local("prepared bucket", 1);
  SegmentWriter w(stage.builder, "prepare gradients", local);
  w.phase = Phase::kGradients;
  const DType type = stage.plan.precision.gradients;
  const std::int64_t count = bucket.end - bucket.begin;
  const View all = gradients_of(stage, bucket);
  if (stage.plan.buckets.checks) {
    const View norm = local.add("norm", BufferKind::kWorkspace, DType::kFp32, 1).view();
    w.compute("gradients.check.zero", kernel_of(KernelKind::kFill, 1, 1, DType::kFp32), {}, {norm});
    w.compute("gradients.check.norm", kernel_of(KernelKind::kSquaredNorm, 1, count, type),
              {all, norm}, {norm});
    w.compute("gradients.check.wait", HostSync{}, {norm}, {});
    w.segment().ops.back().category = Category::kHost;
  }
  if (divides) {
    w.compute("gradients.average", kernel_of(KernelKind::kCast, 1, count, type), {all}, {all});
  }
  after.stream = StreamId(std::size_t{0});
  return call_marked(stage, w, "prepared", {chunk.gradients}, {after});
}

Op& bucket_op(Stage& stage, const Bucket& bucket, Segment& segment, const char* name, Work work,
              std::vector<View> reads, std::vector<View> writes) {
  Op op = unit_op(stage, bucket.holders.stream, name, std::move(work), Phase::kGradients);
  op.reads = std::move(reads);
  op.writes = std::move(writes);
  segment.ops.push_back(std::move(op));
  return segment.ops.back();
}

View gradients_of(Stage& stage, const Bucket& bucket) {
  const DType type = stage.plan.precision.gradients;
  return View{formal::kChunk,
              kOnlyBuffer,
              bytes_of(type, bucket.begin),
              bytes_of(type, bucket.end - bucket.begin),
              1,
              GroupSlot()};
}

void write_in_place(Stage& stage, Bucket& bucket, Segment& segment) {
  const View all = gradients_of(stage, bucket);
  const DType type = stage.plan.precision.gradients;
  const View part = scatters(stage, bucket) ? shard_view(stage, 0, bucket, type) : all;
  sum_over_ranks(stage, bucket, segment, all, part, type, EventRef{formal::kEvents, kReduced});
}

/// A rank gets the sum of its own part alone.
bool scatters(Stage& stage, const Bucket& bucket) {
  return sharded(stage, bucket.holders) && stage.plan.reduction != GradientReduction::kAllReduce;
}

/// Into `part`, all of it or the rank's own; `done` is recorded at the end.
void sum_over_ranks(Stage& stage, const Bucket& bucket, Segment& segment, const View& all,
                    const View& part, DType type, EventRef done) {
  const bool again = scatters(stage, bucket) && bucket.holders.shards < bucket.holders.ranks;
  for (Op& op : sums(stage, bucket, all, part, type)) segment.ops.push_back(std::move(op));
  segment.ops.back().records = again ? EventRef{formal::kEvents, kScattered} : done;
  if (!again) return;
  reduce_over_replicas(stage, segment, bucket.holders, part, shard_elements(stage, bucket), type,
                       EventRef{formal::kEvents, kScattered}, done);
}

/// Sums a copied array over the bucket's ranks: at once, or within inner groups, then what each
/// rank got there over the ranks at the same place, and back.
void sum_copies(Stage& stage, const Bucket& bucket, const Ref& copied, Segment& segment) {
  const std::int64_t inner = stage.plan.buckets.inner_group;
  const std::int64_t count = copied.count;
  const DType type = copied.dtype;
  const View copy = copied.view();
  if (inner == 1) {
    bucket_op(stage, bucket, segment, "gradients.reduce",
              Collective{CollectiveKind::kAllReduce, stage.builder.group(bucket.holders.group),
                         count, type, false},
              {copy}, {copy});
    return;
  }
  const GroupSlot group = stage.builder.group(kInnerGroup);
  const View own = shard_of(copy, inner, group);
  bucket_op(stage, bucket, segment, "gradients.inner.reduce",
            Collective{CollectiveKind::kReduceScatter, group, count, type, false}, {copy}, {own});
  if (inner < bucket.holders.ranks) {
    bucket_op(stage, bucket, segment, "gradients.outer.reduce",
              Collective{CollectiveKind::kAllReduce, stage.builder.group(kOuterGroup),
                         count / inner, type, false},
              {own}, {own});
  }
  bucket_op(stage, bucket, segment, "gradients.inner.gather",
            Collective{CollectiveKind::kAllGather, group, count, type, false}, {own}, {copy});
}

/// Zeroes behind the gradients, up to equal parts.
void pad(Stage& stage, const Bucket& bucket, const Ref& rest, Segment& segment) {
  if (rest.count == 0) return;
  bucket_op(stage, bucket, segment, "gradients.pad",
            kernel_of(KernelKind::kFill, 1, rest.count, rest.dtype), {}, {rest.view()});
}

/// By compute, or into the one buffer on the bucket's stream.
Ref copy_in(Stage& stage, const Bucket& bucket, Segment& segment) {
  const Staged& at = bucket.copied;
  const std::int64_t count = bucket.end - bucket.begin;
  const bool on_compute = copies_on_compute(stage.plan);
  const DType type = on_compute ? stage.plan.precision.gradients : travelling_type(stage);
  const Ref copy{2, at.buffer, type, at.count, at.begin};
  Op& in = bucket_op(stage, bucket, segment, "gradients.copy",
                     kernel_of(KernelKind::kCast, 1, count, type), {gradients_of(stage, bucket)},
                     {copy.part(0, count)});
  if (on_compute) {
    in.stream = StreamId(std::size_t{0});
    in.category = Category::kCompute;
    in.records = EventRef{formal::kEvents, kCopied};
  }
  pad(stage, bucket, Ref{formal::kStaging, at.buffer, type, at.count - count, at.begin + count},
      segment);
  return copy;
}

void write_copied(Stage& stage, Bucket& bucket, Segment& segment, const Ref& copy) {
  const std::int64_t count = bucket.end - bucket.begin;
  sum_copies(stage, bucket, copy, segment);
  if (!copies_on_compute(stage.plan)) {
    bucket_op(stage, bucket, segment, "gradients.copy_back",
              kernel_of(KernelKind::kCast, 1, count, stage.plan.precision.gradients),
              {copy.part(0, count)}, {gradients_of(stage, bucket)});
  }
  segment.ops.back().records = EventRef{formal::kEvents, kReduced};
}

/// Compute takes back what it copied, bucket by bucket, once it is reduced.
void copy_back(Stage& stage, Chunk& chunk) {
  if (!chunk.staging.valid() || !copies_on_compute(stage.plan)) return;
  const DType type = stage.plan.precision.gradients;
  for (Bucket& bucket : chunk.buckets) {
    if (bucket.copied.count == 0) continue;
    const std::int64_t count = bucket.end - bucket.begin;
    Segment segment;
    segment.name = "copy buckets back";
    segment.frames = {layout_of(stage, chunk.gradients), layout_of(stage, chunk.staging)};
    Op op = unit_op(stage, "compute", "gradients.copy_back",
                    kernel_of(KernelKind::kCast, 1, count, type), Phase::kGradients);
    op.category = Category::kCompute;
    op.reads = {
        Ref{formal::kBackFrom, bucket.copied.buffer, type, 0}.part(bucket.copied.begin, count)};
    op.writes = {gradients_of(stage, bucket)};
    segment.ops.push_back(std::move(op));
    stage.builder.call(Call{stage.builder.segment(std::move(segment)),
                            -1,
                            -1,
                            {chunk.gradients, chunk.staging},
                            {StreamWait{StreamId(std::size_t{0}), bucket.frame, kReduced}}});
  }
}

/// After a microbatch's backward pass whose gradients are reduced alone: adds them to the sum and
/// clears them for the next one.
void collect_pass(Stage& stage, Chunk& chunk, bool last) {
  LayoutWriter events("collect", 0);
  SegmentWriter w(stage.builder, "collect gradients", events);
  w.phase = Phase::kGradients;
  w.segment().frames = {layout_of(stage, chunk.gradients), layout_of(stage, chunk.summed)};
  const DType type = stage.plan.precision.gradients;
  const Ref fresh{0, 0, type, chunk.elements};
  const Ref sum{1, 0, type, chunk.elements};
  const KernelKind kind = chunk.summed_once ? KernelKind::kAdd : KernelKind::kCast;
  std::vector<View> reads = {fresh.view()};
  if (chunk.summed_once) reads.push_back(sum.view());
  w.compute(chunk.summed_once ? "gradients.accumulate" : "gradients.keep",
            kernel_of(kind, 1, chunk.elements, type), std::move(reads), {sum.view()});
  if (!last) {
    w.compute("gradients.zero", kernel_of(KernelKind::kFill, 1, chunk.elements, type), {},
              {fresh.view()});
  }
  chunk.summed_once = true;
  Call call{
      stage.builder.segment(std::move(w.segment())), -1, -1, {chunk.gradients, chunk.summed}, {}};
  for (Bucket& bucket : chunk.buckets) {
    if (bucket.begin == bucket.end) continue;
    call.waits.push_back(StreamWait{StreamId(std::size_t{0}), bucket.frame, kReduced});
    if (last) continue;
    bucket.frame = stage.builder.frame(stage.holds.bucket);
  }
  stage.builder.call(std::move(call));
}

/// Adds what a backward pass wrote to the gradients, a layer's worth at a time, each widened first
/// where the sum is wider (DeepSpeed's runtime/bf16_optimizer.py, update_hp_grads, v0.6.4). What it
/// wrote lives on until the next pass writes it anew.
StreamWait add_pass(Stage& stage, const Chunk& chunk) {
  LayoutWriter local("sum of a pass", 2);
  SegmentWriter w(stage.builder, "add gradients of the pass", local);
  w.phase = Phase::kGradients;
  const DType from = stage.plan.local_gradients();
  const DType to = stage.plan.precision.gradients;
  const std::int64_t parts = std::max<std::int64_t>(1, chunk.layers);
  const std::int64_t each = (chunk.elements + parts - 1) / parts;
  for (std::int64_t begin = 0; begin < chunk.elements; begin += each) {
    const std::int64_t count = std::min(each, chunk.elements - begin);
    View part = Ref{formal::kPassGradients, kOnlyBuffer, from, chunk.elements}.part(begin, count);
    const View sum = Ref{formal::kTotal, kOnlyBuffer, to, chunk.elements}.part(begin, count);
    if (from != to) {
      const Ref wide = w.local().add("widened", BufferKind::kWorkspace, to, count);
      w.compute("gradients.widen", kernel_of(KernelKind::kCast, 1, count, to), {part},
                {wide.view()});
      part = wide.view();
    }
    w.compute("gradients.accumulate", kernel_of(KernelKind::kAdd, 1, count, to), {sum, part},
              {sum});
  }
  return call_marked(stage, w, "added", {chunk.written, chunk.gradients});
}

}  // namespace foretrain
