// Whatever is wrong with the input: exit 1, one message that helps, nothing left behind.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "tests/cli/run_command.h"

namespace foretrain {
namespace {

struct BadSet {
  std::string set;
  std::vector<std::string> parts;
};

void PrintTo(const BadSet& bad, std::ostream* out) { *out << bad.set; }

class BadSets : public testing::TestWithParam<BadSet> {};

TEST_P(BadSets, AreRefused) {
  const Workplace place;
  place.write("run.json", kSmallRun);
  const CommandResult result = place.run(
      {"simulate", "run.json", "--json", "out.json", "--trace", "t.json", "--set", GetParam().set});
  expect_refused(place, result, GetParam().parts);
  EXPECT_LT(result.cpu_s, 5) << "a refusal must not take long";
  EXPECT_LT(result.wall_s, 60);
}

const BadSet kUnknownNames[] = {
    {"paralel.tensor=2", {"run.json", "/paralel", "unknown key", "\"parallel\""}},
    {"parallel.tensr=2", {"run.json", "/parallel/tensr", "unknown key", "\"tensor\""}},
    {"cluster.network.nic_gbps=3", {"/cluster/network/nic_gbps", "nic_gbit_per_s"}},
    {"cluster.network={\"topology\":{\"kind\":\"fat-tree\",\"levels\":[{\"nodes_per_leaf\":16}]}}",
     {"/levels/0/nodes: is missing", "unknown here: nodes_per_leaf"}},
    {"cluster=h100", {"/cluster", "did you mean \"dgx-h100\"", "foretrain list clusters"}},
    {"system=hf", {"/system", "hf is transformers here"}},
    {"sharding=zero3", {"/sharding", "expected an object; zero3 is {\"level\": \"zero3\"} here"}},
    {"model=llama-3-8", {"/model", "llama-3-8", "did you mean \"llama-3-8b\""}},
    {"cluster=dgx-h10", {"/cluster", "dgx-h10", "did you mean \"dgx-h100\""}},
    {"cluster.preset=dgx-h10", {"/cluster/preset", "dgx-h10", "did you mean \"dgx-h100\""}},
    {"cluster.device=h100", {"/cluster/device", "h100-sxm-80gb"}},
    {"system=megatron-ml", {"/system", "megatron-ml", "did you mean \"megatron-lm\""}},
    {"system=megatron", {"/system", "\"megatron\"", "megatron-lm"}},
    {"launch.cuda_graph=layers", {"/launch/cuda_graph", "\"layers\"", "none, layer, full"}},
    {"launch.graph_modules=[\"attn\"]", {"/launch/graph_modules", "cuda_graph layer alone"}},
    {"launch={\"cuda_graph\":\"layer\",\"graph_modules\":[\"moe_router\"]}",
     {"/launch/graph_modules", "the model has none"}},
    {"launch={\"cuda_graph\":\"layer\",\"graph_modules\":[\"attention\"]}",
     {"/launch/graph_modules", "\"attention\"", "moe_router"}},
    {"launch.operations={\"atention\":2}", {"/launch/operations/atention", "attention"}},
    {"launch.operations={\"gemm\":-1}", {"/launch/operations/gemm", "found -1", "from 0"}},
    {"recompute={\"modules\":[\"cor_attn\"]}", {"/recompute/modules", "cor_attn", "core_attn"}},
    {"recompute={\"keep\":[\"qvk\"]}", {"/recompute/keep", "qvk", "did you mean \"qkv\""}},
    {"recompute={\"keep\":\"qkv\"}", {"/recompute/keep", "expected a list"}},
    {"recompute={\"modules\":[\"mlp\"],\"keep\":[\"up\"]}", {"/recompute/keep", "layer"}},
    {"kernels.grouped_gemm=one", {"/kernels/grouped_gemm", "streams, single"}},
    {"model={\"model_type\":\"lama\"}", {"/model/model_type", "lama", "llama"}},
};
INSTANTIATE_TEST_SUITE_P(UnknownNames, BadSets, testing::ValuesIn(kUnknownNames));

/// Keys of other systems.
const BadSet kForeignNames[] = {
    {"parallel.tp=4", {"/parallel/tp: unknown key; here it is parallel.tensor"}},
    {"parallel.data=2", {"not set: cluster.accelerators / (tensor x pipeline x context)"}},
    {"batch.--micro-batch-size=2", {"here it is batch.micro"}},
    {"zero_optimization={\"stage\":3}", {"/zero_optimization", "sharding.level: zero1"}},
    {"cluster.nodes=4", {"/cluster/nodes", "cluster.accelerators, of all nodes together"}},
    {"optimizer=adamw", {"/optimizer", "kernels.optimizer"}},
};
INSTANTIATE_TEST_SUITE_P(ForeignNames, BadSets, testing::ValuesIn(kForeignNames));

// One pass tells every value that is wrong, and every mechanism that a plan breaks.
TEST(BadRuns, EveryFaultIsTold) {
  const Workplace place;
  place.write("run.json", kSmallRun);
  const CommandResult values =
      place.run({"simulate", "run.json", "--set", "parallel.tensor=0", "--set", "overlap.tensor=3",
                 "--set", "sharding.levl=none", "--set", "batch.gradient_accumulation_steps=2"});
  expect_refused(place, values,
                 {"/parallel/tensor: found 0, expected a whole number from 1",
                  "/overlap/tensor: found 3, expected true or false",
                  "/sharding/levl: unknown key (did you mean \"level\"?)",
                  "/batch/gradient_accumulation_steps: unknown key; here it is "
                  "batch.accumulation\n"});
  EXPECT_EQ(std::count(values.err.begin(), values.err.end(), '\n'), 4) << values.err;
  const CommandResult rules = place.run(
      {"simulate", "run.json", "--set", "batch.global=3", "--set", "sharding.group_size=3", "--set",
       "offload.delayed_update=true", "--set", "parallel.expert=2"});
  expect_refused(place, rules,
                 {"/batch/global: 3 sequences", "/sharding/group_size: 3 does not",
                  "/offload/delayed_update: needs", "/parallel/expert: found 2"});
  EXPECT_EQ(std::count(rules.err.begin(), rules.err.end(), '\n'), 4) << rules.err;
}

// An unknown key of the file itself hides no other fault, nor does a cluster that of the model.
TEST(BadRuns, FaultsOfTheFileAreToldWithTheOthers) {
  const Workplace place;
  place.write("run.json", kSmallRun);
  const CommandResult keys = place.run(
      {"simulate", "run.json", "--set", "overlapp.tensor=true", "--set", "parallel.tensor=0"});
  expect_refused(place, keys,
                 {"/overlapp: unknown key (did you mean \"overlap\"?)",
                  "/parallel/tensor: found 0, expected a whole number from 1"});
  EXPECT_EQ(std::count(keys.err.begin(), keys.err.end(), '\n'), 2) << keys.err;
  place.write("run.json", R"({"": 1, "model": "nosuch", "cluster": "none such"})");
  const CommandResult parts = place.run({"simulate", "run.json"});
  expect_refused(place, parts,
                 {"unknown key", "/cluster: no preset \"none such\"", "/model: no model"});
  EXPECT_EQ(std::count(parts.err.begin(), parts.err.end(), '\n'), 3) << parts.err;
}

/// What a network of layers is not lowered for.
const BadSet kOfNetworks[] = {
    {"parallel.tensor=2", {"/parallel/tensor", "found 2", "data parallelism alone"}},
    {"parallel.pipeline=2", {"/parallel/pipeline", "found 2", "data parallelism alone"}},
    {"parallel.context=2", {"/parallel/context"}},
    {"parallel.virtual_pipeline=2", {"/parallel/virtual_pipeline"}},
    {"sharding.level=parameters", {"/sharding/level", "none and optimizer"}},
    {"precision=fp8", {"/precision", "fp32, tf32, fp16 and bf16"}},
    {"recompute=full", {"/recompute", "expected none"}},
    {"offload.activation_layers=1", {"/offload/activation_layers"}},
    {"schedule=zb-h1", {"/schedule", "1f1b or gpipe"}},
    {"schedule=3f1b", {"/schedule", "a model of layers", "3f1b"}},
    {"batch.sequence=128", {"/batch/sequence", "takes images"}},
    {"model.image=[3,0,2]", {"/model/image", "[channels, height, width]"}},
    {"model.size=2", {"/model/size", "unknown key"}},
};

class BadNetworks : public testing::TestWithParam<BadSet> {};

TEST_P(BadNetworks, AreRefused) {
  const Workplace place;
  place.write("run.json", R"({"model": {"preset": "vgg-16"}, "batch": {"micro": 2},
      "cluster": {"preset": "dgx-h100", "accelerators": 8}})");
  expect_refused(place, place.run({"simulate", "run.json", "--set", GetParam().set}),
                 GetParam().parts);
}
INSTANTIATE_TEST_SUITE_P(Each, BadNetworks, testing::ValuesIn(kOfNetworks));

TEST(EncoderDecoder, IsRefused) {
  const Workplace place;
  place.write("run.json", R"({"model": "t5-small", "batch": {"sequence": 64},
      "cluster": {"preset": "host", "accelerators": 2}, "precision": "fp32"})");
  const std::vector<BadSet> bad = {
      {"parallel.pipeline=2",
       {"/parallel/pipeline", "encoder-decoder", "tensor parallelism alone"}},
      {"parallel={\"tensor\":2,\"sequence\":true}", {"/parallel/sequence", "encoder-decoder"}},
      {"precision=fp8", {"/precision", "encoder-decoder"}},
      {"recompute=selective", {"/recompute", "encoder-decoder", "none or full"}},
      {"recompute={\"co_shard\":2}", {"/recompute", "encoder-decoder"}},
      {"schedule=3f1b", {"/schedule", "an encoder-decoder", "3f1b"}},
      {"batch.target_sequence=0", {"/batch/target_sequence"}},
      {"model={\"preset\":\"transformer-big\",\"decoder_ffn_dim\":8}",
       {"/model/decoder_ffn_dim", "found 8", "the encoder has 4096"}},
  };
  for (const BadSet& one : bad) {
    expect_refused(place, place.run({"simulate", "run.json", "--set", one.set}), one.parts);
  }
  expect_refused(place,
                 place.run({"simulate", "run.json", "--set", "model=gpt2", "--set",
                            "batch.target_sequence=8"}),
                 {"/batch/target_sequence", "an encoder and a decoder"});
  expect_refused(place, place.run({"execute", "run.json"}), {"/model", "only simulated"});
}

