// One rank on the host: a thread for each stream runs its ops in issue order, waits for events as
// CUDA does, and notes when every op began and ended.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include "executor/host_memory.h"
#include "executor/transport.h"

namespace foretrain {

struct HostOptions {
  Training training;
  /// Allocated buffers are poisoned, and what ops wrote is searched for NaN.
  bool check = false;
};

/// When an op ran, on the clock that starts with the step.
struct OpRecord {
  std::int32_t call = 0, op = 0;
  Time begin, end;
};

/// What the host backend cannot execute, by name: element types other than fp32, opaque work,
/// copies to storage.
Status check_executable(const Workload& workload);

template <typename T>
class HostRank {
 public:
  /// The workload must outlive it, and be verified and executable.
  HostRank(const Workload& workload, RankId rank, Transport& transport, const HostOptions& options);
  Status set_up();

  /// One training step; the caller's thread is the host that issues. All ranks must step.
  Status step();

  /// Of the last step, by stream, in issue order.
  const std::vector<std::vector<OpRecord>>& records() const { return x_records; }
  /// CPU and wall time of the kernels of the last step: equal when nobody else used the cores.
  double cpu_seconds() const { return x_cpu_seconds; }
  double wall_seconds() const { return x_wall_seconds; }
  /// Mean loss of the last step; NaN on ranks that have none.
  double loss() const;
  std::int64_t steps() const { return x_step; }

  HostMemory<T>& memory() { return x_memory; }
  const Program& program() const { return x_program; }
  HostOptions& options() { return x_options; }
  /// Weights that this rank's optimizer wrote: intervals of elements of parameter buffers.
  struct Updated {
    FrameId owner;
    std::int64_t begin = 0, end = 0;
  };
  std::vector<Updated> updated() const;

 private:
  struct Task {
    std::int32_t call = 0, op = 0;
    std::vector<std::size_t> waits;
    std::int64_t event = -1;
  };
  void list_tasks();
  void find_inputs();
  std::size_t event_of(const Call& call, EventRef ref) const;
  void issue();
  void run_stream(std::size_t stream);
  bool run_task(std::size_t stream, std::size_t index);
  Status execute(const Call& call, const Op& op);
  Status dispatch(const Call& call, const Op& op);
  Status communicate(const Collective& work, const Operands<T>& x);
  Status exchange(const P2PBatch& work, const Operands<T>& x);
  Status copy(const Call& call, const Operands<T>& x);
  Status check_written(const Op& op, const Operands<T>& x) const;
  void start_masters();
  void fail(const std::string& what);
  Time now() const;
  const Op& op_of(const Task& task) const {
    const Call& call = x_program.calls[static_cast<std::size_t>(task.call)];
    return x_program.segments[call.segment.index()].ops[static_cast<std::size_t>(task.op)];
  }

  const Workload& x_workload;
  const Program& x_program;
  const RankBinding& x_binding;
  RankId x_rank;
  Transport& x_transport;
  HostOptions x_options;
  std::vector<Place> x_places;
  HostMemory<T> x_memory;
  std::vector<std::size_t> x_event_base;
  std::vector<std::vector<Task>> x_tasks;                     ///< by stream
  std::vector<std::pair<std::int32_t, std::size_t>> x_issue;  ///< (stream, task) in issue order
  FrameId x_loss_frame;
  std::int16_t x_loss_buffer = 0;
  std::int64_t x_step = 0;

  std::mutex x_mutex;
  std::condition_variable x_changed;
  std::vector<bool> x_events;
  std::vector<std::size_t> x_issued, x_done;  ///< by stream: number of tasks
  bool x_failed = false;
  std::string x_failure;
  std::chrono::steady_clock::time_point x_start;
  std::vector<std::vector<OpRecord>> x_records;
  double x_cpu_seconds = 0, x_wall_seconds = 0;
};

}  // namespace foretrain
