#include "sim/program/lives.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sim/base/check.h"

namespace foretrain {
namespace {

/// A formal buffer as the ops of a segment touch it: in which op first and last, and in which order
/// among all views of the segment.
struct Touched {
  BufferRef ref;
  std::int32_t first_op = 0, last_op = 0;
  std::int32_t first = 0, last = 0;   ///< its first and its last view
  std::int32_t first_of_last_op = 0;  ///< its first view in its last op
  bool persistent = false;            ///< unless the frame is an alias
};

/// A formal frame of a segment, if it is touched.
struct TouchedFrame {
  std::int16_t formal = 0;
  bool own = false;              ///< some of its buffers are not persistent
  std::vector<Touched> buffers;  ///< in the order of their first views
};

template <typename Visit>
void each_view(const Op& op, Visit visit) {
  for (const View& view : op.reads) visit(view);
  for (const View& view : op.writes) visit(view);
}

std::vector<TouchedFrame> touched_frames(const Program& program, const Segment& segment) {
  std::vector<TouchedFrame> of_formal(segment.frames.size());
  std::unordered_map<std::int32_t, std::size_t> known;  // by formal frame and buffer: its place
  std::int32_t views = 0;
  for (std::size_t o = 0; o < segment.ops.size(); ++o) {
    const auto op = static_cast<std::int32_t>(o);
    each_view(segment.ops[o], [&](const View& view) {
      TouchedFrame& frame = of_formal[static_cast<std::size_t>(view.frame)];
      const std::int32_t key = view.frame * (1 << 16) + view.buffer;
      const auto [it, fresh] = known.try_emplace(key, frame.buffers.size());
      if (fresh) {
        const FrameLayout& layout =
            program.layouts[segment.frames[static_cast<std::size_t>(view.frame)].index()];
        const bool kept = layout.buffers[static_cast<std::size_t>(view.buffer)].persistent;
        frame.formal = view.frame;
        frame.own |= !kept;
        frame.buffers.push_back({{view.frame, view.buffer}, op, -1, views, views, views, kept});
      }
      Touched& touched = frame.buffers[it->second];
      if (touched.last_op != op) touched.first_of_last_op = views;
      touched.last_op = op;
      touched.last = views++;
    });
  }
  std::erase_if(of_formal, [](const TouchedFrame& frame) { return frame.buffers.empty(); });
  return of_formal;
}

/// An op of a segment allocates or frees a buffer; `view`: where it stands among others.
struct Mark {
  std::int32_t view = 0, op = 0;
  BufferRef ref;
  bool operator==(const Mark&) const = default;
  bool operator<(const Mark& other) const {
    const auto key = [](const Mark& mark) {
      return std::tuple(mark.view, mark.op, mark.ref.frame, mark.ref.buffer);
    };
    return key(*this) < key(other);
  }
};

/// The marks that ops get from one call; all calls of a segment must agree.
struct Marks {
  std::vector<Mark> allocates, frees;
  bool operator==(const Marks&) const = default;
  bool operator<(const Marks& other) const {
    return std::tie(allocates, frees) < std::tie(other.allocates, other.frees);
  }
};

/// A call touches a frame: by which formal frame of which segment, and for an alias which buffer of
/// its owner, that the call binds as formal frame `owner`.
struct FrameTouch {
  SegmentId segment;
  std::int16_t place = 0;   ///< into the segment's touched frames
  std::int16_t owner = -1;  ///< the frame itself: -1
  std::int16_t buffer = 0;  ///< of the owner
  bool again = false;       ///< its call has touched the frame before
  bool operator==(const FrameTouch&) const = default;
};

/// What happens to frames, as a tree: frames with the same touches in the same order end at one
/// node.
class Histories {
 public:
  static constexpr std::int32_t kRoot = 0;

  /// Where a frame is that was at `node` before the touch.
  std::int32_t after(std::int32_t node, const FrameTouch& touch) {
    std::int32_t child = at(node).first_child;
    while (child >= 0 && at(child).touch != touch) child = at(child).sibling;
    if (child >= 0) return child;
    child = static_cast<std::int32_t>(x_nodes.size());
    x_nodes.push_back({touch, node, -1, at(node).first_child});
    at(node).first_child = child;
    return child;
  }

  /// All touches of a frame that ends at the node, in order.
  std::vector<FrameTouch> touches(std::int32_t node) const {
    std::vector<FrameTouch> out;
    for (; node != kRoot; node = x_nodes[static_cast<std::size_t>(node)].parent) {
      out.push_back(x_nodes[static_cast<std::size_t>(node)].touch);
    }
    std::reverse(out.begin(), out.end());
    return out;
  }

