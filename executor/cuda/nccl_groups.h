// Collectives and messages between devices by NCCL: one communicator for each group of the
// Workload, one for each channel.
#pragma once

#include <cuda_runtime.h>
#include <nccl.h>

#include <memory>
#include <span>
#include <vector>

#include "executor/cuda/device.h"

namespace foretrain {

class NcclGroups {
 public:
  /// Of all ranks, with their devices current; rank 0's identifier goes through `transport`.
  static Result<std::unique_ptr<NcclGroups>> create(const Workload& workload, RankId rank,
                                                    Transport& transport);
  NcclGroups(const NcclGroups&) = delete;
  NcclGroups& operator=(const NcclGroups&) = delete;
  NcclGroups(NcclGroups&&) = delete;
  NcclGroups& operator=(NcclGroups&&) = delete;
  ~NcclGroups();

  Status collectives(GroupId group, std::span<const DeviceCollective> calls, cudaStream_t stream);
  Status exchange(std::span<const MessageCall> messages, cudaStream_t stream);

 private:
  NcclGroups(const Workload& workload, RankId rank) : x_workload(workload), x_rank(rank) {}
  Status split();
  Status collective(GroupId group, const DeviceCollective& call, cudaStream_t stream);

  const Workload& x_workload;
  RankId x_rank;
  ncclComm_t x_world = nullptr;
  std::vector<ncclComm_t> x_groups;
  std::vector<ncclComm_t> x_channels;  ///< of source (0) and destination (1)
};

}  // namespace foretrain
