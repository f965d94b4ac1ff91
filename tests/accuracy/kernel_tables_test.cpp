// How far are prices of kernels from two large public tables of measured ones, by device and
// kernel? tests/data/kernels_measured.json holds a sample of them; docs/explanation/gemm-prices.md
// and memory-bound-prices.md have the numbers.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "hardware/local_cost.h"
#include "sim/base/json.h"

namespace foretrain {
namespace {

/// Of ln(measured / priced): the median, and the median and 90th percentile of distances from it.
struct TableSpread {
  double median = 0, half = 0, most = 0;
};

double quantile_of(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values.at(static_cast<std::size_t>(share * static_cast<double>(values.size() - 1)));
}

TableSpread spread_of(const std::vector<double>& logs) {
  TableSpread out;
  out.median = quantile_of(logs, 0.5);
  std::vector<double> distances;
  distances.reserve(logs.size());
  for (const double log : logs) distances.push_back(std::abs(log - out.median));
  out.half = quantile_of(distances, 0.5);
  out.most = quantile_of(distances, 0.9);
  return out;
}

using TableLogs = std::map<std::string, std::vector<double>>;  ///< by device and what is measured

Json kernels_measured() {
  return read_json_file(std::string(FORETRAIN_TEST_DATA) + "/kernels_measured.json").value();
}

std::int64_t extent(const Json& json) { return static_cast<std::int64_t>(json.number()); }

/// ln(measured / priced) of every row of a part of the file. `read`: the name of its group and its
/// priced microseconds; measured ones stand last.
template <typename Read>
TableLogs logs_of(const std::string& part, const Read& read) {
  TableLogs out;
  const Json data = kernels_measured();
  for (const Json& series : *data.find(part)->array()) {
    const DeviceSpec device = read_device(*series.find("device"), "test", "").value();
    for (const Json& item : *series.find("rows")->array()) {
      const Json::Array& row = *item.array();
      const std::pair<std::string, double> priced = read(device, row);
      out[device.name + " " + priced.first].push_back(
          std::log(row.back().number() / priced.second));
    }
  }
  return out;
}

void expect_spreads(const TableLogs& all, const std::map<std::string, TableSpread>& bounds) {
  EXPECT_EQ(all.size(), bounds.size());
  for (const auto& [name, logs] : all) {
    const TableSpread x = spread_of(logs);
    std::printf("%-28s %3zu rows: median %+.3f, about it %.3f and %.3f\n", name.c_str(),
                logs.size(), x.median, x.half, x.most);
    const auto bound = bounds.find(name);
    if (bound == bounds.end()) {
      ADD_FAILURE() << name << " has no bound";
      continue;
    }
    EXPECT_NEAR(x.median, bound->second.median, 0.01) << name;
    EXPECT_LT(x.half, bound->second.half) << name;
    EXPECT_LT(x.most, bound->second.most) << name;
  }
}

// Products of layers in fp16, 256 to 4096 rows, by the profiler of the GPU. The A100 and the H100
// ran in bursts; the medians hold how much faster than in training that is.
TEST(KernelSamples, ProductsOfLayers) {
  const TableLogs logs = logs_of("products", [](const DeviceSpec& device, const Json::Array& row) {
    Gemm work;
    work.m = extent(row[1]), work.n = extent(row[2]), work.k = extent(row[3]);
    work.in = work.out = DType::kFp16;
    work.transpose_b = true;
    return std::pair{*row[0].string(), gemm_cost(device, work, nullptr).value().duration.us()};
  });
  expect_spreads(logs, {{"a100-pcie-80gb fitted", {-0.074, 0.06, 0.138}},
                        {"a100-pcie-80gb held out", {-0.044, 0.043, 0.105}},
                        {"a40-48gb fitted", {-0.025, 0.046, 0.2}},
                        {"a40-48gb held out", {-0.014, 0.036, 0.166}},
                        {"h100-sxm-80gb fitted", {-0.144, 0.057, 0.17}},
                        {"h100-sxm-80gb held out", {-0.091, 0.075, 0.25}}});
}

// Linears (with bias) and batched products in fp32, from half a millisecond up. The V100 is the
// PCIe part, priced as SXM2.
TEST(KernelSamples, ProductsInFp32) {
  const TableLogs logs = logs_of("fp32", [](const DeviceSpec& device, const Json::Array& row) {
    Gemm work;
    work.batch = extent(row[1]), work.m = extent(row[2]);
    work.n = extent(row[3]), work.k = extent(row[4]);
    work.in = work.out = DType::kFp32;
    work.transpose_b = *row[0].string() == "linear";
    return std::pair{*row[0].string(), gemm_cost(device, work, nullptr).value().duration.us()};
  });
  expect_spreads(logs, {{"a100-pcie-80gb linear", {-0.046, 0.042, 0.122}},
                        {"a100-pcie-80gb bmm", {-0.108, 0.041, 0.083}},
                        {"h100-sxm-80gb linear", {0.006, 0.026, 0.117}},
                        {"h100-sxm-80gb bmm", {-0.053, 0.03, 0.106}},
                        {"l4-24gb linear", {0.013, 0.07, 0.215}},
                        {"l4-24gb bmm", {0.105, 0.169, 0.33}},
                        {"v100-sxm2-32gb linear", {0.038, 0.011, 0.184}},
                        {"v100-sxm2-32gb bmm", {-0.051, 0.082, 0.176}}});
}

/// A pass over fp32 rows by what PyTorch calls it: everything read and written once. A softmax
/// alone is no kernel of a step: its pass is compared with the rate of one over memory.
Kernel pass_of(const std::string& name, std::int64_t rows, std::int64_t width) {
  Kernel work;
  work.kind = name == "ln"     ? KernelKind::kLayerNorm
              : name == "add"  ? KernelKind::kAdd
              : name == "relu" ? KernelKind::kRelu
                               : KernelKind::kScale;
  work.rows = rows;
  work.cols = width;
  work.dtype = DType::kFp32;
  work.bytes = rows * width * 4 * (name == "add" ? 3 : 2);
  return work;
}

// Passes over 256 MB and more. Layer norms and softmaxes are PyTorch's, whose rate falls with the
// width; prices have one rate.
TEST(KernelSamples, PassesOverMemory) {
  const TableLogs logs = logs_of("passes", [](const DeviceSpec& device, const Json::Array& row) {
    const std::string& name = *row[0].string();
    const Kernel work = pass_of(name, extent(row[1]), extent(row[2]));
    const std::string group = name == "ln" || name == "softmax" ? name : "elementwise";
    return std::pair{group, kernel_cost(device, work, nullptr).value().duration.us()};
  });
  expect_spreads(logs, {{"a100-pcie-80gb elementwise", {-0.077, 0.006, 0.015}},
                        {"a100-pcie-80gb ln", {0.044, 0.068, 0.275}},
                        {"a100-pcie-80gb softmax", {0.089, 0.052, 0.2}},
                        {"l4-24gb elementwise", {0.082, 0.005, 0.008}},
                        {"l4-24gb ln", {0.027, 0.014, 0.207}},
                        {"l4-24gb softmax", {0.077, 0.009, 0.01}},
                        {"v100-sxm2-32gb elementwise", {-0.102, 0.009, 0.027}},
                        {"v100-sxm2-32gb ln", {0.182, 0.039, 0.118}},
                        {"v100-sxm2-32gb softmax", {0.262, 0.194, 0.352}}});
}

// Scans of docs/explanation/mixers.md whose device, not host, decides.
TEST(KernelTables, Scans) {
  struct Row {
    const char* device;
    Scan scan;
    double ms;
  };
  const auto ssd = [](std::int64_t tokens) {
    return Scan{false, 1, tokens, 128, 1, 64, 128, 256, DType::kBf16, ScanRule::kStateSpace};
  };
  const auto delta = [](std::int64_t batch, std::int64_t tokens, std::int64_t heads,
                        ScanRule rule) {
    return Scan{false, batch, tokens, heads, heads, 128, 128, 64, DType::kBf16, rule};
  };
  const std::vector<Row> rows = {
      {"h100-sxm-80gb", ssd(4096), 0.3395},
      {"h100-sxm-80gb", ssd(8192), 0.6490},
      {"h100-sxm-80gb", ssd(16384), 1.2677},
      {"h100-sxm-80gb", ssd(65536), 5.9211},
      {"h800-sxm-80gb", delta(1, 8192, 96, ScanRule::kDelta), 2.033},
      {"h800-sxm-80gb", delta(2, 16384, 16, ScanRule::kDelta), 1.342},
      {"h800-sxm-80gb", delta(1, 8192, 96, ScanRule::kChannelDelta), 3.268},
      {"h800-sxm-80gb", delta(2, 16384, 16, ScanRule::kChannelDelta), 2.299},
      {"b200-sxm-180gb", delta(1, 4096, 96, ScanRule::kDelta), 0.7741},
      {"b200-sxm-180gb", delta(1, 8192, 96, ScanRule::kDelta), 1.4919},
      {"b200-sxm-180gb", delta(9, 1024, 32, ScanRule::kDelta), 0.5529},
  };
  std::vector<double> logs;
  for (const Row& row : rows) {
    const DeviceSpec device = read_device(Json(row.device), "test", "").value();
    const Result<Cost> cost = scan_cost(device, row.scan, nullptr);
    ASSERT_TRUE(cost.ok()) << cost.error().message;
    const double log = std::log(row.ms / (cost.value().duration.us() / 1000));
    EXPECT_LE(std::abs(log), 0.16) << row.device << " " << row.scan.length;
    logs.push_back(log);
  }
  EXPECT_LE(std::abs(spread_of(logs).median), 0.03);
  EXPECT_LE(spread_of(logs).half, 0.03);
}

}  // namespace
}  // namespace foretrain
