// What two streams touch, the Program orders: no op reads or writes memory of a device that another
// may still write, none writes what another may still read.
#include <gtest/gtest.h>

#include <algorithm>

#include "executor/cuda/memory_plan.h"
#include "models/lower.h"
#include "tests/execution/device_plans.h"
#include "tests/execution/drawn_plans.h"

namespace foretrain {
namespace {

/// By stream: how many of its tasks are over.
using Clock = std::vector<std::size_t>;

struct Access {
  std::size_t stream = 0, task = 0;
  std::size_t begin = 0, end = 0;  ///< bytes in the memory
  Memory memory = Memory::kDevice;
  bool writes = false;
  std::string name;
};

bool meet(const Access& a, const Access& b) {
  return a.memory == b.memory && a.begin < b.end && b.begin < a.end && (a.writes || b.writes);
}

/// Walks a rank's ops in issue order: what each knows to be over, and what it touches.
class Orders {
 public:
  Orders(const Workload& workload, RankId rank)
      : x_list(workload.programs[workload.ranks[rank.index()].program.index()]),
        x_layout(*x_list.program, places_of(workload, rank)),
        x_plan(x_list, x_layout),
        x_streams(x_list.tasks.size(), Clock(x_list.tasks.size(), 0)),
        x_events(x_list.events),
        x_host(x_list.tasks.size(), 0) {}

  /// The first two ops that touch the same bytes unordered; empty if there are none.
  std::string first_conflict() {
    for (std::size_t i = 0; i < x_list.issue.size(); ++i) {
      const auto stream = static_cast<std::size_t>(x_list.issue[i].first);
      const std::string found = visit(i, stream, x_list.issue[i].second);
      if (!found.empty()) return found;
    }
    return {};
  }

 private:
  std::string visit(std::size_t i, std::size_t stream, std::size_t index) {
    const QueuedOp& task = x_list.tasks[stream][index];
    Clock& clock = x_streams[stream];
    join(clock, x_host);
    for (const std::size_t event : task.waits) join(clock, x_events[event]);
    const Op& op = x_list.op_of(task);
    std::size_t next = 0;
    for (const std::vector<View>* views : {&op.reads, &op.writes}) {
      for (const View& view : *views) {
        const MemoryLayout::Home home = x_layout.home(x_list.call_of(task), view);
        const std::size_t begin = x_plan.operands[i][next++];
        const Access now{stream,
                         index,
                         begin,
                         begin + static_cast<std::size_t>(view.bytes),
                         x_layout.buffer(home.buffer).memory,
                         views == &op.writes,
                         op.name};
        for (const Access& known : x_known) {
          if (known.task < clock[known.stream] || known.stream == stream) continue;
          if (!meet(known, now)) continue;
          return now.name + " does not wait for " + known.name + ", which uses " +
                 x_layout.buffer(home.buffer).name + " too";
        }
        x_mine.push_back(now);
      }
    }
    clock[stream] = index + 1;
    if (task.event >= 0) x_events[static_cast<std::size_t>(task.event)] = clock;
    if (std::holds_alternative<HostSync>(x_list.work_of(task))) join(x_host, clock);
    std::move(x_mine.begin(), x_mine.end(), std::back_inserter(x_known));
    x_mine.clear();
    if (i % 64 == 0) forget();
    return {};
  }

  /// What all streams know to be over.
  void forget() {
    const auto over = [this](const Access& access) {
      return std::all_of(x_streams.begin(), x_streams.end(),
                         [&](const Clock& clock) { return access.task < clock[access.stream]; });
    };
    x_known.erase(std::remove_if(x_known.begin(), x_known.end(), over), x_known.end());
  }

  static void join(Clock& into, const Clock& other) {
    for (std::size_t s = 0; s < other.size(); ++s) into[s] = std::max(into[s], other[s]);
  }

  TaskList x_list;
  MemoryLayout x_layout;
  MemoryPlan x_plan;
  std::vector<Access> x_known, x_mine;
  std::vector<Clock> x_streams, x_events;
  Clock x_host;
};

void expect_ordered(const Workload& workload, const std::string& name) {
  std::vector<bool> seen(workload.programs.size(), false);
  for (std::size_t r = 0; r < workload.ranks.size(); ++r) {
    const std::size_t program = workload.ranks[r].program.index();
    if (seen[program]) continue;
    seen[program] = true;
    EXPECT_EQ(Orders(workload, RankId(r)).first_conflict(), "") << name;
  }
}

TEST(Order, OfWhatDevicesTrain) {
  for (const auto& cases :
       {single_rank_cases(), many_rank_cases(), expert_cases(), expert_rank_cases(),
        offload_cases(1), offload_cases(2), context_cases(), grid_cases()}) {
    for (const DeviceCase& one : cases) expect_ordered(lowered(one, DType::kFp32), one.name);
  }
}

TEST(Order, OfDrawnPlans) {
  for (const DrawnKind kind : {DrawnKind::kBuckets, DrawnKind::kUnits, DrawnKind::kExperts,
                               DrawnKind::kContext, DrawnKind::kGrid}) {
    Rng rng(11);
    for (int i = 0; i < 40; ++i) {
      const Drawn drawn = draw_small(rng, kind);
      expect_ordered(lower(drawn.model, drawn.plan), describe(drawn.model, drawn.plan));
    }
  }
}

TEST(Order, FindsWhatDoesNotWait) {
  Workload workload = lowered(many_rank_cases().back(), DType::kFp32);
  for (Program& program : workload.programs) {
    for (Call& call : program.calls) call.waits.clear();
    for (Segment& segment : program.segments) {
      for (Op& op : segment.ops) op.waits.clear();
    }
  }
  EXPECT_NE(Orders(workload, RankId(0)).first_conflict().find("does not wait for"),
            std::string::npos);
}

}  // namespace
}  // namespace foretrain
