// How well does the GEMM law predict shapes that its constants never saw? The samples of
// configs/gemm/ are cut into ten parts by shape (a shape and its permutations in one), and each is
// predicted with constants that are fitted anew to the other nine. docs/explanation/gemm-prices.md
// has the numbers.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "hardware/gemm_formula.h"
#include "hardware/presets.h"

namespace foretrain {
namespace {

constexpr std::size_t kParts = 10;

struct RefitRow {
  Gemm work;
  double seconds = 0;
  std::size_t part = 0;
};

struct RefitTable {
  DeviceSpec device;
  std::vector<RefitRow> samples;
};

RefitTable read_table(const std::string& architecture) {
  const Json root = load_constants("gemm/" + architecture + ".json");
  RefitTable out;
  out.device = read_device(*root.find("device"), "test", "").value();
  const double peak = number_at(root, "tflops");
  out.device.memory_gb_per_s = number_at(root, "memory_gb_per_s");
  std::map<std::array<std::int64_t, 3>, std::size_t> parts;
  for (const Json& item : *member(root, "rows").array()) {
    const Json::Array& row = *item.array();
    const auto whole = [&row](std::size_t i) { return static_cast<std::int64_t>(row[i].number()); };
    Gemm work{whole(1), whole(2), whole(3), whole(0)};
    work.transpose_a = *row[4].string() == "weight-gradient";
    work.transpose_b = *row[4].string() == "forward";
    work.accumulate = row[5] == Json(true);
    work.out = row[6] == Json("fp32") ? DType::kFp32 : DType::kBf16;
    std::array<std::int64_t, 3> shape = {work.m, work.n, work.k};
    std::sort(shape.begin(), shape.end());
    const std::size_t part = parts.try_emplace(shape, parts.size() % kParts).first->second;
    out.samples.push_back({work, flops_of(Work{work}) / (row[7].number() * peak * 1e12), part});
  }
  return out;
}

double error_of(const RefitTable& table, const GemmConstants& c, const RefitRow& s) {
  return std::log(estimate_gemm(table.device, c, s.work, ClockState::kBurst).seconds() / s.seconds);
}

/// Mean square of the errors outside of a part.
double loss(const RefitTable& table, const GemmConstants& c, std::size_t left_out) {
  double sum = 0;
  for (const RefitRow& s : table.samples) {
    if (s.part == left_out) continue;
    const double error = error_of(table, c, s);
    sum += error * error;
  }
  return sum;
}

using RefitField = std::function<double&(GemmConstants&)>;

/// What was fitted; latency and splits were not.
std::vector<RefitField> fields_of(const GemmConstants& c) {
  std::vector<RefitField> out = {[](GemmConstants& x) -> double& { return x.bf16; },
                                 [](GemmConstants& x) -> double& { return x.prologue_k; },
                                 [](GemmConstants& x) -> double& { return x.fractional_wave; },
                                 [](GemmConstants& x) -> double& { return x.weight_gradient; },
                                 [](GemmConstants& x) -> double& { return x.epilogue_efficiency; },
                                 [](GemmConstants& x) -> double& { return x.memory_efficiency; }};
  for (std::size_t i = 1; i < c.tiles.size(); ++i) {
    out.emplace_back([i](GemmConstants& x) -> double& { return x.tiles[i].relative; });
  }
  if (c.boost > 0) {
    out.emplace_back([](GemmConstants& x) -> double& { return x.boost; });
    out.emplace_back([](GemmConstants& x) -> double& { return x.boost_gflop; });
  }
  return out;
}

/// Descent along one constant after another, from the middle of what each may be so that the
/// shipped ones, which saw every shape, do not lead it; steps halve when none helps.
GemmConstants refit(const RefitTable& table, const GemmConstants& shipped, std::size_t left_out) {
  GemmConstants best = shipped;
  best.bf16 = 0.6;
  best.prologue_k = 200;
  best.fractional_wave = 0.5;
  best.weight_gradient = best.epilogue_efficiency = 1;
  best.memory_efficiency = 0.75;
  for (GemmTile& tile : best.tiles) tile.relative = 1;
  if (shipped.boost > 0) best.boost = 0.2, best.boost_gflop = 300;
  const std::vector<RefitField> fields = fields_of(shipped);
  double least = loss(table, best, left_out);
  for (double step = 0.2; step > 0.004; step /= 2) {
    for (bool better = true; better;) {
      better = false;
      for (const RefitField& field : fields) {
        for (const double factor : {1 + step, 1 / (1 + step)}) {
          GemmConstants next = best;
          field(next) *= factor;
          if (next.fractional_wave > 1 || next.memory_efficiency > 1) continue;
          const double then = loss(table, next, left_out);
          if (then < least * (1 - 1e-5)) best = next, least = then, better = true;
        }
      }
    }
  }
  return best;
}

struct RefitErrors {
  double rms = 0, median = 0;
};

RefitErrors left_out_errors(const RefitTable& table) {
  const GemmConstants& shipped = kernel_constants(table.device.architecture).gemm;
  std::vector<double> errors;
  double sum = 0;
  for (std::size_t part = 0; part < kParts; ++part) {
    const GemmConstants constants = refit(table, shipped, part);
    for (const RefitRow& s : table.samples) {
      if (s.part != part) continue;
      const double error = error_of(table, constants, s);
      errors.push_back(std::abs(error));
      sum += error * error;
    }
  }
  EXPECT_EQ(errors.size(), table.samples.size());
  std::sort(errors.begin(), errors.end());
  return {std::sqrt(sum / static_cast<double>(errors.size())), errors[errors.size() / 2]};
}

TEST(GemmLaw, PredictsShapesThatItsConstantsNeverSaw) {
  for (const auto& [architecture, rms, median] :
       {std::tuple{"ampere", 0.05, 0.015}, {"blackwell", 0.16, 0.075}}) {
    const RefitErrors errors = left_out_errors(read_table(architecture));
    std::printf("%s: rms %.4f, median %.4f\n", architecture, errors.rms, errors.median);
    EXPECT_LT(errors.rms, rms) << architecture;
    EXPECT_LT(errors.median, median) << architecture;
  }
}

}  // namespace
}  // namespace foretrain
