// What the host does to issue a work, in operations.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "sim/base/json.h"
#include "sim/program/work.h"

namespace foretrain {

/// Operations of one work by its kind, where a framework's differ from operations_of. Kinds are the
/// names of kernels and collectives (`rms-norm`, `all-gather`) and gemm, grouped-gemm, attention,
/// attention-backward, unfused-attention, unfused-attention-backward, convolution, messages, copy,
/// and the steps of ring self-attention (attention-scores, score-softmax, ...).
using HostOperations = std::map<std::string, double, std::less<>>;

/// {"attention": 6, ...}: each 0 to 1e6. `where` is the pointer of the object in `source`.
Result<HostOperations> read_host_operations(const Json& json, const std::string& source,
                                            const std::string& where);

/// The kind that HostOperations name; empty for what costs the host nothing.
std::string_view host_kind_of(const Work& work);

/// One operation stands for two to three launches of an eager framework
/// (docs/explanation/host-time.md, host time). Kernels count theirs; unfused attention its
/// products, softmax and dropout, and half an operation for each kernel besides; products of
/// experts that stand apart 0.28 an expert more, and 0.9 where its rows are quantized.
double operations_of(const Work& work, const HostOperations& framework);

}  // namespace foretrain
