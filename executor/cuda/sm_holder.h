// Holds SMs of a device beside what else runs on it.
#pragma once

#include <cuda_runtime.h>

#include <memory>

#include "executor/cuda/hold_kernel.h"
#include "sim/base/result.h"

namespace foretrain {

/// A kernel on a stream of its own. It copies half a GiB of memory, more than caches hold, at the
/// rate that its SMs reach; communication at a lower rate slows others less.
class SmHolder {
 public:
  /// On the current device. kUnsupported where there is no room for it.
  static Result<std::unique_ptr<SmHolder>> create();
  SmHolder(const SmHolder&) = delete;
  SmHolder& operator=(const SmHolder&) = delete;
  SmHolder(SmHolder&&) = delete;
  SmHolder& operator=(SmHolder&&) = delete;
  /// Stops what still holds.
  ~SmHolder();

  /// Returns once a block runs on each of so many SMs, fewer than the device has; without `copies`
  /// the blocks do nothing but wait. kUnsupported where they do not run within two seconds.
  Status hold(int sms, bool copies);
  /// Stops it and waits for its end; GB/s that it moved, read and written. An error where its time
  /// (ten seconds) was over before.
  Result<double> release();
  bool holds() const { return x_holds; }
  /// Bytes of the device that it has.
  static std::size_t memory_bytes();

 private:
  SmHolder() = default;
  Status open();

  cudaStream_t x_stream = nullptr;
  void* x_memory = nullptr;
  device::HoldFlags* x_flags = nullptr;
  device::HoldFlags* x_flags_on_device = nullptr;
  int x_sms = 0, x_shared_bytes = 0, x_held = 0;
  bool x_holds = false;
};

}  // namespace foretrain
