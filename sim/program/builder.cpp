#include "sim/program/builder.h"

#include <algorithm>
#include <iterator>

#include "sim/base/check.h"
#include "sim/base/rng.h"

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

/// Where a buffer is first and last touched: (call, op in its segment, formal frame).
struct Touch {
  std::int32_t call = -1, op = -1;
  std::int16_t frame = -1;
};
struct Life {
  Touch first, last;
};

/// A formal buffer as the ops of a segment touch it: in which op first and last, and in which order
/// among all views of the segment.
struct Touched {
  BufferRef ref;
  std::int32_t first_op = 0, last_op = 0;
  std::int32_t first = 0, last = 0;   ///< its first and its last view
  std::int32_t first_of_last_op = 0;  ///< its first view in its last op
};

/// All of a segment, in the order of their first views, and where each stands in that of their
/// last ones.
struct TouchedBuffers {
  std::vector<Touched> all;
  std::vector<std::int32_t> by_last;   ///< by last view
  std::vector<std::int32_t> by_frees;  ///< by first view in the last op
};

template <typename Visit>
void each_view(const Op& op, Visit visit) {
  for (const View& view : op.reads) visit(view);
  for (const View& view : op.writes) visit(view);
}

TouchedBuffers touched_buffers(const Segment& segment) {
  TouchedBuffers out;
  std::unordered_map<std::int32_t, std::size_t> known;
  std::int32_t views = 0;
  for (std::size_t o = 0; o < segment.ops.size(); ++o) {
    const auto op = static_cast<std::int32_t>(o);
    each_view(segment.ops[o], [&](const View& view) {
      const std::int32_t key = view.frame * (1 << 16) + view.buffer;
      const auto [it, fresh] = known.try_emplace(key, out.all.size());
      if (fresh) {
        out.all.push_back({BufferRef{view.frame, view.buffer}, op, -1, views, views, views});
      }
      Touched& touched = out.all[it->second];
      if (touched.last_op != op) touched.first_of_last_op = views;
      touched.last_op = op;
      touched.last = views++;
    });
  }
  for (std::size_t i = 0; i < out.all.size(); ++i) {
    out.by_last.push_back(static_cast<std::int32_t>(i));
  }
  out.by_frees = out.by_last;
  const auto sort = [&out](std::vector<std::int32_t>& order, std::int32_t Touched::*view) {
    std::sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
      return out.all[static_cast<std::size_t>(a)].*view <
             out.all[static_cast<std::size_t>(b)].*view;
    });
  };
  sort(out.by_last, &Touched::last);
  sort(out.by_frees, &Touched::first_of_last_op);
  return out;
}

/// An op of a segment allocates or frees a buffer.
struct Mark {
  std::int32_t op = 0;
  BufferRef ref;
  bool operator==(const Mark&) const = default;
};

/// The marks that ops get from one call, by op; all calls of a segment must agree.
struct Marks {
  std::vector<Mark> allocates, frees;
  bool operator==(const Marks&) const = default;
};

class LifeDeriver {
 public:
  explicit LifeDeriver(Program& program) : x_program(program) {
    x_base.reserve(program.frames.size());
    std::size_t total = 0;
    for (const Frame& frame : program.frames) {
      x_base.push_back(total);
      total += program.layouts[frame.layout.index()].buffers.size();
    }
    x_lives.resize(total);
    for (const Frame& frame : program.frames) {
      for (const Buffer& buffer : program.layouts[frame.layout.index()].buffers) {
        x_persistent.push_back(buffer.persistent ? 1 : 0);
      }
    }
    for (const Segment& segment : program.segments) x_touched.push_back(touched_buffers(segment));
  }

  void run() {
    for (std::size_t c = 0; c < x_program.calls.size(); ++c) touch_call(c);
    std::vector<std::vector<Variant>> variants(x_program.segments.size());
    for (std::size_t c = 0; c < x_program.calls.size(); ++c) {
      Call& call = x_program.calls[c];
      mark(c);
      call.segment = variant_of(variants[call.segment.index()], call.segment);
    }
  }

 private:
  /// A segment with the marks of some of its calls.
  struct Variant {
    Marks marks;
    SegmentId segment;
  };

