// The verb `export`: a RUN as the launch files of a framework, which import as that RUN again.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "sim/base/assets.h"
#include "tests/cli/run_command.h"
#include "tools/import/export.h"

namespace foretrain {
namespace {

/// What the files of a framework have no words for, of shipped runs of that framework: keys that a
/// list names. DeepSpeed's files go with Hugging Face's code of a model, those runs with
/// Megatron-DeepSpeed's.
const std::set<std::string>& without_words(const std::string& run) {
  static const std::set<std::string> hub = {"kernels.flash", "kernels.fusion", "kernels.loss"};
  static const std::map<std::string, std::set<std::string>> all = {
      {"bloom-176b-384-a100", hub},
      {"deepspeed-internlm-7b-8-a100", hub},
      {"deepspeed-ulysses-gpt-1.2b-8-a100", hub},
      {"deepspeed-gpt-18b-384-v100", {"kernels.fusion", "kernels.loss", "gradients.inner_group"}},
      {"deepspeed-gpt-1.3b-moe-128-128-a100",
       {"kernels.fusion", "kernels.loss", "parallel.expert"}},
      {"megatron-lm-gpt-21b-32-a100", {"schedule"}},
      {"megatron-lm-gpt-21b-256k-32-a100", {"schedule"}},
      {"nemotron-nano-9b-64-h100", {"model"}}};
  static const std::set<std::string> none;
  const auto found = all.find(run);
  return found == all.end() ? none : found->second;
}

std::vector<std::string> shipped_runs() {
  constexpr std::string_view kFolder = "runs/";
  std::vector<std::string> out;
  for (const Asset& asset : assets()) {
    if (!asset.path.starts_with(kFolder)) continue;
    std::string name(asset.path.substr(kFolder.size()));
    out.push_back(name.substr(0, name.size() - std::string_view(".json").size()));
  }
  return out;
}

TEST(Export, ShippedRunsOfAFrameworkComeBackAsTheyWere) {
  std::map<std::string, int> seen;
  int whole = 0;
  for (const std::string& name : shipped_runs()) {
    const Result<foretrain::Run> run = load_run(name, {});
    ASSERT_TRUE(run.ok()) << name;
    const std::vector<std::string> targets = export_targets();
    if (std::find(targets.begin(), targets.end(), run.value().system) == targets.end()) continue;
    const Result<Exported> out = export_run(run.value(), run.value().system);
    ASSERT_TRUE(out.ok()) << name << ": " << out.error().message;
    ++seen[run.value().system];
    if (out.value().not_expressed.empty()) ++whole;
    std::set<std::string> named;
    for (const NotModelled& one : out.value().not_expressed) {
      named.insert(one.from.substr(0, one.from.find(' ')));
    }
    for (const std::string& key : named) {
      EXPECT_TRUE(without_words(name).contains(key)) << name << ": " << key;
    }
  }
  EXPECT_EQ(seen.size(), export_targets().size());
  EXPECT_GE(whole, 9);
}

/// The check that the law above rests on sees a change: files that say something else are told.
TEST(Export, NamesWhatTheFilesDoNotSay) {
  const Result<foretrain::Run> run = load_run("llama-3-8b-8-h100", {"host.step_us=77"});
  ASSERT_TRUE(run.ok());
  const Result<Exported> out = export_run(run.value(), "megatron-lm");
  ASSERT_TRUE(out.ok());
  ASSERT_EQ(out.value().not_expressed.size(), 1U);
  EXPECT_EQ(out.value().not_expressed[0].from, "host.step_us = 77");
}

/// Plans of Megatron-LM that draw on the tables' rows, and on what follows from several.
TEST(Export, PlansOfMegatronComeBack) {
  const std::vector<std::vector<std::string>> all = {
      {"parallel.tensor=2", "parallel.sequence=false", "sharding.level=none"},
      {"parallel.tensor=4", "overlap.tensor=true", "precision=fp8", "kernels.attention=cudnn"},
      {"precision=fp16", "gradients.dtype=compute", "recompute=full"},
      {"parallel.pipeline=2", "parallel.tensor=1", "parallel.virtual_pipeline=4"},
      {"recompute={\"modules\":[\"layer\"],\"layers\":3}", "parallel.tensor=1"},
      {"recompute={\"modules\":[\"layernorm\",\"mlp\"]}", "gradients.dtype=compute"},
      {"parallel.context=2", "kernels.context=alltoall", "overlap.gradient_reduce=false"},
      {"model=mixtral-8x7b", "parallel.expert=8", "parallel.tensor=1", "moe.dispatcher=deepep",
       "batch.sequence=4096"},
      {"model=deepseek-v3", "parallel.expert=8", "parallel.tensor=1", "moe.routing=balanced",
       "batch.sequence=4096"},
      {"offload.optimizer=cpu", "gradients.average=before", "gradients.check_nan=true"},
      {"kernels.loss=parallel", "kernels.optimizer=sgd", "gradients.clip_norm=0", "dropout=0.1"}};
  for (const std::vector<std::string>& sets : all) {
    const Result<foretrain::Run> run = load_run("llama-3-8b-8-h100", sets);
    ASSERT_TRUE(run.ok()) << sets.front() << ": " << run.error().message;
    const Result<Exported> out = export_run(run.value(), "megatron-lm");
    ASSERT_TRUE(out.ok()) << sets.front();
    for (const NotModelled& one : out.value().not_expressed) {
      ADD_FAILURE() << sets.front() << ": " << one.from << ": " << one.why;
    }
  }
}

TEST(Export, PlansOfTorchtitanAndMaxTextComeBack) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> all = {
      {"torchtitan-llama-3.1-8b-64-a100", {"parallel.tensor=8", "overlap.tensor=true"}},
      {"torchtitan-llama-3.1-8b-64-a100", {"sharding.group_size=16", "kernels.compile=true"}},
      {"torchtitan-llama-3.1-8b-64-a100", {"parallel.context=8", "kernels.context=allgather"}},
      {"torchtitan-llama-3.1-8b-64-a100", {"recompute=full", "batch.global=128"}},
      {"torchtitan-llama-3.1-8b-64-a100",
       {"recompute={\"modules\":[\"layer\"],\"layer_period\":2}"}},
      {"torchtitan-llama-3.1-8b-64-a100", {"parallel.pipeline=4", "batch.global=256"}},
      {"maxtext-llama-2-70b-64-h100", {"parallel.tensor=8", "sharding.group_size=8"}},
      {"maxtext-llama-2-70b-64-h100", {"recompute={\"modules\":[\"layer\"],\"keep\":[\"qkv\"]}"}},
      {"maxtext-llama-2-70b-64-h100", {"batch.global=256", "precision=fp8"}}};
  for (const auto& [name, sets] : all) {
    const Result<foretrain::Run> run = load_run(name, sets);
    ASSERT_TRUE(run.ok()) << sets.front() << ": " << run.error().message;
    const Result<Exported> out = export_run(run.value(), run.value().system);
    ASSERT_TRUE(out.ok()) << sets.front();
    for (const NotModelled& one : out.value().not_expressed) {
      ADD_FAILURE() << name << " " << sets.front() << ": " << one.from << ": " << one.why;
    }
  }
}

TEST(ExportVerb, WritesFilesThatImportAsTheRun) {
  const Workplace place;
  const CommandResult script = place.run(
      {"export", "gpt3-175b-1024-a100", "--to", "megatron-lm", "--out", "train.sh", "--strict"});
  ASSERT_EQ(script.exit_code, 0) << script.err;
  const CommandResult back = place.run(
      {"import", "train.sh", "--cluster", "dgx-a100-80gb", "--out", "run.json", "--strict"});
  ASSERT_EQ(back.exit_code, 0) << back.err;
  const std::vector<std::string> fast = {"--no-advice"};
  const Json before = simulated(place, "gpt3-175b-1024-a100", {}, fast);
  const Json after = simulated(place, "run.json", {}, fast);
  EXPECT_EQ(at(before, "iteration_time_s"), at(after, "iteration_time_s"));
  EXPECT_EQ(at(before, "memory/peak_gib"), at(after, "memory/peak_gib"));
  // Several files go to a folder.
  const std::vector<std::string> several = {"export", "deepspeed-internlm-7b-8-a100", "--to",
                                            "deepspeed"};
  EXPECT_EQ(place.run(with_sets(several, {})).exit_code, 0);
  std::vector<std::string> to_file = several;
  to_file.insert(to_file.end(), {"--out", "x.json"});
  EXPECT_EQ(place.run(to_file).exit_code, 1);
  to_file.back() = ".";
  EXPECT_EQ(place.run(to_file).exit_code, 0);
  for (const char* name : {"ds_config.json", "config.json"}) {
    EXPECT_TRUE(parse_json(place.read(name), name).ok()) << name;
  }
  to_file.push_back("--strict");
  EXPECT_EQ(place.run(to_file).exit_code, 3);
}

TEST(ExportVerb, FaultsAreNamed) {
  const Workplace place;
  const CommandResult other = place.run({"export", "llama-3-8b-8-h100", "--to", "megatron"});
  EXPECT_EQ(other.exit_code, 1);
  EXPECT_NE(other.err.find("megatron-lm"), std::string::npos) << other.err;
  EXPECT_EQ(place.run({"export", "llama-3-8b-8-h100"}).exit_code, 2);
  const CommandResult network =
      place.run({"export", "horovod-resnet-50-32-v100", "--to", "megatron-lm"});
  EXPECT_EQ(network.exit_code, 1);
  EXPECT_NE(network.err.find("/model"), std::string::npos) << network.err;
}

}  // namespace
}  // namespace foretrain
