// What a GPU does, by the names that profilers give its kernels.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace foretrain {

/// What the times of a step are added up by.
enum class Family : std::uint8_t {
  kGemm,  ///< matrix products; convolutions and products of experts among them
  kAttention,
  kNorm,
  kSoftmaxLoss,  ///< softmax apart from attention, cross entropy
  kEmbedding,
  kRouting,      ///< experts' choice, sorting of tokens
  kQuantize,     ///< casts into fewer bits, with their scales
  kTriton,       ///< what a compiler fused
  kElementwise,  ///< element by element, gathers and copies by kernels
  kReduction,
  kSort,  ///< sorts, scans, the largest k
  kOptimizer,
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kSendRecv,  ///< all-to-alls that NCCL makes of messages too
  kAllToAll,
  kBroadcast,
  kReduce,
  kNcclOther,
  kDeepEp,
  kOtherCommunication,  ///< NVSHMEM, user buffers, symmetric memory
  kHostToDevice,
  kDeviceToHost,
  kDeviceToDevice,
  kPeerToPeer,
  kMemset,
  kStorage,
  kOther,  ///< no name that is known
  kCount
};
/// "gemm", "nccl_all_reduce", ...
std::string_view name_of(Family family);

/// Whose an instant is where several families are busy: the first of these.
enum class FamilyClass : std::uint8_t { kCompute, kCommunication, kCopy, kCount };
FamilyClass class_of(Family family);

struct KernelClass {
  Family family = Family::kOther;
  std::string_view kind;  ///< within the family: "grouped", "convolution"; or ""
};

/// The family of a kernel, a copy or a memset, by its name: the first row of the table
/// (kernel_families.cpp) whose words all stand in the name, whatever their case.
KernelClass classify_kernel(std::string_view name);

/// The family of a collective by what frameworks call it: "allreduce", "_allgather_base",
/// "all_to_allv", "nccl:reduce_scatter". kNcclOther where none of them is known.
Family classify_collective(std::string_view name);

}  // namespace foretrain
