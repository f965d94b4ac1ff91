#include "hardware/kernel_constants.h"

#include <string>

#include "hardware/presets.h"
#include "sim/base/check.h"

namespace foretrain {
namespace {

std::vector<GemmTile> tiles_at(const Json& json, std::string_view key) {
  std::vector<GemmTile> out;
  for (const Json& tile : *member(json, key).array()) {
    GemmTile one{count_at(tile, "rows"), count_at(tile, "columns"), number_at(tile, "relative")};
    if (const Json* only = tile.find("only")) {
      FT_CHECK(*only == Json("forward") || *only == Json("fp32"), "a tile of unknown products");
      one.use = *only == Json("fp32") ? TileUse::kFp32 : TileUse::kForward;
    }
    FT_CHECK(tile.object()->size() == (one.use == TileUse::kAny ? 3 : 4), "a tile has other keys");
    out.push_back(one);
  }
  return out;
}

/// One number, or one by how many bytes contiguous dimensions are a multiple of.
void read_misaligned(const Json& json, GemmConstants& gemm) {
  const Json& rates = member(json, "misaligned");
  if (rates.find("8") == nullptr) {
    gemm.misaligned.tensor_cores.fill(rates.number());
  } else {
    gemm.misaligned.tensor_cores = {number_at(rates, "8"), number_at(rates, "4"),
                                    number_at(rates, "2")};
  }
  if (const Json* fp32 = json.find("misaligned_fp32")) gemm.misaligned.fp32 = fp32->number();
}

GemmConstants read_gemm(const Json& json) {
  GemmConstants gemm;
  gemm.tiles = tiles_at(json, "tiles");
  if (json.find("array") != nullptr) gemm.array = count_at(json, "array");
  for (const double split : numbers_at(json, "splits")) {
    gemm.splits.push_back(static_cast<std::int64_t>(split));
  }
  const Json& efficiency = member(json, "efficiency");
  const auto optional = [&efficiency](std::string_view key) {
    const Json* value = efficiency.find(key);
    return value == nullptr ? 0.0 : value->number();
  };
  gemm.fp32 = optional("fp32");
  gemm.tf32 = optional("tf32");
  gemm.fp16 = optional("fp16");
  gemm.bf16 = optional("bf16");
  gemm.fp8 = optional("fp8");
  gemm.fp4 = optional("fp4");
  gemm.prologue_k = number_at(json, "prologue_k");
  gemm.fractional_wave = number_at(json, "fractional_wave");
  gemm.boost = number_at(json, "boost");
  gemm.boost_gflop = number_at(json, "boost_gflop");
  gemm.weight_gradient = number_at(json, "weight_gradient");
  if (const Json* split = json.find("split_accumulator")) gemm.split_accumulator = split->number();
  if (const Json* cutlass = json.find("cutlass")) gemm.cutlass = cutlass->number();
  if (const Json* winograd = json.find("winograd")) gemm.winograd = winograd->number();
  if (const Json* epilogue = json.find("epilogue_efficiency")) {
    gemm.epilogue_efficiency = epilogue->number();
  }
  if (const Json* at_once = json.find("at_once")) {
    gemm.at_once = static_cast<std::int64_t>(at_once->number());
  }
  gemm.memory_efficiency = number_at(json, "memory_efficiency");
  gemm.latency_us = number_at(json, "latency_us");
  read_misaligned(json, gemm);
  gemm.deviation = number_at(json, "deviation");
  return gemm;
}

AttentionKernel attention_kernel(const std::string& name) {
  for (int i = 0; i <= static_cast<int>(AttentionKernel::kTriton); ++i) {
    if (name_of(static_cast<AttentionKernel>(i)) == name) return static_cast<AttentionKernel>(i);
  }
  FT_CHECK(false, "an unknown attention kernel");
  return AttentionKernel::kFlash;
}

AttentionConstants read_attention(const Json& json) {
  AttentionConstants attention;
  attention.reference_tflops = number_at(json, "reference_bf16_tflops");
  if (const Json* power = json.find("reference_power_w")) {
    attention.reference_power_w = power->number();
  }
  attention.lengths = numbers_at(json, "lengths");
  for (const double width : numbers_at(json, "widths")) {
    attention.widths.push_back(static_cast<std::int64_t>(width));
  }
  if (json.find("reference_exponentials") != nullptr) {
    attention.reference_exponentials = number_at(json, "reference_exponentials");
    attention.exponential_power = number_at(json, "exponential_power");
  }
  attention.latency_us = number_at(json, "latency_us");
  attention.deviation = number_at(json, "deviation");
  for (const Json& item : *member(json, "curves").array()) {
    AttentionCurve curve;
    curve.kernel = attention_kernel(*member(item, "kernel").string());
    curve.backward = *member(item, "pass").string() == "backward";
    curve.causal = member(item, "causal") == Json(true);
    curve.head_dim = count_at(item, "head_dim");
    curve.value_dim =
        item.find("value_dim") == nullptr ? curve.head_dim : count_at(item, "value_dim");
    curve.tflops = numbers_at(item, "tflops");
    FT_CHECK(curve.tflops.size() == attention.lengths.size(), "an attention curve misses lengths");
    attention.curves.push_back(curve);
  }
  const Json* relatives = json.find("relative");
  if (relatives == nullptr) return attention;
  for (const Json& item : *relatives->array()) {
    attention.relatives.push_back({attention_kernel(*member(item, "kernel").string()),
                                   attention_kernel(*member(item, "to").string()),
                                   number_at(item, "forward"), number_at(item, "backward")});
  }
  return attention;
}

MemoryConstants read_memory(const Json& json) {
  MemoryConstants memory;
  const Json& efficiency = member(json, "efficiency");
  memory.default_efficiency = number_at(efficiency, "default");
  memory.latency_us = number_at(json, "latency_us");
  const Json* starts = json.find("start_us");
  for (std::size_t i = 0; i < memory.efficiency.size(); ++i) {
    const std::string_view kind = name_of(static_cast<KernelKind>(i));
    const Json* own = efficiency.find(kind);
    memory.efficiency.at(i) = own == nullptr ? memory.default_efficiency : own->number();
    const Json* start = starts == nullptr ? nullptr : starts->find(kind);
    memory.start_us.at(i) = start == nullptr ? memory.latency_us : start->number();
  }
  constexpr std::array kScans = {"scan-state-space", "scan-selective", "scan-delta",
                                 "scan-channel-delta"};
  for (std::size_t i = 0; i < memory.scans.size(); ++i) {
    const Json* own = efficiency.find(kScans.at(i));
    memory.scans.at(i) = own == nullptr ? memory.default_efficiency : own->number();
  }
  memory.deviation = number_at(json, "deviation");
  memory.arithmetic_efficiency = number_at(json, "arithmetic_efficiency");
  if (json.find("unvectorized_clocks") != nullptr) {
    memory.unvectorized_clocks = number_at(json, "unvectorized_clocks");
  }
  return memory;
}

KernelConstants read_constants(Architecture architecture) {
  KernelConstants out;
  out.file = "kernels/" + std::string(name_of(architecture)) + ".json";
  const Json root = load_constants(out.file);
  out.figures_changed = *member(root, "figures_changed").string();
  out.gemm = read_gemm(member(root, "gemm"));
  out.attention = read_attention(member(root, "attention"));
  out.memory = read_memory(member(root, "memory"));
  out.rate_spread = number_at(root, "rate_spread");
  out.clock_loss_beside = number_at(root, "clock_loss_beside");
  for (const auto& [field, text] : *member(root, "sources").object()) {
    out.sources[field] = *text.string();
  }
  return out;
}

SharedConstants read_shared() {
  const Json root = load_constants("kernels/shared.json");
  const Json& attention = member(root, "attention");
  const Json& copies = member(root, "copies");
  const Json& host = member(root, "host");
  SharedConstants out;
  out.split_below = number_at(member(root, "gemm"), "split_below_waves");
  out.narrow_tiles = tiles_at(member(root, "convolution"), "narrow_tiles");
  out.query_block = count_at(attention, "query_block");
  out.key_block = count_at(attention, "key_block");
  out.narrow_width = count_at(attention, "narrow_width");
  out.attention_tail = number_at(attention, "benchmark_tail");
  out.short_length_power = number_at(attention, "short_length_power");
  out.unfused_deviation = number_at(attention, "unfused_deviation");
  out.power_exponent = number_at(member(root, "power"), "exponent");
  out.nccl_share = number_at(member(root, "scale_up"), "nccl_share");
  out.pcie_efficiency = number_at(copies, "pcie_efficiency");
  out.pageable = number_at(copies, "pageable");
  out.copy_start_us = number_at(copies, "start_us");
  out.storage_start_us = number_at(copies, "storage_start_us");
  out.copy_deviation = number_at(copies, "deviation");
  out.host_efficiency = number_at(host, "memory_efficiency");
  out.host_deviation = number_at(host, "deviation");
  out.opaque_deviation = number_at(member(root, "opaque"), "deviation");
  return out;
}

}  // namespace

std::string KernelConstants::source(const std::string& field) const {
  const auto at = sources.find(field);
  return "constants: configs/" + file + ", " + field + ": " +
         (at == sources.end() ? "no source" : at->second) + "; figures of " + figures_changed +
         "\n";
}

const SharedConstants& shared_constants() {
  static const SharedConstants shared = read_shared();
  return shared;
}

const KernelConstants& kernel_constants(Architecture architecture) {
  static const std::array<KernelConstants, kArchitectures> all = {
      read_constants(Architecture::kVolta),     read_constants(Architecture::kAmpere),
      read_constants(Architecture::kAda),       read_constants(Architecture::kHopper),
      read_constants(Architecture::kBlackwell), read_constants(Architecture::kCdna2),
      read_constants(Architecture::kCdna3),     read_constants(Architecture::kCdna4),
      read_constants(Architecture::kTpu),       read_constants(Architecture::kTpuV6),
      read_constants(Architecture::kAscend),    read_constants(Architecture::kCpu)};
  return all.at(static_cast<std::size_t>(architecture));
}

}  // namespace foretrain
