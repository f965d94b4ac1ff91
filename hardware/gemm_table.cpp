#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "hardware/gemm_formula.h"
#include "hardware/presets.h"
#include "sim/base/assets.h"

namespace foretrain {
namespace {

// Of how samples speak for their neighbours, chosen by how well shapes left out are predicted;
// see measured_correction.
constexpr double kReach = 0.5;  // of a sample, in the logarithm of an extent
constexpr double kDoubt = 1;    // weight of "no correction"
// Of the correction's logarithm, over that of an extent: less than the law's own.
constexpr double kSlope = 0.25, kSlopeOfK = 0.4;
constexpr std::int64_t kTile = 256;  // the largest extent of the tiles of both tables
// How far a device's rate may be from that of the samples, in its logarithm: from the first on they
// speak less, from the second not.
constexpr double kLikeRate = 0.1, kUnlikeRate = 0.4;
constexpr double kAsMeasured = 0.01;  // of the price; what still counts as what was measured

enum class GemmPass : std::uint8_t { kForward, kInputGradient, kWeightGradient };

struct Sample {
  Gemm work;
  GemmPass pass = GemmPass::kForward;
  double log_ratio = 0;  ///< ln(measured / law)
};

struct Table {
  std::string device;  ///< that was measured
  std::int32_t sm_count = 0;
  double tflops = 0;  ///< its peak in 16 bits times its relative_rate
  std::vector<Sample> samples;
};

/// Row-major C = A op(B): forward multiplies by a transposed weight, the weight's gradient has A
/// transposed.
GemmPass pass_of(const Gemm& work) {
  if (work.transpose_a) return GemmPass::kWeightGradient;
  return work.transpose_b ? GemmPass::kForward : GemmPass::kInputGradient;
}

Gemm gemm_of(const Json::Array& row) {
  Gemm work;
  work.batch = static_cast<std::int64_t>(row[0].number());
  work.m = static_cast<std::int64_t>(row[1].number());
  work.n = static_cast<std::int64_t>(row[2].number());
  work.k = static_cast<std::int64_t>(row[3].number());
  const std::string& pass = *row[4].string();
  work.transpose_a = pass == "weight-gradient";
  work.transpose_b = pass == "forward";
  work.accumulate = row[5] == Json(true);
  work.out = row[6] == Json("fp32") ? DType::kFp32 : DType::kBf16;
  return work;
}

Table load_table(Architecture architecture) {
  Table table;
  const std::string path = "gemm/" + std::string(name_of(architecture)) + ".json";
  if (find_asset(path).empty()) return table;
  const Json root = load_constants(path);
  DeviceSpec device;
  device.architecture = architecture;
  device.sm_count = table.sm_count = count_at(root, "sm_count");
  device.memory_gb_per_s = number_at(root, "memory_gb_per_s");
  device.l2_mib = number_at(root, "l2_mib");
  table.device = *member(root, "device").string();
  const double peak = number_at(root, "tflops");
  device.bf16_tflops = peak;
  const double relative_rate = number_at(root, "relative_rate");
  device.relative_rate = RelativeRates(relative_rate);
  table.tflops = peak * relative_rate;
  const GemmConstants& constants = kernel_constants(architecture).gemm;
  for (const Json& item : *member(root, "rows").array()) {
    const Json::Array& row = *item.array();
    const Gemm work = gemm_of(row);
    const double measured = flops_of(Work{work}) / (row[7].number() * peak * 1e12);
    const double law = estimate_gemm(device, constants, work, ClockState::kBurst).seconds();
    table.samples.push_back({work, pass_of(work), std::log(measured / law)});
  }
  return table;
}

const Table& table_of(Architecture architecture) {
  static const Table ampere = load_table(Architecture::kAmpere);
  static const Table blackwell = load_table(Architecture::kBlackwell);
  static const Table none;
  if (architecture == Architecture::kAmpere) return ampere;
  return architecture == Architecture::kBlackwell ? blackwell : none;
}

/// Of two shapes with the same pass and batch, from the distances of the logarithms of their
/// extents. Rows and columns count in whole tiles, since the law does not rise within one.
struct Distance {
  double straight = 0;  ///< the root of the sum of squares
  double change = 0;    ///< by which corrections may differ
};

Distance distance_of(const Gemm& a, const Gemm& b) {
  const auto apart = [](std::int64_t x, std::int64_t y) {
    return std::abs(std::log(static_cast<double>(x) / static_cast<double>(y)));
  };
  const auto tiles = [](std::int64_t x) { return (x + kTile - 1) / kTile; };
  const double m = apart(tiles(a.m), tiles(b.m));
  const double n = apart(tiles(a.n), tiles(b.n));
  const double k = apart(a.k, b.k);
  return {std::sqrt(m * m + n * n + k * k), kSlope * (m + n) + kSlopeOfK * k};
}

/// Results of the same kind: equal products but for their extents.
bool alike(const Gemm& a, const Gemm& b) {
  return a.accumulate == b.accumulate && bits_of(a.out) == bits_of(b.out);
}

bool is_permutation(const Gemm& a, const Gemm& b) {
  std::array<std::int64_t, 3> x = {a.m, a.n, a.k};
  std::array<std::int64_t, 3> y = {b.m, b.n, b.k};
  std::sort(x.begin(), x.end());
  std::sort(y.begin(), y.end());
  return x == y;
}

/// How much of what the samples say holds for this device, from 0 to 1: all for one with as many
/// SMs at their rate, so that memory and the ends of tiles take the same part of a product's time.
/// It fades with the rate, so that a faster device is never slower.
double likeness(const Table& table, const DeviceSpec& device, DType type) {
  if (table.sm_count != device.sm_count) return 0;
  const double efficiency = efficiency_of(kernel_constants(device.architecture).gemm, type);
  const double kept = std::min(device.relative_rate.of(type), 1 / efficiency);  // no peak is beaten
  const double rate = peak_tflops(device, type) * kept;
  if (rate <= 0 || table.tflops <= 0) return 0;
  const double off = std::abs(std::log(rate / table.tflops));
  return std::clamp((kUnlikeRate - off) / (kUnlikeRate - kLikeRate), 0.0, 1.0);
}

/// Whether a price is the sample's own: of the device that was measured, running as it did.
bool is_of(const Table& table, const DeviceSpec& device) {
  return table.device == device.name && power_factor(device) == 1;
}

}  // namespace

GemmCorrection measured_correction(const DeviceSpec& device, const Gemm& work, bool own_shape) {
  const Table& table = table_of(device.architecture);
  const double like = likeness(table, device, work.in);
  if (like <= 0 || bits_of(work.in) != 16 || work.k == 0) return {};
  double weights = 0, sum = 0;
  double most = std::numeric_limits<double>::infinity(), least = -most;
  const Sample* own = nullptr;
  for (const Sample& sample : table.samples) {
    if (sample.pass != pass_of(work) || sample.work.batch != work.batch) continue;
    if (!own_shape && is_permutation(sample.work, work)) continue;
    Distance d = distance_of(sample.work, work);
    if (!alike(sample.work, work)) {
      d = {d.straight + kReach, d.change + kSlopeOfK * kReach};
    } else if (sample.work.m == work.m && sample.work.n == work.n && sample.work.k == work.k) {
      own = &sample;
    }
    const double weight = std::exp(-d.straight * d.straight / (2 * kReach * kReach));
    weights += weight;
    sum += weight * sample.log_ratio;
    most = std::min(most, sample.log_ratio + d.change);
    least = std::max(least, sample.log_ratio - d.change);
  }
  const double mean = sum / (kDoubt + weights);
  const double log =
      like * (std::min(std::max(mean, least), most) + std::max(std::min(mean, most), least)) / 2;
  GemmCorrection out{std::exp(log), like > 0.5 && weights >= 1 ? Provenance::kInterpolated
                                                               : Provenance::kAnalytic};
  if (own != nullptr && is_of(table, device) && std::abs(log - own->log_ratio) < kAsMeasured) {
    out.provenance = Provenance::kMeasured;
  }
  return out;
}

}  // namespace foretrain
