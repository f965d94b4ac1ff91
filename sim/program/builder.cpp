#include "sim/program/builder.h"

#include <algorithm>
#include <iterator>

#include "sim/base/check.h"

namespace foretrain {
namespace {

/// The place of what equals `item`, added at the end if nothing does.
template <typename IdType, typename T>
IdType find_or_push(std::vector<T>& table, T item) {
  const auto it = std::find(table.begin(), table.end(), item);
  if (it != table.end()) return IdType(static_cast<std::size_t>(it - table.begin()));
  return push_id<IdType>(table, std::move(item));
}

/// Where a buffer is first and last touched: (call, op in its segment, formal frame).
struct Touch {
  std::int32_t call = -1, op = -1;
  std::int16_t frame = -1;
};
struct Life {
  Touch first, last;
};

/// The marks an op gets from one call; all calls of its segment must agree.
struct Marks {
  std::vector<std::vector<BufferRef>> allocates, frees;  // by op
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
  }

  void run() {
    for (std::size_t c = 0; c < x_program.calls.size(); ++c) touch_call(c);
    std::vector<std::vector<Variant>> variants(x_program.segments.size());
    for (std::size_t c = 0; c < x_program.calls.size(); ++c) {
      Call& call = x_program.calls[c];
      call.segment = variant_of(variants[call.segment.index()], call.segment, marks_of(c));
    }
  }

 private:
  /// A segment with the marks of some of its calls.
  struct Variant {
    Marks marks;
    SegmentId segment;
  };

  /// The first marks go to the segment itself, others to copies of it.
  SegmentId variant_of(std::vector<Variant>& variants, SegmentId segment, Marks marks) {
    for (const Variant& known : variants) {
      if (known.marks == marks) return known.segment;
    }
    SegmentId id = segment;
    if (!variants.empty()) {
      Segment copy = x_program.segments[segment.index()];
      id = push_id<SegmentId>(x_program.segments, std::move(copy));
    }
    std::vector<Op>& ops = x_program.segments[id.index()].ops;
    for (std::size_t o = 0; o < ops.size(); ++o) {
      ops[o].allocates = marks.allocates[o];
      ops[o].frees = marks.frees[o];
    }
    variants.push_back(Variant{std::move(marks), id});
    return id;
  }

  /// The buffer that a view touches: that of the frame itself, or the one an alias lies in. Invalid
  /// where it is persistent.
  BufferRef owned(const Call& call, const View& view) const {
    const FrameId id = call.frames[static_cast<std::size_t>(view.frame)];
    const Frame& actual = x_program.frames[id.index()];
    const bool alias = actual.alias_of.valid();
    const FrameId owner = alias ? actual.alias_of : id;
    const std::int16_t buffer = alias ? actual.alias_buffer : view.buffer;
    const LayoutId layout = x_program.frames[owner.index()].layout;
    if (x_program.layouts[layout.index()].buffers[static_cast<std::size_t>(buffer)].persistent) {
      return BufferRef{-1, -1};
    }
    if (!alias) return BufferRef{view.frame, view.buffer};
    const auto it = std::find(call.frames.begin(), call.frames.end(), owner);
    FT_CHECK(it != call.frames.end(), "a call touches an alias but does not bind its owner");
    return BufferRef{static_cast<std::int16_t>(it - call.frames.begin()), buffer};
  }
  Life& life(const Call& call, BufferRef ref) {
    const FrameId actual = call.frames[static_cast<std::size_t>(ref.frame)];
    return x_lives[x_base[actual.index()] + static_cast<std::size_t>(ref.buffer)];
  }
  template <typename Visit>
  void each_view(const Op& op, Visit visit) {
    for (const View& view : op.reads) visit(view);
    for (const View& view : op.writes) visit(view);
  }
  void touch_call(std::size_t c) {
    const Call& call = x_program.calls[c];
    const Segment& segment = x_program.segments[call.segment.index()];
    for (std::size_t o = 0; o < segment.ops.size(); ++o) {
      each_view(segment.ops[o], [&](const View& view) {
        FT_CHECK(call.frames[static_cast<std::size_t>(view.frame)].valid(),
                 "an op touches a frame that its call does not bind");
        const BufferRef ref = owned(call, view);
        if (ref.frame < 0) return;
        Life& x = life(call, ref);
        const Touch touch{static_cast<std::int32_t>(c), static_cast<std::int32_t>(o), ref.frame};
        if (x.first.call < 0) x.first = touch;
        x.last = touch;
      });
    }
  }
  Marks marks_of(std::size_t c) {
    const Call& call = x_program.calls[c];
    const Segment& segment = x_program.segments[call.segment.index()];
    Marks marks;
    marks.allocates.resize(segment.ops.size());
    marks.frees.resize(segment.ops.size());
    for (std::size_t o = 0; o < segment.ops.size(); ++o) {
      each_view(segment.ops[o], [&](const View& view) {
        const BufferRef ref = owned(call, view);
        if (ref.frame < 0) return;
        const Life& x = life(call, ref);
        const auto here = [&](const Touch& touch) {
          return touch.call == static_cast<std::int32_t>(c) &&
                 touch.op == static_cast<std::int32_t>(o) && touch.frame == ref.frame;
        };
        const auto add = [&ref](std::vector<BufferRef>& list) {
          if (std::find(list.begin(), list.end(), ref) == list.end()) list.push_back(ref);
        };
        if (here(x.first)) add(marks.allocates[o]);
        if (here(x.last)) add(marks.frees[o]);
      });
    }
    return marks;
  }

  Program& x_program;
  std::vector<std::size_t> x_base;
  std::vector<Life> x_lives;
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

WorkId ProgramBuilder::work(Work work) { return interned(x_program, std::move(work)); }

SegmentId ProgramBuilder::segment(Segment segment) {
  for (Op& op : segment.ops) {
    const Work& work_of_op = x_program.works[op.work.index()];
    if (!std::holds_alternative<Kernel>(work_of_op)) continue;
    Kernel kernel = std::get<Kernel>(work_of_op);
    kernel.bytes = kernel_bytes(kernel, op);
    op.work = work(kernel);
  }
  return find_or_push<SegmentId>(x_program.segments, std::move(segment));
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
