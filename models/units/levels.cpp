// Gathers of a unit's parameters. At once, or in the two levels of MiCS (arXiv 2205.00119, section
// 3.3; DeepSpeed's runtime/zero/mics.py): with s ranks that share the parameters in groups of k
// neighbours, every rank first gathers from those at its own place in the other groups, so that k
// rings of s / k ranks cross the groups side by side; what came are s / k shards, of which each
// belongs elsewhere in the whole, so that the group gathers each of them at its place. Between
// nodes of k ranks travel (s - k) / s of the parameters, where one ring of all sends (s - 1) / s
// and takes the latency of s hops.
//
// Left out: that the gathers of a group are one launch; the copies of what crossed groups to its
// place, since gathers read it where it arrived.
#include "models/units/units.h"

namespace foretrain {
namespace {

constexpr std::int16_t kAcross = 2;  ///< buffer of a unit's weights: gathered across groups

}  // namespace

/// `part` is this rank's shard of `whole`; of the all-gathers, calls [first, second), 0: to the
/// end.
void gather_whole(Stage& stage, const ShardLayout& shape, const View& part, const Ref& whole,
                  std::pair<std::int16_t, std::int16_t> calls, Segment& segment) {
  const auto gather = [&](const char* name, const char* group, std::int64_t count, const View& from,
                          const View& to, std::vector<std::int64_t> runs = {}) {
    Collective work{CollectiveKind::kAllGather, stage.builder.group(group), count, whole.dtype,
                    false};
    work.runs = std::move(runs);
    Op op = unit_op(stage, shape.holders.stream, name, std::move(work), Phase::kForward);
    op.reads = {from};
    op.writes = {to};
    segment.ops.push_back(std::move(op));
  };
  if (!gathers_in_levels(stage, shape)) {
    std::int16_t number = 0;
    for (const UnitRuns& runs : gathered_together(stage, shape)) {
      ++number;
      if (number <= calls.first || (calls.second > 0 && number > calls.second)) continue;
      View own = part;
      own.bytes = bytes_of(whole.dtype, runs.count / shape.holders.shards);
      own.offset += bytes_of(whole.dtype, runs.begin / shape.holders.shards);
      gather("parameters.gather", shape.holders.shard_group, runs.count, own,
             whole.part(runs.begin, runs.count), runs.several());
    }
    return;
  }
  const std::int64_t inner = stage.plan.units.inner_group;
  const std::int64_t groups = shape.holders.shards / inner;
  const std::int64_t own = whole.count / shape.holders.shards;
  const Ref across{0, kAcross, whole.dtype, whole.count / inner};
  gather("parameters.outer.gather", kOuterShardGroup, across.count, part, across.view());
  for (std::int64_t g = 0; g < groups; ++g) {
    gather("parameters.inner.gather", kInnerShardGroup, inner * own, across.part(g * own, own),
           whole.part(g * inner * own, inner * own));
  }
}

}  // namespace foretrain
