// Context parallelism from the command line: what is predicted, what is refused by name.
#include <gtest/gtest.h>

#include "tests/cli/run_command.h"

namespace foretrain {
namespace {

TEST(ContextParallel, WindowsGoWithoutARing) {
  const Workplace place;
  place.write("run.json", R"({"model": "mistral-7b", "cluster": {"preset": "dgx-h100",
      "accelerators": 8}, "batch": {"global": 8, "sequence": 8192}, "parallel": {"context": 4},
      "sharding": {"level": "optimizer"}})");
  const CommandResult ring = place.run({"simulate", "run.json"});
  EXPECT_EQ(ring.exit_code, 1);
  for (const char* part : {"/parallel/context", "windows", "allgather", "alltoall"}) {
    EXPECT_NE(ring.err.find(part), std::string::npos) << ring.err;
  }
  for (const char* exchange : {"allgather", "alltoall"}) {
    const CommandResult run =
        place.run({"simulate", "run.json", "--set", std::string("kernels.context=") + exchange});
    EXPECT_EQ(run.exit_code, 0) << run.err;
  }
}

TEST(ContextParallel, InnerDegreesThatDoNotFit) {
  const Workplace place;
  place.write("run.json", R"({"model": {"preset": "llama-3-8b"}, "cluster": {"preset": "dgx-h100",
      "accelerators": 16}, "batch": {"global": 16, "sequence": 8192},
      "parallel": {"context": 16, "context_inner": 4}, "sharding": {"level": "optimizer"}})");
  const CommandResult fits = place.run({"simulate", "run.json"});
  EXPECT_EQ(fits.exit_code, 0) << fits.err;
  const std::pair<const char*, const char*> bad[] = {
      {"parallel.context_inner=3", "3 of context 16"},
      {"parallel.context_inner=16", "leaves no ring"},
      {"parallel.context=1", "4 of context 1"},
      {"kernels.context=alltoall", "kernels.context ring"},
      {"model.num_key_value_heads=2", "key-value heads 2"}};
  for (const auto& [set, part] : bad) {
    expect_refused(place, place.run({"simulate", "run.json", "--set", set}),
                   {"/parallel/context_inner", part});
  }
}

constexpr const char* kRingSelfRun = R"({"model": "gpt3-1.3b", "system": "colossal-ai",
    "cluster": {"preset": "dgx-a100-80gb", "accelerators": 4}, "parallel": {"context": 4},
    "batch": {"global": 4, "sequence": 2044}, "recompute": "none",
    "gradients": {"accumulation": "fused"},
    "kernels": {"context": "ring_self"}})";

// Runs of 511 tokens, of which a ring of balanced chunks has none. At the peak, in the head, a rank
// keeps rows of scores for a quarter of the tokens. The host waits for every exchange.
TEST(ContextParallel, RingSelfAttention) {
  const Workplace place;
  place.write("run.json", kRingSelfRun);
  const Json cut = simulated(place, "run.json");
  const Json whole = simulated(place, "run.json", {"parallel.context=1", "kernels={}"});
  const char* activations = "memory/by_kind_gib/activations";
  EXPECT_NEAR(at(cut, activations).number() / at(whole, activations).number(), 0.25, 1e-3);
  EXPECT_GT(at(cut, "breakdown_s/exposed_context").number(), 0);
  EXPECT_EQ(at(cut, "breakdown_s/exposed_expert").number(), 0);
  const auto host = [&place](const char* synchronize) {  // of ops that take longer than a launch
    return at(simulated(place, "run.json", {"batch.micro=4", synchronize}), "breakdown_s/host")
        .number();
  };
  EXPECT_GT(host("host.synchronize=transfers"), 10 * host("host.synchronize=none"));
  expect_refused(place,
                 place.run({"simulate", "run.json", "--set", "kernels.context=ring", "--set",
                            "kernels.attention=flash"}),
                 {"/batch/sequence", "twice context 4"});
}

TEST(ContextParallel, RingSelfAttentionThatCannotBe) {
  const Workplace place;
  place.write("run.json", kRingSelfRun);
  const std::pair<const char*, std::vector<std::string>> bad[] = {
      {"kernels.attention=flash",
       {"/kernels/attention", "ring_self", "set kernels.attention to unfused"}},
      {"kernels.attention=cudnn", {"/kernels/attention", "set kernels.attention to unfused"}},
      {"kernels.context=rings",
       {"/kernels/context", "one of ring, allgather, alltoall, ring_self"}},
      {"batch.sequence=2046", {"/batch/sequence", "not a multiple of context 4"}},
      {"parallel.context_inner=2", {"/parallel/context_inner", "kernels.context ring"}},
      {"parallel.context=1", {"/kernels/context", "needs parallel.context > 1"}},
      {"batch.documents=511",
       {"/batch/documents", "ring, allgather or alltoall, with fused attention"}},
      {"model.sliding_window=128",
       {"/parallel/context", "windows", "allgather or alltoall, with fused attention"}},
      {"model=deepseek-v2", {"/kernels/attention", "unfused latent attention"}}};
  for (const auto& [set, parts] : bad) {
    expect_refused(place, place.run({"simulate", "run.json", "--set", set}), parts);
  }
  expect_refused(place,
                 place.run({"simulate", "run.json", "--set", "batch.sequence=2048", "--set",
                            "kernels.context=ring"}),
                 {"/kernels/attention", "but for kernels.context ring_self"});
}

}  // namespace
}  // namespace foretrain