// Recomputation by operation is torchtitan's selective where it is modelled, and simulated alone.
TEST(Operations, AreNotExecuted) {
  const Workplace place;
  place.write("run.json", R"({"model": "llama-3-8b", "system": "torchtitan", "cluster": {"preset":
      "host", "accelerators": 2}, "batch": {"global": 2, "micro": 1, "sequence": 64},
      "precision": "fp32", "recompute": "selective", "kernels": {"flash": "flash2"}})");
  expect_refused(place, place.run({"execute", "run.json"}), {"/recompute", "only simulated"});
  place.write("run.json", R"({"model": "llama-3-8b", "cluster": {"preset": "dgx-h100",
      "accelerators": 8}})");
  expect_refused(place,
                 place.run({"simulate", "run.json", "--set", "parallel.context=2", "--set",
                            "recompute={\"modules\":[\"operations\"]}"}),
                 {"/recompute", "operations is modelled for"});
  const CommandResult around =
      place.run({"simulate", "run.json", "--set", "system=torchtitan", "--set",
                 "parallel.context=2", "--set", "recompute=selective"});
  EXPECT_EQ(around.exit_code, 0) << around.err;
}

// What a system has by default and the device has not is replaced, what a user asks for is not.
TEST(Attention, DefaultsGiveWayToTheDevice) {
  const Workplace place;
  place.write("run.json", R"({"model": "llama-2-7b", "system": "deepspeed", "precision": "fp16",
      "cluster": {"preset": "dgx-1v-32gb", "accelerators": 8}, "sharding": {"level": "zero3"}})");
  const CommandResult run = place.run({"simulate", "run.json", "--no-advice"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_NE(run.out.find("has no flash1 in fp16, which deepspeed has by default; taken as unfused"),
            std::string::npos)
      << run.out;
  expect_refused(place, place.run({"simulate", "run.json", "--set", "kernels.attention=flash"}),
                 {"there is no such kernel", "unfused"});
  expect_refused(place, place.run({"simulate", "run.json", "--set", "precision=bf16"}),
                 {"/precision", "it has fp32, fp16"});
  expect_refused(place,
                 place.run({"simulate", "run.json", "--set", "cluster.preset=mi300x", "--set",
                            "kernels.attention=cudnn"}),
                 {"there is no such kernel", "\"flash\" or \"unfused\""});
}

TEST(Experts, BusiestRankHasAShareAtMost) {
  const Workplace place;
  place.write("run.json", R"({"model": {"preset": "deepseek-v2", "num_hidden_layers": 4}, "cluster":
      {"preset": "dgx-h100", "accelerators": 8}, "parallel": {"expert": 8},
      "batch": {"global": 8, "micro": 1, "sequence": 512}})");
  EXPECT_EQ(place.run({"simulate", "run.json", "--set", "moe.imbalance=8"}).exit_code, 0);
  expect_refused(place, place.run({"simulate", "run.json", "--set", "moe.imbalance=8.1"}),
                 {"/moe/imbalance", "8 ranks", "at most 8 times"});
  expect_refused(place,
                 place.run({"simulate", "run.json", "--set", "recompute={\"keep\":[\"qkv\"]}"}),
                 {"/recompute/keep", "without experts"});
  expect_refused(place, place.run({"simulate", "run.json", "--set", "recompute={\"co_shard\":2}"}),
                 {"/recompute/co_shard", "experts"});
  expect_refused(place,
                 place.run({"simulate", "run.json", "--set", "schedule=3f1b", "--set",
                            "model.num_nextn_predict_layers=1"}),
                 {"/schedule", "multi-token prediction", "3f1b"});
}

