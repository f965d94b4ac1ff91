// The GEMM law and what measurements say about it.
#pragma once

#include <cstdint>
#include <ostream>

#include "hardware/device.h"
#include "hardware/kernel_constants.h"
#include "sim/base/result.h"
#include "sim/cost/cost_model.h"

namespace foretrain {

/// The state of the clock: burst, the first 10 to 100 ms of load, before the power cap bites (how
/// tables of single kernels are taken); sustained, as in training.
enum class ClockState : std::uint8_t { kBurst, kSustained };

/// The best tile and split of k for one GEMM, with its times in seconds.
struct GemmEstimate {
  std::int64_t rows = 0, columns = 0, splits = 1, tiles = 0, waves = 0;
  double rate = 0;  ///< FLOP/s of whole waves of the best tile
  double compute_s = 0, memory_s = 0, latency_s = 0;
  double busy_s() const { return compute_s > memory_s ? compute_s : memory_s; }
  double seconds() const { return latency_s + busy_s(); }
};

/// The law of local_cost.h. `work` has positive extents and a type that the device supports.
/// `moved`: bytes through device memory where they do not follow from the extents; 0 = they do.
GemmEstimate estimate_gemm(const DeviceSpec& device, const GemmConstants& constants,
                           const Gemm& work, ClockState clock, double moved = 0);

/// Of the peak, what large products with operands of `type` keep up on the architecture.
double efficiency_of(const GemmConstants& constants, DType type);

/// The cost of a product by the law, with `moved` as above; samples correct it where `moved` is 0.
Result<Cost> product_cost(const DeviceSpec& device, const GemmConstants& constants,
                          const Gemm& work, double moved, std::ostream* steps);

/// What the samples in configs/gemm/ say of a GEMM: a factor on the law's busy time.
struct GemmCorrection {
  double factor = 1;
  Provenance provenance = Provenance::kAnalytic;
};

/// For 16-bit operands on devices of the samples' architecture, number of SMs and about their rate,
/// as others wait more or less for memory and the ends of tiles: what they say fades to nothing
/// between e^0.1 and e^0.4 times as fast or slow. With r_i = ln(measured / law) of the samples of
/// the same pass and batch, and d_i their distance in (ln m, ln n, ln k), 0.5 more where one adds
/// to its result or has it in other bits than the other:
///     mean   = sum w_i r_i / (1 + sum w_i),   w_i = exp(-d_i^2 / (2 * 0.5^2))
///     factor = exp(mean between max(r_i - D_i) and min(r_i + D_i))
/// D_i: 0.25 of the distances in ln m and ln n, in whole tiles of 256, and 0.4 of that in ln k.
/// So the price at a sample's own shape is what was measured where its neighbours let it be (where
/// the two bounds cross, half way between them), and fades to theirs no faster than the law grows:
/// an odd sample makes no larger product cheaper, but for 1 % between steps of tiles. Samples are
/// compared with the law in the burst state, in which they were taken. Measured: of the very
/// product on the very device, within 1 % of the sample; interpolated where the weights sum to 1
/// and above; else analytic.
/// `own_shape` false leaves out samples with the same extents in any order: for tests of how well
/// shapes are predicted that nobody measured.
GemmCorrection measured_correction(const DeviceSpec& device, const Gemm& work,
                                   bool own_shape = true);

}  // namespace foretrain
