// What travels in place of gradients.
//
// A cast: into an array that lives until what comes back is cast again.
//
// PowerSGD (Vogels et al. 2019; PyTorch's powerSGD_hook in its steady state): a matrix M of n rows
// and m columns becomes P = M Q, summed over ranks and made orthogonal, then Q = M^T P, summed
// again; M is replaced by P Q^T and the difference kept for the next step. r (n + m) elements
// travel instead of n m; parameters for which that saves less than half are summed as they are.
//
// One bit (1-bit Adam, arXiv 2102.02888, after its warm-up): what is exchanged is the sign of each
// element and a scale, with the error kept. Every rank gets its part of all ranks' signs
// (all-to-all), averages them, and gathers the averages' signs: 2 n / 8 bytes. The warm-up, the
// scales, and that the momentum is exchanged in place of the gradient change no sizes here.
//
// Factors and their error have the gradients' type.
//
// The work beside communication is given as bytes and FLOPs: it is simulated, not executed.
#include <algorithm>

#include "models/emit/update.h"
#include "models/gradients/buckets.h"

namespace foretrain {

static std::int64_t sign_bytes(const Bucket& bucket);

namespace {

// Buffers of the staging frame.
constexpr std::int16_t kPlain = 0, kLeft = 1, kRight = 2, kFactorError = 3;
constexpr std::int16_t kSigns = 0, kReceived = 1, kAverages = 2, kSignError = 3, kAverageError = 4;

/// DeepSpeed keeps what the signs leave out in fp32, whatever the gradients are.
constexpr DType kErrorType = DType::kFp32;

/// PyTorch's min_compression_rate: a matrix is sent whole unless its factors are half of it.
constexpr std::int64_t kLeastSaving = 2;

View part(std::int16_t buffer, DType type, const Staged& at) {
  return Ref{formal::kStaging, buffer, type, 0}.part(at.begin, at.count);
}

}  // namespace

/// Cast as a whole into a buffer that lives until it is cast back (DeepSpeed's runtime/engine.py,
/// allreduce_bucket with a communication_data_type, v0.6.4; PyTorch's
/// torch/distributed/algorithms/ddp_comm_hooks/default_hooks.py, fp16_compress_hook, on compute).
/// What overlaps casts beside compute otherwise.
void write_narrowed(Stage& stage, Bucket& bucket, Segment& segment, Call& call, const View& from) {
  const DType type = travelling_type(stage);
  const DType kept = stage.plan.precision.gradients;
  const bool compressed = casts_buckets(stage.plan);
  LayoutWriter local("narrow gradients", static_cast<std::int16_t>(segment.frames.size()));
  const std::int64_t count = bucket.end - bucket.begin;
  const std::int64_t padded = compressed ? round_up(count, stage.plan.buckets.inner_group) : count;
  const Ref narrow = local.add("narrow", BufferKind::kCommunication, type, padded);
  const View filled = narrow.part(0, count);
  const EventRef cast = local.event("cast");
  const EventRef summed = local.event("summed");
  const auto add_cast = [&](const char* name, std::int64_t elements, DType to, const View& source,
                            const View& into, bool beside) -> Op& {
    Op& op = bucket_op(stage, bucket, segment, name, kernel_of(KernelKind::kCast, 1, elements, to),
                       {source}, {into});
    if (beside) return op;
    op.stream = StreamId(std::size_t{0});
    op.category = Category::kCompute;
    return op;
  };
  const bool overlaps = stage.plan.overlap.gradient_reduce;
  const bool beside = overlaps && !compressed;
  add_cast("gradients.narrow", count, type, from, filled, beside);
  if (stage.plan.divides_gradients()) {
    add_cast("gradients.average", count, type, filled, filled, beside);
  }
  segment.ops.back().records = cast;
  const std::size_t next = segment.ops.size();
  const bool scatter = scatters(stage, bucket);
  const View own = shard_view(stage, 0, bucket, kept);
  View part = narrow.view();
  if (scatter) part = shard_of(part, bucket.holders.shards, own.shard_group);
  if (compressed) {
    pad(stage, bucket, Ref{narrow.frame, narrow.buffer, type, padded - count, count}, segment);
    sum_copies(stage, bucket, narrow, segment);
    part = filled;
    segment.ops.back().records = summed;
  } else {
    sum_over_ranks(stage, bucket, segment, narrow.view(), part, type, summed);
  }
  segment.ops[next].waits = {cast};
  Op& back = add_cast("gradients.widen", scatter ? shard_elements(stage, bucket) : count, kept,
                      part, scatter ? own : from, overlaps || compressed);
  back.waits = {summed};
  back.records = EventRef{formal::kEvents, kReduced};
  const LayoutId layout = stage.builder.layout(local.layout());
  segment.frames.push_back(layout);
  call.frames.push_back(stage.builder.frame(layout));
}

void stage_factors(Stage& stage, Chunk& chunk, const AddBuffer& add) {
  Staged plain, left, right;
  for (Bucket& bucket : chunk.buckets) {
    bucket.staged.begin = plain.count;
    bucket.left.begin = left.count;
    bucket.right.begin = right.count;
    std::int64_t known = -1;
    for (const ParameterRange& range : chunk.ranges) {
      if (range.begin < bucket.begin || range.begin >= bucket.end || range.begin == known) continue;
      known = range.begin;
      const std::int64_t whole = range.rows * range.cols;
      const std::int64_t rank = std::min({stage.plan.buckets.rank, range.rows, range.cols});
      if ((range.rows + range.cols) * rank * kLeastSaving >= whole) {
        bucket.staged.count += whole;
        continue;
      }
      bucket.left.count += range.rows * rank;
      bucket.right.count += range.cols * rank;
      bucket.work += whole * rank;
    }
    plain.count += bucket.staged.count;
    left.count += bucket.left.count;
    right.count += bucket.right.count;
  }
  const DType type = stage.plan.precision.gradients;
  add("whole gradients", type, std::max<std::int64_t>(plain.count, 1));
  add("left factors", type, std::max<std::int64_t>(left.count, 1));
  add("right factors", type, std::max<std::int64_t>(right.count, 1));
  add("compression error", type, chunk.elements);
}

void write_factors(Stage& stage, Bucket& bucket, Segment& segment, const View& all) {
  const DType type = stage.plan.precision.gradients;
  const View plain = part(kPlain, type, bucket.staged);
  const View left = part(kLeft, type, bucket.left);
  const View right = part(kRight, type, bucket.right);
  const View error = part(kFactorError, type, Staged{bucket.begin, bucket.end - bucket.begin});
  const auto work = [&](const char* name, Bytes bytes, std::vector<View> reads,
                        std::vector<View> writes) {
    Opaque opaque{name, bytes, 2 * bucket.work, type, Memory::kDevice};
    bucket_op(stage, bucket, segment, name, std::move(opaque), std::move(reads), std::move(writes));
  };
  const auto sum = [&](const char* name, const View& view, std::int64_t count) {
    bucket_op(stage, bucket, segment, name,
              Collective{CollectiveKind::kAllReduce, stage.builder.group(bucket.holders.group),
                         count, type, false},
              {view}, {view});
  };
  if (bucket.staged.count > 0) {
    bucket_op(stage, bucket, segment, "gradients.copy",
              Opaque{"gradients.copy", 2 * plain.bytes, 0, type, Memory::kDevice}, {all}, {plain});
    sum("gradients.reduce", plain, bucket.staged.count);
  }
  work("gradients.left", all.bytes + 2 * error.bytes + left.bytes, {all, error, right},
       {error, left});
  sum("gradients.left.reduce", left, bucket.left.count);
  work("gradients.right", error.bytes + right.bytes + 2 * left.bytes, {error, left}, {left, right});
  sum("gradients.right.reduce", right, bucket.right.count);
  std::vector<View> reads = {left, right, error};
  if (bucket.staged.count > 0) reads.push_back(plain);
  work("gradients.expand", all.bytes + 2 * error.bytes, std::move(reads), {all, error});
  segment.ops.back().records = EventRef{formal::kEvents, kReduced};
}

/// Elements of a bucket as whole bytes of signs for every rank.
std::int64_t sign_bytes(const Bucket& bucket) {
  return round_up(bucket.end - bucket.begin, 8 * bucket.holders.ranks) / 8;
}

void stage_signs(Chunk& chunk, const AddBuffer& add) {
  std::int64_t total = 0;
  for (Bucket& bucket : chunk.buckets) {
    bucket.staged = Staged{total, sign_bytes(bucket)};
    total += bucket.staged.count;
  }
  const std::int64_t own = total / chunk.holders.ranks;
  for (const char* name : {"signs", "received signs", "averages"}) add(name, DType::kUint8, total);
  add("compression error", kErrorType, chunk.elements);
  add("average error", kErrorType, 8 * own);
}

void write_signs(Stage& stage, Bucket& bucket, Segment& segment, const View& all) {
  const std::int64_t ranks = bucket.holders.ranks;
  const GroupSlot group = stage.builder.group(bucket.holders.group);
  const View error = part(kSignError, kErrorType, Staged{bucket.begin, bucket.end - bucket.begin});
  const View signs = part(kSigns, DType::kUint8, bucket.staged);
  const View received = part(kReceived, DType::kUint8, bucket.staged);
  const View averages = part(kAverages, DType::kUint8, bucket.staged);
  const View own = shard_of(averages, ranks, group);
  const View own_error =
      part(kAverageError, kErrorType,
           Staged{8 * bucket.staged.begin / ranks, 8 * bucket.staged.count / ranks});
  const auto work = [&](const char* name, Bytes bytes, std::vector<View> reads,
                        std::vector<View> writes) {
    bucket_op(stage, bucket, segment, name, Opaque{name, bytes, 0, kErrorType, Memory::kDevice},
              std::move(reads), std::move(writes));
  };
  work("gradients.signs", all.bytes + 2 * error.bytes + signs.bytes, {all, error}, {error, signs});
  bucket_op(stage, bucket, segment, "gradients.signs.exchange",
            Collective{CollectiveKind::kAllToAll, group, bucket.staged.count, DType::kUint8, false},
            {signs}, {received});
  work("gradients.signs.average", received.bytes + 2 * own_error.bytes + own.bytes,
       {received, own_error}, {own_error, own});
  bucket_op(
      stage, bucket, segment, "gradients.signs.gather",
      Collective{CollectiveKind::kAllGather, group, bucket.staged.count, DType::kUint8, false},
      {own}, {averages});
  work("gradients.expand", averages.bytes + all.bytes, {averages}, {all});
  segment.ops.back().records = EventRef{formal::kEvents, kReduced};
}

}  // namespace foretrain