// A rank holds its own experts alone: of DeepSeek-V3 17.1e9 / 2 + 653.9e9 / (2 x 32) parameters.
TEST(Experts, AreCountedInBucketsOnceARank) {
  const Workplace place;
  place.write("run.json", R"({"model": "deepseek-v3", "cluster": {"preset": "dgx-h100",
      "accelerators": 128}, "parallel": {"expert": 32, "pipeline": 2}})");
  EXPECT_EQ(place.run({"show", "run.json"}).exit_code, 0);
  expect_refused(place,
                 place.run({"show", "run.json", "--set", "gradients.bucket_elements=1000000",
                            "--set", "gradients.bucket_elements_per_rank=0"}),
                 {"/gradients/bucket_elements", "18776141312 parameters of a rank"});
}

// Experts of 671 billion parameters whole on a rank: 16,776 buckets of 40 million.
TEST(Memory, IsAnsweredHoweverManyBucketsThereWouldBe) {
  const Workplace place;
  place.write("run.json", R"({"model": "deepseek-v3", "cluster": {"preset": "dgx-h100",
      "accelerators": 8}, "batch": {"micro": 1, "sequence": 512}})");
  for (const char* plan : {"sharding.level=none", "sharding.level=optimizer",
                           "offload.optimizer=cpu", "gradients.dtype=compute"}) {
    const CommandResult result =
        place.run({"simulate", "run.json", "--no-advice", "--json", "result.json", "--set",
                   "sharding.level=optimizer", "--set", plan});
    ASSERT_EQ(result.exit_code, 0) << plan << result.err;
    const Json memory = at(parse_json(place.read("result.json"), "").value(), "memory");
    EXPECT_EQ(at(memory, "fits"), Json(false));
    EXPECT_GT(at(memory, "peak_gib").number(), 2500) << plan;
  }
  const CommandResult told = place.run({"simulate", "run.json", "--no-advice"});
  EXPECT_NE(told.out.find("wider than gradients.bucket_elements"), std::string::npos) << told.out;
}

