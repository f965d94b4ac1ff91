// Gradients reduced to the ranks that update their parameters, and parameters broadcast by them
// (PaddleNLP's GroupShardedStage2; FairScale's ShardedDDP and OSS): of an array that d ranks share,
// d reductions, each of n / d elements to one rank, in place of one reduce-scatter, and d
// broadcasts in place of one all-gather. A ring passes a rooted array on whole, n / d bytes by
// every link but one, where a reduce-scatter's share of it is (d - 1) / d of that.
//
// Left out: owners have whole parameters there, dealt in turn to the rank that has least, so that a
// unit is as many reductions as it has parameters (or buffers of them) and owners differ by up to
// the largest one; here each owns 1/d of every unit or bucket, their mean.
#include "models/gradients/buckets.h"
#include "models/units/units.h"

namespace foretrain {
namespace {

/// Part `place` of `of` equal ones.
View part_of(const View& whole, std::int64_t place, std::int64_t of) {
  View out = whole;
  out.bytes = whole.bytes / of;
  out.offset = whole.offset + place * out.bytes;
  return out;
}

}  // namespace

/// Of `whole`, `count` elements that divide among the ranks; its sum is `part` on each. `runs`: as
/// Collective has them, where one rank's part is of each.
std::vector<Op> scattered(Stage& stage, const ReplicaGroup& holders, const View& whole,
                          const View& part, std::int64_t count, DType type,
                          const std::vector<std::int64_t>& runs) {
  const bool owners = stage.plan.reduces_to_owner();
  Collective sum{owners ? CollectiveKind::kReduce : CollectiveKind::kReduceScatter,
                 stage.builder.group(holders.shard_group), count, type, false};
  sum.runs = runs;
  std::vector<Op> out;
  const std::int64_t parts = owners ? holders.shards : 1;
  for (std::int64_t owner = 0; owner < parts; ++owner) {
    sum.count = count / parts;
    sum.root = static_cast<std::int32_t>(owner);
    out.push_back(unit_op(stage, holders.stream, "gradients.reduce", sum, Phase::kGradients));
    out.back().reads = {part_of(whole, owner, parts)};
    out.back().writes = {part};
  }
  return out;
}

/// A bucket's gradients `all`, summed into `part`, the rank's own, or all of them.
std::vector<Op> sums(Stage& stage, const Bucket& bucket, const View& all, const View& part,
                     DType type) {
  const std::int64_t count = bucket.end - bucket.begin;
  if (scatters(stage, bucket)) return scattered(stage, bucket.holders, all, part, count, type);
  const Collective sum{CollectiveKind::kAllReduce, stage.builder.group(bucket.holders.group), count,
                       type, false};
  std::vector<Op> out = {
      unit_op(stage, bucket.holders.stream, "gradients.reduce", sum, Phase::kGradients)};
  out.back().reads = out.back().writes = {all};
  return out;
}

/// Each rank's part of `whole`, which others have from before the update.
std::vector<Op> from_owners(Stage& stage, const ReplicaGroup& holders, const View& whole,
                            std::int64_t count, DType type, Phase phase) {
  std::vector<Op> out;
  Collective broadcast{CollectiveKind::kBroadcast, stage.builder.group(holders.shard_group),
                       count / holders.shards, type, false};
  for (std::int64_t owner = 0; owner < holders.shards; ++owner) {
    broadcast.root = static_cast<std::int32_t>(owner);
    Op op = unit_op(stage, holders.stream, "parameters.broadcast", broadcast, phase);
    op.reads = op.writes = {part_of(whole, owner, holders.shards)};
    out.push_back(std::move(op));
  }
  return out;
}

}  // namespace foretrain
