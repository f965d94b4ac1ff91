// Sharded units as ZeRO++ has them (arXiv 2306.10209, section 3; DeepSpeed's
// runtime/zero/partition_parameters.py and runtime/comm/coalesced_collectives.py):
//   qwZ  a rank's shard of the parameters is quantized to 8 bits, gathered, and expanded;
//   hpZ  a forward pass keeps the rank's part of a second copy among `secondary` neighbours, which
//        backward passes gather in the compute type;
//   qgZ  gradients are quantized to 4 bits and exchanged within an inner group, summed and
//        quantized again, exchanged across the groups, expanded and summed.
// And as FSDP2 with torchao's float8 all-gather has the layers' matrices: a rank's shard is cast to
// fp8, by scales that its largest values, agreed on by all ranks, give (delayed scales are known);
// what arrives is copied out, and the linears read it: no pass casts weights again, but for the
// copy by columns that input gradients read. Left out of it: that norms, a thousandth of a layer,
// travel in 16 bits; that all layers' largest values may be agreed on at once, after the update;
// what was copied out takes 8 bits, not the 16 of its buffer here. Left out: the scales of blocks
// and their exchanges; that DeepSpeed reduces vectors (biases, norms) plainly.
#include <algorithm>
#include <utility>

#include "models/units/units.h"
#include "sim/base/check.h"