// A file of before is read under the key's present name, and says so; both names are one too many.
TEST(Keys, AreReadUnderTheirFormerNames) {
  const Workplace place;
  const std::string run = R"({"model": {"preset": "llama-2-7b", "num_hidden_layers": 4},
      "cluster": {"preset": "dgx-h100", "accelerators": 8}, "recompute": "full",
      "parallel": {"pipeline": 2, "OUTPUTS": true}, "batch": {"global": 64, "sequence": 512}})";
  const auto with = [&run](const std::string& key) {
    return std::string(run).replace(run.find("OUTPUTS"), 7, key);
  };
  place.write("now.json", with("retain_outputs"));
  place.write("before.json", with("keep_outputs"));
  place.write("both.json", with("keep_outputs\": false, \"retain_outputs"));
  const auto retained = [&place](const std::vector<std::string>& args) {
    std::vector<std::string> all = {"show"};
    all.insert(all.end(), args.begin(), args.end());
    const CommandResult result = place.run(all);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    const std::size_t key = result.out.find("\nparallel.retain_outputs ");
    const std::string line = result.out.substr(key + 1, result.out.find('\n', key + 1) - key - 1);
    return line.find(" true ") != std::string::npos;
  };
  EXPECT_TRUE(retained({"now.json"}));
  EXPECT_TRUE(retained({"before.json"}));
  EXPECT_FALSE(retained({"now.json", "--set", "parallel.keep_outputs=false"}));
  const std::string told = place.run({"simulate", "before.json"}).out;
  EXPECT_NE(told.find("parallel.keep_outputs is read as parallel.retain_outputs"),
            std::string::npos);
  expect_refused(place, place.run({"simulate", "both.json"}),
                 {"/parallel/retain_outputs", "parallel.keep_outputs", "both given"},
                 {"before.json", "both.json", "now.json"});
}

// A plan is told of every rule that it breaks, of one mechanism or several.
TEST(Rules, AreToldAllAtOnce) {
  const Workplace place;
  place.write("run.json", R"({"model": {"preset": "deepseek-v2", "num_hidden_layers": 4}, "cluster":
      {"preset": "dgx-h100", "accelerators": 16}, "batch": {"global": 15, "sequence": 512},
      "parallel": {"tensor": 4, "expert": 3, "sequence": true, "tensor_mode": "2d"},
      "precision": "fp8", "kernels": {"attention": "unfused"}, "overlap": {"tensor_slices": 2},
      "offload": {"delayed_update": true}, "sharding": {"inner_group": 2},
      "moe": {"dispatch_dtype": "fp8"}, "gradients": {"inner_group": 3}})");
  const CommandResult result = place.run({"simulate", "run.json"});
  expect_refused(
      place, result,
      {"/parallel/sequence: 2d cuts the tokens",
       "/parallel/tensor_mode: tensor_mode 2d is not modelled with experts and latent "
       "attention: set parallel.tensor_mode to 1d",
       "/precision: tensor_mode 2d is not modelled with less than 16 bits",
       "/parallel/expert: 3 does not divide the model's 160 experts", "/batch/global: 15 sequences",
       "/overlap/tensor_slices: overlap.tensor_slices", "/offload/delayed_update",
       "/sharding/inner_group", "/moe/dispatch_dtype", "/gradients/inner_group"});
}

TEST(Dispatch, CastsWhereItsKernelsDo) {
  const Workplace place;
  place.write("run.json", R"({"model": {"preset": "deepseek-v2", "num_hidden_layers": 4}, "cluster":
      {"preset": "dgx-h100", "accelerators": 8}, "parallel": {"expert": 8},
      "batch": {"global": 8, "micro": 1, "sequence": 512},
      "precision": "fp8", "moe": {"dispatcher": "deepep", "dispatch_dtype": "fp8"}})");
  EXPECT_EQ(place.run({"simulate", "run.json"}).exit_code, 0);
  for (const char* other : {"moe.dispatcher=alltoall", "precision=bf16"}) {
    expect_refused(place, place.run({"simulate", "run.json", "--set", other}),
                   {"/moe/dispatch_dtype", "deepep or hybridep"});
  }
  expect_refused(place, place.run({"simulate", "run.json", "--set", "moe.dispatch_dtype=int8"}),
                 {"/moe/dispatch_dtype", "\"int8\"", "compute, fp8"});
}

