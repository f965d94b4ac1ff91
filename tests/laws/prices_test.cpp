// Do prices obey physics, and are they as close to measurements as docs/prices.md says?
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "hardware/collective_cost.h"
#include "hardware/hardware_cost_model.h"
#include "hardware/local_cost.h"

namespace foretrain {
namespace {

Cluster cluster_of(const std::string& preset, std::int32_t accelerators) {
  Cluster cluster = read_cluster(Json(preset), "test", "").value();
  cluster.accelerators = accelerators;
  return cluster;
}

std::vector<RankId> strided(int count, int stride) {
  std::vector<RankId> out;
  for (int i = 0; i < count; ++i) out.emplace_back(i * stride);
  return out;
}

double factor(CollectiveKind kind, double n) {
  return kind == CollectiveKind::kAllReduce ? 2 * (n - 1) / n : (n - 1) / n;
}

const std::vector<CollectiveKind>& kinds() {
  static const std::vector<CollectiveKind> all = {
      CollectiveKind::kAllReduce, CollectiveKind::kAllGather, CollectiveKind::kReduceScatter};
  return all;
}

struct Layout {
  const char* preset;
  int accelerators, count, stride;
};
const std::vector<Layout>& layouts() {
  static const std::vector<Layout> all = {
      {"dgx-a100-80gb", 8, 8, 1}, {"dgx-a100-80gb", 128, 16, 8}, {"dgx-a100-80gb", 512, 512, 1},
      {"dgx-h100", 8, 2, 1},      {"dgx-h100", 8, 8, 1},         {"dgx-h100", 128, 16, 8},
      {"dgx-h100", 1024, 256, 4}, {"dgx-h100", 1024, 1024, 1},   {"hgx-h800", 64, 64, 1},
      {"dgx-b200", 64, 32, 2},    {"gb200-nvl72", 144, 72, 1},   {"gb200-nvl72", 144, 144, 1},
      {"aws-p4d", 64, 8, 8},      {"aws-p5", 64, 64, 1},         {"l40s", 16, 16, 1},
      {"dgx-1v", 32, 4, 1},       {"dgx-2", 32, 32, 1},
  };
  return all;
}

Cost price(const Cluster& cluster, const LinkRates& rates, const Layout& layout,
           CollectiveKind kind, Bytes bytes) {
  Collective work;
  work.kind = kind;
  work.count = bytes / 2;
  const Placement at = placement_of(cluster, strided(layout.count, layout.stride)).value();
  return collective_cost(cluster, rates, at, work, nullptr).value();
}

NcclAlgorithm algorithm_of(const Cluster& cluster, const Layout& layout, CollectiveKind kind,
                           Bytes bytes) {
  const Placement at = placement_of(cluster, strided(layout.count, layout.stride)).value();
  return choose_nccl(nccl_group(cluster, at.ranks, at.nodes, at.per_node_max, at.nics_per_node),
                     kind, bytes)
      .algorithm;
}

TEST(Prices, MoreBytesAreNeverCheaperWithinAnAlgorithm) {
  for (const Layout& layout : layouts()) {
    const Cluster cluster = cluster_of(layout.preset, layout.accelerators);
    for (const CollectiveKind kind : kinds()) {
      std::map<NcclAlgorithm, Time> last;
      for (Bytes bytes = 1024; bytes <= Bytes{1} << 34; bytes = bytes * 5 / 4) {
        const Time now = price(cluster, {}, layout, kind, bytes).duration;
        Time& before = last[algorithm_of(cluster, layout, kind, bytes)];
        EXPECT_GE(now, before) << layout.preset << " " << layout.count << " " << bytes;
        before = now;
      }
    }
  }
}

// What leaves a node, or a rank, cannot leave faster than its NICs or its links.
TEST(Prices, NothingBeatsTheWire) {
  for (const Layout& layout : layouts()) {
    const Cluster cluster = cluster_of(layout.preset, layout.accelerators);
    const Placement at = placement_of(cluster, strided(layout.count, layout.stride)).value();
    for (const CollectiveKind kind : kinds()) {
      for (Bytes bytes = 1024; bytes <= Bytes{1} << 34; bytes *= 4) {
        const Cost cost = price(cluster, {}, layout, kind, bytes);
        const double seconds = cost.duration.seconds(), n = at.ranks, nodes = at.nodes;
        const double size = static_cast<double>(bytes);
        if (nodes > 1) {
          const double out = kind == CollectiveKind::kAllReduce ? 2 * (nodes - 1) / nodes
                                                                : (n - at.per_node_max) / n;
          const double nics = cluster.nic_port_gb_per_s() * at.nics_per_node * 1e9;
          EXPECT_GE(seconds * 1.000001, size * out / nics) << layout.preset << " " << bytes;
        } else {
          const double line = cluster.scale_up == ScaleUp::kPcie ? cluster.device.pcie_gb_per_s
                                                                 : cluster.device.scale_up_gb_per_s;
          // NVLS halves what a rank sends for an all-reduce.
          const double least = kind == CollectiveKind::kAllReduce ? 1 : factor(kind, n);
          EXPECT_GE(seconds * 1.000001, size * least / (line * 1e9)) << layout.preset;
        }
        for (const std::int32_t share : cost.port_share) {
          EXPECT_GE(share, 0);
          EXPECT_LE(share, kWhole);
        }
        EXPECT_LE(cost.latency, cost.duration);
        EXPECT_LE(cost.memory_share, kWhole / 2);
        EXPECT_LT(cost.sms_held, cluster.device.sm_count);
      }
    }
  }
}

TEST(Prices, NoGemmBeatsThePeak) {
  for (const char* preset : {"dgx-a100-80gb", "dgx-h100", "dgx-b200", "l40s"}) {
    const DeviceSpec device = cluster_of(preset, 8).device;
    for (std::int64_t m = 1; m <= 65536; m *= 4) {
      for (std::int64_t k = 64; k <= 65536; k *= 4) {
        Gemm work;
        work.m = m;
        work.n = 4096;
        work.k = k;
        const Cost cost = gemm_cost(device, work, nullptr).value();
        const double flops = 2.0 * 4096 * static_cast<double>(m) * static_cast<double>(k);
        EXPECT_LE(flops / cost.duration.seconds() / 1e12, device.bf16_tflops);
        const double bytes =
            2.0 * (static_cast<double>(m * k) + 4096.0 * static_cast<double>(k + m));
        EXPECT_LE(bytes / cost.duration.seconds() / 1e9, device.memory_gb_per_s);
      }
    }
  }
}

TEST(Prices, DoublingARateSlowsNothing) {
  const Cluster cluster = cluster_of("dgx-h100", 64);
  std::vector<PriceOptions> faster(5);
  faster[0].compute_rate = 2;
  faster[1].memory_rate = 2;
  faster[2].scale_up_rate = 2;
  faster[3].network_rate = 2;
  faster[4].host_rate = 2;
  Gemm gemm;
  gemm.m = gemm.n = gemm.k = 4096;
  Attention attention;
  attention.q_heads = attention.kv_heads = 8;
  attention.q_len = attention.kv_len = 4096;
  attention.head_dim = 128;
  Attention unfused = attention;
  unfused.kernel = AttentionKernel::kUnfused;
  Kernel kernel;
  kernel.bytes = 1 << 28;
  Collective collective;
  collective.count = 1 << 26;
  Collective exchange = collective;
  exchange.kind = CollectiveKind::kAllToAll;
  Copy copy;
  copy.bytes = 1 << 28;
  const std::vector<Work> works = {gemm, attention, unfused, kernel, collective, exchange, copy};
  const auto base = make_cost_model(cluster, {});
  std::vector<bool> mattered(faster.size(), false);
  for (std::size_t option = 0; option < faster.size(); ++option) {
    const auto model = make_cost_model(cluster, faster[option]);
    for (const auto& group : {strided(8, 1), strided(8, 8), strided(64, 1)}) {
      const PlacementId at = base->place(group).value();
      ASSERT_EQ(at, model->place(group).value());
      for (const Work& work : works) {
        std::vector<PlacementId> places;
        if (std::holds_alternative<Collective>(work)) places.push_back(at);
        const Time slow = base->price(work, places).value().duration;
        const Time fast = model->price(work, places).value().duration;
        EXPECT_LE(fast, slow) << "option " << option << " work " << work.index();
        if (fast < slow) mattered[option] = true;
      }
    }
  }
  for (const bool matters : mattered) EXPECT_TRUE(matters);
}

double rms(const std::vector<double>& errors) {
  double sum = 0;
  for (const double e : errors) sum += e * e;
  return std::sqrt(sum / static_cast<double>(errors.size()));
}

Json measured(const std::string& file) {
  return read_json_file(std::string(FORETRAIN_TEST_DATA) + "/" + file).value();
}

// Residuals as docs/prices.md states them, natural logarithms of predicted over measured.
TEST(Prices, CollectivesAreAsCloseToMeasurementsAsStated) {
  std::map<std::string, std::vector<double>> errors;
  const Json data = measured("collectives_measured.json");
  for (const Json& series : *data.find("series")->array()) {
    const auto ranks = static_cast<int>(series.find("ranks")->number());
    Cluster cluster = cluster_of(*series.find("cluster")->string(), ranks);
    if (*series.find("fabric")->string() == "efa") cluster.fabric = Fabric::kEfa;
    const bool one = series.find("nodes")->number() == 1;
    const std::string& name = *series.find("collective")->string();
    const CollectiveKind kind = name == "all-reduce"   ? CollectiveKind::kAllReduce
                                : name == "all-gather" ? CollectiveKind::kAllGather
                                                       : CollectiveKind::kReduceScatter;
    std::vector<double> own;
    for (const Json& point : *series.find("bytes_us")->array()) {
      const double bytes = (*point.array())[0].number(), us = (*point.array())[1].number();
      const Cost cost = price(cluster, {}, {"", ranks, ranks, 1}, kind, static_cast<Bytes>(bytes));
      const double error = std::log(cost.duration.us() / us);
      own.push_back(error);
      errors[std::string(one ? "one node" : "many nodes") +
             (bytes < 268435456 ? ", below" : ", above")]
          .push_back(error);
    }
    RecordProperty(*series.find("id")->string(), std::to_string(rms(own)));
  }
  EXPECT_LT(rms(errors["one node, above"]), 0.10);
  EXPECT_LT(rms(errors["one node, below"]), 0.22);
  EXPECT_LT(rms(errors["many nodes, above"]), 0.12);
  EXPECT_LT(rms(errors["many nodes, below"]), 0.25);
}

TEST(Prices, GemmsAreAsCloseToMeasurementsAsStated) {
  std::vector<double> large, small;
  const Json data = measured("gemm_measured.json");
  for (const Json& item : *data.find("rows")->array()) {
    const Json::Array& row = *item.array();
    const DeviceSpec device = read_device(row[0], "test", "").value();
    Gemm work;
    work.m = static_cast<std::int64_t>(row[2].number());
    work.n = static_cast<std::int64_t>(row[3].number());
    work.k = static_cast<std::int64_t>(row[4].number());
    work.in = *row[1].string() == "fp8" ? DType::kFp8 : DType::kFp16;
    work.out = DType::kFp16;
    const double flops = 2.0 * row[2].number() * row[3].number() * row[4].number();
    const double us = flops / row[5].number() / 1e6;
    const double error = std::log(gemm_cost(device, work, nullptr).value().duration.us() / us);
    (work.m >= 4096 ? large : small).push_back(error);
  }
  EXPECT_LT(rms(large), 0.05);
  EXPECT_LT(rms(small), 0.24);  // squares of 1024 and 2048 run out of L2 in such loops
}

}  // namespace
}  // namespace foretrain
