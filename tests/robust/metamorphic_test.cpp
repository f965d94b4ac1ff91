// Laws that hold between two predictions, on drawn RUNs: what a change of a plan or of a machine
// cannot do. A RUN that breaks one is reduced to the fewest keys that still do, and printed.
// FORETRAIN_THOROUGH=1 draws 10,000 RUNs, else a sample.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <iostream>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/base/rng.h"
#include "sim/base/threads.h"
#include "tests/support/sanitized.h"
#include "tools/goodput/goodput.h"
#include "tools/import/export.h"
#include "tools/predict/predict.h"
#include "tools/search/search.h"

namespace foretrain {
namespace {

/// What a law says against a RUN, "" where it holds; none where it says nothing of it.
using Violation = std::optional<std::string>;
using Law = std::function<Violation(const Json& run)>;

bool breaks(const Violation& violation) { return violation && !violation->empty(); }

/// Of times: a change of one price moves what runs beside what. Docs/robustness.md has the reason.
constexpr double kOverlapTolerance = 0.03;
constexpr double kExact = 1e-9;

std::vector<std::string> path_words(const std::string& path) {
  std::vector<std::string> out(1);
  for (const char c : path) {
    if (c == '/') {
      out.emplace_back();
    } else {
      out.back() += c;
    }
  }
  return out;
}

/// The RUN with another value at "section/key".
Json with_value(const Json& run, const std::string& path, const Json& value) {
  const std::vector<std::string> words = path_words(path);
  Json out = run;
  Json* at = &out;
  for (std::size_t i = 0; i + 1 < words.size(); ++i) {
    if (at->find(words[i]) == nullptr) at->set(words[i], Json(Json::Object{}));
    at = at->find(words[i]);
  }
  at->set(words.back(), value);
  return out;
}

Json without_value(const Json& run, const std::string& path) {
  const std::vector<std::string> words = path_words(path);
  Json out = run;
  Json* at = &out;
  for (std::size_t i = 0; i + 1 < words.size() && at != nullptr; ++i) at = at->find(words[i]);
  if (at != nullptr) at->erase(words.back());
  return out;
}

/// Paths of all members, an object before its own.
void add_paths(const Json& json, const std::string& before, std::vector<std::string>& out) {
  if (json.object() == nullptr) return;
  for (const auto& [key, value] : *json.object()) {
    out.push_back(before + key);
    add_paths(value, before + key + "/", out);
  }
}

/// Keys are taken away one after another, whole sections first, until none can go: the RUN still
/// breaks the law, and breaks it no more without any one of its keys.
Json minimised(Json run, const Law& law) {
  for (bool smaller = true; smaller;) {
    smaller = false;
    std::vector<std::string> paths;
    add_paths(run, "", paths);
    for (const std::string& path : paths) {
      Json less = without_value(run, path);
      if (less == run || !breaks(law(less))) continue;
      run = std::move(less);
      smaller = true;
    }
  }
  return run;
}

std::optional<Prediction> predicted(const Json& json, PredictOptions options = {}) {
  const Result<Run> run = resolve_run(json, "RUN", {});
  if (!run.ok()) return std::nullopt;
  options.sensitivity = false;
  Result<Prediction> out = predict(run.value(), options);
  if (!out.ok()) return std::nullopt;
  return std::move(out).value();
}

std::optional<Prediction> step_of(const Json& json) {
  PredictOptions alone;
  alone.verify = false;
  alone.step_alone = true;
  return predicted(json, alone);
}

std::string seconds(const char* what, double before, double after) {
  return std::string(what) + ": " + std::to_string(1e3 * before) + " ms became " +
         std::to_string(1e3 * after) + " ms, " +
         std::to_string(100 * (after / std::max(before, 1e-300) - 1)) + " % more";
}

/// What is faster: keys of the cluster, all times two.
struct FasterPart {
  const char* name;
  std::vector<const char*> keys;
};
const std::vector<FasterPart>& faster_parts() {
  static const std::vector<FasterPart> parts = {
      {"arithmetic",
       {"device/bf16_tflops", "device/fp16_tflops", "device/fp32_tflops", "device/tf32_tflops"}},
      {"device memory", {"device/memory_gb_per_s"}},
      {"links in the node", {"device/scale_up_gb_per_s"}},
      {"network", {"network/nic_gbit_per_s"}},
      {"links to the host", {"device/pcie_gb_per_s"}},
      {"host", {"host_speed"}}};
  return parts;
}

/// The RUN on a cluster whose figures at the keys are `factor` times as high.
std::optional<Json> scaled(const Json& json, const std::vector<const char*>& keys, double factor) {
  const Result<Run> run = resolve_run(json, "RUN", {});
  if (!run.ok()) return std::nullopt;
  const DeviceSpec& device = run.value().cluster.device;
  const std::map<std::string, double> figures = {
      {"device/bf16_tflops", device.bf16_tflops},
      {"device/fp16_tflops", device.fp16_tflops},
      {"device/fp32_tflops", device.fp32_tflops},
      {"device/tf32_tflops", device.tf32_tflops},
      {"device/memory_gb_per_s", device.memory_gb_per_s},
      {"device/memory_gib", device.memory_gib},
      {"device/scale_up_gb_per_s", device.scale_up_gb_per_s},
      {"device/pcie_gb_per_s", device.pcie_gb_per_s},
      {"network/nic_gbit_per_s", run.value().cluster.nic_gbit_per_s},
      {"host_speed", run.value().cluster.host_speed}};
  Json out = with_value(json, "cluster/device/preset", device.name);
  for (const char* key : keys) {
    const double figure = figures.at(key);
    if (figure <= 0) return std::nullopt;
    out = with_value(out, std::string("cluster/") + key, factor * figure);
  }
  return out;
}

Law no_slower_with(const FasterPart& part) {
  return [part](const Json& run) -> Violation {
    const std::optional<Json> more = scaled(run, part.keys, 2);
    if (!more) return {};
    const auto before = step_of(run);
    const auto after = step_of(*more);
    if (!before || !after) return {};
    const double a = before->iteration_time_s;
    const double b = after->iteration_time_s;
    if (b <= a * (1 + kOverlapTolerance)) return "";
    // With faster links NCCL may choose more channels, which its buffers tell: they hold more SMs,
    // and products beside them may lose more than the exchange gains. That is no law's matter.
    if (before->memory.communication_gib != after->memory.communication_gib) return {};
    return seconds(part.name, a, b);
  };
}

Violation memory_helps(const Json& run) {
  const std::optional<Json> more = scaled(run, {"device/memory_gib"}, 2);
  if (!more) return {};
  const auto before = step_of(run);
  const auto after = step_of(*more);
  if (!before || !after) return {};
  if (before->memory.fits && !after->memory.fits) return "fits no more";
  if (after->iteration_time_s <= before->iteration_time_s * (1 + kExact)) return "";
  return seconds("twice the memory", before->iteration_time_s, after->iteration_time_s);
}

/// All that is told of a prediction.
std::string told_of(const Prediction& p) {
  std::string out = std::to_string(Time::from_seconds(p.iteration_time_s).ps) + " ps, " +
                    std::to_string(p.memory.peak_gib) + " GiB";
  for (const Time& part : p.breakdown) out += " " + std::to_string(part.ps);
  return out;
}

Violation folded_is_full(const Json& run) {
  PredictOptions all;
  all.full = all.whole = true;
  const auto folded = predicted(run);
  const auto full = predicted(run, all);
  if (!folded || !full) return {};
  if (told_of(*folded) == told_of(*full)) return "";
  return "folded " + told_of(*folded) + "; full " + told_of(*full);
}

Violation parts_add_up(const Json& run) {
  const auto one = predicted(run);
  if (!one) return {};
  Time sum;
  for (const Time& part : one->breakdown) sum = sum + part;
  const Time step = Time::from_seconds(one->iteration_time_s);
  if (std::abs(sum.ps - step.ps) <= 1) return "";
  return "parts take " + std::to_string(sum.ps) + " ps of " + std::to_string(step.ps);
}

Violation threads_change_nothing(const Json& run) {
  const auto alone = predicted(run);
  if (!alone) return {};
  constexpr std::size_t kThreads = 4;
  std::vector<std::string> together(kThreads);
  const Status done = all_at_once(kThreads, [&](std::size_t t) {
    const auto one = predicted(run);
    together[t] = one ? told_of(*one) : "nothing";
  });
  if (!done.ok()) return {};
  for (const std::string& one : together) {
    if (one != told_of(*alone)) return "alone " + told_of(*alone) + "; among threads " + one;
  }
  return "";
}

/// Of keys that a default gave a value.
Violation defaults_said_aloud(const Json& json) {
  const Result<Run> run = resolve_run(json, "RUN", {});
  const auto before = step_of(json);
  if (!run.ok() || !before) return {};
  for (const auto& [pointer, origin] : run.value().origins) {
    const Json* value = value_at(run.value().resolved, pointer);
    const bool plan = pointer.starts_with("/parallel/") || pointer.starts_with("/recompute/") ||
                      pointer.starts_with("/sharding/") || pointer.starts_with("/batch/");
    if (is_users(origin) || !plan || value == nullptr || value->is_null()) continue;
    if (value->object() != nullptr || path_words(pointer).size() > 3) continue;
    const auto after = step_of(with_value(json, pointer.substr(1), *value));
    if (!after || told_of(*after) == told_of(*before)) continue;
    return pointer + " = " + dump_json(*value, -1) + ", its default, gives " + told_of(*after) +
           " for " + told_of(*before);
  }
  return "";
}

Violation more_work_is_no_faster(const Json& json) {
  const Result<Run> run = resolve_run(json, "RUN", {});
  if (!run.ok()) return {};
  const auto before = step_of(json);
  const auto after = step_of(with_value(json, "batch/global", 2 * run.value().plan.global_batch));
  if (!before || !after) return {};
  if (after->iteration_time_s >= before->iteration_time_s * (1 - kExact)) return "";
  return seconds("twice the batch", before->iteration_time_s, after->iteration_time_s);
}

Violation exports_come_back(const Json& json) {
  const Result<Run> run = resolve_run(json, "RUN", {});
  if (!run.ok()) return {};
  const Result<Exported> files = export_run(run.value(), "megatron-lm");
  if (!files.ok() || !files.value().not_expressed.empty()) return {};
  ImportOptions options;
  options.cluster = run.value().cluster.name;
  options.accelerators = run.value().plan.accelerators;
  const Result<Draft> back = import_launch(files.value().files, options);
  if (!back.ok()) return "its files are not read: " + back.error().message;
  const auto before = step_of(json);
  const auto after = step_of(back.value().run);
  if (!before || !after) return {};
  if (told_of(*before) == told_of(*after)) return "";
  return "comes back as " + told_of(*after) + " for " + told_of(*before);
}

Violation search_finds_no_worse(const Json& run) {
  const auto own = step_of(run);
  if (!own || !own->memory.fits) return {};
  SearchOptions options;
  options.threads = 1;
  options.budget_s = 20;
  const auto found = search_plans(run, "RUN", options, [](const SearchProgress&) { return true; });
  if (!found.ok() || !found.value().certificate.complete) return {};
  if (found.value().plans.empty()) return "finds nothing that fits, and the RUN does";
  const double best = found.value().plans.front().iteration_time_s;
  if (!found.value().own) return {};
  if (best <= own->iteration_time_s * (1 + kExact)) return "";
  return seconds("the best of the search", own->iteration_time_s, best);
}

/// Campaigns are draws: three standard errors of their mean, from the 10th to the 90th percentile,
/// which is 2.56 standard deviations of a normal law.
Violation fewer_failures_help(const Json& json) {
  GoodputOptions options;
  options.threads = 1;
  options.advice = false;
  options.campaigns = 20;
  const auto of = [&options](const Json& run) -> std::optional<Goodput> {
    const Result<Run> read = resolve_run(run, "RUN", {});
    if (!read.ok()) return std::nullopt;
    const Result<Goodput> out = goodput_of(read.value(), options);
    if (!out.ok()) return std::nullopt;
    return out.value();
  };
  const char* const key = "campaign/reliability/failures_per_node_day";
  const Json base = with_value(json, "campaign/tokens", 1e11);
  const auto many = of(with_value(base, key, 0.4));
  const auto few = of(with_value(base, key, 0.1));
  if (!many || !few) return {};
  const Spread& a = many->statistics.ettr;
  const Spread& b = few->statistics.ettr;
  const double error = 3 * (a.p90 - a.p10 + b.p90 - b.p10) / 2.56 / std::sqrt(20.0);
  if (b.mean >= a.mean - error - kExact) return "";
  return "goodput " + std::to_string(a.mean) + " became " + std::to_string(b.mean);
}

Json draw_run(Rng& rng) {
  const auto one_of = [&rng](const std::vector<Json>& all) {
    return all[static_cast<std::size_t>(rng.below(static_cast<std::int64_t>(all.size())))];
  };
  static constexpr std::array kModels = {
      R"({"preset": "gpt2", "n_layer": 4})",
      R"({"model_type": "llama", "num_hidden_layers": 4, "hidden_size": 1024,
          "num_attention_heads": 16, "num_key_value_heads": 8, "intermediate_size": 2816,
          "vocab_size": 32000})",
      R"({"model_type": "llama", "num_hidden_layers": 8, "hidden_size": 4096,
          "num_attention_heads": 32, "intermediate_size": 11008, "vocab_size": 32000})",
      R"({"model_type": "mixtral", "num_hidden_layers": 4, "hidden_size": 1024,
          "num_attention_heads": 16, "num_key_value_heads": 8, "intermediate_size": 3584,
          "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 32000})",
      R"({"model_type": "zamba2", "num_hidden_layers": 4, "hidden_size": 512,
          "num_attention_heads": 8, "intermediate_size": 1024, "vocab_size": 32000,
          "n_mamba_heads": 16, "mamba_headdim": 64, "mamba_d_state": 64, "adapter_rank": 32,
          "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"]})",
      R"({"model_type": "albert", "num_hidden_layers": 4, "hidden_size": 1024,
          "num_attention_heads": 16, "intermediate_size": 4096, "vocab_size": 30000,
          "max_position_embeddings": 1024, "type_vocab_size": 2})",
      R"({"model_type": "vit", "num_hidden_layers": 4, "hidden_size": 1024,
          "num_attention_heads": 16, "intermediate_size": 4096, "image_size": 224})",
      R"({"model_type": "deepseek_v32", "num_hidden_layers": 4, "hidden_size": 1024,
          "num_attention_heads": 16, "intermediate_size": 4096, "vocab_size": 32000,
          "q_lora_rank": 256, "kv_lora_rank": 128, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32,
          "v_head_dim": 64, "index_n_heads": 8, "index_head_dim": 64, "index_topk": 256,
          "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 512,
          "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1})"};
  Json run{Json::Object{}};
  const auto drawn = static_cast<std::size_t>(rng.below(std::ssize(kModels)));
  run.set("model", parse_json(kModels[drawn], "model").value());
  run = with_value(run, "cluster/preset",
                   one_of({"dgx-a100-80gb", "dgx-h100", "dgx-a100-40gb", "pcie-a100", "hgx-h20"}));
  run = with_value(run, "cluster/accelerators", one_of({8, 16, 32}));
  run = with_value(run, "batch/global", one_of({32, 64}));
  run = with_value(run, "batch/micro", one_of({1, 2}));
  run = with_value(run, "batch/sequence", one_of({512, 1024}));
  const auto maybe = [&](const char* path, const std::vector<Json>& all) {
    if (rng.below(2) == 0) run = with_value(run, path, one_of(all));
  };
  maybe("parallel/tensor", {2, 4, 8});
  maybe("parallel/pipeline", {2, 4});
  maybe("parallel/context", {2});
  maybe("parallel/virtual_pipeline", {2});
  maybe("parallel/expert", {2, 4});
  maybe("sharding/level", {"none", "optimizer", "gradients", "parameters"});
  maybe("recompute", {"none", "selective", "full"});
  maybe("precision", {"bf16", "fp16"});
  if (rng.below(4) == 0) run = with_value(run, "offload/optimizer", "cpu");
  return run;
}