// ZeRO++'s keys where there is nothing for them to do, and sizes that do not divide.
TEST(Shards, TravelInFewerBitsOnlyWhereTheyTravel) {
  const Workplace place;
  place.write("run.json", kSmallRun);
  const auto refused = [&place](const std::vector<std::string>& sets,
                                const std::vector<std::string>& parts) {
    expect_refused(place, place.run(with_sets({"simulate", "run.json"}, sets)), parts);
  };
  refused({"sharding.gather_dtype=int8"}, {"/sharding/gather_dtype", "sharding.level parameters"});
  refused({"sharding.gather_dtype=int4"}, {"/sharding/gather_dtype", "\"int4\"", "int8, fp8"});
  refused({"gradients.reduce_dtype=int4"}, {"/gradients/reduce_dtype", "sharding.level gradients"});
  refused({"sharding.level=none", "gradients.compression=fp16", "gradients.dtype=compute"},
          {"/gradients/compression", "bf16 gradients"});
  const std::string level = "sharding.level=parameters";
  const std::string stage = "parallel.pipeline=1";
  refused({level, stage, "sharding.secondary_group=3"},
          {"/sharding/secondary_group", "found 3", "divisor"});
  refused({level, stage, "sharding.secondary_group=-4"},
          {"/sharding/secondary_group", "-4", "a number of ranks or null"});
  refused({level, stage, "gradients.inner_group=4"}, {"/gradients", "reduce_dtype int4"});
  refused({"sharding.inner_group=2"}, {"/sharding/inner_group", "sharding.level parameters"});
  refused({level, stage, "sharding.inner_group=3"},
          {"/sharding/inner_group", "found 3", "divisor"});
  refused({level, stage, "sharding.inner_group=2", "sharding.gather_dtype=int8"},
          {"/sharding/inner_group", "not modelled with experts, gather_dtype int8 or fp8"});
  refused({level, stage, "sharding.persist_elements=-1"}, {"/sharding/persist_elements", "-1"});
  refused({level, stage, "sharding.gather_elements=-1"}, {"/sharding/gather_elements", "-1"});
  refused({level, stage, "sharding.chunk_elements=10"},
          {"/sharding/chunk_elements", "in chunks of 10", "expected at least"});
  for (const char* other : {"sharding.gather_dtype=int8", "gradients.reduce_dtype=int4",
                            "sharding.gather_elements=1000"}) {
    refused({level, stage, "sharding.chunk_elements=1000000", other},
            {"/sharding/chunk_elements", "is not modelled with"});
  }
  refused({level, stage, "sharding.live_elements=1.5"}, {"/sharding/live_elements", "1.5"});
  refused({level, stage, "schedule=zb-v", "parallel.pipeline=2", "parallel.virtual_pipeline=2"},
          {"/sharding/level", "tied", "separate passes"});
  refused({level, "offload.optimizer=cpu"}, {"/sharding/level", "tied", "the host updates"});
  refused({level, stage, "gradients.reduce_dtype=int4", "gradients.inner_group=3"},
          {"/gradients/inner_group", "3 does not divide"});
}

TEST(Gradients, AreAddedAfterPassesWhereThatIsModelled) {
  const Workplace place;
  place.write("run.json", kSmallRun);
  const auto with = [&place](const std::string& set) {
    return place.run(
        {"simulate", "run.json", "--set", "gradients.accumulation=after-pass", "--set", set});
  };
  EXPECT_EQ(with("parallel.tensor=1").exit_code, 0);
  expect_refused(place, with("schedule=zb-h1"), {"/gradients/accumulation", "after-pass"});
  expect_refused(place, with("gradients.accumulation=later"),
                 {"/gradients/accumulation", "\"later\"", "fused, separate, after-pass"});
  expect_refused(place, with("parallel.retain_outputs=2"),
                 {"/parallel/retain_outputs", "2", "true"});
  expect_refused(place, with("gradients.flat_update=x"), {"/gradients/flat_update", "\"x\""});
  expect_refused(place, with("gradients.unscale=2"),
                 {"/gradients/unscale", "apart, with-clipping, none"});
  expect_refused(place, with("gradients.average=after"), {"/gradients/average", "loss, before"});
  expect_refused(place, with("gradients.check_nan=1"), {"/gradients/check_nan", "true or false"});
  expect_refused(place, with("overlap.parameter_gather=late"),
                 {"/overlap/parameter_gather", "true, false or \"auto\""});
  expect_refused(place, with("allocator.record_stream=x"), {"/allocator/record_stream", "\"x\""});
  expect_refused(place, with("allocator.context_gib=-1"), {"/allocator/context_gib", "-1"});
  expect_refused(place, with("allocator.expandable_segments=1"),
                 {"/allocator/expandable_segments", "1", "true"});
  expect_refused(place, with("allocator.expandable=true"), {"/allocator/expandable", "unknown"});
}