  std::size_t size() const { return x_nodes.size(); }

 private:
  struct Node {
    FrameTouch touch;
    std::int32_t parent = -1, first_child = -1, sibling = -1;
  };
  Node& at(std::int32_t node) { return x_nodes[static_cast<std::size_t>(node)]; }

  std::vector<Node> x_nodes{1};
};

class LifeDeriver {
 public:
  explicit LifeDeriver(Program& program) : x_program(program), x_at(program.frames.size()) {
    for (const Segment& segment : program.segments) {
      x_touched.push_back(touched_frames(program, segment));
    }
  }

  void run() {
    for (const Call& call : x_program.calls) {
      each_touch(call, [this](FrameId frame, const FrameTouch& touch) {
        std::int32_t& node = x_at[frame.index()];
        node = x_histories.after(node, touch);
      });
    }
    x_marks_of.resize(x_histories.size());
    std::vector<std::vector<Variant>> variants(x_program.segments.size());
    std::vector<std::int32_t> touched(x_program.frames.size());
    std::vector<std::int32_t> marks;  // of the call, by touch
    for (Call& call : x_program.calls) {
      marks.clear();
      each_touch(call, [&](FrameId frame, const FrameTouch&) {
        const std::vector<std::int32_t>& of_frame = marks_of(x_at[frame.index()]);
        const auto place = static_cast<std::size_t>(touched[frame.index()]++);
        marks.push_back(of_frame[place]);
      });
      call.segment = variant_of(variants[call.segment.index()], call.segment, marks);
    }
  }

 private:
  /// A segment with the marks of some of its calls.
  struct Variant {
    std::vector<std::int32_t> by_touch;
    Marks marks;
    SegmentId segment;
  };

  /// Hands over the frames whose buffers, if not persistent, the call touches.
  template <typename Visit>
  void each_touch(const Call& call, Visit visit) {
    const std::vector<TouchedFrame>& touched = x_touched[call.segment.index()];
    x_touched_now.clear();
    for (std::size_t i = 0; i < touched.size(); ++i) {
      const TouchedFrame& one = touched[i];
      FrameId id = call.frames[static_cast<std::size_t>(one.formal)];
      FT_CHECK(id.valid(), "an op touches a frame that its call does not bind");
      const Frame& frame = x_program.frames[id.index()];
      FrameTouch touch{call.segment, static_cast<std::int16_t>(i), -1, 0, false};
      if (frame.alias_of.valid()) {
        const LayoutId owner = x_program.frames[frame.alias_of.index()].layout;
        const auto buffer = static_cast<std::size_t>(frame.alias_buffer);
        if (x_program.layouts[owner.index()].buffers[buffer].persistent) continue;
        const auto it = std::find(call.frames.begin(), call.frames.end(), frame.alias_of);
        FT_CHECK(it != call.frames.end(), "a call touches an alias but does not bind its owner");
        touch.owner = static_cast<std::int16_t>(it - call.frames.begin());
        touch.buffer = frame.alias_buffer;
        id = frame.alias_of;
      } else if (!one.own) {
        continue;
      }
      touch.again =
          std::find(x_touched_now.begin(), x_touched_now.end(), id) != x_touched_now.end();
      x_touched_now.push_back(id);
      visit(id, touch);
    }
  }

  /// A buffer of a frame as one touch of the frame uses it.
  struct Use {
    std::size_t touch = 0;  ///< number within the frame's history
    const Touched* touched = nullptr;
    BufferRef ref;
  };
  /// Of a buffer, what its first call uses first and its last call last.
  struct Life {
    std::size_t first_call = 0, last_call = 0;
    Use first, last;
  };

  /// By touch of a frame that ends at the node, the marks that its call gets from it.
  const std::vector<std::int32_t>& marks_of(std::int32_t node) {
    std::vector<std::int32_t>& out = x_marks_of[static_cast<std::size_t>(node)];
    if (!out.empty()) return out;
    const std::vector<FrameTouch> touches = x_histories.touches(node);
    std::vector<Marks> marks(touches.size());
    for (const auto& [buffer, life] : lives_of(touches)) {
      const Touched& first = *life.first.touched;
      marks[life.first.touch].allocates.push_back({first.first, first.first_op, life.first.ref});
      marks[life.last.touch].frees.push_back(free_of(touches, life.last));
    }
    for (Marks& of_touch : marks) {
      const auto known = static_cast<std::int32_t>(x_marks.size());
      const auto [it, fresh] = x_marks.try_emplace(std::move(of_touch), known);
      if (fresh) x_all_marks.push_back(&it->first);
      out.push_back(it->second);
    }
    return out;
  }