/// A legal RUN, of at most so many tries.
std::optional<Json> draw_legal(Rng& rng) {
  for (int i = 0; i < 50; ++i) {
    Json run = draw_run(rng);
    if (resolve_run(run, "RUN", {}).ok()) return run;
  }
  return std::nullopt;
}

/// Reduces and prints RUNs that break the law, the first few; how many do.
int check_law(const std::string& name, const Law& law, std::uint64_t seed, int sample) {
  constexpr int kShown = 3;
  const bool thorough = std::getenv("FORETRAIN_THOROUGH") != nullptr;
  const int runs = thorough ? 22 * sample : cases(sample, 2);
  int broken = 0;
  int judged = 0;
  for (int i = 0; i < runs; ++i) {
    Rng rng(seed + static_cast<std::uint64_t>(i));
    const std::optional<Json> run = draw_legal(rng);
    if (!run) continue;
    const Violation violation = law(*run);
    if (violation) ++judged;
    if (!breaks(violation) || ++broken > kShown) continue;
    const Json least = minimised(*run, law);
    std::cout << name << ", seed " << seed << "+" << i << ": " << law(least).value_or(*violation)
              << "\n  " << dump_json(least, -1) << "\n";
  }
  std::cout << name << ": " << broken << " of " << judged << " RUNs break it, of " << runs
            << " drawn\n";
  EXPECT_GT(judged, runs / 10) << "the law says too little";
  return broken;
}