// A RUN and what it names lie together; a file of the working directory comes first.
TEST(Paths, GoFromTheRunsFolderToo) {
  const Workplace place;
  std::filesystem::create_directory(place.path("in/plans"));
  const auto model = [](int layers) {
    return R"({"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4,
        "intermediate_size": 128, "vocab_size": 512, "num_hidden_layers": )" +
           std::to_string(layers) + "}";
  };
  place.write("plans/shape.json", model(3));
  place.write("plans/mine.json", R"({"name": "mine", "defaults": {"recompute": "full"}})");
  place.write("plans/run.json", R"({"model": "shape.json", "system": "mine.json",
      "cluster": {"preset": "dgx-h100", "accelerators": 8}, "batch": {"sequence": 64}})");
  const auto parameters = [&place] {
    const CommandResult run = place.run({"simulate", "plans/run.json", "--json", "-"});
    EXPECT_EQ(run.exit_code, 0) << run.err;
    return at(parse_json(run.out, "out").value(), "parameters").number();
  };
  const double three = parameters();
  place.write("shape.json", model(2));
  EXPECT_LT(parameters(), three);
  place.write("plans/run.json", R"({"model": "other.json", "cluster": "dgx-h100"})");
  const CommandResult refused = place.run({"simulate", "plans/run.json"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_NE(refused.err.find("/model: no model \"other.json\""), std::string::npos) << refused.err;
}

TEST(Networks, AreNotExecuted) {
  const Workplace place;
  place.write("run.json", R"({"model": "resnet-50", "cluster": {"preset": "host",
      "accelerators": 1}, "batch": {"micro": 2}, "precision": "fp32"})");
  for (const char* verb : {"execute", "validate"}) {
    expect_refused(place, place.run({verb, "run.json"}), {"/model", "only simulated"});
  }
}

// Neither as they are nor by what a system's buckets become.
TEST(Networks, HaveNoShardedGradients) {
  const Workplace place;
  place.write("run.json", R"({"model": "resnet-50", "cluster": {"preset": "dgx-a100-80gb",
      "accelerators": 8}, "batch": {"micro": 2}})");
  for (const char* set : {"system=megatron-llama", "sharding.level=gradients"}) {
    for (const char* buckets : {"contiguous", "ranges"}) {
      const auto run = place.run({"simulate", "run.json", "--set", set, "--set",
                                  "gradients.bucket_elements=10000000", "--set",
                                  std::string("gradients.bucketing=") + buckets});
      expect_refused(place, run, {"/sharding/level", "none and optimizer"});
    }
  }
}

const BadSet kWrongTypes[] = {
    {"parallel.tensor=two", {"/parallel/tensor", "\"two\"", "a whole number"}},
    {"parallel.tensor=2x", {"/parallel/tensor", "\"2x\"", "a whole number"}},
    {"parallel.tensor=1.5", {"/parallel/tensor", "1.5", "a whole number"}},
    {"parallel.sequence=1", {"/parallel/sequence", "1", "true"}},
    {"parallel=3", {"/parallel", "3", "an object"}},
    {"parallel.pipeline_layout=6", {"/parallel/pipeline_layout", "6", "a list"}},
    {"model=3", {"/model", "found 3", "a name"}},
    {"model=null", {"/model", "null", "a name"}},
    {"cluster=[]", {"/cluster", "a cluster's name"}},
    {"name=3", {"/name", "found 3", "a text"}},
    {"system=3", {"/system", "found 3", "a name"}},
    {"parallel.tensor.x=3", {"--set parallel.tensor.x=3", "/parallel/tensor", "not an object"}},
    {"parallel..tensor=3", {"--set parallel..tensor=3", "an empty key"}},
};
INSTANTIATE_TEST_SUITE_P(WrongTypes, BadSets, testing::ValuesIn(kWrongTypes));

const BadSet kImpossible[] = {
    {"parallel.tensor=3", {"/parallel", "tensor 3", "does not divide", "8 accelerators"}},
    {"parallel.tensor=16", {"/parallel", "tensor 16", "32 accelerators", "has 8"}},
    {"parallel.tensor=8", {"/parallel", "tensor 8", "16 accelerators"}},
    {"model.num_attention_heads=9", {"/model", "9 heads do not divide hidden_size 768"}},
    {"batch.global=3", {"/batch/global", "3", "a multiple"}},
    {"batch.sequence=4096", {"/batch/sequence", "4096", "2048 positions"}},
    {"parallel.virtual_pipeline=8", {"/parallel/pipeline", "16 pipeline chunks", "12 layers"}},
    {"parallel.pipeline_layout=[5,6]", {"/parallel/pipeline_layout", "11 layers", "12"}},
    {"parallel.rank_order=tp-pp", {"/parallel/rank_order", "\"tp-pp\"", "dp"}},
    {"batch.micro=-1", {"/batch/micro", "found -1", "from 1"}},
    {"batch.global=0", {"/batch/global", "found 0", "from 1"}},
    {"cluster.accelerators=-8", {"/cluster/accelerators", "found -8", "from 1"}},
    {"host.pass_us=-1", {"/host/pass_us", "found -1", "from 0"}},
    {"host.pass_us=999999999999", {"run.json", "more than 11 days"}},
    {"host.step_us=-1", {"/host/step_us", "found -1", "from 0"}},
    {"host.update_us=1e7", {"/host/update_us", "found 10000000", "to 1000000"}},
};

