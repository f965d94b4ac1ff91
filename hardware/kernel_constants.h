// configs/kernels/ARCHITECTURE.json: achieved rates of kernels, read once.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "hardware/device.h"
#include "sim/program/work.h"

namespace foretrain {

/// Products of which libraries have a tile, where not of all.
enum class TileUse : std::uint8_t {
  kAny,
  kForward,  ///< laid out as a linear's forward pass
  kFp32,
};

struct GemmTile {
  std::int64_t rows = 128, columns = 128;
  double relative = 1;  ///< of the best tile's rate
  TileUse use = TileUse::kAny;
};

/// Rates of products of which a contiguous dimension is no multiple of 16 bytes.
struct AlignmentRates {
  std::array<double, 3> tensor_cores = {1, 1, 1};  ///< by multiples of 8, of 4, of 2 bytes
  double fp32 = 1;                                 ///< off them
};

struct GemmConstants {
  std::vector<GemmTile> tiles;
  std::int64_t array = 0;  ///< extent of a systolic array, to which the last rows and columns of
                           ///< tiles are padded; 0: to whole tiles
  std::vector<std::int64_t> splits;
  double fp32 = 0, tf32 = 0, fp16 = 0, bf16 = 0, fp8 = 0,
         fp4 = 0;                  ///< share of the peak, sustained
  double prologue_k = 0;           ///< prologue and epilogue of a tile, in units of k
  double fractional_wave = 0;      ///< 0: whole waves, 1: a partly filled wave costs its share only
  double boost = 0;                ///< rate gained in the burst state by the shortest kernels
  double boost_gflop = 1;          ///< work over which that gain falls to 1/e
  double weight_gradient = 1;      ///< rate where A is transposed
  double epilogue_efficiency = 0;  ///< of the bandwidth, for bytes of results beyond two an
                                   ///< element, after the arithmetic; 0: beside it
  std::int64_t at_once = 4;        ///< products apart that run side by side
  double split_accumulator = 1;    ///< rate of fp8 with it
  double cutlass = 1;              ///< rate of CUTLASS' kernels with block scales
  double winograd = 0;             ///< rate of Winograd's convolutions in fp32; 0: there are none
  double memory_efficiency = 1;
  double latency_us = 0;
  AlignmentRates misaligned;
  double deviation = 0;
};

struct AttentionCurve {
  AttentionKernel kernel = AttentionKernel::kFlash;
  bool backward = false, causal = false;
  std::int64_t head_dim = 128, value_dim = 128;
  std::vector<double> tflops;  ///< at AttentionConstants::lengths
};

/// A kernel family without curves of its own: those of another one, slower by a factor.
struct AttentionRelative {
  AttentionKernel kernel = AttentionKernel::kFlash, to = AttentionKernel::kFlash;
  double forward = 1, backward = 1;
};

struct AttentionConstants {
  double reference_tflops = 1;  ///< bf16 peak of the device the curves were taken on
  /// What that device draws, where its power bounds the rates; 0: it does not.
  double reference_power_w = 0;
  std::vector<double> lengths;
  std::vector<AttentionCurve> curves;
  std::vector<AttentionRelative> relatives;
  std::vector<std::int64_t> widths;  ///< of heads that kernels are made for; others are padded
  /// Exponentials that the curves' device computes a clock and SM, and the exponent with which
  /// forward rates go by them; 0: not known.
  double reference_exponentials = 0, exponential_power = 0;
  double latency_us = 0, deviation = 0;
};

/// configs/kernels/shared.json: what no architecture has a value of its own for.
struct SharedConstants {
  double split_below = 0;              ///< waves; products that fill more of one do not split k
  std::vector<GemmTile> narrow_tiles;  ///< of convolutions, besides those of GEMMs
  std::int64_t query_block = 128, key_block = 128;  ///< of fused attention
  std::int64_t narrow_width = 64;                   ///< of heads; narrower ones take as long
  double attention_tail = 1;      ///< time of the benchmarks' last pieces, in which curves are
  double short_length_power = 0;  ///< of the length, below the curves' shortest
  double unfused_deviation = 0;
  double power_exponent = 0;  ///< see power_law
  double nccl_share = 0;      ///< of a device's scale-up rate, as NCCL's topology search counts it
  double pcie_efficiency = 0, pageable = 0, copy_start_us = 0, storage_start_us = 0;
  double copy_deviation = 0, host_efficiency = 0, host_deviation = 0, opaque_deviation = 0;
};

const SharedConstants& shared_constants();

struct MemoryConstants {
  std::array<double, static_cast<std::size_t>(KernelKind::kCount)> efficiency{};
  /// Of the first kernel of a kind, where it is not `latency_us`: what does not go by bytes.
  std::array<double, static_cast<std::size_t>(KernelKind::kCount)> start_us{};
  double default_efficiency = 1;
  /// Of the kernels of a scan, by ScanRule: the keys "scan-NAME", where the file has them.
  std::array<double, 4> scans{};
  double latency_us = 0, deviation = 0, arithmetic_efficiency = 1;
  /// Clocks of an SM for an element of a pass that loads one element at a time; 0: bytes tell all.
  double unvectorized_clocks = 0;
};

struct KernelConstants {
  GemmConstants gemm;
  AttentionConstants attention;
  MemoryConstants memory;
  double rate_spread = 0;  ///< among devices: standard deviation of tensor-core rates, of the mean
  double clock_loss_beside = 0;  ///< of tensor cores, to the power that communication beside draws
  std::string file, figures_changed;
  std::map<std::string, std::string> sources;  ///< by the field's path in the file
  /// A line for explanations: the file that a field stands in, and where its value comes from.
  std::string source(const std::string& field) const;
};

const KernelConstants& kernel_constants(Architecture architecture);

}  // namespace foretrain
