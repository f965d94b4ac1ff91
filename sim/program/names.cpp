#include <algorithm>
#include <array>

#include "sim/program/dtype.h"
#include "sim/program/program.h"
#include "sim/program/work.h"

namespace foretrain {

std::string_view name_of(DType type) {
  constexpr std::array<std::string_view, 10> kNames = {"fp32", "tf32", "bf16",  "fp16",  "fp8",
                                                       "fp4",  "int8", "int32", "int64", "uint8"};
  return kNames.at(static_cast<std::size_t>(type));
}

namespace {

constexpr std::array<std::string_view, static_cast<std::size_t>(KernelKind::kCount)> kKernelNames =
    {"embedding",
     "embedding-backward",
     "layer-norm",
     "layer-norm-backward",
     "rms-norm",
     "rms-norm-backward",
     "rope",
     "rope-backward",
     "norm-sums",
     "norm-gradient-sums",
     "gelu",
     "gelu-backward",
     "swiglu",
     "swiglu-backward",
     "relu",
     "relu-backward",
     "relu2",
     "relu2-backward",
     "residual-add",
     "residual-backward",
     "dropout",
     "add",
     "positions-add",
     "positions-grad",
     "bias-add",
     "bias-grad",
     "loss-max",
     "loss-sum-exp",
     "loss-mean",
     "loss-shift",
     "loss-input",
     "loss-backward",
     "fill",
     "cast",
     "scale",
     "squared-norm",
     "largest",
     "quantize",
     "adam",
     "route",
     "route-backward",
     "expert-counts",
     "permute",
     "unpermute",
     "latent-heads",
     "latent-heads-backward",
     "pack-keys",
     "unpack-keys",
     "add-queries",
     "merge-attention",
     "split-heads",
     "join-heads",
     "split-sequence",
     "join-sequence",
     "batch-norm",
     "batch-norm-backward",
     "max-pool",
     "max-pool-backward",
     "average-pool",
     "average-pool-backward",
     "concatenate",
     "split-channels",
     "transpose",
     "causal-conv",
     "causal-conv-backward",
     "gated-norm",
     "gated-norm-backward",
     "geglu",
     "geglu-backward",
     "gate-rows",
     "gate-rows-backward",
     "gated-conv",
     "gated-conv-backward",
     "unit-rows",
     "unit-rows-backward",
     "sigmoid-gate",
     "sigmoid-gate-backward",
     "repeat-heads",
     "repeat-heads-backward"};

}  // namespace

std::string_view name_of(KernelKind kind) {
  return kKernelNames.at(static_cast<std::size_t>(kind));
}

std::string_view name_of(ScanRule rule) {
  constexpr std::array<std::string_view, 4> kNames = {"", "selective", "delta", "channel-delta"};
  return kNames.at(static_cast<std::size_t>(rule));
}

std::string_view name_of(CollectiveKind kind) {
  constexpr std::array<std::string_view, 6> kNames = {"all-reduce", "all-gather", "reduce-scatter",
                                                      "broadcast",  "reduce",     "all-to-all"};
  return kNames.at(static_cast<std::size_t>(kind));
}

std::string_view name_of(AttentionKernel kernel) {
  constexpr std::array<std::string_view, 6> kNames = {"flash",  "cudnn",  "unfused",
                                                      "flash2", "flash1", "triton"};
  return kNames.at(static_cast<std::size_t>(kernel));
}

std::string_view name_of(AttentionStep step) {
  constexpr std::array<std::string_view, 8> kNames = {"attention",
                                                      "attention-scores",
                                                      "score-softmax",
                                                      "attention-values",
                                                      "attention-value-gradient",
                                                      "attention-probability-gradient",
                                                      "attention-key-gradient",
                                                      "attention-query-gradient"};
  return kNames.at(static_cast<std::size_t>(step));
}

std::string_view name_of(ConvolutionPass pass) {
  constexpr std::array<std::string_view, 3> kNames = {"forward", "input-gradient",
                                                      "weight-gradient"};
  return kNames.at(static_cast<std::size_t>(pass));
}

std::string_view name_of(Memory memory) {
  constexpr std::array<std::string_view, 3> kNames = {"device", "host", "storage"};
  return kNames.at(static_cast<std::size_t>(memory));
}

std::string_view name_of(BufferKind kind) {
  constexpr std::array<std::string_view, static_cast<std::size_t>(BufferKind::kCount)> kNames = {
      "parameters",    "gradients", "optimizer", "activations",
      "communication", "workspace", "inputs"};
  return kNames.at(static_cast<std::size_t>(kind));
}

std::string_view name_of(Category category) {
  constexpr std::array<std::string_view, static_cast<std::size_t>(Category::kCount)> kNames = {
      "compute", "tensor", "pipeline", "data", "expert", "context", "memory", "host"};
  return kNames.at(static_cast<std::size_t>(category));
}

std::string_view name_of(Phase phase) {
  constexpr std::array<std::string_view, static_cast<std::size_t>(Phase::kCount)> kNames = {
      "forward", "backward", "recompute", "gradients", "optimizer", "input"};
  return kNames.at(static_cast<std::size_t>(phase));
}

Bytes kernel_bytes(const Kernel& kernel, const Op& op) {
  Bytes sum = kernel.rows * kernel.cols * kernel.between.bytes;
  const bool in_part =
      kernel.kind >= KernelKind::kPackKeys && kernel.kind <= KernelKind::kAddQueries;
  const bool keys = kernel.kind == KernelKind::kPackKeys || kernel.kind == KernelKind::kUnpackKeys;
  const auto add = [&](const std::vector<View>& views, bool table_first) {
    const std::int64_t operands = keys ? static_cast<std::int64_t>(views.size()) : 1;
    for (std::size_t i = 0; i < views.size(); ++i) {
      const Bytes touched = bytes_of(kernel.dtype, kernel.rows * kernel.cols / operands);
      const bool rows_only = in_part || (table_first && i == 0);
      sum += rows_only ? std::min(touched, views[i].bytes) : views[i].bytes;
    }
  };
  add(op.reads, kernel.kind == KernelKind::kEmbedding);
  add(op.writes, kernel.kind == KernelKind::kEmbeddingBackward);
  return sum;
}

}  // namespace foretrain
