// configs/kernels/ARCHITECTURE.json: achieved rates of kernels, read once.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "hardware/device.h"
#include "sim/program/work.h"

namespace foretrain {

struct GemmTile {
  std::int64_t rows = 128, columns = 128;
  double relative = 1;  ///< of the best tile's rate
};

struct GemmConstants {
  std::vector<GemmTile> tiles;
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
  double misaligned = 1;  ///< rate where a contiguous dimension is no multiple of 16 bytes
  double deviation = 0;
};

struct AttentionCurve {
  AttentionKernel kernel = AttentionKernel::kFlash;
  bool backward = false, causal = false;
  std::int64_t head_dim = 128;
  bool narrow_values = false;  ///< values are narrower than keys: latent attention
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
  double fp8_forward = 1, fp8_backward = 1;
  double latency_us = 0, deviation = 0;
};

struct MemoryConstants {
  std::array<double, static_cast<std::size_t>(KernelKind::kCount)> efficiency{};
  double default_efficiency = 1;
  double latency_us = 0, deviation = 0, arithmetic_efficiency = 1;
};

struct KernelConstants {
  GemmConstants gemm;
  AttentionConstants attention;
  MemoryConstants memory;
  double rate_spread = 0;  ///< among devices: standard deviation of tensor-core rates, of the mean
  double clock_loss_beside = 0;  ///< of tensor cores, to the power that communication beside draws
};

const KernelConstants& kernel_constants(Architecture architecture);

}  // namespace foretrain