/// Eight experts of which a token has `drawn`, with `groups` of them.
std::string grouped_experts(int drawn, const std::string& groups) {
  return R"(model={"model_type":"qwen3_moe","num_hidden_layers":2,"hidden_size":256,)"
         R"("num_attention_heads":4,"intermediate_size":512,"vocab_size":512,"num_experts":8,)"
         R"("moe_intermediate_size":64,"num_experts_per_tok":)" +
         std::to_string(drawn) + "," + groups + "}";
}

const BadSet kGroupedExperts[] = {
    {grouped_experts(2, R"("n_group":3)"), {"/model/n_group", "3 groups", "8 experts"}},
    {grouped_experts(2, R"("n_group":2,"topk_group":3)"), {"/model/topk_group", "3 of 2"}},
    {grouped_experts(6, R"("n_group":4,"topk_group":2)"), {"/model/topk_group", "fewer experts"}},
};
INSTANTIATE_TEST_SUITE_P(GroupedExperts, BadSets, testing::ValuesIn(kGroupedExperts));
INSTANTIATE_TEST_SUITE_P(Impossible, BadSets, testing::ValuesIn(kImpossible));

const BadSet kAbsurd[] = {
    {"model.n_layer=1000000000000000000", {"/model/n_layer", "1000000000000000000", "from 1"}},
    {"model.n_layer=1000000000", {"/batch/global", "layer passes"}},
    {"model.n_embd=120000000", {"/model", "10^16 parameters"}},
    {"cluster.accelerators=1000000000000", {"/cluster/accelerators", "1000000000000", "1048576"}},
    {"parallel.tensor=1000000000000000000000", {"--set parallel.tensor", "64 bits"}},
    {"batch.global=1000000000", {"/batch/global", "layer passes"}},
    {"batch.micro=1048576", {"/batch"}},
    {"host.step_us=1e13", {"/host/step_us", "10000000000000"}},
    {"host.step_us=999999999999", {"run.json", "more than 11 days"}},
    {"model.vocab_size=1000000000000", {"/model/vocab_size", "1000000000"}},
    {"cluster.network.latency_us=1e7", {"/cluster/network/latency_us", "1000000"}},
};
INSTANTIATE_TEST_SUITE_P(Absurd, BadSets, testing::ValuesIn(kAbsurd));

struct BadSchedule {
  const char* text;
  std::vector<std::string> parts;
};

void PrintTo(const BadSchedule& bad, std::ostream* out) { *out << bad.text; }

class BadSchedules : public testing::TestWithParam<BadSchedule> {};

TEST_P(BadSchedules, AreRefused) {
  const Workplace place;
  place.write("run.json", kSmallRun);
  place.write("order.json", GetParam().text);
  const CommandResult result = place.run({"simulate", "run.json", "--json", "out.json", "--set",
                                          "schedule=order.json", "--set", "batch.global=4"});
  expect_refused(place, result, GetParam().parts, {"order.json", "run.json"});
}

// Two stages, one microbatch.
const BadSchedule kBadSchedules[] = {
    {"[[[0,0,\"F\"]]]", {"order.json", "a list for each of 2 stages"}},
    {"[[[0,0,\"F\"],[0,0,\"B\"]],[[1,0,\"F\"]]]",
     {"order.json", "B of microbatch 0 on chunk 1 is missing on stage 1"}},
    {"[[[0,0,\"F\"],[0,0,\"B\"],[0,0,\"W\"]],[[1,0,\"F\"],[1,0,\"B\"]]]",
     {"order.json", "W of microbatch 0 on chunk 1 is missing on stage 1"}},
    {"[[[0,0,\"B\"],[0,0,\"F\"]],[[1,0,\"F\"],[1,0,\"B\"]]]",
     {"order.json", "B of microbatch 0 on chunk 0 stands before its F", "stage 0, pass 0"}},
    {"[[[1,0,\"F\"]],[]]", {"order.json: /0/0/0", "no chunk of 2 on stage 0"}},
    {"[[[0,1,\"F\"]],[]]",
     {"order.json: found microbatch 1 in pass 0 of stage 0", "1 microbatches"}},
    {"[[[0,0,\"X\"]],[]]", {"order.json: /0/0/2", "\"X\"", "F, B or W"}},
    {"[[0],1]", {"order.json: /0/0", "expected [chunk, microbatch"}},
    {"{\"placement\":\"v\",\"stages\":[[[1,0,\"F\"]],[]]}",
     {"order.json: /stages/0/0/0", "no chunk of 4 on stage 0"}},
    {"{\"placement\":\"bidirectional\",\"stages\":[[],[]]}",
     {"order.json has a pipeline in each direction", "1 microbatches per rank must both be even"}},
};
INSTANTIATE_TEST_SUITE_P(Files, BadSchedules, testing::ValuesIn(kBadSchedules));

