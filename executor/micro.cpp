#include "executor/micro.h"

#include <algorithm>
#include <set>

#include "sim/program/builder.h"

namespace foretrain {
namespace {

std::vector<std::int64_t> group_sizes(std::int64_t ranks) {
  std::vector<std::int64_t> out;
  for (std::int64_t size = 2; size <= ranks; ++size) {
    if (ranks % size == 0) out.push_back(size);
  }
  return out;
}

std::string slot_name(std::int64_t size) { return "group of " + std::to_string(size); }

void set_channel(Work& work, ChannelSlot slot, bool send) {
  const auto bytes = static_cast<Bytes>(sample_size(work));
  work = P2PBatch{{Message{send, slot, bytes}}};
}

/// Collects the buffers that an op's views touch and moves the views to them.
class Lifter {
 public:
  Lifter(const Program& program, const Segment& segment, MicroOp& out)
      : x_program(program), x_segment(segment), x_out(out) {}

  View lift(const View& view) {
    const FrameLayout& layout =
        x_program.layouts[x_segment.frames[static_cast<std::size_t>(view.frame)].index()];
    const Buffer& source = layout.buffers[static_cast<std::size_t>(view.buffer)];
    const std::pair<std::int16_t, std::int16_t> from{view.frame, view.buffer};
    auto at = std::find(x_from.begin(), x_from.end(), from);
    if (at == x_from.end()) {
      Buffer buffer;
      buffer.name = source.name;
      buffer.kind = source.kind;
      buffer.dtype = source.dtype;
      buffer.memory = source.memory;
      buffer.count = source.count;
      buffer.persistent = true;
      x_out.buffers.push_back(std::move(buffer));
      at = x_from.insert(x_from.end(), from);
    }
    View out = view;
    out.frame = 0;
    out.buffer = static_cast<std::int16_t>(at - x_from.begin());
    return out;
  }

