// One rank on the host: a thread for each stream runs its ops in issue order, waits for events as
// CUDA does, and notes when every op began and ended.
#pragma once

#include <chrono>
#include <condition_variable>
#include <ctime>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "executor/host_memory.h"
#include "executor/rank_runner.h"
#include "executor/task_list.h"
#include "executor/transport.h"

namespace foretrain {

/// What the host backend cannot execute, by name: element types other than fp32, opaque work,
/// what is not written down completely, sizes that are expectations, copies to storage.
Status check_executable(const Workload& workload);

template <typename T>
class HostRank final : public RankRunner {
 public:
  /// The workload must outlive it, and be verified and executable.
  HostRank(const Workload& workload, RankId rank, Transport& transport, const HostOptions& options);
  Status set_up() override;
  Status step() override;
  const std::vector<std::vector<OpRecord>>& records() const override { return x_records; }
  double cpu_seconds() const override { return x_cpu_seconds; }
  double wall_seconds() const override { return x_wall_seconds; }
  double loss() const override;
  Status set_values(FrameId frame, std::int16_t buffer,
                    const std::function<double(std::int64_t)>& value) override;
  DType type_of(FrameId frame, std::int16_t buffer) const override;
  std::int64_t steps() const { return x_step; }

  HostMemory<T>& memory() { return x_memory; }
  const Program& program() const { return x_program; }
  HostOptions& options() { return x_options; }
  /// Weights that this rank's optimizer writes: intervals of elements of parameter buffers, and the
  /// optimizer's states of these elements.
  struct Updated {
    FrameId owner;
    std::int64_t begin = 0, end = 0;
    T* weights = nullptr;
    T* momentum = nullptr;
    T* variance = nullptr;
    T* master = nullptr;  ///< none where there is no copy
  };
  std::vector<Updated> updated() const;

 private:
  void issue();
  void run_stream(std::size_t stream);
  bool is_ready(std::size_t stream, std::size_t index) const;
  void wake_streams(std::unique_lock<std::mutex>& lock);
  bool run_task(std::size_t stream, std::size_t index);
  Status execute(const Call& call, const Op& op, Arrival& there);
  Status dispatch(const Call& call, const Op& op, Arrival& there);
  Status communicate(const Collective& work, const Operands<T>& x, Arrival& there);
  Status exchange(const P2PBatch& work, const Operands<T>& x, Arrival& there);
  Status copy(const Call& call, const Operands<T>& x);
  Status check_written(const Op& op, const Operands<T>& x) const;
  /// Where the content of an optimizer's buffer is between steps.
  struct Kept {
    FrameId frame;
    Operand operand;
  };
  Kept kept(const Call& call, const View& view) const;
  void start_masters();
  void fail(const std::string& what) noexcept;
  Time now() const;
  Time time_of(std::chrono::steady_clock::time_point at) const;

  const Program& x_program;
  const RankBinding& x_binding;
  RankId x_rank;
  Transport& x_transport;
  HostOptions x_options;
  std::vector<Place> x_places;
  HostMemory<T> x_memory;
  TaskList x_list;
  std::int64_t x_step = 0;
  /// CPU time of this rank: of all its threads where it is a process of its own, since kernels give
  /// way to its communication; else of one thread.
  clockid_t x_clock;

  std::mutex x_mutex;
  std::condition_variable x_host;                    ///< waits for an op of HostSync
  std::vector<std::condition_variable> x_wake;       ///< by stream
  std::vector<std::optional<std::size_t>> x_asleep;  ///< by stream: the task that it waits to start
  std::vector<bool> x_events;
  std::vector<std::size_t> x_issued, x_done;  ///< by stream: number of tasks
  bool x_failed = false;
  Error x_failure;
  std::chrono::steady_clock::time_point x_start;
  std::vector<std::vector<OpRecord>> x_records;
  double x_cpu_seconds = 0, x_wall_seconds = 0;
};

}  // namespace foretrain
