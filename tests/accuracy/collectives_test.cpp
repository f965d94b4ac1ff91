// Are prices of collectives as close to public measurements as docs/explanation/collectives.md
// says? Prints the residuals by series and by size: build/release/tests/foretrain_accuracy
// --gtest_filter='Coll*'
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "hardware/collective_cost.h"

namespace foretrain {
namespace {

constexpr std::size_t kBands = 4;
constexpr std::array<const char*, kBands> kBandNames = {"below 1 MiB", "1-16 MiB", "16-256 MiB",
                                                        "256 MiB and above"};
using Bands = std::array<std::vector<double>, kBands>;

std::size_t band_of(double bytes) {
  const double mib = bytes / (1 << 20);
  return mib < 1 ? 0 : mib < 16 ? 1 : mib < 256 ? 2 : 3;
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double median_size(std::vector<double> values) {
  for (double& value : values) value = std::abs(value);
  return median(values);
}

CollectiveKind kind_of(const std::string& name) {
  if (name == "all-reduce") return CollectiveKind::kAllReduce;
  if (name == "all-to-all") return CollectiveKind::kAllToAll;
  return name == "all-gather" ? CollectiveKind::kAllGather : CollectiveKind::kReduceScatter;
}

/// predicted / measured - 1 of every point.
Bands errors_of(const Json& series) {
  const auto ranks = static_cast<std::int32_t>(series.find("ranks")->number());
  Cluster cluster = read_cluster(*series.find("cluster"), "test", "").value();
  cluster.accelerators = std::max(ranks, cluster.accelerators);
  std::vector<RankId> members;
  for (std::int32_t i = 0; i < ranks; ++i) members.emplace_back(i);
  const Placement at = placement_of(cluster, members).value();
  EXPECT_EQ(at.nodes, static_cast<std::int32_t>(series.find("nodes")->number()));
  Bands errors;
  for (const Json& point : *series.find("bytes_us")->array()) {
    const double bytes = (*point.array())[0].number(), us = (*point.array())[1].number();
    Collective work;
    work.kind = kind_of(*series.find("collective")->string());
    work.dtype = DType::kFp32;
    work.count = static_cast<std::int64_t>(bytes / 4);
    const NcclChoice ring{NcclAlgorithm::kRing, NcclProtocol::kSimple, 0};
    const Cost cost = series.find("forced") != nullptr
                          ? nccl_cost(cluster, {}, at, work, ring, nullptr)
                          : collective_cost(cluster, {}, at, work, nullptr).value();
    errors.at(band_of(bytes)).push_back(cost.duration.us() / us - 1);
  }
  return errors;
}

std::string row_of(const std::string& name, const Bands& errors) {
  std::string row = "| " + name + " |";
  for (const std::vector<double>& band : errors) {
    std::array<char, 64> text{};
    if (!band.empty()) {
      std::snprintf(text.data(), text.size(), " %.0f, %+.0f (%zu)", 100 * median_size(band),
                    100 * median(band), band.size());
    }
    row += std::string(text.data()) + " |";
  }
  return row;
}

void append(Bands& to, const Bands& from) {
  for (std::size_t i = 0; i < kBands; ++i) {
    to.at(i).insert(to.at(i).end(), from.at(i).begin(), from.at(i).end());
  }
}

/// Median error without sign below 16 MiB and from there on; the largest of a band with sign.
struct Errors {
  double small = 0, large = 0, bias = 0;
  bool within(const Errors& bound) const {
    return small <= bound.small && large <= bound.large && bias <= bound.bias;
  }
};
constexpr Errors kBound = {0.20, 0.08, 0.10};

Errors of_bands(const Bands& bands) {
  std::vector<double> small = bands[0], large = bands[2];
  small.insert(small.end(), bands[1].begin(), bands[1].end());
  large.insert(large.end(), bands[3].begin(), bands[3].end());
  Errors errors{median_size(small), median_size(large), 0};
  for (const std::vector<double>& band : bands) {
    errors.bias = std::max(errors.bias, std::abs(median(band)));
  }
  return errors;
}

void expect_within(const std::string& name, const Errors& errors, const Errors& bound) {
  EXPECT_LE(errors.small, bound.small) << name << ", below 16 MiB";
  EXPECT_LE(errors.large, bound.large) << name << ", from 16 MiB on";
  EXPECT_LE(errors.bias, bound.bias) << name << ", bias of a band";
}

/// Series beyond the bound, what they are held to, and what in the data is the reason.
struct Exception {
  const char* series;
  Errors bound;
  const char* reason;
};
constexpr const char* kEightA100 =
    "three logs of 8 A100 differ by 1.2 to 2 times from 1 to 64 MiB, this one above vTrain's";
constexpr const char* kEightH200 =
    "two logs of 8 H200 differ by 22 to 39 % below 4 MiB: PyTorch's launch is in one";
constexpr const char* kEightB200 =
    "two logs of 8 B200 differ by 35 to 50 % below 16 MiB: PyTorch's launch is in this one";
constexpr const char* kNvls = "NVLS was measured where NCCL 2.28 takes the ring";
constexpr const char* kTwoB200 =
    "64 MiB took twice as long as 32, and no longer than all-reduces of as many bytes below";
constexpr const char* kStart = "one time a rank for groups of 16 and of 1,440";
constexpr const char* kProfiledH100 =
    "kernel times alone: eight take 12 % less than Azure's up to 8 MiB, two and four had nobody "
    "else";
constexpr const char* kFrontier = "up to 64 MiB at a sixth to a half of the rate above it";
const std::vector<Exception>& exceptions() {
  static const std::vector<Exception> all = {
      {"a100x8_stas", {0.20, 0.08, 0.12}, kEightA100},
      {"a100x8_azure", {0.20, 0.08, 0.15}, kEightA100},
      {"h200x8_stas", {0.20, 0.08, 0.22}, kEightH200},
      {"h200x8_azure", {0.20, 0.08, 0.14}, kEightH200},
      {"hopper8_mooncake", {0.62, 0.08, 0.67}, "a floor of 19 us, where others have 26 to 40"},
      {"b200x8_stas", {0.45, 0.08, 0.48}, kEightB200},
      {"b200x8_ar", {0.20, 0.08, 0.15}, kEightB200},
      {"b200x32_4n_stas", {0.20, 0.08, 0.35}, "the loop warms up: 6.3 ms at 32 KiB, 0.4 at 256"},
      {"h200_5gpu_8G", {0.20, 0.15, 0.15}, kNvls},
      {"b200_6gpu_8G_NVLS", {0.20, 0.15, 0.15}, kNvls},
      {"b200_7gpu_8G_NVLS", {0.20, 0.20, 0.20}, kNvls},
      {"a100_4n_stas", {0.20, 0.35, 0.82}, "the network is not stated"},
      {"h100_256_ag", {0.20, 0.27, 0.27}, "reported as a fault: 200 GB/s"},
      {"vtrain_v100_8gpu", {0.20, 0.08, 0.19}, "12 MiB took longer than 16 in it"},
      {"b200x16_ar", {0.20, 0.08, 0.13}, kStart},
      {"b200x16_ag", {0.32, 0.10, 0.39}, kTwoB200},
      {"b200x16_rs", {0.33, 0.10, 0.39}, kTwoB200},
      {"b200x16_a2a", {0.36, 0.11, 0.40}, "the faster of two runs, whose settings are not said"},
      {"h100x16_crusoe", {0.20, 0.08, 0.17}, "2 MiB took longer than 4 in it"},
      {"gb200x1440", {0.20, 0.09, 0.10}, kStart},
      {"gb300x16", {0.20, 0.13, 0.14}, "64 MiB took 2.9 times as long as 32"},
      {"h200x16_roce", {0.20, 0.08, 0.16}, "RoCE's law is InfiniBand's"},
      {"a3mega_x16", {0.34, 0.21, 0.49}, "GPUDirect-TCPXO by EFA's law"},
      {"h100x2_vidur", {0.20, 0.08, 0.12}, kProfiledH100},
      {"h100x4_vidur", {0.20, 0.16, 0.18}, kProfiledH100},
      {"h100x8_vidur", {0.20, 0.08, 0.12}, kProfiledH100},
      {"mi250x_x32_ag", {0.20, 0.08, 0.70}, kFrontier},
      {"mi250x_x32_ar", {0.54, 0.10, 0.60}, kFrontier},
  };
  return all;
}

const Exception* exception_of(const std::string& series) {
  for (const Exception& exception : exceptions()) {
    if (series == exception.series) return &exception;
  }
  return nullptr;
}

Json measured_series() {
  return read_json_file(std::string(FORETRAIN_TEST_DATA) + "/collectives_measured.json").value();
}

// Every series: median of the error without sign at most 8 % from 16 MiB on and 20 % below, and no
// band of sizes with a median error, with sign, beyond 10 %; the exceptions by name.
TEST(CollectivePrices, AreAsCloseToEverySeriesAsStated) {
  const Json data = measured_series();
  std::size_t rows = 0, excepted = 0;
  for (const Json& series : *data.find("series")->array()) {
    const std::string& id = *series.find("id")->string();
    const Errors errors = of_bands(errors_of(series));
    const Exception* exception = exception_of(id);
    expect_within(id, errors, exception == nullptr ? kBound : exception->bound);
    if (exception != nullptr) {
      ++excepted;
      EXPECT_FALSE(errors.within(kBound)) << id << " needs no exception: " << exception->reason;
    }
    ++rows;
  }
  EXPECT_EQ(excepted, exceptions().size());
  EXPECT_GE(rows, 76U);
}

// The same of all points together, of groups on one node and on many; and the table in the document
// is the one printed here.
TEST(CollectivePrices, AreAsCloseTogetherAndAsTheDocumentSays) {
  const Json data = measured_series();
  std::ifstream file(std::string(FORETRAIN_SOURCE_DIR) + "/docs/explanation/collectives.md");
  const std::string document((std::istreambuf_iterator<char>(file)), {});
  const auto show = [&](const std::string& name, const Bands& errors) {
    const std::string row = row_of(name, errors);
    std::printf("%s\n", row.c_str());
    EXPECT_NE(document.find(row + "\n"), std::string::npos)
        << "docs/explanation/collectives.md lacks " << row;
  };
  Bands one, many;
  std::size_t points = 0;
  std::printf("median error without sign, with sign, in %% (points)\n| series |");
  for (const char* name : kBandNames) std::printf(" %s |", name);
  std::printf("\n| --- | --- | --- | --- | --- |\n");
  for (const Json& series : *data.find("series")->array()) {
    const Bands errors = errors_of(series);
    const bool counted = series.find("counted") == nullptr;
    show(*series.find("id")->string(), errors);
    if (!counted) continue;
    append(series.find("nodes")->number() == 1 ? one : many, errors);
    for (const std::vector<double>& band : errors) points += band.size();
  }
  show("**one node**", one);
  show("**many nodes**", many);
  EXPECT_GE(points, 800U);
  expect_within("one node", of_bands(one), kBound);
  expect_within("many nodes", of_bands(many), kBound);
}

}  // namespace
}  // namespace foretrain
