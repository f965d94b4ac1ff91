// Collectives and messages between devices by NCCL: one communicator for each group of the
// Workload, one for each channel.
#pragma once

#include <cuda_runtime.h>

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "executor/cuda/device.h"

namespace foretrain {

/// All communicators that ranks made with one transport.
class NcclWorld;

/// Those of one rank's device, by transport: ranks that come after others with the same groups need
/// no new ones. All ranks make theirs in the same order, so they find the same.
class NcclWorlds {
 public:
  NcclWorlds();
  NcclWorlds(const NcclWorlds&) = delete;
  NcclWorlds& operator=(const NcclWorlds&) = delete;
  NcclWorlds(NcclWorlds&&) = delete;
  NcclWorlds& operator=(NcclWorlds&&) = delete;
  ~NcclWorlds();
  void clear();

 private:
  friend class NcclGroups;
  std::map<std::uint64_t, std::shared_ptr<NcclWorld>> x_made;  ///< by Transport::id
};

class NcclGroups {
 public:
  /// Of all ranks, with their devices current; rank 0's identifier goes through `transport`. A
  /// transport that was not seen before drops communicators of others that no rank uses. Where new
  /// ones take memory `make_room` is called first. Without NCCL several ranks are refused.
  /// Where not all can be made those that were are aborted, and the next call begins anew.
  static Result<std::unique_ptr<NcclGroups>> create(const Workload& workload, RankId rank,
                                                    Transport& transport, NcclWorlds& worlds,
                                                    const std::function<void()>& make_room);
  NcclGroups(const NcclGroups&) = delete;
  NcclGroups& operator=(const NcclGroups&) = delete;
  NcclGroups(NcclGroups&&) = delete;
  NcclGroups& operator=(NcclGroups&&) = delete;
  ~NcclGroups();

  Status collectives(GroupId group, std::span<const DeviceCollective> calls, cudaStream_t stream);
  Status exchange(std::span<const MessageCall> messages, cudaStream_t stream);
  /// Ends what waits for ranks that will not come; its communicators are of no use any more. No
  /// graph that has captured calls may be launched again.
  void abort();

 private:
  NcclGroups(const Workload& workload, NcclWorlds& worlds)
      : x_workload(workload), x_worlds(worlds) {}
  Status collective(GroupId group, const DeviceCollective& call, cudaStream_t stream);

  const Workload& x_workload;
  NcclWorlds& x_worlds;
  std::uint64_t x_transport = 0;
  std::shared_ptr<NcclWorld> x_world;  ///< none of one rank
  // Of the world; none where this rank is no member or the only one. Channels are of source (0) and
  // destination (1).
  std::vector<void*> x_groups, x_channels;
};

/// ", NCCL 22803", or that it is not found.
std::string nccl_version();

}  // namespace foretrain
