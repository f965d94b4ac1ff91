#include "sim/cost/host_operations.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "sim/program/scan.h"

namespace foretrain {
namespace {

constexpr double kMostOperations = 1e6;
/// Fused and unfused, each forward and backward.
constexpr std::array<std::string_view, 4> kAttentionKinds = {
    "attention", "attention-backward", "unfused-attention", "unfused-attention-backward"};

/// One for every matrix; products apart are issued one by one. With operands in fewer bits the rows
/// of every expert are quantized apart too, before the forward product and that of their gradient.
double operations_of_gemm(const Gemm& work, double whole) {
  constexpr double kOfOneApart = 0.28;
  constexpr double kOfOneQuantized = 0.9;
  if (!work.apart) return whole * static_cast<double>(gemms_of(work).size());
  const bool quantized = bits_of(work.in) < 16 && !work.accumulate;
  return whole + (kOfOneApart + (quantized ? kOfOneQuantized : 0)) *
                     static_cast<double>(std::min<std::int64_t>(work.batch, 1 << 20));
}

double operations_of_attention(const Attention& work) {
  constexpr double kKernelsOfOne = 2;
  if (work.step != AttentionStep::kWhole) {
    const bool drops = work.step == AttentionStep::kSoftmax && work.dropout > 0;
    return 1 + (drops ? 1 : 0) + work.more.kernels / kKernelsOfOne;
  }
  if (work.kernel != AttentionKernel::kUnfused) return work.backward ? 2 : 1;
  const double more = std::floor(work.more.kernels / kKernelsOfOne);
  return (work.backward ? 5 : 3) + (work.dropout > 0 ? 1 : 0) + more;
}

std::vector<std::string> host_kinds() {
  std::vector<std::string> out = {"gemm", "grouped-gemm", "convolution", "messages", "copy"};
  for (const std::string_view kind : kAttentionKinds) out.emplace_back(kind);
  for (int i = 1; i <= static_cast<int>(AttentionStep::kQueryGradient); ++i) {
    out.emplace_back(name_of(static_cast<AttentionStep>(i)));
  }
  for (int i = 0; i < static_cast<int>(KernelKind::kCount); ++i) {
    out.emplace_back(name_of(static_cast<KernelKind>(i)));
  }
  for (int i = 0; i <= static_cast<int>(CollectiveKind::kAllToAll); ++i) {
    out.emplace_back(name_of(static_cast<CollectiveKind>(i)));
  }
  return out;
}

}  // namespace

Result<HostOperations> read_host_operations(const Json& json, const std::string& source,
                                            const std::string& where) {
  HostOperations out;
  JsonReader reader(json, source, where);
  for (const std::string& kind : host_kinds()) {
    if (!reader.has(kind)) continue;
    double operations = 0;
    reader.read(kind, operations, JsonReader::Range{0, kMostOperations});
    out[kind] = operations;
  }
  FT_TRY(reader.finish());
  return out;
}

std::string_view host_kind_of(const Work& work) {
  if (const auto* kernel = std::get_if<Kernel>(&work)) return name_of(kernel->kind);
  if (const auto* gemm = std::get_if<Gemm>(&work)) return gemm->apart ? "grouped-gemm" : "gemm";
  if (const auto* attention = std::get_if<Attention>(&work)) {
    if (attention->step != AttentionStep::kWhole) return name_of(attention->step);
    const bool unfused = attention->kernel == AttentionKernel::kUnfused;
    return kAttentionKinds.at((unfused ? 2 : 0) + (attention->backward ? 1 : 0));
  }
  if (const auto* collective = std::get_if<Collective>(&work)) return name_of(collective->kind);
  if (std::holds_alternative<P2PBatch>(work)) return "messages";
  if (std::holds_alternative<Copy>(work)) return "copy";
  if (std::holds_alternative<Convolution>(work)) return "convolution";
  if (const auto* scan = std::get_if<Scan>(&work)) return scan->backward ? "scan-backward" : "scan";
  return {};
}

double operations_of(const Work& work, const HostOperations& framework) {
  const auto named = framework.find(host_kind_of(work));
  const bool found = named != framework.end();
  if (const auto* gemm = std::get_if<Gemm>(&work)) {
    return operations_of_gemm(*gemm, found ? named->second : 1);
  }
  if (found) return named->second;
  if (const auto* kernel = std::get_if<Kernel>(&work)) return kernel->launches;
  if (const auto* attention = std::get_if<Attention>(&work)) {
    return operations_of_attention(*attention);
  }
  if (const auto* scan = std::get_if<Scan>(&work)) {
    return static_cast<double>(kernels_of(*scan).size());
  }
  return 1;
}

}  // namespace foretrain
