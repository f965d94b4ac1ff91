#include "sim/program/builder.h"

#include <algorithm>
#include <iterator>

#include "sim/base/check.h"
#include "sim/base/rng.h"
#include "sim/program/lives.h"

namespace foretrain {
namespace {

/// The place of what equals `item`, added at the end if nothing does.
template <typename IdType, typename T>
IdType find_or_push(std::vector<T>& table, T item) {
  const auto it = std::find(table.begin(), table.end(), item);
  if (it != table.end()) return IdType(static_cast<std::size_t>(it - table.begin()));
  return push_id<IdType>(table, std::move(item));
}

/// Of what most works differ in; equal works have equal ones.
struct WorkHash {
  static std::uint64_t of(std::int64_t a, std::int64_t b, std::int64_t c) {
    return mix_u64(mix_u64(static_cast<std::uint64_t>(a), static_cast<std::uint64_t>(b)),
                   static_cast<std::uint64_t>(c));
  }
  std::uint64_t operator()(const Gemm& work) const { return of(work.m, work.n, work.k); }
  std::uint64_t operator()(const Attention& work) const {
    return of(work.hops, work.kv_len, work.backward ? 1 : 0);
  }
  std::uint64_t operator()(const Kernel& work) const {
    return of(static_cast<std::int64_t>(work.kind), work.cols, work.bytes);
  }
  std::uint64_t operator()(const Collective& work) const {
    return of(static_cast<std::int64_t>(work.kind), work.group.value, work.count);
  }
  std::uint64_t operator()(const P2PBatch& work) const {
    if (work.messages.empty()) return 0;
    return of(std::ssize(work.messages), work.messages[0].channel.value, work.messages[0].bytes);
  }
  template <typename Other>
  std::uint64_t operator()(const Other&) const {
    return 0;
  }
};

std::uint64_t hash_of(const Work& work) {
  return mix_u64(work.index(), std::visit(WorkHash(), work));
}

/// Of what most segments differ in; equal segments have equal ones.
std::uint64_t hash_of(const Segment& segment) {
  std::uint64_t hash = std::hash<std::string>()(segment.name);
  const auto add = [&hash](auto value) { hash = mix_u64(hash, static_cast<std::uint64_t>(value)); };
  for (const LayoutId layout : segment.frames) add(layout.index());
  for (const Op& op : segment.ops) {
    add(std::hash<std::string>()(op.name));
    add(op.work.index());
    add(op.records.event);
    for (const auto* views : {&op.reads, &op.writes}) {
      for (const View& view : *views) {
        add(view.buffer);
        add(view.offset);
        add(view.bytes);
      }
    }
    for (const EventRef& event : op.waits) add(event.event);
  }
  return hash;
}

/// The place of what equals `item`, found by `hash`; added at the end if nothing does.
template <typename IdType, typename T>
IdType find_or_push(std::vector<T>& table, std::unordered_multimap<std::uint64_t, IdType>& places,
                    std::uint64_t hash, T item) {
  const auto [begin, end] = places.equal_range(hash);
  for (auto it = begin; it != end; ++it) {
    if (table[it->second.index()] == item) return it->second;
  }
  const IdType id = push_id<IdType>(table, std::move(item));
  places.emplace(hash, id);
  return id;
}

}  // namespace

ProgramBuilder::ProgramBuilder(std::string name) { x_program.name = std::move(name); }

StreamId ProgramBuilder::stream(const std::string& name) {
  return find_or_push<StreamId>(x_program.streams, name);
}
GroupSlot ProgramBuilder::group(const std::string& name) {
  return find_or_push<GroupSlot>(x_program.group_slots, name);
}
ChannelSlot ProgramBuilder::channel(const std::string& name) {
  return find_or_push<ChannelSlot>(x_program.channel_slots, name);
}

TensorId ProgramBuilder::tensor(Tensor tensor) {
  for (std::size_t i = 0; i < x_program.tensors.size(); ++i) {
    if (x_program.tensors[i].name != tensor.name) continue;
    FT_CHECK(x_program.tensors[i] == tensor, "two tensors of one name differ");
    return TensorId(i);
  }
  return push_id<TensorId>(x_program.tensors, std::move(tensor));
}

LayoutId ProgramBuilder::layout(FrameLayout layout) {
  return find_or_push<LayoutId>(x_program.layouts, std::move(layout));
}

FrameId ProgramBuilder::frame(LayoutId layout, std::int32_t layer, std::int32_t microbatch) {
  return push_id<FrameId>(x_program.frames, Frame{layout, layer, microbatch, FrameId(), 0, 0});
}

FrameId ProgramBuilder::alias(LayoutId layout, FrameId owner, std::int16_t buffer, Bytes offset,
                              std::int32_t layer) {
  FT_CHECK(owner.valid(), "an alias of no frame");
  return push_id<FrameId>(x_program.frames, Frame{layout, layer, -1, owner, buffer, offset});
}

WorkId interned(Program& program, Work work) {
  const auto it = std::find(program.works.begin(), program.works.end(), work);
  if (it != program.works.end()) {
    return WorkId(static_cast<std::size_t>(it - program.works.begin()));
  }
  return push_id<WorkId>(program.works, std::move(work));
}

WorkId ProgramBuilder::work(Work work) {
  const std::uint64_t hash = hash_of(work);
  return find_or_push(x_program.works, x_works, hash, std::move(work));
}

SegmentId ProgramBuilder::segment(Segment segment) {
  for (Op& op : segment.ops) {
    const Work& work_of_op = x_program.works[op.work.index()];
    if (!std::holds_alternative<Kernel>(work_of_op)) continue;
    Kernel kernel = std::get<Kernel>(work_of_op);
    kernel.bytes = kernel_bytes(kernel, op);
    op.work = work(kernel);
  }
  const std::uint64_t hash = hash_of(segment);
  return find_or_push(x_program.segments, x_segments, hash, std::move(segment));
}

std::vector<Call> ProgramBuilder::take_calls(std::size_t first) {
  const auto begin = x_program.calls.begin() + static_cast<std::ptrdiff_t>(first);
  std::vector<Call> out(std::make_move_iterator(begin),
                        std::make_move_iterator(x_program.calls.end()));
  x_program.calls.erase(begin, x_program.calls.end());
  return out;
}

Program ProgramBuilder::build() && {
  // There may be many, and no more come.
  x_program.calls.shrink_to_fit();
  x_program.frames.shrink_to_fit();
  derive_lives(x_program);
  return std::move(x_program);
}

}  // namespace foretrain
