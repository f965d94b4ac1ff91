// Do the phases of a layer of DeepSeek-V3 cost what its published trace shows, beside the exchange
// that holds some of the SMs? Prints the table of docs/explanation/expert-layer-prices.md:
// build/release/tests/foretrain_accuracy --gtest_filter='OverlappedPair*'
#include <gtest/gtest.h>

#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "hardware/hardware_cost_model.h"
#include "models/lower.h"
#include "tools/predict/predict.h"

namespace foretrain {
namespace {

Json figures_of_trace() {
  return read_json_file(std::string(FORETRAIN_TEST_DATA) + "/deepseek_v3_pair.json").value();
}

/// One layer of the model on the machine of the trace, as its report says it was trained: norms,
/// the way up from the latent ranks and the activation computed again, DeepGEMM for its experts,
/// CUTLASS for gradients of weights. All accelerators alike: the trace is of one.
Run run_of_trace() {
  const char* text = R"({"model": {"preset": "deepseek-v3", "num_hidden_layers": 1,
      "first_k_dense_replace": 0, "num_nextn_predict_layers": 0},
    "cluster": {"preset": "hgx-h800", "accelerators": 64, "rate_spread": 0},
    "system": "megatron-lm", "parallel": {"expert": 64},
    "batch": {"global": 64, "micro": 1, "sequence": 4096}, "precision": "fp8-blockwise",
    "kernels": {"grouped_gemm": "single", "fp8_weight_gradient": "cutlass"},
    "recompute": {"modules": ["layernorm", "mla_up_proj", "moe_act"]},
    "moe": {"dispatcher": "deepep", "routing": "balanced", "dispatch_dtype": "fp8"}})";
  return resolve_run(parse_json(text, "test").value(), "test", {}).value();
}

/// What the annotations of the trace call attn and mlp, F, B and W.
std::string phase_of(const Op& op) {
  const bool experts = op.name.starts_with("moe.") && !op.name.starts_with("moe.route") &&
                       !op.name.starts_with("moe.input_gradient");
  const std::string block = experts ? "experts" : "attention";
  if (op.name.ends_with("weight_gradient")) return block + " weight gradients";
  return block + (op.phase == Phase::kForward ? " forward" : " backward");
}

/// Time of a phase alone and beside the exchange.
struct PhaseTime {
  double alone_ms = 0, beside_ms = 0;
};

struct PairPrices {
  std::map<std::string, PhaseTime> phases;
  std::map<std::string, double> exchange_ms;
};

PairPrices priced() {
  const Run run = run_of_trace();
  const auto model = make_cost_model(run.cluster, {});
  const Workload workload = lower(run.model, run.plan);
  const Program& program = workload.programs[0];
  std::vector<RankId> all;
  for (std::int32_t r = 0; r < run.cluster.accelerators; ++r) all.emplace_back(r);
  const std::vector<PlacementId> everywhere = {model->place(all).value()};
  std::vector<const Op*> ops;
  PairPrices out;
  std::int32_t memory_share = 0;
  std::int32_t sms = 0;
  for (const Call& call : program.calls) {
    if (call.layer != 0 || call.microbatch != 0) continue;
    for (const Op& op : program.segments[call.segment.index()].ops) {
      const bool once_a_step = op.name.ends_with("quantize_weights");
      if (op.category == Category::kCompute && !once_a_step) ops.push_back(&op);
      if (!op.name.ends_with(".exchange")) continue;
      const Cost cost = model->price(program.works[op.work.index()], everywhere).value();
      out.exchange_ms[op.name] = cost.duration.us() / 1e3;
      memory_share = cost.memory_share;
      sms = cost.sms_held;
    }
  }
  for (const Op* op : ops) {
    const Cost cost = model->price(program.works[op->work.index()], {}).value();
    PhaseTime& phase = out.phases[phase_of(*op)];
    phase.alone_ms += cost.duration.us() / 1e3;
    phase.beside_ms += duration_beside(cost, model->sm_count(), sms, memory_share).us() / 1e3;
  }
  return out;
}

// Exchanges of the trace wait in their kernels, for peers and for products; they are held to what
// DeepEP's own benchmark of this exchange takes.
TEST(OverlappedPair, PhasesTakeWhatTheTraceShows) {
  const PairPrices layer = priced();
  const Json root = figures_of_trace();
  for (const auto& [name, value] : *root.find("phases")->object()) {
    const PhaseTime& time = layer.phases.at(name);
    const double error = time.beside_ms / value.number() - 1;
    std::printf("| %s | %.2f | %.2f | %.2f | %+.0f %% |\n", name.c_str(), value.number(),
                time.alone_ms, time.beside_ms, 100 * error);
    EXPECT_GT(time.beside_ms, time.alone_ms) << name;
    EXPECT_NEAR(error, 0, 0.15) << name;
  }
  const Json& benchmark = *root.find("benchmark");
  for (const auto& [name, value] : *root.find("exchange")->object()) {
    const double ms = layer.exchange_ms.at(name);
    const double alone = benchmark.find(name)->number();
    std::printf("| `%s` | %.2f | %.2f | %.2f |\n", name.c_str(), value.number(), alone, ms);
    EXPECT_NEAR(ms / alone, 1, 0.1) << name;
    EXPECT_LT(ms, value.number()) << name;
  }
}

}  // namespace
}  // namespace foretrain
