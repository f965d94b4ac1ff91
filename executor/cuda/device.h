// A device as a rank sees it: streams, marks on them, memory, and the work it does. Two
// implementations: CUDA (a module that is loaded at run time), and a loop on the host for tests.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "executor/cuda/device_view.h"
#include "executor/fill.h"
#include "executor/transport.h"
#include "sim/base/result.h"

namespace foretrain {

/// Like CollectiveCall, of any element type.
struct DeviceCollective {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  bool maximum = false;
  DType type = DType::kFp32;
  std::int64_t count = 0, members = 1;
  const void* send = nullptr;
  void* receive = nullptr;
  int root = 0;
};

/// Calls of one thread, in issue order. Work is queued on its stream and ends later.
class Device {
 public:
  Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  Device(Device&&) = delete;
  Device& operator=(Device&&) = delete;
  virtual ~Device() = default;

  /// Before everything else. A mark is a point on a stream that others can wait for and that has a
  /// time.
  virtual Status open(std::size_t streams, std::size_t marks) = 0;
  /// Bytes that can still be taken.
  virtual Result<std::size_t> free_bytes() = 0;
  /// Zeroed; given back with the device. kUnsupported where there is no room.
  virtual Result<std::byte*> take(std::size_t bytes) = 0;
  /// Memory of the host that `copy` takes, zeroed; given back with the device.
  virtual Result<std::byte*> take_host(std::size_t bytes) = 0;
  /// Between steps; done on return.
  virtual Status write(std::byte* to, const void* from, std::size_t bytes) = 0;
  virtual Status read(void* to, const std::byte* from, std::size_t bytes) = 0;
  /// Elements of memory of the device get random content. Between steps; done on return.
  virtual Status fill_random(std::byte* to, DType type, std::int64_t count,
                             const Content& content) = 0;

  /// Whether marks of the next steps have times; they have until it is called.
  virtual void time_marks(bool /*on*/) {}
  /// The next step does not start before `let_go`, or 20 ms are over.
  virtual Status hold_back() { return ok_status(); }
  virtual void let_go() {}
  /// Streams start together, at time zero.
  virtual Status begin() = 0;
  /// All of the step is queued: its time ends where all streams are done.
  virtual Status end() = 0;
  virtual Status mark(std::size_t stream, std::size_t mark) = 0;
  virtual Status wait(std::size_t stream, std::size_t mark) = 0;
  virtual Status wait_on_host(std::size_t mark) = 0;
  /// What is queued between the two is handed to the device as one, again in one piece in later
  /// steps; it starts when the piece before it has ended. `piece` counts them from the step's
  /// begin.
  virtual Status begin_piece(std::size_t piece) = 0;
  virtual Status end_piece(std::size_t piece) = 0;
  /// All streams are done.
  virtual Status finish() = 0;
  virtual Result<Time> time_of(std::size_t mark) = 0;
  /// From `begin` to `end`, of the step that has finished.
  virtual Result<Time> step_time() = 0;
  /// After an error: queued work stops waiting for other ranks. The device takes no further step.
  virtual void abandon() {}
  /// From now on `busy_times` are wanted, or not. CUDA's switch is the process's, so whoever steps
  /// sets it; ranks of one run that are threads want the same.
  virtual void record(bool) {}
  /// What is queued between the two is work of `op`.
  virtual void begin_op(std::size_t) {}
  virtual void end_op() {}
  /// By op of the last step, of so many: how long anything of it ran; zero where that is not known,
  /// empty where it is of none. All streams must be done.
  virtual std::vector<Time> busy_times(std::size_t) { return {}; }

  /// Until `release_sms` a kernel of its own holds so many SMs, a block each, and copies memory
  /// there if it `copies`; on return all of its blocks run. Work goes on beside it and `finish`
  /// does not wait for it. kUnsupported where nothing can be held, or not so many.
  virtual Status hold_sms(int /*sms*/, bool /*copies*/) {
    return unsupported("this device holds no SMs");
  }
  /// Ends it and waits for its end; what it moved in GB/s, bytes read and written, 0 where that is
  /// not known. An error where it had not lasted until now.
  virtual Result<double> release_sms() { return 0.0; }

  /// Between memory of the device and of the host, in any direction.
  virtual Status copy(std::size_t stream, std::byte* to, const std::byte* from,
                      std::size_t bytes) = 0;
  /// The host does this when the stream has come there; the stream goes on when it is done.
  virtual Status on_host(std::size_t stream, std::function<void()> work) = 0;
  virtual Status fill(std::size_t stream, std::byte* to, int byte, std::size_t bytes) = 0;
  virtual Status compute(std::size_t stream, const Work& work, const OpContext& context,
                         const DeviceOperands& x) = 0;
  /// In one launch.
  virtual Status collectives(std::size_t stream, GroupId group,
                             std::span<const DeviceCollective> calls) = 0;
  virtual Status exchange(std::size_t stream, std::span<const MessageCall> messages) = 0;
};

/// What the CUDA backend cannot execute, by name, before anything starts: element types other than
/// fp32, tf32, bf16, fp16, quantised work, context parallelism, what is not written down, heads
/// that are too wide, operands of types that no kernel combines.
Status check_device_executable(const Workload& workload);

}  // namespace foretrain
