#include "executor/cuda/memory_plan.h"

#include <algorithm>
#include <functional>

#include "sim/base/check.h"

namespace foretrain {
namespace {

/// By stream: how many of its tasks are done.
using Clock = std::vector<std::size_t>;

void merge(Clock& into, const Clock& other) {
  std::transform(into.begin(), into.end(), other.begin(), into.begin(),
                 [](std::size_t a, std::size_t b) { return std::max(a, b); });
}
bool before(const Clock& a, const Clock& b) {
  return std::equal(a.begin(), a.end(), b.begin(), std::less_equal<>());
}

constexpr std::size_t kAlignment = 256;
std::size_t rounded(Bytes bytes) {
  const auto size = static_cast<std::size_t>(std::max<Bytes>(bytes, 1));
  return (size + kAlignment - 1) / kAlignment * kAlignment;
}

class Planner {
 public:
  Planner(const TaskList& list, const MemoryLayout& layout, MemoryPlan& out)
      : x_list(list),
        x_layout(layout),
        x_out(out),
        x_live(layout.size()),
        x_streams(list.tasks.size(), Clock(list.tasks.size(), 0)),
        x_events(list.events),
        x_host(list.tasks.size(), 0) {}

  void run() {
    place_persistent();
    x_out.operands.resize(x_list.issue.size());
    x_out.allocates.resize(x_list.issue.size());
    for (std::size_t i = 0; i < x_list.issue.size(); ++i) {
      const auto stream = static_cast<std::size_t>(x_list.issue[i].first);
      visit(i, stream, x_list.issue[i].second);
    }
  }

 private:
  struct Live {
    PlannedBlock block;
    bool there = false;
    Clock users;
  };
  struct Free {
    PlannedBlock block;
    Clock users;
  };

  void place_persistent() {
    x_out.buffers.resize(x_layout.size());
    for (std::size_t b = 0; b < x_layout.size(); ++b) {
      if (x_layout.home(b).buffer != b || !x_layout.buffer(b).persistent) continue;
      x_live[b].block = at_end(rounded(x_layout.buffer(b).bytes()), x_layout.buffer(b).memory);
      x_live[b].there = true;
      x_out.buffers[b] = x_live[b].block;
    }
    for (MemoryPlan::Space& space : x_out.spaces) space.persistent = space.bytes;
  }

  void visit(std::size_t i, std::size_t stream, std::size_t index) {
    const QueuedOp& task = x_list.tasks[stream][index];
    const Call& call = x_list.call_of(task);
    const Op& op = x_list.op_of(task);
    Clock& clock = x_streams[stream];
    merge(clock, x_host);
    for (const std::size_t event : task.waits) {
      FT_CHECK(!x_events[event].empty(), "an op waits for an event that is not recorded yet");
      merge(clock, x_events[event]);
    }
    for (const BufferRef& ref : op.allocates) {
      const std::size_t b = x_layout.index_of(call, ref);
      const Buffer& buffer = x_layout.buffer(b);
      x_live[b] = {take(rounded(buffer.bytes()), buffer.memory, clock), true,
                   Clock(clock.size(), 0)};
      x_live[b].users[stream] = index + 1;
      x_out.allocates[i].push_back(x_live[b].block);
    }
    for (const std::vector<View>* views : {&op.reads, &op.writes}) {
      for (const View& view : *views) {
        const MemoryLayout::Home home = x_layout.home(call, view);
        Live& live = x_live[home.buffer];
        FT_CHECK(live.there, "an op touches a buffer that is not allocated");
        if (!live.users.empty()) live.users[stream] = index + 1;
        x_out.operands[i].push_back(live.block.offset + static_cast<std::size_t>(home.offset));
      }
    }
    clock[stream] = index + 1;
    if (task.event >= 0) x_events[static_cast<std::size_t>(task.event)] = clock;
    if (std::holds_alternative<HostSync>(x_list.work_of(task))) merge(x_host, clock);
    for (const BufferRef& ref : op.frees) {
      Live& live = x_live[x_layout.index_of(call, ref)];
      live.users[stream] = index + 1;
      x_free.push_back({live.block, std::move(live.users)});
      live = Live{};
    }
  }

  PlannedBlock at_end(std::size_t bytes, Memory memory) {
    std::size_t& end = x_out.spaces[static_cast<std::size_t>(memory)].bytes;
    end += bytes;
    return {end - bytes, bytes, memory};
  }

  /// The smallest block whose users are all done by then; the rest of one that is more than twice
  /// as large stays free.
  PlannedBlock take(std::size_t bytes, Memory memory, const Clock& clock) {
    auto best = x_free.end();
    for (auto at = x_free.begin(); at != x_free.end(); ++at) {
      if (at->block.memory != memory || at->block.bytes < bytes) continue;
      if (best != x_free.end() && best->block.bytes <= at->block.bytes) continue;
      if (before(at->users, clock)) best = at;
    }
    if (best == x_free.end()) return at_end(bytes, memory);
    PlannedBlock out = best->block;
    if (out.bytes > 2 * bytes) {
      best->block = {out.offset + bytes, out.bytes - bytes, memory};
      out.bytes = bytes;
    } else {
      x_free.erase(best);
    }
    return out;
  }

  const TaskList& x_list;
  const MemoryLayout& x_layout;
  MemoryPlan& x_out;
  std::vector<Live> x_live;
  std::vector<Free> x_free;
  std::vector<Clock> x_streams, x_events;
  Clock x_host;
};

}  // namespace

MemoryPlan::MemoryPlan(const TaskList& list, const MemoryLayout& layout) {
  Planner(list, layout, *this).run();
}

}  // namespace foretrain
