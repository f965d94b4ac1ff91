#include "traces/kernel_families.h"

#include <algorithm>
#include <array>
#include <cctype>

namespace foretrain {
namespace {

/// Both words stand in the name, in lower case; "" always does.
struct KernelRow {
  std::string_view word, and_word;
  Family family;
  std::string_view kind = {};
};

/// The first row that fits tells. Names: NCCL 2.4-2.28 and RCCL (`src/device`), cuBLAS, CUTLASS,
/// cuDNN, FlashAttention 1-3, Transformer Engine, Apex, DeepEP, DeepGEMM, ATen (`aten/src/ATen/
/// native/cuda`), Inductor, Liger, FBGEMM, rocBLAS' Tensile, Composable Kernel.
constexpr KernelRow kKernelRows[] = {
    // Copies and memsets, as Kineto and Nsight Systems name them.
    {"memcpy", "htod", Family::kHostToDevice},
    {"memcpy", "dtoh", Family::kDeviceToHost},
    {"memcpy", "ptop", Family::kPeerToPeer},
    {"memcpy", "peer", Family::kPeerToPeer},
    {"memcpy", "", Family::kDeviceToDevice},
    {"copyhosttodevice", "", Family::kHostToDevice},
    {"copydevicetohost", "", Family::kDeviceToHost},
    {"copydevicetodevice", "", Family::kDeviceToDevice},
    {"memset", "", Family::kMemset},
    {"fillbuffer", "", Family::kMemset},
    // Communication.
    {"nccl", "allreduce", Family::kAllReduce},
    {"nccl", "allgather", Family::kAllGather},
    {"nccl", "reducescatter", Family::kReduceScatter},
    {"nccl", "sendrecv", Family::kSendRecv},
    {"nccl", "alltoall", Family::kAllToAll},
    {"nccl", "broadcast", Family::kBroadcast},
    {"nccldevkernel_reduce", "", Family::kReduce},
    {"ncclkernel_reduce", "", Family::kReduce},
    {"ncclreduce", "", Family::kReduce},
    {"nccl", "kernel", Family::kNcclOther},
    {"msccl", "", Family::kNcclOther},
    {"deep_ep", "", Family::kDeepEp},
    {"deepep", "", Family::kDeepEp},
    {"::ep::", "", Family::kDeepEp},
    {"hybrid_ep", "", Family::kDeepEp},
    {"internode::", "", Family::kDeepEp},
    {"intranode::", "", Family::kDeepEp},
    {"nvshmem", "", Family::kOtherCommunication},
    {"userbuffers", "", Family::kOtherCommunication},
    {"cross_device_reduce", "", Family::kOtherCommunication},
    {"multimem_", "", Family::kOtherCommunication},
    {"shot_all_reduce", "", Family::kOtherCommunication},
    {"symm_mem", "", Family::kOtherCommunication},
    {"all_to_all", "kernel", Family::kOtherCommunication},
    // Inductor names a kernel after what it fused: only its templates are products or attention.
    {"triton_tem", "attention", Family::kAttention},
    {"triton_tem", "", Family::kGemm},
    {"triton_mm", "", Family::kGemm},
    {"triton_bmm", "", Family::kGemm},
    {"triton_poi", "", Family::kTriton},
    {"triton_red", "", Family::kTriton},
    {"triton_per", "", Family::kTriton},
    {"triton_spl", "", Family::kTriton},
    {"triton_for", "", Family::kTriton},
    {"triton_fused", "", Family::kTriton},
    {"triton__", "", Family::kTriton},
    // Attention before products: its kernels are CUTLASS' too.
    {"flash", "attn", Family::kAttention},
    {"flash_fwd", "", Family::kAttention},
    {"flash_bwd", "", Family::kAttention},
    {"flash_fprop", "", Family::kAttention},
    {"flash_dgrad", "", Family::kAttention},
    {"flash::", "", Family::kAttention},
    {"flashattn", "", Family::kAttention},
    {"flash_attention", "", Family::kAttention},
    {"fmha", "", Family::kAttention},
    {"cudnn", "sdpa", Family::kAttention},
    {"cudnn", "attention", Family::kAttention},
    {"mha_fwd", "", Family::kAttention},
    {"mha_bwd", "", Family::kAttention},
    {"flex_attention", "", Family::kAttention},
    {"attentionkernel", "", Family::kAttention},
    {"attention_kernel", "", Family::kAttention},
    {"attn_fwd", "", Family::kAttention},
    {"attn_bwd", "", Family::kAttention},
    {"bwd_kernel_dk_dv", "", Family::kAttention},
    {"bwd_kernel_dq", "", Family::kAttention},
    {"scaled_masked_softmax", "", Family::kAttention},
    {"scaled_upper_triang", "", Family::kAttention},
    {"aiter::", "attn", Family::kAttention},
    {"selective_scan", "", Family::kAttention},
    {"chunk_scan", "", Family::kAttention},
    {"chunk_state", "", Family::kAttention},
    // Tables that are updated in their backward pass.
    {"split_embedding", "", Family::kEmbedding},
    // Updates of all parameters at once.
    {"fused_adam", "", Family::kOptimizer},
    {"fusedadam", "", Family::kOptimizer},
    {"fusedoptimizer", "", Family::kOptimizer},
    {"multi_tensor", "", Family::kOptimizer},
    {"multitensor", "", Family::kOptimizer},
    {"adamfunctor", "", Family::kOptimizer},
    {"adam_kernel", "", Family::kOptimizer},
    {"lamb", "stage", Family::kOptimizer},
    {"koptimizer", "", Family::kOptimizer},
    {"adagrad", "", Family::kOptimizer},
    {"newton_schulz", "", Family::kOptimizer},
    // Casts and layouts that serve products, some in their namespaces.
    {"gemm::cuda::utils", "", Family::kElementwise},
    {"cast_to_fp8", "", Family::kQuantize},
    {"cast_and_transpose", "", Family::kQuantize},
    {"cast_transpose", "", Family::kQuantize},
    {"per_token_cast", "", Family::kQuantize},
    {"per_channel_cast", "", Family::kQuantize},
    {"cast_back", "", Family::kQuantize},
    {"fp8", "quantize", Family::kQuantize},
    {"fp8", "qparam", Family::kQuantize},
    {"fp8rowwise", "", Family::kQuantize},
    {"quantize", "", Family::kQuantize},
    {"hfp8", "", Family::kQuantize},
    {"mxfp", "cast", Family::kQuantize},
    {"nvfp4", "cast", Family::kQuantize},
    {"_amax", "", Family::kQuantize},
    {"cast_only_kernel", "", Family::kQuantize},
    {"block_scal", "kernel", Family::kQuantize},
    {"scale_inv", "", Family::kQuantize},
    {"hadamard", "", Family::kQuantize},
    // Matrix products.
    {"implicitgemm", "", Family::kGemm, "convolution"},
    {"implicit_gemm", "", Family::kGemm, "convolution"},
    {"implicit_convolve", "", Family::kGemm, "convolution"},
    {"winograd", "", Family::kGemm, "convolution"},
    {"cudnn", "conv", Family::kGemm, "convolution"},
    {"scudnn", "", Family::kGemm, "convolution"},
    {"h1688cudnn", "", Family::kGemm, "convolution"},
    {"s884cudnn", "", Family::kGemm, "convolution"},
    {"s1688cudnn", "", Family::kGemm, "convolution"},
    {"16816cudnn", "", Family::kGemm, "convolution"},
    {"fprop", "", Family::kGemm, "convolution"},
    {"dgrad", "", Family::kGemm, "convolution"},
    {"wgrad_alg", "", Family::kGemm, "convolution"},
    {"wgrad2d", "", Family::kGemm, "convolution"},
    {"wgrad", "", Family::kGemm},
    {"conv2d", "", Family::kGemm, "convolution"},
    {"conv_depthwise", "", Family::kGemm, "convolution"},
    {"convolution", "", Family::kGemm, "convolution"},
    {"igemm", "", Family::kGemm, "convolution"},
    {"im2col", "", Family::kElementwise},
    {"col2im", "", Family::kElementwise},
    {"m_grouped", "", Family::kGemm, "grouped"},
    {"grouped_gemm", "", Family::kGemm, "grouped"},
    {"groupedgemm", "", Family::kGemm, "grouped"},
    {"grouped_mm", "", Family::kGemm, "grouped"},
    {"gemmgrouped", "", Family::kGemm, "grouped"},
    {"groupproblemshape", "", Family::kGemm, "grouped"},
    {"fused_moe", "", Family::kGemm, "grouped"},
    {"splitk", "", Family::kGemm},
    {"gemm", "", Family::kGemm},
    {"gemv", "", Family::kGemm},
    {"nvjet", "", Family::kGemm},
    {"cijk_", "", Family::kGemm},
    {"cublas", "", Family::kGemm},
    {"xmma", "", Family::kGemm},
    {"matmul", "", Family::kGemm},
    {"_mm_kernel", "", Family::kGemm},
    {"kernel2", "cutlass", Family::kGemm},
    {"cutlass", "tensorop", Family::kGemm},
    {"cutlass", "universal", Family::kGemm},
    {"dot_kernel", "", Family::kGemm},
    {"reduce_1block_kernel", "", Family::kGemm},
    {"epilogue::impl", "", Family::kGemm},
    // Norms.
    {"layer_norm", "", Family::kNorm},
    {"layernorm", "", Family::kNorm},
    {"rmsnorm", "", Family::kNorm},
    {"rms_norm", "", Family::kNorm},
    {"batch_norm", "", Family::kNorm},
    {"batchnorm", "", Family::kNorm},
    {"group_norm", "", Family::kNorm},
    {"groupnorm", "", Family::kNorm},
    {"rowwisemoments", "", Family::kNorm},
    {"gammabeta", "", Family::kNorm},
    {"bn_fw", "", Family::kNorm},
    {"bn_bw", "", Family::kNorm},
    {"ln_fwd", "", Family::kNorm},
    {"ln_bwd", "", Family::kNorm},
    {"cucomputegradinput", "", Family::kNorm},
    {"cucomputepartgrad", "", Family::kNorm},
    {"normalization::", "", Family::kNorm},
    {"_norm_fwd", "", Family::kNorm},
    {"_norm_bwd", "", Family::kNorm},
    {"l2norm", "", Family::kNorm},
    // Softmax and losses.
    {"softmax", "", Family::kSoftmaxLoss},
    {"cross_entropy", "", Family::kSoftmaxLoss},
    {"crossentropy", "", Family::kSoftmaxLoss},
    {"nll_loss", "", Family::kSoftmaxLoss},
    {"logsumexp", "", Family::kSoftmaxLoss},
    {"binary_cross", "", Family::kSoftmaxLoss},
    {"mse_", "", Family::kSoftmaxLoss},
    // Experts.
    {"permute_kernel", "", Family::kRouting},
    {"permute_with_mask", "", Family::kRouting},
    {"moe", "", Family::kRouting},
    {"topk_sum", "", Family::kRouting},
    {"expert", "", Family::kRouting},
    {"get_fused_mapping", "", Family::kRouting},
    {"expand_to_fused", "", Family::kRouting},
    {"reduce_fused", "", Family::kRouting},
    {"aux_fi", "", Family::kRouting},
    {"row_id_map", "", Family::kRouting},
    {"router", "", Family::kRouting},
    // Embeddings.
    {"embedding", "", Family::kEmbedding},
    {"embs_kernel", "", Family::kEmbedding},
    {"bounds_check_indices", "", Family::kEmbedding},
    {"linearize_index", "", Family::kEmbedding},
    {"fbgemm", "permute", Family::kEmbedding},
    {"fbgemm", "", Family::kEmbedding},
    {"permute_indices", "", Family::kEmbedding},
    // Sorts before reductions: both reduce.
    {"radixsort", "", Family::kSort},
    {"radix_sort", "", Family::kSort},
    {"topk", "", Family::kSort},
    {"sort", "", Family::kSort},
    {"devicescan", "", Family::kSort},
    {"scan_kernel", "", Family::kSort},
    {"tensor_kernel_scan", "", Family::kSort},
    {"reducebykey", "", Family::kSort},
    {"deviceselect", "", Family::kSort},
    {"uniquebykey", "", Family::kSort},
    {"cub::", "reduce", Family::kReduction},
    {"cub::", "", Family::kSort},
    {"rocprim", "", Family::kSort},
    {"thrust", "", Family::kSort},
    {"histogram", "", Family::kSort},
    {"reduce_kernel", "", Family::kReduction},
    {"segment_reduce", "", Family::kReduction},
    {"sum_kernel", "", Family::kReduction},
    {"l2_norm", "", Family::kReduction},
    {"column_sum", "", Family::kReduction},
    // Element by element.
    {"elementwise", "", Family::kElementwise},
    {"catarray", "", Family::kElementwise},
    {"dropout", "", Family::kElementwise},
    {"rotary", "", Family::kElementwise},
    {"rope", "", Family::kElementwise},
    {"swiglu", "", Family::kElementwise},
    {"geglu", "", Family::kElementwise},
    {"gelu", "", Family::kElementwise},
    {"silu", "", Family::kElementwise},
    {"relu", "", Family::kElementwise},
    {"act_and_mul", "", Family::kElementwise},
    {"gated_act", "", Family::kElementwise},
    {"dgated", "", Family::kElementwise},
    {"bias_", "", Family::kElementwise},
    {"transpose", "", Family::kElementwise},
    {"nchwtonhwc", "", Family::kElementwise},
    {"nhwctonchw", "", Family::kElementwise},
    {"tensortransform", "", Family::kElementwise},
    {"nhwcaddpadding", "", Family::kElementwise},
    {"pool", "", Family::kElementwise},
    {"index", "", Family::kElementwise},
    {"gather", "", Family::kElementwise},
    {"scatter", "", Family::kElementwise},
    {"copy_kernel", "", Family::kElementwise},
    {"copy_tensor", "", Family::kElementwise},
    {"cast_kernel", "", Family::kElementwise},
    {"fill", "", Family::kElementwise},
    {"tril", "", Family::kElementwise},
    {"triu", "", Family::kElementwise},
    {"arange", "", Family::kElementwise},
    {"distribution", "", Family::kElementwise},
    {"upsample", "", Family::kElementwise},
    {"op_tensor", "", Family::kElementwise},
    {"pointwise", "", Family::kElementwise},
    {"chunk_cat", "", Family::kElementwise},
    {"split_with_sizes", "", Family::kElementwise},
    {"causal_conv1d", "", Family::kElementwise},
    {"at::native", "", Family::kElementwise},
    {"at6native", "", Family::kElementwise},
    {"triton", "", Family::kTriton},
};

/// What frameworks call collectives, once their underscores are gone.
struct CollectiveRow {
  std::string_view word;
  Family family;
};
constexpr CollectiveRow kCollectives[] = {
    {"allreduce", Family::kAllReduce}, {"reducescatter", Family::kReduceScatter},
    {"allgather", Family::kAllGather}, {"gather", Family::kSendRecv},
    {"alltoall", Family::kSendRecv},   {"scatter", Family::kSendRecv},
    {"broadcast", Family::kBroadcast}, {"coalesced", Family::kNcclOther},
    {"send", Family::kSendRecv},       {"recv", Family::kSendRecv},
    {"barrier", Family::kAllReduce},   {"reduce", Family::kReduce},
};

std::string in_lower_case(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

bool stands_in(std::string_view text, std::string_view word) {
  return text.find(word) != std::string_view::npos;
}

}  // namespace

std::string_view name_of(Family family) {
  constexpr std::array<std::string_view, static_cast<std::size_t>(Family::kCount)> kNames = {
      "gemm",
      "attention",
      "norm",
      "softmax_loss",
      "embedding",
      "routing",
      "quantize",
      "triton",
      "elementwise",
      "reduction",
      "sort",
      "optimizer",
      "nccl_all_reduce",
      "nccl_all_gather",
      "nccl_reduce_scatter",
      "nccl_send_recv",
      "nccl_all_to_all",
      "nccl_broadcast",
      "nccl_reduce",
      "nccl_other",
      "deepep",
      "other_communication",
      "copy_host_to_device",
      "copy_device_to_host",
      "copy_device_to_device",
      "copy_peer_to_peer",
      "memset",
      "storage",
      "other"};
  return kNames.at(static_cast<std::size_t>(family));
}

FamilyClass class_of(Family family) {
  if (family >= Family::kAllReduce && family <= Family::kOtherCommunication) {
    return FamilyClass::kCommunication;
  }
  if (family >= Family::kHostToDevice && family <= Family::kStorage) return FamilyClass::kCopy;
  return FamilyClass::kCompute;
}

KernelClass classify_kernel(std::string_view name) {
  const std::string text = in_lower_case(name);
  for (const KernelRow& row : kKernelRows) {
    if (stands_in(text, row.word) && stands_in(text, row.and_word)) return {row.family, row.kind};
  }
  return {};
}

Family classify_collective(std::string_view name) {
  std::string text = in_lower_case(name);
  text.erase(std::remove(text.begin(), text.end(), '_'), text.end());
  for (const CollectiveRow& row : kCollectives) {
    if (stands_in(text, row.word)) return row.family;
  }
  return Family::kNcclOther;
}

}  // namespace foretrain
