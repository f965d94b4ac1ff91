// One accelerator: what its data sheet says.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "sim/base/json.h"
#include "sim/base/result.h"
#include "sim/program/dtype.h"

namespace foretrain {

enum class Architecture : std::uint8_t {
  kVolta,
  kAmpere,
  kAda,
  kHopper,
  kBlackwell,
  kCdna2,   ///< MI250X; a device is one of its two dies
  kCdna3,   ///< MI300X, MI325X
  kCdna4,   ///< MI355X
  kTpu,     ///< TPU v3 to v5p: systolic arrays of 128 x 128
  kTpuV6,   ///< TPU v6e, v7x: 256 x 256
  kAscend,  ///< Ascend 910B, 910C
  kCpu,
};
inline constexpr std::size_t kArchitectures = 12;
/// Whether collectives are NCCL's.
constexpr bool is_nvidia(Architecture a) { return a <= Architecture::kBlackwell; }
std::string_view name_of(Architecture architecture);
/// All names, in the order of the values.
const std::vector<std::string>& architecture_names();

/// The types of operands that devices multiply.
inline constexpr DType kMultiplied[] = {DType::kFp32, DType::kTf32, DType::kBf16, DType::kFp16,
                                        DType::kFp8,  DType::kFp4,  DType::kInt8};

/// Rates of products by type of operands that a device keeps up, of what configs/kernels/ has for
/// its architecture at the device's peak: 1 where nothing says otherwise.
class RelativeRates {
 public:
  RelativeRates() : RelativeRates(1) {}
  explicit RelativeRates(double of_all) { x_rates.fill(of_all); }
  double of(DType type) const {
    const auto at = static_cast<std::size_t>(type);
    return at < x_rates.size() ? x_rates[at] : 1;
  }
  void set(DType type, double rate) { x_rates.at(static_cast<std::size_t>(type)) = rate; }
  bool operator==(const RelativeRates&) const = default;

 private:
  std::array<double, static_cast<std::size_t>(DType::kInt8) + 1>
      x_rates;  // kInt8: the last that is multiplied
};

/// Data-sheet figures. Rates are decimal (1 GB = 1e9 B), per direction; dense arithmetic.
/// Left out: clocks under load (the achieved rates of configs/kernels/ hold them), ECC, MIG.
struct DeviceSpec {
  std::string name;
  Architecture architecture = Architecture::kHopper;
  std::int32_t sm_count = 0;  ///< SMs, compute units, AI cores, TPU TensorCores, CPU cores: what
                              ///< computes one output tile at a time
  double clock_mhz = 0;
  double fp32_tflops = 0, tf32_tflops = 0, fp16_tflops = 0, bf16_tflops = 0, fp8_tflops = 0,
         fp4_tflops = 0,
         int8_tops = 0;   ///< 0: not supported
  double memory_gib = 0;  ///< capacity as the driver shows it
  double memory_gb_per_s = 0;
  double l2_mib = 0;
  std::int32_t scale_up_links = 0;
  double scale_up_gb_per_s = 0;       ///< all links of one device, line rate
  double nccl_scale_up_gb_per_s = 0;  ///< the same as NCCL's topology search counts it
  double pcie_gb_per_s = 0;           ///< device to host, or NVLink-C2C
  double power_w = 0;                 ///< what the product may draw
  double power_limit_w = 0;           ///< what an operator lets it draw, 0 = all
  RelativeRates relative_rate;
  std::string rate_note;  ///< what is doubtful about it, for whoever reads a report; may be ""
  double exponentials_per_clock = 0;  ///< of an SM, in fp32; 0: not known
  /// Sustained tensor-core rate of the slowest of a run's devices, of the mean one's: set by the
  /// cluster, no field of a device.
  double slowest = 1;
  bool operator==(const DeviceSpec&) const = default;
};

/// Peak dense arithmetic rate in TFLOP/s for operands of `type`; 0 where the device has none.
double peak_tflops(const DeviceSpec& device, DType type);

/// The types that it has arithmetic for, for messages.
std::string types_of(const DeviceSpec& device);

/// The sustained rate of tensor cores at `power_w` over that at `reference_w`, where power bounds
/// it: (power / reference)^0.568. The exponent is fitted with the rates of Hopper to GEMMs on H100
/// of 700 W and of 500 W (configs/kernels/hopper.json). Dynamic power that grows as the 2nd to 3rd
/// power of the clock would give 1/3 to 1/2.
double power_law(double power_w, double reference_w);

/// What a power limit leaves of the sustained rate of tensor cores, at most 1.
double power_factor(const DeviceSpec& device);

/// What is left of the sustained rate of tensor cores in a run, whose step waits for its slowest
/// device: that, what the power limit leaves, and what the device keeps up with operands of `type`.
double sustained_factor(const DeviceSpec& device, DType type);

/// Expected rate of the slowest of `devices` >= 1, of the mean: 1 - spread z with
/// z = quantile((n - 0.375) / (n + 0.25)) of the normal distribution (Blom 1958, expected largest
/// of n); `spread` is the standard deviation of their rates, of the mean.
double slowest_rate(std::int64_t devices, double spread);

/// A device from a preset's name, a path, {"preset": ..., overrides}, or an object: overrides of
/// `base`, or every field where there is none. One with other rates than its preset is called
/// "NAME changed": no profile is of it.
/// `pointer` is the JSON pointer of `json` inside `source`, for messages.
Result<DeviceSpec> read_device(const Json& json, const std::string& source,
                               const std::string& pointer, const DeviceSpec& base = {});

Json to_json(const DeviceSpec& device);

}  // namespace foretrain
