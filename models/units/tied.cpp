// The gradients of a table that is tied to another stage's, where they lie in sharded units.
//
// The first and the last stage hold the table in units of unlike sizes, so that their ranks' parts
// do not meet. Once all microbatches are reduced each stage gathers the unit's sum over those that
// share it, the two sum the table, and every rank takes its own part back (from memory of Megatron
// Core's distributed/finalize_model_grads.py, which makes a whole tensor of a sharded gradient).
// Left out: that only the table need be gathered.
#include "models/units/units.h"
#include "sim/base/check.h"

namespace foretrain {

ElementRange tied_table(const ParameterLayouts& end) {
  std::int64_t begin = 0;
  for (const Buffer& buffer : end.cut.buffers) {
    if (buffer.name == "embedding.tokens") return {begin, begin + buffer.count};
    begin += buffer.count;
  }
  FT_CHECK(false, "an end without the tied table");
  return {};
}

/// Formal frames: the rank's part, what is gathered.
StreamWait sum_tied(Stage& stage, Unit& unit) {
  const ShardLayout& shape = stage.holds.shapes[unit.shape];
  const ReplicaGroup& holders = shape.holders;
  const DType type = stage.plan.precision.gradients;
  const bool alone = holders.shards == 1;
  const Ref own{0, 0, type, shape.elements / holders.shards};
  LayoutWriter local("tied gradients", 1);
  const Ref whole = alone ? own : local.add("whole", BufferKind::kGradients, type, shape.elements);
  const EventRef gathered = local.event("gathered");
  const EventRef summed = local.event("summed");

  Segment segment;
  segment.name = "gradients.tied.reduce";
  const auto push = [&segment](Op op, const View& read, const View& write, EventRef after) {
    op.reads = {read};
    op.writes = {write};
    if (after.valid()) op.waits = {after};
    segment.ops.push_back(std::move(op));
  };
  if (!alone) {
    Op gather =
        unit_op(stage, holders.stream, "gradients.tied.gather",
                Collective{CollectiveKind::kAllGather, stage.builder.group(holders.shard_group),
                           shape.elements, type, false},
                Phase::kGradients);
    gather.records = gathered;
    push(std::move(gather), own.view(), whole.view(), EventRef());
  }
  const auto [begin, end] = shape.tied;
  const View table = whole.part(begin, end - begin);
  Op sum = unit_op(stage, "tied embedding", "gradients.tied.reduce",
                   Collective{CollectiveKind::kAllReduce, stage.builder.group(kTiedGroup),
                              end - begin, type, false},
                   Phase::kGradients);
  sum.category = Category::kPipeline;
  push(std::move(sum), table, table, alone ? EventRef() : gathered);
  if (!alone) {
    push(unit_op(stage, "tied embedding", "gradients.tied.keep",
                 kernel_of(KernelKind::kCast, 1, own.count, type), Phase::kGradients),
         own_shard(stage, 1, 0, shape, type), own.view(), EventRef());
  }
  segment.ops.back().records = summed;

  const LayoutId layout = stage.builder.layout(local.layout());
  const FrameId frame = stage.builder.frame(layout);
  segment.frames = {shape.shards, layout};
  const StreamWait reduced{segment.ops.front().stream, unit.reduced, kReduced};
  const SegmentId id = stage.builder.segment(std::move(segment));
  stage.builder.call(Call{id, -1, -1, {unit.shards, frame}, {reduced}});
  return StreamWait{StreamId(std::size_t{0}), frame, summed.event};
}

}  // namespace foretrain
