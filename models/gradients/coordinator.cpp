// A coordinator that looks in cycles which gradients are ready on all ranks (Horovod's background
// loop, horovod/common/operations.cc): what it finds is one list, whose tensors are fused into
// buffers in order, as long as they fit.
//
// What a cycle finds depends on times, which a Program does not know: the plan says how many parts
// of the backward pass each list has and how long the last of them waits
// (tools/predict/ready_lists.h). Where it does not say so every part is a list of its own, and
// waits for half a cycle. Cycles go on beside reductions, on a stream of their own. Left out:
// requests that miss the coordinator's response cache.
#include <algorithm>

#include "models/gradients/buckets.h"

namespace foretrain {
namespace {

/// A bit for each of the 1024 entries of Horovod's response cache (HOROVOD_CACHE_CAPACITY), as
/// fp32 words; one vector of what is ready and one of what is invalid are exchanged in a cycle.
constexpr std::int64_t kReadinessWords = 1024 / 32;
static_assert(2 * kReadinessWords == kReadinessElements);

/// Whether a layer or an end begins at this element.
bool begins_part(const Chunk& chunk, std::int64_t at) {
  const auto here = [at](const PartFrames& part) { return part.cut_begin == at; };
  return (chunk.has_embedding && here(chunk.embedding)) || (chunk.has_head && here(chunk.head)) ||
         std::any_of(chunk.parts.begin(), chunk.parts.end(), here);
}

}  // namespace

/// The first element of each list, whose parts end where the one before begins.
std::vector<std::int64_t> list_begins(Stage& stage, const Chunk& chunk) {
  const std::vector<ReadyList>& lists = stage.plan.buckets.lists;
  std::vector<std::int64_t> out;
  std::int64_t parts = 0;
  for (const std::int64_t begin : parameter_begins(chunk)) {
    if (begin > 0 && !begins_part(chunk, begin)) continue;
    const bool full = out.size() >= lists.size() || ++parts >= lists[out.size()].parts;
    if (begin > 0 && !full) continue;
    out.push_back(begin);
    parts = 0;
  }
  return out;
}

/// Which list each bucket is of, and which bucket is a list's first: the cycle is waited for once.
void number_lists(Stage& stage, Chunk& chunk) {
  if (stage.plan.buckets.cycle.ps == 0) return;
  const std::vector<std::int64_t> begins = list_begins(stage, chunk);
  std::size_t list = 0;
  bool first = true;
  for (Bucket& bucket : chunk.buckets) {
    bucket.list = list;
    bucket.first_of_list = first || stage.plan.buckets.lists.empty();
    first = bucket.begin == begins[list];
    if (first && list + 1 < begins.size()) ++list;
  }
}

/// The end of the cycle, then two bit vectors are combined over all ranks (Horovod's response
/// cache).
void coordinate(Stage& stage, const Chunk& chunk, const Bucket& bucket, Segment& segment) {
  if (!bucket.first_of_list) return;
  const std::vector<ReadyList>& lists = stage.plan.buckets.lists;
  const bool known = bucket.list < lists.size();
  const Time wait = known ? lists[bucket.list].wait : Time{stage.plan.buckets.cycle.ps / 2};
  Op& turn = bucket_op(stage, bucket, segment, "coordinator.cycle", Pause{wait}, {}, {});
  turn.stream = stage.builder.stream(kCoordinator);
  turn.records = EventRef{formal::kEvents, kTurn};
  const FrameLayout& layout =
      stage.builder.program().layouts[layout_of(stage, chunk.staging).index()];
  const Ref words{2, static_cast<std::int16_t>(layout.buffers.size() - 1), DType::kFp32,
                  2 * kReadinessWords};
  for (std::int64_t v = 0; v < 2; ++v) {
    const View view = words.part(v * kReadinessWords, kReadinessWords);
    Op& ready =
        bucket_op(stage, bucket, segment, "coordinator.ready",
                  Collective{CollectiveKind::kAllReduce, stage.builder.group(bucket.holders.group),
                             kReadinessWords, DType::kFp32, true},
                  {view}, {view});
    if (v == 0) ready.waits = {EventRef{formal::kEvents, kTurn}};
  }
}

}  // namespace foretrain