 private:
  const Program& x_program;
  const Segment& x_segment;
  MicroOp& x_out;
  std::vector<std::pair<std::int16_t, std::int16_t>> x_from;
};

/// Buffers keep what the op touches of them.
void trim(MicroOp& micro) {
  for (std::size_t b = 0; b < micro.buffers.size(); ++b) {
    Buffer& buffer = micro.buffers[b];
    Bytes begin = buffer.bytes();
    Bytes end = 0;
    const auto each = [&micro, b](const auto& visit) {
      for (auto* views : {&micro.op.reads, &micro.op.writes}) {
        for (View& view : *views) {
          if (static_cast<std::size_t>(view.buffer) == b) visit(view);
        }
      }
    };
    each([&](const View& view) {
      begin = std::min(begin, view.offset);
      end = std::max(end, view.offset + view.bytes * view.shards);
    });
    each([begin](View& view) { view.offset -= begin; });
    buffer.count = (end - begin) / bytes_of(buffer.dtype, 1);
  }
}

/// A rank's own part of it, as if it were all there is.
Batch own_batch(const Workload& workload, const Program& program, const RankBinding& rank) {
  Batch out = program.batch;
  if (out.context.valid()) {
    const GroupId group = rank.groups[out.context.index()];
    out.length /= static_cast<std::int64_t>(workload.groups[group.index()].size());
  }
  out.split_over = out.context = GroupSlot();
  return out;
}

MicroOp lift(const Program& program, const Segment& segment, const Op& op, SampleKey key) {
  MicroOp out;
  out.key = std::move(key);
  out.work = program.works[op.work.index()];
  out.op.name = op.name;
  Lifter lifter(program, segment, out);
  for (const View& view : op.reads) out.op.reads.push_back(lifter.lift(view));
  for (const View& view : op.writes) out.op.writes.push_back(lifter.lift(view));
  trim(out);
  return out;
}

Buffer typed(const char* name, std::int64_t count, DType type) {
  Buffer out;
  out.name = name;
  out.dtype = type;
  out.count = count;
  out.persistent = true;
  return out;
}

View whole(std::int16_t buffer, std::int64_t count, DType type = DType::kFp32) {
  return View{0, buffer, 0, bytes_of(type, count), 1, GroupSlot()};
}

/// One stream's ops, call by call, over frames of one layout.
Program repeat(const MicroOp& micro, Work work, const Workload& world, std::int64_t sets,
               std::int64_t repeats) {
  ProgramBuilder builder("micro");
  const auto slot_of = [&builder](std::int64_t size) {
    return size > 1 ? builder.group(slot_name(size)) : GroupSlot();
  };
  const StreamId stream = builder.stream("compute");
  for (const std::int64_t size : group_sizes(static_cast<std::int64_t>(world.ranks.size()))) {
    (void)slot_of(size);
  }
  (void)builder.channel("pair");
  if (auto* collective = std::get_if<Collective>(&work)) {
    collective->group = slot_of(micro.key.ranks);
  }
  if (auto* kernel = std::get_if<Kernel>(&work)) {
    kernel->split_over = GroupSlot();
    // Says which operands there are: some group must stand there.
    if (kernel->cols_split_over.valid()) kernel->cols_split_over = slot_of(micro.key.ranks);
  }
  if (auto* attention = std::get_if<Attention>(&work)) {
    attention->heads_split_over = attention->sequences_split_over = GroupSlot();
    attention->parts_over = attention->heads_over = GroupSlot();
  }
  Op op = micro.op;
  for (auto* views : {&op.reads, &op.writes}) {
    for (View& view : *views) view.shard_group = slot_of(view.shards);
  }
  FrameLayout layout;
  layout.name = "operands";
  layout.buffers = micro.buffers;
  const LayoutId operands = builder.layout(std::move(layout));
  op.stream = stream;
  op.work = builder.work(std::move(work));
  Segment segment;
  segment.name = "micro";
  segment.frames = {operands};
  segment.ops.push_back(std::move(op));
  const SegmentId id = builder.segment(std::move(segment));
  std::vector<FrameId> frames;
  for (std::int64_t s = 0; s < sets; ++s) frames.push_back(builder.frame(operands));
  for (std::int64_t r = 0; r < repeats; ++r) {
    builder.call(Call{id, 0, 0, {frames[static_cast<std::size_t>(r % sets)]}, {}});
  }
  builder.batch(micro.batch);
  return std::move(builder).build();
}

Op fill_one(ProgramBuilder& builder, const char* stream) {
  Kernel fill;
  fill.rows = fill.cols = 1;
  fill.dtype = DType::kFp32;
  Op out;
  out.stream = builder.stream(stream);
  out.work = builder.work(fill);
  out.name = stream;
  return out;
}

/// Ops on "compute" and "other" in turn, or on one of them only.
Workload hand_over(std::int64_t ranks, std::int64_t repeats, bool across) {
  ProgramBuilder builder("hand over");
  for (const std::int64_t size : group_sizes(ranks)) (void)builder.group(slot_name(size));
  (void)builder.channel("pair");
  FrameLayout layout;
  layout.name = "marks";
  layout.buffers = {typed("here", 1, DType::kFp32), typed("there", 1, DType::kFp32)};
  layout.events = {"there and", "back"};
  const LayoutId marks = builder.layout(std::move(layout));
  Segment segment;
  segment.name = "hand over";
  segment.frames = {marks};
  Op first = fill_one(builder, "compute");
  first.writes = {whole(0, 1)};
  Op second = fill_one(builder, across ? "other" : "compute");
  second.writes = {whole(1, 1)};
  if (across) {
    first.records = EventRef{0, 0};
    second.waits = {EventRef{0, 0}};
    second.records = EventRef{0, 1};
  }
  segment.ops = {first, second};
  const SegmentId id = builder.segment(std::move(segment));
  FrameId before;
  for (std::int64_t r = 0; r < repeats; ++r) {
    const FrameId frame = builder.frame(marks);
    Call call{id, -1, -1, {frame}, {}};
    if (across && before.valid()) call.waits = {StreamWait{first.stream, before, 1}};
    builder.call(std::move(call));
    before = frame;
  }
  Workload out = micro_ranks(ranks);
  out.programs.push_back(std::move(builder).build());
  return out;
}

}  // namespace

Bytes MicroOp::bytes() const {
  Bytes sum = 0;
  for (const Buffer& buffer : buffers) sum += buffer.bytes();
  return sum;
}

std::vector<MicroOp> distinct_ops(const Workload& workload) {
  std::vector<MicroOp> out;
  std::set<SampleKey> known;
  const auto ranks = static_cast<std::int64_t>(workload.ranks.size());
  for (std::size_t p = 0; p < workload.programs.size(); ++p) {
    const Program& program = workload.programs[p];
    const auto rank =
        std::find_if(workload.ranks.begin(), workload.ranks.end(),
                     [p](const RankBinding& binding) { return binding.program.index() == p; });
    for (const Segment& segment : program.segments) {
      for (const Op& op : segment.ops) {
        const Work& work = program.works[op.work.index()];
        const auto* collective = std::get_if<Collective>(&work);
        const std::int64_t members =
            collective == nullptr
                ? ranks
                : static_cast<std::int64_t>(
                      workload.groups[rank->groups[collective->group.index()].index()].size());
        SampleKey key = sample_key(work, members);
        if (key.op.empty() || (collective != nullptr && members == 1)) continue;
        if (!known.insert(key).second) continue;
        if (key.op == "send-receive") {
          out.push_back(micro_message(static_cast<Bytes>(sample_size(work))));
        } else {
          out.push_back(lift(program, segment, op, std::move(key)));
          out.back().batch = own_batch(workload, program, *rank);
        }
      }
    }
  }
  return out;
}

Status check_measurable(const std::vector<MicroOp>& ops, std::int64_t ranks) {
  for (const MicroOp& op : ops) {
    if (op.key.ranks < 1 || ranks % op.key.ranks == 0) continue;
    return unsupported("collectives are measured in groups of all ranks at once, and " +
                       std::to_string(ranks) + " ranks do not divide into groups of " +
                       std::to_string(op.key.ranks) +
                       " (pipeline_stages with tensor degrees of their own?): `foretrain execute` "
                       "runs such a step and measures nothing else");
  }
  return ok_status();
}

MicroOp micro_gemm(const Gemm& work, std::int64_t ranks) {
  const std::int64_t a = work.batch * work.m * work.k;
  const std::int64_t b = work.batch * work.k * work.n;
  const std::int64_t c = work.batch * work.m * work.n;
  MicroOp out;
  out.work = work;
  out.key = sample_key(work, ranks);
  out.buffers = {typed("a", a, work.in), typed("b", b, work.in), typed("c", c, work.out)};
  out.op.name = "gemm";
  out.op.reads = {whole(0, a, work.in), whole(1, b, work.in)};
  out.op.writes = {whole(2, c, work.out)};
  if (work.accumulate) out.op.reads.push_back(out.op.writes[0]);
  return out;
}

MicroOp micro_attention(const Attention& work) {
  const std::int64_t tokens = work.batch * work.q_len;
  const std::int64_t qkv = tokens * (work.q_heads + 2 * work.kv_heads) * work.head_dim;
  const std::int64_t result = tokens * work.q_heads * work.head_dim;
  const std::int64_t stats = tokens * work.q_heads;
  MicroOp out;
  out.work = work;
  out.key = sample_key(work, 1);
  out.batch.sequences = work.batch;
  out.batch.length = work.q_len;
  out.op.name = "attention";
  const DType type = work.dtype;
  if (!work.backward) {
    out.buffers = {typed("qkv", qkv, type), typed("out", result, type),
                   typed("statistics", stats, DType::kFp32)};
    out.op.reads = {whole(0, qkv, type)};
    out.op.writes = {whole(1, result, type), whole(2, stats)};
    return out;
  }
  out.buffers = {typed("d out", result, type), typed("qkv", qkv, type), typed("out", result, type),
                 typed("statistics", stats, DType::kFp32), typed("d qkv", qkv, type)};
  out.op.reads = {whole(0, result, type), whole(1, qkv, type), whole(2, result, type),
                  whole(3, stats)};
  out.op.writes = {whole(4, qkv, type)};
  return out;
}

Attention cudnn_twin(const Attention& work) {
  Attention out = work;
  out.kernel = AttentionKernel::kCudnn;
  out.heads_split_over = out.sequences_split_over = out.parts_over = out.heads_over = GroupSlot();
  out.first_sequence = out.head_part = 0;
  out.head_parts = 1;
  out.more.kernels = 0;
  out.more.bytes = 0;
  if (out.part == ContextPart::kHeads) out.part = ContextPart::kWhole;
  return out;
}

bool cudnn_attends(const Attention& w) {
  constexpr std::int64_t kWidest = 128, kStep = 8;
  return w.kernel == AttentionKernel::kCudnn && bits_of(w.dtype) == 16 && w.head_dim % kStep == 0 &&
         w.head_dim <= kWidest && w.value_width() == w.head_dim && w.q_len == w.kv_len &&
         w.window == 0 && !w.alibi && w.dropout == 0 && w.documents.empty() &&
         w.part == ContextPart::kWhole && w.step == AttentionStep::kWhole;
}

MicroOp micro_collective(CollectiveKind kind, std::int64_t count, std::int64_t ranks, DType type) {
  MicroOp out;
  Collective work;
  work.kind = kind;
  work.group = GroupSlot(std::size_t{0});
  work.count = count;
  work.dtype = type;
  out.work = work;
  out.key = sample_key(work, ranks);
  const std::int64_t in = kind == CollectiveKind::kAllGather ? count / ranks : count;
  const std::int64_t result = kind == CollectiveKind::kReduceScatter ? count / ranks : count;
  out.buffers = {typed("in", in, type), typed("out", result, type)};
  out.op.name = out.key.op;
  out.op.reads = {whole(0, in, type)};
  out.op.writes = {whole(1, result, type)};
  return out;
}

MicroOp micro_message(Bytes bytes) {
  MicroOp out;
  out.work = P2PBatch{{Message{true, ChannelSlot(std::size_t{0}), bytes}}};
  out.key = sample_key(out.work, 2);
  const std::int64_t count = (bytes + 3) / 4;
  out.buffers = {typed("message", count, DType::kFp32)};
  out.op.name = out.key.op;
  out.op.reads = {View{0, 0, 0, bytes, 1, GroupSlot()}};
  return out;
}

Workload micro_ranks(std::int64_t ranks) {
  Workload out;
  out.ranks.resize(static_cast<std::size_t>(ranks));
  for (RankBinding& rank : out.ranks) {
    rank.program = ProgramId(std::size_t{0});
    rank.channels = {ChannelId()};
  }
  for (const std::int64_t size : group_sizes(ranks)) {
    for (std::int64_t first = 0; first < ranks; first += size) {
      const GroupId id(out.groups.size());
      out.groups.emplace_back();
      for (std::int64_t r = first; r < first + size; ++r) {
        out.groups.back().push_back(RankId(static_cast<std::size_t>(r)));
        out.ranks[static_cast<std::size_t>(r)].groups.push_back(id);
      }
    }
  }
  for (std::size_t r = 0; r + 1 < out.ranks.size(); r += 2) {
    const ChannelId id(out.channels.size());
    const ChannelSlot slot(std::size_t{0});
    out.channels.push_back(Channel{RankId(r), RankId(r + 1), slot, slot});
    out.ranks[r].channels = {id};
    out.ranks[r + 1].channels = {id};
  }
  return out;
}

Workload micro_workload(const MicroOp& micro, std::int64_t ranks, std::int64_t sets,
                        std::int64_t repeats) {
  Workload out = micro_ranks(ranks);
  if (!std::holds_alternative<P2PBatch>(micro.work)) {
    out.programs.push_back(repeat(micro, micro.work, out, sets, repeats));
    return out;
  }
  for (const bool send : {true, false}) {
    Work work = micro.work;
    set_channel(work, ChannelSlot(std::size_t{0}), send);
    MicroOp side = micro;
    if (!send) std::swap(side.op.reads, side.op.writes);
    out.programs.push_back(repeat(side, work, out, sets, repeats));
  }
  out.programs.push_back(repeat(micro, micro.work, out, sets, 0));
  for (std::size_t r = 0; r < out.ranks.size(); ++r) {
    const bool alone = !out.ranks[r].channels[0].valid();
    out.ranks[r].program = ProgramId(alone ? std::size_t{2} : r % 2);
  }
  return out;
}

Workload event_workload(std::int64_t ranks, std::int64_t repeats) {
  return hand_over(ranks, repeats, true);
}

Workload dispatch_workload(std::int64_t ranks, std::int64_t repeats) {
  return hand_over(ranks, repeats, false);
}

}  // namespace foretrain
