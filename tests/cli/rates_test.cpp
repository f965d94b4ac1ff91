// Does more of a resource never make a step slower?
#include <gtest/gtest.h>

#include "sim/base/json.h"
#include "tests/cli/run_command.h"

namespace foretrain {
namespace {

struct Rate {
  const char* set;
  std::vector<std::string> base = {};  ///< overrides of both runs
};

void PrintTo(const Rate& rate, std::ostream* out) { *out << rate.set; }

class Rates : public testing::TestWithParam<Rate> {};

TEST_P(Rates, TwiceTheRateIsNeverSlower) {
  const Workplace& place = small_place();
  std::vector<std::string> sets = GetParam().base;
  sets.emplace_back("cluster.accelerators=32");
  const Json base = simulated(place, "run.json", sets);
  sets.emplace_back(GetParam().set);
  const Json faster = simulated(place, "run.json", sets);
  EXPECT_LE(at(faster, "iteration_time_s").number(), at(base, "iteration_time_s").number());
}

const Rate kRates[] = {
    {"cluster.network.nic_gbit_per_s=400"},
    {"cluster.network.nic_gbit_per_s=400", {"parallel.rank_order=dp-tp-pp"}},
    {"cluster.network.nic_gbit_per_s=2", {"cluster.network.nic_gbit_per_s=1"}},
    {"cluster.network.nics_per_node=16"},
    {"cluster.network.nics_per_node=4", {"cluster.network.nics_per_node=2"}},
    {"cluster.network.oversubscription=2", {"cluster.network.oversubscription=4"}},
    {"cluster.host_memory_gb_per_s=400", {"cluster.host_memory_gb_per_s=200"}},
    {"cluster.storage_gb_per_s=12", {"offload.optimizer=nvme"}},
    {"cluster.storage_write_gb_per_s=12", {"offload.optimizer=nvme"}},
};
INSTANTIATE_TEST_SUITE_P(Each, Rates, testing::ValuesIn(kRates));

TEST(Result, AFasterDeviceMemoryOrLinkIsNeverSlower) {
  const Workplace& place = small_place();
  const CommandResult shown = place.run({"show", "a100-sxm-80gb", "--json", "-"});
  const Result<Json> device = parse_json(shown.out, "stdout");
  ASSERT_TRUE(device.ok()) << shown.err;
  const double base = at(simulated(place, "run.json"), "iteration_time_s").number();
  for (const char* rate : {"memory_gb_per_s", "scale_up_gb_per_s", "nccl_scale_up_gb_per_s",
                           "pcie_gb_per_s", "bf16_tflops", "fp32_tflops"}) {
    const Json* old = device.value().find(rate);
    if (old == nullptr) continue;
    Json faster = device.value();
    faster.set(rate, old->number() * 2);
    const Json json = simulated(place, "run.json", {"cluster.device=" + dump_json(faster, -1)});
    // Collectives on faster links take more memory bandwidth from the kernels beside them, and
    // which kernels those are shifts with every microbatch: steps may grow a little.
    const double slack = std::string_view(rate).ends_with("scale_up_gb_per_s") ? 1.005 : 1;
    EXPECT_LE(at(json, "iteration_time_s").number(), base * slack) << rate;
  }
}

}  // namespace
}  // namespace foretrain