  template <typename Visit>
  void each_use(const FrameTouch& touch, std::size_t number, Visit visit) const {
    const bool alias = touch.owner >= 0;
    const auto place = static_cast<std::size_t>(touch.place);
    for (const Touched& touched : x_touched[touch.segment.index()][place].buffers) {
      if (!alias && touched.persistent) continue;
      visit(Use{number, &touched, alias ? BufferRef{touch.owner, touch.buffer} : touched.ref});
    }
  }

  /// By buffer of the frame.
  std::map<std::int16_t, Life> lives_of(const std::vector<FrameTouch>& touches) const {
    std::map<std::int16_t, Life> out;
    std::size_t call = 0;
    for (std::size_t t = 0; t < touches.size(); ++t) {
      if (t > 0 && !touches[t].again) ++call;
      each_use(touches[t], t, [&](const Use& use) {
        const auto [it, fresh] = out.try_emplace(use.ref.buffer, Life{call, call, use, use});
        Life& life = it->second;
        const bool sooner = use.touched->first < life.first.touched->first;
        if (call == life.first_call && sooner) life.first = use;
        const bool later = use.touched->last > life.last.touched->last;
        if (call > life.last_call || later) life.last = use;
        life.last_call = call;
      });
    }
    return out;
  }

  /// The op that uses a buffer last frees it, in its order of where it names the buffer first:
  /// aliases of one owner may all do so.
  Mark free_of(const std::vector<FrameTouch>& touches, const Use& last) const {
    Mark out{last.touched->first_of_last_op, last.touched->last_op, last.ref};
    std::size_t begin = last.touch;
    while (touches[begin].again) --begin;
    std::size_t t = begin;
    do {
      each_use(touches[t], t, [&](const Use& use) {
        const bool same = use.ref == last.ref && use.touched->last_op == out.op;
        if (same) out.view = std::min(out.view, use.touched->first_of_last_op);
      });
      ++t;
    } while (t < touches.size() && touches[t].again);
    return out;
  }

  /// The first marks go to the segment itself, others to copies of it.
  SegmentId variant_of(std::vector<Variant>& variants, SegmentId segment,
                       const std::vector<std::int32_t>& by_touch) {
    for (const Variant& known : variants) {
      if (known.by_touch == by_touch) return known.segment;
    }
    Variant found{by_touch, all_of(by_touch), segment};
    const auto same = std::find_if(variants.begin(), variants.end(), [&found](const Variant& one) {
      return one.marks == found.marks;
    });
    if (same != variants.end()) {
      found.segment = same->segment;
    } else {
      found.segment = marked(segment, found.marks, variants.empty());
    }
    variants.push_back(std::move(found));
    return variants.back().segment;
  }

  Marks all_of(const std::vector<std::int32_t>& by_touch) const {
    Marks out;
    for (const std::int32_t marks : by_touch) {
      const Marks& more = *x_all_marks[static_cast<std::size_t>(marks)];
      out.allocates.insert(out.allocates.end(), more.allocates.begin(), more.allocates.end());
      out.frees.insert(out.frees.end(), more.frees.begin(), more.frees.end());
    }
    for (std::vector<Mark>* all : {&out.allocates, &out.frees}) {
      std::sort(all->begin(), all->end());
      for (Mark& mark : *all) mark.view = 0;  // it has told their order
    }
    return out;
  }

  SegmentId marked(SegmentId segment, const Marks& marks, bool itself) {
    SegmentId id = segment;
    if (!itself) {
      Segment copy = x_program.segments[segment.index()];
      id = push_id<SegmentId>(x_program.segments, std::move(copy));
    }
    std::vector<Op>& ops = x_program.segments[id.index()].ops;
    for (Op& op : ops) {
      op.allocates.clear();
      op.frees.clear();
    }
    for (const Mark& mark : marks.allocates) {
      ops[static_cast<std::size_t>(mark.op)].allocates.push_back(mark.ref);
    }
    for (const Mark& mark : marks.frees) {
      ops[static_cast<std::size_t>(mark.op)].frees.push_back(mark.ref);
    }
    return id;
  }

  Program& x_program;
  std::vector<std::vector<TouchedFrame>> x_touched;  ///< by segment; copies are made after it
  std::vector<FrameId> x_touched_now;                ///< by the call, so far
  Histories x_histories;
  std::vector<std::int32_t> x_at;                     ///< by frame: its node
  std::vector<std::vector<std::int32_t>> x_marks_of;  ///< by node: of each touch
  std::map<Marks, std::int32_t> x_marks;
  std::vector<const Marks*> x_all_marks;  ///< the same by number
};

}  // namespace

void derive_lives(Program& program) { LifeDeriver(program).run(); }

}  // namespace foretrain