  /// The first marks go to the segment itself, others to copies of it.
  SegmentId variant_of(std::vector<Variant>& variants, SegmentId segment) {
    for (const Variant& known : variants) {
      if (known.marks == x_marks) return known.segment;
    }
    SegmentId id = segment;
    if (!variants.empty()) {
      Segment copy = x_program.segments[segment.index()];
      id = push_id<SegmentId>(x_program.segments, std::move(copy));
    }
    std::vector<Op>& ops = x_program.segments[id.index()].ops;
    for (Op& op : ops) {
      op.allocates.clear();
      op.frees.clear();
    }
    for (const Mark& mark : x_marks.allocates) {
      ops[static_cast<std::size_t>(mark.op)].allocates.push_back(mark.ref);
    }
    for (const Mark& mark : x_marks.frees) {
      ops[static_cast<std::size_t>(mark.op)].frees.push_back(mark.ref);
    }
    variants.push_back(Variant{x_marks, id});
    return id;
  }

  /// The buffer that a formal one of a call is, and its life; none where it is persistent.
  struct Owned {
    Life* life = nullptr;
    BufferRef ref;
  };
  /// That of the frame itself, or the one an alias lies in.
  Owned owned(const Call& call, const BufferRef& ref) {
    const FrameId id = call.frames[static_cast<std::size_t>(ref.frame)];
    FT_CHECK(id.valid(), "an op touches a frame that its call does not bind");
    const Frame& actual = x_program.frames[id.index()];
    const bool alias = actual.alias_of.valid();
    const FrameId owner = alias ? actual.alias_of : id;
    const std::int16_t buffer = alias ? actual.alias_buffer : ref.buffer;
    const std::size_t at = x_base[owner.index()] + static_cast<std::size_t>(buffer);
    if (x_persistent[at] != 0) return {};
    if (!alias) return {&x_lives[at], ref};
    const auto it = std::find(call.frames.begin(), call.frames.end(), owner);
    FT_CHECK(it != call.frames.end(), "a call touches an alias but does not bind its owner");
    return {&x_lives[at], {static_cast<std::int16_t>(it - call.frames.begin()), buffer}};
  }
  /// What the call touches, in the order of its segment's buffers, in x_owned.
  void find_owned(const Call& call, const TouchedBuffers& of) {
    x_owned.clear();
    for (const Touched& one : of.all) x_owned.push_back(owned(call, one.ref));
  }
  /// What the call's segment touches; copies of a segment are made after it.
  const TouchedBuffers& touched(const Call& call) const { return x_touched[call.segment.index()]; }

  void touch_call(std::size_t c) {
    const Call& call = x_program.calls[c];
    const TouchedBuffers& of = touched(call);
    const auto number = static_cast<std::int32_t>(c);
    find_owned(call, of);
    for (std::size_t i = 0; i < of.all.size(); ++i) {
      const auto& [life, ref] = x_owned[i];
      if (life == nullptr || life->first.call >= 0) continue;
      life->first = Touch{number, of.all[i].first_op, ref.frame};
    }
    for (const std::int32_t i : of.by_last) {
      const auto& [life, ref] = x_owned[static_cast<std::size_t>(i)];
      if (life == nullptr) continue;
      life->last = Touch{number, of.all[static_cast<std::size_t>(i)].last_op, ref.frame};
    }
  }

  static void add(std::vector<Mark>& marks, const Mark& mark) {
    if (std::find(marks.begin(), marks.end(), mark) == marks.end()) marks.push_back(mark);
  }

  /// The marks of call `c`, in x_marks.
  void mark(std::size_t c) {
    const Call& call = x_program.calls[c];
    const TouchedBuffers& of = touched(call);
    const auto number = static_cast<std::int32_t>(c);
    x_marks.allocates.clear();
    x_marks.frees.clear();
    const auto is_at = [number](const Touch& touch, std::int32_t op, std::int16_t frame) {
      return touch.call == number && touch.op == op && touch.frame == frame;
    };
    find_owned(call, of);
    for (std::size_t i = 0; i < of.all.size(); ++i) {
      const auto& [life, ref] = x_owned[i];
      const std::int32_t op = of.all[i].first_op;
      if (life != nullptr && is_at(life->first, op, ref.frame)) add(x_marks.allocates, {op, ref});
    }
    for (const std::int32_t i : of.by_frees) {
      const auto& [life, ref] = x_owned[static_cast<std::size_t>(i)];
      const std::int32_t op = of.all[static_cast<std::size_t>(i)].last_op;
      if (life != nullptr && is_at(life->last, op, ref.frame)) add(x_marks.frees, {op, ref});
    }
  }

  Program& x_program;
  std::vector<std::size_t> x_base;
  std::vector<Life> x_lives;
  std::vector<std::uint8_t> x_persistent;  ///< of the same buffers
  std::vector<Owned> x_owned;
  std::vector<TouchedBuffers> x_touched;  ///< by segment
  Marks x_marks;
};

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
  LifeDeriver(x_program).run();
  return std::move(x_program);
}

}  // namespace foretrain
