// One rank of a run, whatever executes it.
#pragma once

#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include "executor/fill.h"
#include "executor/operands.h"
#include "sim/base/result.h"
#include "sim/base/units.h"

namespace foretrain {

struct HostOptions {
  Training training;
  /// Allocated buffers are poisoned, and what ops wrote is searched for NaN.
  bool check = false;
  /// Devices: the ops between two host syncs go as one CUDA graph (`launch.cuda_graph: full`).
  bool graphs = false;
  /// Devices: records of when the work of every op ran, at some cost for every launch.
  bool records = false;
  /// Devices: when every op began and ended; see `RankRunner::mark_ops`.
  bool marks = true;
  /// Devices: called in every step once all of it is queued, while the device works on it.
  std::function<void()> queued;
};

/// When an op ran, on the clock that starts with the step.
struct OpRecord {
  std::int32_t call = 0, op = 0;
  Time begin, end;
  /// Time that was spent working, and CPU time in it: all of a kernel; of communication from when
  /// all partners were there; on a device, in which anything of the op ran. 0 where it is not
  /// known.
  Time work, cpu;
  /// Whether others used the core meanwhile: CPU time over wall time below 0.98. What is shorter
  /// than 10 us cannot be told: reading the two clocks takes part of a microsecond.
  bool disturbed() const {
    constexpr std::int64_t kClockLimit = 10'000'000;  // ps
    return work.ps >= kClockLimit && 50 * cpu.ps < 49 * work.ps;
  }
};

class RankRunner {
 public:
  RankRunner() = default;
  RankRunner(const RankRunner&) = delete;
  RankRunner& operator=(const RankRunner&) = delete;
  RankRunner(RankRunner&&) = delete;
  RankRunner& operator=(RankRunner&&) = delete;
  virtual ~RankRunner() = default;

  virtual Status set_up() = 0;
  /// One training step; the caller's thread is the host that issues. All ranks must step.
  virtual Status step() = 0;
  /// Devices: whether the next steps tell when every op began and ended, which costs each op two
  /// points of time on its stream. Without, records have `work` only, where that is known.
  virtual void mark_ops(bool /*on*/) {}
  /// Devices: whether the next steps start when all of them is queued, at most 20 ms late, so that
  /// no op waits for the host. Not of graphs.
  virtual void queue_ahead(bool /*on*/) {}
  /// Of the last step, by stream, in issue order.
  virtual const std::vector<std::vector<OpRecord>>& records() const = 0;
  /// Element i of a buffer that owns memory becomes value(i), stored in the buffer's type. Between
  /// steps.
  virtual Status set_values(FrameId frame, std::int16_t buffer,
                            const std::function<double(std::int64_t)>& value) = 0;
  /// Buffer elements become `pattern`, over and over, stored in the buffer's type; fp8 as e4m3.
  virtual Status repeat_values(FrameId frame, std::int16_t buffer,
                               const std::vector<double>& pattern) {
    return set_values(frame, buffer, [&pattern](std::int64_t i) {
      return pattern[static_cast<std::size_t>(i) % pattern.size()];
    });
  }
  /// The type that a buffer's elements are stored in.
  virtual DType type_of(FrameId frame, std::int16_t buffer) const = 0;
  /// A buffer that owns memory becomes random, the same on every backend. Between steps.
  virtual Status fill_values(FrameId frame, std::int16_t buffer, const Fill& fill) {
    const DType type = type_of(frame, buffer);
    return set_values(frame, buffer, [type, &fill](std::int64_t i) {
      if (type == DType::kInt64) return static_cast<double>(fill.whole(i));
      if (type == DType::kUint8) return static_cast<double>(fill.flag(i));
      return static_cast<double>(fill.real(i));
    });
  }
  /// From now until the next step has run a kernel of its own holds so many SMs and, if it
  /// `copies`, copies memory there. kUnsupported where nothing can be held, or not so many.
  virtual Status hold_sms(int /*sms*/, bool /*copies*/ = true) {
    return unsupported("the host has no SMs to hold");
  }
  /// What held SMs moved beside the last step, bytes read and written; 0 where that is not known.
  virtual double held_gb_per_s() const { return 0; }
  /// Devices: from the begin of the last step to the end of its last op; 0 where it is not known.
  virtual double step_seconds() const { return 0; }
  /// Host time to queue the ops of the last step; 0 where the host runs them itself.
  virtual double issue_seconds() const { return 0; }
  /// CPU and wall time of the work in the ops of the last step: equal when nobody else used the
  /// cores, and where that is no question (0).
  virtual double cpu_seconds() const { return 0; }
  virtual double wall_seconds() const { return 0; }
  /// Time of the last step's ops, from where their stream reached them to their end, in which
  /// nothing of them ran; NaN where that is not known.
  virtual double queued_seconds() const { return std::numeric_limits<double>::quiet_NaN(); }
  /// Mean loss of the last step; NaN on ranks that have none.
  virtual double loss() const = 0;
};

class Transport;

/// Makes a rank of a Workload; nothing is started yet.
using MakeRank = std::function<Result<std::unique_ptr<RankRunner>>(const Workload&, RankId,
                                                                   Transport&, const HostOptions&)>;

}  // namespace foretrain