const BadSet kUnsupported[] = {
    {"parallel.context=3", {"/parallel", "context 3", "accelerators"}},
    {"parallel.expert=2", {"/parallel/expert", "2", "no experts"}},
    {"parallel.expert_tensor=2", {"/parallel/expert_tensor", "2", "no experts"}},
    {"offload.parameters=nvme", {"/offload/parameters", "sharding.level parameters"}},
    {"kernels.context=ring", {"/kernels/context", "parallel.context > 1"}},
    {"kernels.fp8_recipe=delayed", {"/kernels/fp8_recipe", "fp8 precision"}},
    {"moe.dispatcher_sms=8", {"/moe", "no experts"}},
    {"kernels.fp8_weight_gradient=cutlass", {"/kernels/fp8_weight_gradient", "fp8-blockwise"}},
    {"precision=int8", {"/parallel/tensor", "int8 is not modelled with tensor parallelism"}},
    {"precision={\"communication\":\"bf16\"}", {"/precision/communication", "not modelled yet"}},
    {"overlap.passes=true", {"/overlap/passes", "no experts"}},
    {"schedule={\"name\":\"3f1b\",\"forwards\":0}", {"/schedule/forwards", "found 0", "1 to"}},
    {"schedule={\"name\":\"3f1b\",\"activations\":2}",
     {"/schedule/activations", "is no key of 3f1b"}},
    {"recompute={\"co_shard\":0}", {"/recompute/co_shard", "found 0", "1 to"}},
    {"recompute={\"co_shard\":5}", {"/recompute/co_shard", "5 parts", "attention heads"}},
    {"recompute={\"co_shard\":2,\"modules\":[\"mlp\"]}", {"/recompute/co_shard", "layernorm"}},
    {"recompute={\"co_shard\":2,\"layers\":1}", {"/recompute/co_shard", "layer_period"}},
    {"recompute={\"modules\":[\"layer\"],\"block_layers\":0}", {"/recompute/block_layers", "0"}},
    {"recompute={\"modules\":[\"layer\"],\"block_layers\":\"chunk\"}",
     {"/recompute/block_layers", "\"stage\""}},
    {"recompute={\"modules\":[\"mlp\"],\"block_layers\":2}", {"/recompute/block_layers", "layer"}},
    {"recompute={\"modules\":[\"layer\"],\"early\":true,\"layers\":1}",
     {"/recompute/early", "layer_period"}},
    {"schedule=chimera", {"/schedule", "a tied embedding", "two copies", "chimera"}},
    {"schedule={\"name\":\"zb-1p\"}", {"/schedule/name", "\"zb-1p\"", "zb-auto"}},
    {"schedule={\"name\":\"zb-auto\",\"activations\":0.5}",
     {"/schedule/activations", "0.5", "1 to"}},
    {"schedule={\"name\":\"zb-auto\",\"memory\":4}", {"/schedule/memory", "unknown key"}},
    {"schedule=mine.json", {"mine.json", "No such file"}},
    {"sharding.group_size=3", {"/sharding/group_size", "3", "does not divide"}},
    {"sharding.group_size=\"all\"", {"/sharding/group_size", "\"all\"", "or null"}},
    {"offload={\"optimizer\":\"cpu\",\"page_mib\":4}",
     {"/offload/page_mib", "unit by unit", "gradients or parameters"}},
    {"offload={\"optimizer\":\"nvme\",\"device_share\":0.5}",
     {"/offload/device_share", "unit by unit", "gradients or parameters"}},
    {"offload.activations=none", {"/offload/activations", "none", "cpu, nvme"}},
    {"offload.delayed_update=true", {"/offload/delayed_update", "offload.optimizer"}},
    {"kernels.optimizer=adafactor", {"/kernels/optimizer", "whole matrices"}},
    {"gradients.compression=fp16", {"/gradients/compression", "set sharding.level to none"}},
    {"gradients.bucket_copy=true", {"/gradients/bucket_copy", "or this to false"}},
    {"gradients.compression_rank=4", {"/gradients/compression_rank", "or this to 0"}},
    {"recompute={\"modules\":[\"moe\"]}", {"/recompute/modules", "\"moe\"", "no experts"}},
    {"profile=mine.json", {"/profile", "no profile \"mine.json\"", "foretrain calibrate"}},
    {"moe={}", {"/moe", "no experts"}},
    {"moe=5", {"/moe", "expected an object"}},
    {"moe=[]", {"/moe", "expected an object"}},
    {"model={\"preset\":\"llama-4-scout\",\"attention_chunk_size\":16}",
     {"/batch/sequence", "attention within chunks of 16"}},
};
INSTANTIATE_TEST_SUITE_P(Unsupported, BadSets, testing::ValuesIn(kUnsupported));

}  // namespace
}  // namespace foretrain
