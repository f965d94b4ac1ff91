#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "hardware/gemm_formula.h"
#include "hardware/presets.h"
#include "sim/base/assets.h"

namespace foretrain {
namespace {

constexpr double kReach = 0.5;  // of a sample, in the logarithm of an extent; see docs/prices.md
constexpr double kDoubt = 1;    // weight of "no correction"

enum class GemmPass : std::uint8_t { kForward, kInputGradient, kWeightGradient };

struct Sample {
  std::int64_t batch = 1;
  std::array<std::int64_t, 3> extents{};  ///< m, n, k
  GemmPass pass = GemmPass::kForward;
  double log_ratio = 0;  ///< ln(measured / law)
};

struct Table {
  std::int32_t sm_count = 0;
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
  device.sm_count = table.sm_count = static_cast<std::int32_t>(number_at(root, "sm_count"));
  device.memory_gb_per_s = number_at(root, "memory_gb_per_s");
  device.l2_mib = number_at(root, "l2_mib");
  const double peak = number_at(root, "tflops");
  device.bf16_tflops = peak * number_at(root, "relative_rate");
  const GemmConstants& constants = kernel_constants(architecture).gemm;
  for (const Json& item : *member(root, "rows").array()) {
    const Json::Array& row = *item.array();
    const Gemm work = gemm_of(row);
    const double measured = flops_of(Work{work}) / (row[7].number() * peak * 1e12);
    const double law = estimate_gemm(device, constants, work, ClockState::kBurst).seconds();
    table.samples.push_back(
        {work.batch, {work.m, work.n, work.k}, pass_of(work), std::log(measured / law)});
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

double distance2(const std::array<std::int64_t, 3>& a, const std::array<std::int64_t, 3>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double apart = std::log(static_cast<double>(a.at(i)) / static_cast<double>(b.at(i)));
    sum += apart * apart;
  }
  return sum;
}

bool is_permutation(std::array<std::int64_t, 3> a, std::array<std::int64_t, 3> b) {
  std::sort(a.begin(), a.end());
  std::sort(b.begin(), b.end());
  return a == b;
}

}  // namespace

GemmCorrection measured_correction(const DeviceSpec& device, const Gemm& work, bool own_shape) {
  const Table& table = table_of(device.architecture);
  if (table.sm_count != device.sm_count || bits_of(work.in) != 16 || work.k == 0) return {};
  const std::array<std::int64_t, 3> extents = {work.m, work.n, work.k};
  double weights = 0, sum = 0;
  for (const Sample& sample : table.samples) {
    if (sample.pass != pass_of(work) || sample.batch != work.batch) continue;
    if (!own_shape && is_permutation(sample.extents, extents)) continue;
    if (sample.extents == extents) return {std::exp(sample.log_ratio), Provenance::kMeasured};
    const double weight = std::exp(-distance2(sample.extents, extents) / (2 * kReach * kReach));
    weights += weight;
    sum += weight * sample.log_ratio;
  }
  return {std::exp(sum / (kDoubt + weights)),
          weights >= 1 ? Provenance::kInterpolated : Provenance::kAnalytic};
}

}  // namespace foretrain
