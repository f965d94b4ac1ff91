// What a run takes of the device's memory: the Program's buffers as the framework's allocator lays
// them out, and what libraries hold beside them.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "sim/program/allocator.h"
#include "sim/program/memory.h"
#include "sim/program/program.h"
#include "tools/predict/interval.h"
#include "tools/predict/lowered_step.h"
#include "tools/predict/run_file.h"

namespace foretrain {

/// GiB on the device of the rank with the highest peak, of those with nearly the most in tensors.
/// `by_kind` follows BufferKind, then what
/// libraries take.
struct MemoryReport {
  double peak_gib = 0, capacity_gib = 0;
  bool fits = true;  ///< on the device, on the host and in storage
  bool within(double share) const {
    return peak_gib <= share * capacity_gib && host_fits() && storage_fits();
  }
  bool host_fits() const { return host_capacity_gib <= 0 || host_gib <= host_capacity_gib; }
  bool storage_fits() const {
    return storage_capacity_gib <= 0 || storage_gib <= storage_capacity_gib;
  }
  std::array<double, static_cast<std::size_t>(BufferKind::kCount)> by_kind_gib{};
  double communication_gib = 0;  ///< NCCL's buffers: of the rank's groups, its peers, and all ranks
  double workspace_gib = 0;      ///< BLAS workspaces
  double context_gib = 0;        ///< CUDA context and loaded kernels
  double allocated_gib = 0;      ///< tensors at the peak: torch.cuda.max_memory_allocated
  double reserved_gib = 0;       ///< torch.cuda.max_memory_reserved (sim/program/allocator.h)
  /// Times a step that the allocator waits for the device and gives cached segments back, since
  /// what it holds would not fit otherwise: of the Program with most. None where one does not fit,
  /// and with CUDA graphs, which have their memory.
  std::int64_t allocator_retries = 0;
  /// Those of every Program that holds nearly the most.
  std::map<std::size_t, std::vector<AllocatorRetry>> retries;
  struct OfAllocator {
    Time retry_per_gib;  ///< the host's time of a GiB given back
    bool known = true;   ///< false: few microbatches do not tell what it does with many
  };
  OfAllocator allocator;
  /// Where the device has too little: how much it needs, with segments given back (least_memory).
  double least_gib = 0;
  double theoretical_gib = 0;  ///< model states and activations kept for backward, first stage
  /// Offloaded at most: of the node whose ranks keep most, the mean of a rank; and a rank's share
  /// of what its node has, 0 where that is not known.
  double host_gib = 0, storage_gib = 0, host_capacity_gib = 0, storage_capacity_gib = 0;
  std::int64_t peak_rank = 0;
  std::string peak_at;  ///< the op at which it is reached

  /// What the allocator holds beyond what is allocated: parts of segments that nothing fits into.
  double fragments_gib() const { return reserved_gib - allocated_gib; }
  double framework_gib() const { return context_gib + fragments_gib(); }
};

/// What published runs say of the peak: its 90 % interval, and the probability that the device has
/// room for what is measured; 0 where host or storage have not by the prediction.
struct MemoryOdds {
  Interval peak_gib;
  double fits = 1;
};
MemoryOdds odds_of(const Run& run, const MemoryReport& memory);

/// Of the lowered run. Refuses groups that the cluster cannot place.
Result<MemoryReport> report_memory(const Run& run, const LoweredStep& step);

/// The same of a run; of one whose allocator gives segments back, how often it does may be said of
/// fewer microbatches.
Result<MemoryReport> memory_of(const Run& run);

/// GiB of a device on which the rank with the peak of `memory` gets by, though its allocator gives
/// segments back: at most `peak_gib`, which is what it takes where there is no end. To 1/16 GiB.
/// Sets `memory.allocator.known`.
Result<double> least_memory(const Run& run, const LoweredStep& step, MemoryReport& memory);

/// Decides `offload.device_share` `auto`, once, where a run is read: as many layers' states on the
/// device as there is room for without giving segments back. A note says how many.
Status place_states(Run& run);

}  // namespace foretrain
