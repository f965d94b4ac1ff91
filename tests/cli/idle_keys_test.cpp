// Keys without an effect: named on stderr, and really without one.
#include <gtest/gtest.h>

#include <algorithm>

#include "hardware/keys/cluster_keys.h"
#include "models/plan/keys/keys.h"
#include "tests/cli/run_command.h"

namespace foretrain {
namespace {

struct Idle {
  std::string set;
  std::string why;
  Sets base;  ///< beside kSmallRun
};

void PrintTo(const Idle& idle, std::ostream* out) { *out << idle.set; }

std::string pointer_of(const std::string& set) {
  std::string out = "/" + set.substr(0, set.find('='));
  std::replace(out.begin(), out.end(), '.', '/');
  return out;
}

class IdleKeys : public testing::TestWithParam<Idle> {};

TEST_P(IdleKeys, AreNamedAndMoveNothing) {
  const Workplace place;
  place.write("run.json", kSmallRun);
  const std::string pointer = pointer_of(GetParam().set);
  std::vector<std::string> arguments =
      with_sets({"simulate", "run.json", "--json", "-"}, GetParam().base);
  const CommandResult base = place.run(arguments);
  arguments.insert(arguments.end(), {"--set", GetParam().set});
  const CommandResult other = place.run(arguments);
  ASSERT_EQ(other.exit_code, 0) << other.err;
  EXPECT_EQ(base.err.find(pointer), std::string::npos) << base.err;
  EXPECT_NE(other.err.find("foretrain: warning: run.json: " + pointer + " has no effect"),
            std::string::npos)
      << other.err;
  EXPECT_NE(other.err.find(GetParam().why + "\n"), std::string::npos) << other.err;
  // Changes of the plan may give the key an effect.
  const std::vector<std::string> apart = {"simulation", "notes", "accelerator", "faster",
                                          "runs_like_yours"};
  EXPECT_EQ(dump_json(without(parse_json(base.out, "base").value(), apart)),
            dump_json(without(parse_json(other.out, "other").value(), apart)));
  arguments.emplace_back("--quiet");
  EXPECT_EQ(place.run(arguments).err, "");
}

/// Every reason of every key.
std::vector<Idle> reasons() {
  std::vector<Idle> out;
  const auto add = [&out](const auto& keys) {
    for (const auto& key : keys) {
      for (const auto& reason : key.idle_reasons()) {
        const bool own = reason.value.empty();
        if (own && key.probes.empty()) continue;
        out.push_back({own ? key.probes.front().set : key.path() + "=" + reason.value, reason.why,
                       reason.base});
      }
    }
  };
  add(all_run_keys());
  add(cluster_keys());
  out.push_back({"offload.activation_layers=100",
                 "beyond the 6 layers of a stage",
                 {"offload.activation_layers=6"}});
  return out;
}
INSTANTIATE_TEST_SUITE_P(Each, IdleKeys, testing::ValuesIn(reasons()));

// Systems set what other levels and models need.
TEST(IdleKeysOf, SystemsAreNotNamed) {
  const Workplace place;
  place.write("run.json", R"({"model": "gpt3-125m",
      "cluster": {"preset": "dgx-a100-80gb", "accelerators": 8}})");
  const Json listed =
      parse_json(place.run({"list", "systems", "--json", "-"}).out, "systems").value();
  ASSERT_NE(listed.find("systems"), nullptr);
  ASSERT_GT(listed.find("systems")->array()->size(), 10U);
  for (const Json& system : *listed.find("systems")->array()) {
    const CommandResult shown =
        place.run({"show", "run.json", "--set", "system=" + *system.string()});
    EXPECT_EQ(shown.exit_code, 0) << shown.err;
    EXPECT_EQ(shown.err, "");
  }
}

TEST(IdleKeysOf, RunsAreNamedByEveryVerb) {
  const Workplace place;
  place.write("run.json", R"({"model": {"model_type": "llama", "num_hidden_layers": 1,
      "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 128},
      "cluster": {"preset": "host", "accelerators": 1}, "precision": "fp32",
      "kernels": {"attention": "unfused"},
      "batch": {"sequence": 16}, "parallel": {"retain_outputs": true}})");
  const std::string line =
      "foretrain: warning: run.json: /parallel/retain_outputs has no effect: parallel.pipeline is "
      "1\n";
  const std::vector<std::vector<std::string>> verbs = {
      {"show", "run.json"},
      {"simulate", "run.json"},
      {"execute", "run.json", "--steps", "2"},
      {"validate", "run.json", "--steps", "2", "--seconds-per-op", "0.001"}};
  for (const std::vector<std::string>& verb : verbs) {
    const CommandResult result = place.run(verb);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_TRUE(result.err.starts_with(line)) << verb[0] << ": " << result.err;
  }
}

// Dispatchers of CUDA are priced elsewhere as if they were there, which a note says.
TEST(IdleKeysOf, DispatchersOfCudaAreNotedElsewhere) {
  const Workplace place;
  place.write("run.json", R"({"model": "mixtral-8x7b", "parallel": {"expert": 8},
      "cluster": {"preset": "mi300x", "accelerators": 8}, "batch": {"sequence": 4096}})");
  const auto notes = [&place](const std::vector<std::string>& sets) {
    return dump_json(at(simulated(place, "run.json", sets), "notes"));
  };
  const std::string note = "moe.dispatcher deepep: its kernels are CUDA's";
  EXPECT_NE(notes({"moe.dispatcher=deepep"}).find(note), std::string::npos);
  EXPECT_EQ(notes({}).find("moe.dispatcher"), std::string::npos);
  EXPECT_EQ(notes({"moe.dispatcher=deepep", "cluster.preset=dgx-h100"}).find("CUDA's"),
            std::string::npos);
}

// A default that asks for nothing is no mistake.
TEST(IdleKeysOf, DefaultsAreNotNamed) {
  const Workplace place;
  place.write("run.json", kSmallRun);
  const CommandResult shown = place.run({"show", "run.json", "--set", "sharding.persist_elements=0",
                                         "--set", "parallel.retain_outputs=false", "--set",
                                         "offload.page_mib=0", "--set", "overlap.expert=null"});
  EXPECT_EQ(shown.exit_code, 0);
  EXPECT_EQ(shown.err, "");
}

}  // namespace
}  // namespace foretrain
