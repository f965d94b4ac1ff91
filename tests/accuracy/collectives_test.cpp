// Are prices of collectives as close to public measurements as docs/prices.md says? Prints the
// residuals by series and by size: build/release/tests/foretrain_accuracy --gtest_filter='Coll*'
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
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
    work.dtype = DType::kUint8;
    work.count = static_cast<std::int64_t>(bytes);
    NcclChoice choice{NcclAlgorithm::kRing, NcclProtocol::kSimple, 0};
    if (series.find("forced") == nullptr) {
      choice = choose_nccl(nccl_group_of(cluster, at), work.kind, work.count);
    }
    const Cost cost = nccl_cost(cluster, {}, at, work, choice, nullptr);
    errors.at(band_of(bytes)).push_back(cost.duration.us() / us - 1);
  }
  return errors;
}

void print_row(const std::string& name, const Bands& errors) {
  std::printf("| %s |", name.c_str());
  for (const std::vector<double>& band : errors) {
    if (band.empty()) {
      std::printf(" |");
    } else {
      std::printf(" %.0f, %+.0f (%zu) |", 100 * median_size(band), 100 * median(band), band.size());
    }
  }
  std::printf("\n");
}

void append(Bands& to, const Bands& from) {
  for (std::size_t i = 0; i < kBands; ++i) {
    to.at(i).insert(to.at(i).end(), from.at(i).begin(), from.at(i).end());
  }
}

void expect_within(const std::string& name, const Bands& errors) {
  std::vector<double> small = errors[0], large = errors[2];
  small.insert(small.end(), errors[1].begin(), errors[1].end());
  large.insert(large.end(), errors[3].begin(), errors[3].end());
  EXPECT_LE(median_size(small), 0.20) << name;
  EXPECT_LE(median_size(large), 0.08) << name;
  for (std::size_t band = 0; band < kBands; ++band) {
    EXPECT_LE(std::abs(median(errors.at(band))), 0.10) << name << ", " << kBandNames.at(band);
  }
}

// Median of the error without sign at most 8 % from 16 MiB on and 20 % below; no band of sizes has
// a median error, with sign, beyond 10 %; for groups on one node and on many alike.
TEST(CollectivePrices, AreAsCloseToMeasurementsAsStated) {
  const Json data =
      read_json_file(std::string(FORETRAIN_TEST_DATA) + "/collectives_measured.json").value();
  Bands one, many;
  std::size_t points = 0, rows = 0;
  std::printf("median error without sign, with sign, in %% (points)\n| series |");
  for (const char* name : kBandNames) std::printf(" %s |", name);
  std::printf("\n| --- | --- | --- | --- | --- |\n");
  for (const Json& series : *data.find("series")->array()) {
    const Bands errors = errors_of(series);
    print_row(*series.find("id")->string(), errors);
    ++rows;
    if (series.find("counted") != nullptr) continue;
    append(series.find("nodes")->number() == 1 ? one : many, errors);
    for (const std::vector<double>& band : errors) points += band.size();
  }
  print_row("one node", one);
  print_row("many nodes", many);
  EXPECT_GE(rows, 52U);
  EXPECT_GE(points, 400U);
  expect_within("one node", one);
  expect_within("many nodes", many);
}

}  // namespace
}  // namespace foretrain