namespace foretrain {
namespace {

constexpr std::int16_t kShard8 = 1;     ///< of the weights: the rank's part in 8 bits
constexpr std::int16_t kGathered8 = 2;  ///< and all of them
constexpr std::int16_t kLargest8 = 3;   ///< the largest values of its matrices
constexpr std::int16_t kSent4 = 3;      ///< of the gradients: in 4 bits
constexpr std::int16_t kReceived4 = 4;
constexpr std::int16_t kSums4 = 5;  ///< of an inner group
constexpr std::int16_t kAcross4 = 6;
constexpr std::int16_t kExpanded = 7;  ///< what is left to sum

constexpr std::int64_t kMatrices = 4;  ///< of a layer: qkv, projection, up, down

/// A kernel that only moves: it reads and writes these operands once.
Opaque moves(const char* name, const Ref& from, const Ref& to) {
  return Opaque{name, from.view().bytes + to.view().bytes, 0, to.dtype, Memory::kDevice};
}

}  // namespace

/// Buffers for what travels in fewer bits, behind those that every unit has.
void add_quantized(Stage& stage, const ShardLayout& shape, FrameLayout& weights,
                   FrameLayout& gradients) {
  const auto add = [](FrameLayout& layout, const char* name, DType type, std::int64_t count) {
    layout.buffers.push_back(buffer_of(name, BufferKind::kCommunication, type, count));
  };
  if (gathers_quantized(stage, shape)) {
    FT_CHECK(weights.buffers.size() == kGathered8, "buffers of a unit's weights");
    weights.buffers[kShard8].dtype = DType::kUint8;
    add(weights, "gathered in 8 bits", DType::kUint8, shape.elements);
    const std::int64_t matrices = kMatrices * shape.layers;
    if (stage.plan.units.casts_shards) add(weights, "largest values", DType::kFp32, matrices);
  }
  if (!stage.plan.units.quantized_reduction) return;
  FT_CHECK(gradients.buffers.size() == kSent4, "buffers of a unit's gradients");
  const std::int64_t bytes = shape.elements / 2;
  const std::int64_t inner = stage.plan.buckets.inner_group;
  const bool across = inner < shape.holders.shards;
  const std::int64_t left = across ? inner : 1;
  add(gradients, "in 4 bits", DType::kUint8, bytes);
  add(gradients, "received in 4 bits", DType::kUint8, bytes);
  add(gradients, "sums in 4 bits", DType::kUint8, bytes / inner);
  add(gradients, "received sums in 4 bits", DType::kUint8, bytes / inner);
  add(gradients, "to sum", stage.plan.units.reduce, shape.elements / left);
}

/// The ends are no linears in fp8.
bool gathers_quantized(Stage& stage, const ShardLayout& shape) {
  const bool ends = stage.plan.units.casts_shards && shape.layers == 0;
  return stage.plan.units.quantized_gathers && !shape.whole && !ends;
}

/// Gathers `whole` from the ranks' shards, of which this one's is `shard`, in 8 bits.
void gather_quantized(Stage& stage, const ShardLayout& shape, const Ref& shard, const Ref& whole,
                      Segment& segment) {
  const Ref sent{0, kShard8, DType::kUint8, shard.count};
  const Ref gathered{0, kGathered8, DType::kUint8, whole.count};
  const auto push = [&](const std::string& name, Work work, const Ref& from, const Ref& to) {
    Op op = unit_op(stage, shape.holders.stream, name.c_str(), std::move(work), Phase::kForward);
    op.reads = {from.view()};
    op.writes = {to.view()};
    segment.ops.push_back(std::move(op));
  };
  if (stage.plan.units.casts_shards && stage.plan.precision.current_scaling) {
    const Ref largest{0, kLargest8, DType::kFp32, kMatrices * shape.layers};
    const Collective agree{CollectiveKind::kAllReduce,
                           stage.builder.group(shape.holders.shard_group), largest.count,
                           DType::kFp32, true};
    push("parameters.largest", kernel_of(KernelKind::kLargest, 1, shard.count, shard.dtype), shard,
         largest);
    push("parameters.largest.reduce", agree, largest, largest);
  }
  push("parameters.quantize", moves("quantize", shard, sent), shard, sent);
  push("parameters.gather",
       Collective{CollectiveKind::kAllGather, stage.builder.group(shape.holders.shard_group),
                  whole.count, DType::kUint8, false},
       sent, gathered);
  Opaque last = moves("expand", gathered, whole);
  if (stage.plan.units.casts_shards) {
    last.name = "copy out";
    last.bytes = 2 * gathered.view().bytes;
  }
  push("parameters." + std::string(stage.plan.units.casts_shards ? "copy_out" : "expand"), last,
       gathered, whole);
}

/// After a forward gather of `whole`, and for backward passes instead of one.
void write_secondary(Stage& stage, ShardLayout& shape, const Ref& whole, Segment& forward) {
  const Ref kept = shape.secondary;
  Op keep = unit_op(stage, shape.holders.stream, "parameters.keep",
                    kernel_of(KernelKind::kCast, 1, kept.count, kept.dtype), Phase::kForward);
  const GroupSlot group = stage.builder.group(kSecondaryGroup);
  keep.reads = {shard_of(whole.view(), stage.plan.units.secondary, group)};
  keep.writes = {kept.view()};
  forward.ops.push_back(std::move(keep));

  Segment again;
  again.name = "gather unit again";
  again.frames = {shape.weights, shape.states};
  Op gather =
      unit_op(stage, shape.holders.stream, "parameters.gather_again",
              Collective{CollectiveKind::kAllGather, group, whole.count, whole.dtype, false},
              Phase::kBackward);
  gather.reads = {kept.view()};
  gather.writes = {whole.view()};
  gather.records = EventRef{formal::kUnit, kGatheredUnit};
  again.ops.push_back(std::move(gather));
  shape.gather.again = stage.builder.segment(std::move(again));
}

/// Sums `whole` over the ranks: this one's part into `part`.
void reduce_quantized(Stage& stage, const ShardLayout& shape, const Ref& whole, const Ref& part,
                      const PushOp& push) {
  const char* stream = shape.holders.stream;
  const std::int64_t inner = stage.plan.buckets.inner_group;
  const bool within = inner > 1;
  const bool across = inner < shape.holders.shards;
  const auto bytes_in = [](std::int16_t buffer, std::int64_t elements) {
    return Ref{formal::kUnit, buffer, DType::kUint8, elements / 2};
  };
  const auto kernel = [&](const char* name, const char* what, const Ref& from, const Ref& to) {
    push(unit_op(stage, stream, name, moves(what, from, to), Phase::kGradients), {from.view()},
         to.view());
  };
  const auto exchange = [&](const char* name, const char* group, const Ref& from, const Ref& to) {
    push(unit_op(stage, stream, name,
                 Collective{CollectiveKind::kAllToAll, stage.builder.group(group), from.count,
                            DType::kUint8, false},
                 Phase::kGradients),
         {from.view()}, to.view());
  };
  Ref sent = bytes_in(kSent4, whole.count);
  Ref arrived = bytes_in(kReceived4, whole.count);
  kernel("gradients.quantize", "quantize", whole, sent);
  if (within) exchange("gradients.inner.exchange", kInnerGroup, sent, arrived);
  if (within && across) {
    sent = bytes_in(kSums4, whole.count / inner);
    kernel("gradients.inner.sum", "sum and quantize", arrived, sent);
    arrived = bytes_in(kAcross4, whole.count / inner);
  }
  if (across) exchange("gradients.outer.exchange", kOuterGroup, sent, arrived);
  const Ref expanded{0, kExpanded, part.dtype, 2 * arrived.count};
  kernel("gradients.expand", "expand", arrived, expanded);
  kernel("gradients.sum", "sum", expanded, part);
}

}  // namespace foretrain