TEST(Metamorphic, AFasterPartMakesNoStepSlower) {
  for (const FasterPart& part : faster_parts()) {
    EXPECT_EQ(check_law(part.name, no_slower_with(part), 7100, 25), 0);
  }
}
TEST(Metamorphic, MoreMemoryHelps) { EXPECT_EQ(check_law("memory", memory_helps, 7200, 50), 0); }
TEST(Metamorphic, FoldedIsFull) { EXPECT_EQ(check_law("folded", folded_is_full, 7300, 30), 0); }
TEST(Metamorphic, PartsAddUpToTheStep) { EXPECT_EQ(check_law("parts", parts_add_up, 7400, 50), 0); }
TEST(Metamorphic, ThreadsChangeNothing) {
  EXPECT_EQ(check_law("threads", threads_change_nothing, 7500, 20), 0);
}
TEST(Metamorphic, DefaultsMayBeSaidAloud) {
  EXPECT_EQ(check_law("defaults", defaults_said_aloud, 7600, 30), 0);
}
TEST(Metamorphic, MoreWorkIsNoFaster) {
  EXPECT_EQ(check_law("batch", more_work_is_no_faster, 7700, 50), 0);
}
TEST(Metamorphic, ExportsComeBack) {
  EXPECT_EQ(check_law("export", exports_come_back, 7800, 50), 0);
}
TEST(Metamorphic, TheBestOfASearchIsNoWorseThanThePlan) {
  EXPECT_EQ(check_law("search", search_finds_no_worse, 7900, 5), 0);
}
TEST(Metamorphic, FewerFailuresHelp) {
  EXPECT_EQ(check_law("failures", fewer_failures_help, 8000, 20), 0);
}

// The printed RUN keeps the keys that break the law. The minimizer removes all other keys.
TEST(Metamorphic, ViolationsAreReduced) {
  const Law made = [](const Json& run) -> Violation {
    const Json* parallel = run.find("parallel");
    const Json* tensor = parallel == nullptr ? nullptr : parallel->find("tensor");
    if (tensor == nullptr || tensor->number() < 2 || run.find("recompute") == nullptr) return {};
    return "made up";
  };
  const Json run = parse_json(R"({"model": {"preset": "gpt2", "n_layer": 4}, "recompute": "full",
    "parallel": {"pipeline": 2, "tensor": 4}, "batch": {"global": 8}})",
                              "run")
                       .value();
  EXPECT_EQ(minimised(run, made),
            parse_json(R"({"recompute": "full", "parallel": {"tensor": 4}})", "run").value());
}

}  // namespace
}  // namespace foretrain
