// The verb `import`: launch files of training frameworks as RUNs.
#include <gtest/gtest.h>

#include "tests/cli/run_command.h"

namespace foretrain {
namespace {

std::string launch_file(const std::string& name) {
  return std::string(FORETRAIN_SOURCE_DIR "/tests/data/import/") + name;
}

/// What `import FILE --json -` says.
Json imported(const Workplace& place, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "import");
  arguments.insert(arguments.end(), {"--json", "-"});
  const CommandResult result = place.run(arguments);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const Result<Json> json = parse_json(result.out, "stdout");
  EXPECT_TRUE(json.ok()) << result.out;
  return json.ok() ? json.value() : Json();
}

/// Whether a text of the list, or the `from` of an entry, contains that.
bool lists(const Json& json, const char* list, const std::string& what) {
  const Json* found = json.find(list);
  if (found == nullptr || found->array() == nullptr) return false;
  for (const Json& one : *found->array()) {
    const Json* from = one.find("from");
    const std::string* text = from != nullptr ? from->string() : one.string();
    if (text != nullptr && text->find(what) != std::string::npos) return true;
  }
  return false;
}

TEST(ImportMegatron, FlagsThatAreAbsentAreOff) {
  const Workplace place;
  const Json json = imported(place, {launch_file("gpt3_175b.sh")});
  EXPECT_EQ(at(json, "run/parallel/sequence"), Json(false));
  EXPECT_EQ(at(json, "run/sharding/level"), Json("none"));
  EXPECT_EQ(at(json, "run/overlap/gradient_reduce"), Json(false));
  EXPECT_EQ(at(json, "run/recompute"), Json("none"));
  EXPECT_EQ(at(json, "run/precision"), Json("fp16"));
  EXPECT_EQ(at(json, "run/gradients/dtype"), Json("compute"));
  EXPECT_EQ(at(json, "run/dropout"), Json(0.1));
  EXPECT_EQ(at(json, "run/model"), Json("gpt3-175b"));
  EXPECT_EQ(at(json, "run/cluster/accelerators"), Json(128));
  EXPECT_TRUE(json.find("not_modelled")->array()->empty());
  EXPECT_TRUE(lists(json, "unresolved", "cluster"));
  EXPECT_TRUE(lists(json, "no_effect", "--lr 6.0e-5"));
  EXPECT_TRUE(lists(json, "translated", "--tensor-model-parallel-size 8"));
}

TEST(ImportMegatron, MemoryIsThatOfTheScriptNotOfTheSystemsDefaults) {
  const Workplace place;
  const CommandResult result = place.run(
      {"import", launch_file("gpt3_175b.sh"), "--cluster", "dgx-a100-80gb", "--out", "run.json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::vector<std::string> fast = {"--no-advice"};
  const double written = at(simulated(place, "run.json", {}, fast), "memory/peak_gib").number();
  const double wrong =
      at(simulated(place, "run.json",
                   {"parallel.sequence=true", "sharding.level=optimizer", "gradients.dtype=fp32"},
                   fast),
         "memory/peak_gib")
          .number();
  EXPECT_GT(written, 50);
  EXPECT_LT(wrong, 0.8 * written);
}

TEST(ImportMegatron, AMixtureOfExpertsHasTheFrameworksTensorDegreeOfExperts) {
  const Workplace place;
  const Json json = imported(place, {launch_file("mixtral_8x7b.sh"), "--cluster", "dgx-h100"});
  EXPECT_EQ(at(json, "run/model"), Json("mixtral-8x7b"));
  EXPECT_EQ(at(json, "run/parallel/expert"), Json(8));
  EXPECT_EQ(at(json, "run/parallel/expert_tensor"), Json(1));
  EXPECT_EQ(at(json, "run/parallel/virtual_pipeline"), Json(2));
  EXPECT_EQ(at(json, "run/moe/dispatcher"), Json("alltoall"));
  EXPECT_EQ(at(json, "run/batch/global"), Json(256));
  EXPECT_EQ(at(json, "run/cluster/accelerators"), Json(32));  // of #SBATCH
  EXPECT_EQ(at(json, "run/sharding/level"), Json("optimizer"));
  EXPECT_EQ(at(json, "run/overlap/parameter_gather"), Json(true));
  EXPECT_FALSE(lists(json, "unresolved", "refuses"));
  const Json tensor =
      imported(place, {launch_file("mixtral_8x7b.sh"), "--set", "parallel.tensor=2"});
  EXPECT_EQ(at(tensor, "run/parallel/tensor"), Json(2));
}

TEST(ImportMegatron, ReadsFp8AndSaysWhatIsMissing) {
  const Workplace place;
  const std::string file = launch_file("llama3_8b_fp8.sh");
  const Json json = imported(place, {file});
  EXPECT_EQ(at(json, "run/model"), Json("llama-3-8b"));
  EXPECT_EQ(at(json, "run/precision"), Json("fp8"));
  EXPECT_EQ(at(json, "run/kernels/fp8_recipe"), Json("delayed"));
  EXPECT_EQ(at(json, "run/kernels/fp8_weights"), Json(true));
  EXPECT_EQ(at(json, "run/kernels/attention"), Json("cudnn"));
  EXPECT_EQ(at(json, "run/kernels/loss"), Json("fused"));
  EXPECT_EQ(at(json, "run/gradients/dtype"), Json("compute"));  // --grad-reduce-in-bf16
  EXPECT_EQ(at(json, "run/parallel/sequence"), Json(true));
  EXPECT_TRUE(lists(json, "unresolved", "CONTEXT_RANKS"));
  EXPECT_TRUE(lists(json, "not_modelled", "--empty-unused-memory-level"));
  EXPECT_EQ(place.run({"import", file, "--strict"}).exit_code, 3);
  EXPECT_EQ(place.run({"import", launch_file("gpt3_175b.sh"), "--strict"}).exit_code, 0);
}

TEST(ImportMegatron, ReadsListsOfArguments) {
  const Workplace place;
  place.write("args.txt",
              "--num-layers 61\n--hidden-size 7168\n--num-attention-heads 128\n"
              "--ffn-hidden-size 18432 --swiglu --normalization RMSNorm --disable-bias-linear\n"
              "--position-embedding-type rope --untie-embeddings-and-output-weights\n"
              "--multi-latent-attention --q-lora-rank 1536 --kv-lora-rank 512 --qk-layernorm\n"
              "--num-experts 256 --moe-router-topk 8 --moe-ffn-hidden-size 2048 "
              "--moe-layer-freq [0]*3+[1]*58 --moe-grouped-gemm\n"
              "--moe-shared-expert-intermediate-size 2048 --moe-router-num-groups 8 "
              "--moe-router-group-topk 4 --moe-token-dispatcher-type flex "
              "--moe-flex-dispatcher-backend hybridep\n"
              "--tokenizer-type HuggingFaceTokenizer --tokenizer-model deepseek-ai/DeepSeek-V3\n"
              "--hidden-dropout 0 --attention-dropout 0 --bf16 --micro-batch-size 1\n"
              "--global-batch-size 8192 --seq-length 4096 --expert-model-parallel-size 64\n"
              "--pipeline-model-parallel-size 16 --num-layer 61\n"
              "--recompute-granularity selective --recompute-modules mla_up_proj mlp\n");
  const Json json = imported(place, {"args.txt", "--accelerators", "1024"});
  EXPECT_EQ(at(json, "run/model"), Json("deepseek-v3"));
  EXPECT_EQ(at(json, "run/moe/dispatcher"), Json("hybridep"));
  EXPECT_EQ(at(json, "run/recompute/modules"), Json(Json::Array{Json("mla_up_proj"), Json("mlp")}));
  // A flag with a slip is loud, with what was meant.
  ASSERT_TRUE(lists(json, "not_modelled", "--num-layer 61"));
  const std::string why = dump_json(*json.find("not_modelled"), -1);
  EXPECT_NE(why.find("did you mean num_layers"), std::string::npos) << why;
}

// Megatron's arguments beside an engine's configuration that the script writes.
TEST(ImportMegatronDeepSpeed, ReadsTheConfigurationThatTheScriptWrites) {
  const Workplace place;
  const std::string file = launch_file("bloom_176b.sh");
  const Json json = imported(place, {file, "--cluster", "dgx-a100-80gb"});
  EXPECT_EQ(at(json, "run/system"), Json("deepspeed"));
  EXPECT_EQ(at(json, "run/model"), Json("bloom-176b"));
  EXPECT_EQ(at(json, "run/cluster/accelerators"), Json(384));
  EXPECT_EQ(at(json, "run/parallel/tensor"), Json(4));
  EXPECT_EQ(at(json, "run/parallel/pipeline"), Json(12));
  EXPECT_EQ(at(json, "run/parallel/pipeline_layout").array()->front(), Json(5));
  EXPECT_EQ(at(json, "run/batch/global"), Json(2048));
  EXPECT_EQ(at(json, "run/batch/micro"), Json(2));
  EXPECT_EQ(at(json, "run/precision"), Json("bf16"));
  EXPECT_EQ(at(json, "run/sharding/level"), Json("optimizer"));  // by the bf16 optimizer
  EXPECT_EQ(at(json, "run/recompute"), Json("full"));
  EXPECT_EQ(at(json, "run/kernels/attention"), Json("unfused"));
  EXPECT_TRUE(lists(json, "translated", "zero_optimization.stage: 0"));
  EXPECT_TRUE(lists(json, "no_effect", "--deepspeed-activation-checkpointing"));
  EXPECT_TRUE(lists(json, "unresolved", "SLURM_NNODES"));
  EXPECT_FALSE(lists(json, "unresolved", "refuses"));
  ASSERT_EQ(json.find("not_modelled")->array()->size(), 1U);
  EXPECT_TRUE(lists(json, "not_modelled", "--rampup-batch-size"));
}

TEST(ImportMegatronDeepSpeed, ReadsTheConfigurationOfAFile) {
  const Workplace place;
  const std::string arguments =
      "deepspeed pretrain_gpt.py --num-layers 24 --hidden-size 2048 --num-attention-heads 16 "
      "--seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 4 --global-batch-size "
      "64 --fp16 --tensor-model-parallel-size 2 --zero-stage 1 --deepspeed --deepspeed_config "
      "ds.json --use-flash-attn-v2 --num-gpus 8\n";
  place.write("train.sh", arguments);
  place.write("ds.json", R"({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4,
      "zero_optimization": {"stage": 2, "overlap_comm": true}, "fp16": {"enabled": true}})");
  const Json both = imported(place, {"train.sh", "ds.json"});
  EXPECT_EQ(at(both, "run/sharding/level"), Json("gradients"));  // the engine's word counts
  EXPECT_EQ(at(both, "run/overlap/gradient_reduce"), Json(true));
  EXPECT_EQ(at(both, "run/gradients/clip_norm"), Json(0.0));
  EXPECT_EQ(at(both, "run/kernels/attention"), Json("flash"));
  EXPECT_EQ(at(both, "run/kernels/flash"), Json("flash2"));
  EXPECT_EQ(at(both, "run/parallel/tensor"), Json(2));
  const Json alone = imported(place, {"train.sh"});
  EXPECT_EQ(at(alone, "run/sharding/level"), Json("optimizer"));
  EXPECT_TRUE(lists(alone, "unresolved", "ds.json: is not read; give that file"));
}

// A number that only running the script would tell says nothing; the others hold.
TEST(ImportMegatronDeepSpeed, WhatIsMissingInTheConfigurationIsNamed) {
  const Workplace place;
  place.write("train.sh",
              "cat <<EOT > ds.json\n{\"train_batch_size\": $1, \"zero_optimization\": "
              "{\"stage\": 1}}\nEOT\npython pretrain_gpt.py --num-layers 24 --hidden-size 2048 "
              "--num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 "
              "--micro-batch-size 4 --global-batch-size 64 --bf16 --deepspeed --deepspeed_config "
              "ds.json\n");
  const Json json = imported(place, {"train.sh"});
  EXPECT_EQ(at(json, "run/sharding/level"), Json("optimizer"));
  EXPECT_EQ(at(json, "run/batch/global"), Json(64));
  EXPECT_TRUE(lists(json, "unresolved", "ds.json, which the script writes: nothing sets 1"));
}

std::string layout_arguments(const std::string& layout, int pipeline) {
  return "--num-layers 16 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 "
         "--max-position-embeddings 2048 --micro-batch-size 1 --global-batch-size 64 --bf16 "
         "--pipeline-model-parallel-size " +
         std::to_string(pipeline) + " --pipeline-model-parallel-layout '" + layout + "'\n";
}

TEST(ImportMegatron, PipelineLayoutsAreTranslated) {
  const Workplace place;
  place.write("args.txt", layout_arguments("Et*3|(tt|)*5,t|tt,L", 4));
  const Json json = imported(place, {"args.txt"});
  EXPECT_EQ(dump_json(at(json, "run/parallel/pipeline_layout"), -1), "[3,2,2,2,2,2,1,2]");
  EXPECT_EQ(at(json, "run/parallel/virtual_pipeline"), Json(2));
  EXPECT_TRUE(json.find("not_modelled")->array()->empty());
  EXPECT_FALSE(lists(json, "unresolved", "refuses"));
  for (const auto& [layout, why] :
       {std::pair("E|t*16|L", "3 stages do not divide by 4"),
        std::pair("E,t*4|t*4|t*4L|t*4", "loss"), std::pair("Ex|t|t|L", "cannot be read"),
        std::pair("(E|t*9999999999", "cannot be read")}) {
    place.write("args.txt", layout_arguments(layout, 4));
    const Json refused = imported(place, {"args.txt"});
    ASSERT_TRUE(lists(refused, "not_modelled", "--pipeline-model-parallel-layout")) << layout;
    EXPECT_NE(dump_json(*refused.find("not_modelled"), -1).find(why), std::string::npos) << layout;
    EXPECT_TRUE(at(refused, "run/parallel/pipeline_layout").is_null()) << layout;
  }
}

TEST(ImportMegatron, DefaultsAreThoseOfTheRelease) {
  const Workplace place;
  const std::string file = launch_file("gpt3_175b.sh");
  const auto attention = [&](const std::string& software) {
    const Json json = imported(place, {file, "--set", "software=" + software});
    const Json found = at(json, "run/kernels/attention");
    return found.is_null() ? std::string("the system's") : *found.string();
  };
  EXPECT_EQ(attention("megatron-core-0.5"), "unfused");
  EXPECT_EQ(attention("2023"), "unfused");
  EXPECT_EQ(attention("megatron-core-0.6"), "the system's");
  EXPECT_EQ(attention("2025-06"), "the system's");
  const Json old = imported(place, {file, "--set", "software=2023"});
  EXPECT_TRUE(lists(old, "translated", "(2023)"));
}

TEST(ImportMegatron, DefaultsWithoutBatchAreListed) {
  const Workplace place;
  place.write("args.txt", "--num-layers 4 --hidden-size 256 --num-attention-heads 4 --bf16\n");
  const Json json = imported(place, {"args.txt"});
  for (const char* what :
       {"batch.sequence", "batch.global", "batch.micro", "vocab_size", "accelerators"}) {
    EXPECT_TRUE(lists(json, "unresolved", what)) << what;
  }
}

TEST(ImportFrameworks, TorchtitanAndTheFlagsOfItsScript) {
  const Workplace place;
  const Json json =
      imported(place, {launch_file("torchtitan_llama3_8b.toml"), launch_file("torchtitan_run.sh")});
  EXPECT_EQ(at(json, "run/system"), Json("torchtitan"));
  EXPECT_EQ(at(json, "run/model"), Json("llama-3-8b"));
  EXPECT_EQ(at(json, "run/cluster/accelerators"), Json(32));
  EXPECT_EQ(at(json, "run/batch/micro"), Json(2));  // the flag comes before the file
  EXPECT_EQ(at(json, "run/batch/global"), Json(32));
  EXPECT_EQ(at(json, "run/sharding/group_size"), Json(8));  // two copies of 16 data ranks
  EXPECT_EQ(at(json, "run/sharding/gather_dtype"), Json("fp8"));
  EXPECT_EQ(at(json, "run/recompute"), Json("selective"));
  EXPECT_EQ(at(json, "run/overlap/tensor"), Json(true));
  EXPECT_EQ(at(json, "run/kernels/compile"), Json(true));
  EXPECT_TRUE(json.find("not_modelled")->array()->empty());
  EXPECT_FALSE(lists(json, "unresolved", "refuses"));
}

TEST(ImportFrameworks, DeepSpeedWithAModelOfTheHub) {
  const Workplace place;
  const Json json = imported(place, {launch_file("deepspeed_zero3.json"),
                                     launch_file("config.json"), "--accelerators", "16"});
  EXPECT_EQ(at(json, "run/system"), Json("deepspeed"));
  EXPECT_EQ(at(json, "run/model"), Json("llama-2-7b"));
  EXPECT_EQ(at(json, "run/sharding/level"), Json("parameters"));
  EXPECT_EQ(at(json, "run/sharding/persist_elements"), Json(100000));
  EXPECT_EQ(at(json, "run/offload/optimizer"), Json("cpu"));
  EXPECT_EQ(at(json, "run/batch/accumulation"), Json(4));
  EXPECT_EQ(at(json, "run/precision"), Json("bf16"));
  EXPECT_TRUE(lists(json, "unresolved", "train_batch_size: auto"));
  EXPECT_TRUE(lists(json, "unresolved", "recompute"));
  EXPECT_TRUE(lists(json, "not_modelled", "cpu_checkpointing"));
  EXPECT_FALSE(lists(json, "unresolved", "refuses"));
  EXPECT_EQ(place.run({"import", launch_file("config.json")}).exit_code, 1);
}

TEST(ImportFrameworks, AccelerateChoosesTheSystem) {
  const Workplace place;
  const Json json =
      imported(place, {launch_file("accelerate_fsdp.yaml"), launch_file("config.json")});
  EXPECT_EQ(at(json, "run/system"), Json("pytorch-fsdp"));
  EXPECT_EQ(at(json, "run/sharding/level"), Json("parameters"));
  EXPECT_EQ(at(json, "run/cluster/accelerators"), Json(16));
  EXPECT_EQ(at(json, "run/recompute"), Json("full"));
  EXPECT_FALSE(lists(json, "unresolved", "refuses"));
  place.write("two.yaml", R"(distributed_type: FSDP
fsdp_config:
  fsdp_version: 2
  fsdp_reshard_after_forward: true
mixed_precision: bf16
num_processes: 16
)");
  const Json two = imported(place, {"two.yaml", launch_file("config.json")});
  EXPECT_EQ(at(two, "run/system"), Json("accelerate"));
  EXPECT_EQ(at(two, "run/sharding/level"), Json("parameters"));
}

TEST(ImportFrameworks, MaxTextsMeshAndFlags) {
  const Workplace place;
  const Json file = imported(place, {launch_file("maxtext_16b.yml")});
  EXPECT_EQ(at(file, "run/system"), Json("maxtext"));
  EXPECT_EQ(at(file, "run/cluster/accelerators"), Json(512));
  EXPECT_EQ(at(file, "run/sharding/group_size"), Json(256));
  EXPECT_EQ(at(file, "run/batch/global"), Json(3072));
  EXPECT_EQ(at(file, "run/model/hidden_act"), Json("relu"));
  EXPECT_FALSE(lists(file, "unresolved", "refuses"));
  const Json flags = imported(place, {launch_file("maxtext_70b.sh"), "--cluster", "dgx-h100"});
  EXPECT_EQ(at(flags, "run/model"), Json("llama-2-70b"));
  EXPECT_EQ(at(flags, "run/cluster/accelerators"), Json(64));
  EXPECT_EQ(at(flags, "run/kernels/attention"), Json("cudnn"));
  EXPECT_EQ(at(flags, "run/recompute/keep"), Json(Json::Array{Json("qkv")}));
  EXPECT_FALSE(lists(flags, "unresolved", "refuses"));
}

TEST(ImportFrameworks, ComposersReferences) {
  const Workplace place;
  const Json json = imported(place, {launch_file("composer_mpt_7b.yaml"), "--accelerators", "8"});
  EXPECT_EQ(at(json, "run/system"), Json("composer"));
  EXPECT_EQ(at(json, "run/model"), Json("mpt-7b"));
  EXPECT_EQ(at(json, "run/batch/sequence"), Json(2048));  // ${variables.max_seq_len}
  EXPECT_EQ(at(json, "run/batch/micro"), Json(6));
  EXPECT_EQ(at(json, "run/gradients/reduce_dtype"), Json("compute"));  // PURE
  EXPECT_EQ(at(json, "run/kernels/flash"), Json("triton"));
  EXPECT_EQ(at(json, "run/campaign/steps"), Json(63900));
  EXPECT_TRUE(json.find("not_modelled")->array()->empty());
}

TEST(ImportFrameworks, NemosKeys) {
  const Workplace place;
  const Json json = imported(place, {launch_file("nemo_gpt_5b.yaml")});
  EXPECT_EQ(at(json, "run/system"), Json("megatron-lm"));
  EXPECT_EQ(at(json, "run/cluster/accelerators"), Json(16));
  EXPECT_EQ(at(json, "run/sharding/level"), Json("optimizer"));
  EXPECT_EQ(at(json, "run/overlap/parameter_gather"), Json(true));
  EXPECT_EQ(at(json, "run/overlap/tensor"), Json(true));
  EXPECT_EQ(at(json, "run/model/max_position_embeddings"), Json(2048));  // ${.encoder_seq_length}
  EXPECT_TRUE(lists(json, "unresolved", "oc.env:SEQUENCE"));
  EXPECT_TRUE(lists(json, "unresolved", "multiply"));
  // The same by dotted overrides.
  place.write("launch.sh",
              "python pretrain.py trainer.devices=8 trainer.num_nodes=4 trainer.precision=bf16 "
              "model.tensor_model_parallel_size=4 model.num_layers=32 model.hidden_size=4096 "
              "++model.num_attention_heads=32 model.micro_batch_size=1 model.global_batch_size=64 "
              "model.encoder_seq_length=4096 model.sequence_parallel=True\n");
  const Json dotted = imported(place, {"launch.sh"});
  EXPECT_EQ(at(dotted, "run/parallel/tensor"), Json(4));
  EXPECT_EQ(at(dotted, "run/parallel/sequence"), Json(true));
  EXPECT_EQ(at(dotted, "run/cluster/accelerators"), Json(32));
}

TEST(ImportFrameworks, MegatronsYaml) {
  const Workplace place;
  place.write("gpt.yaml",
              "language_model:\n  num_layers: 24\n  hidden_size: 1024\n  num_attention_heads: 16\n"
              "  activation_func: swiglu\n  normalization: RMSNorm\n"
              "model_parallel:\n  tensor_model_parallel_size: 2\n  sequence_parallel: true\n"
              "  bf16: true\nmicro_batch_size: 2\nglobal_batch_size: 128\nseq_length: 4096\n"
              "use_distributed_optimizer: true\nposition_embedding_type: rope\n");
  const Json json = imported(place, {"gpt.yaml", "--accelerators", "16"});
  EXPECT_EQ(at(json, "run/parallel/tensor"), Json(2));
  EXPECT_EQ(at(json, "run/parallel/sequence"), Json(true));
  EXPECT_EQ(at(json, "run/sharding/level"), Json("optimizer"));
  EXPECT_EQ(at(json, "run/batch/global"), Json(128));
  EXPECT_FALSE(lists(json, "unresolved", "refuses"));
}

TEST(ImportFrameworks, DocumentsAreBounded) {
  const Workplace place;
  std::string bomb = "model:\n  a: &a [1, 2, 3, 4, 5, 6, 7, 8, 9]\n";
  for (char c = 'b'; c < 'k'; ++c) {
    const std::string below(1, static_cast<char>(c - 1));
    bomb += std::string("  ") + c + ": &" + c + " [";
    for (int i = 0; i < 9; ++i) bomb += (i > 0 ? ", *" : "*") + below;
    bomb += "]\n";
  }
  place.write("bomb.yaml", bomb);
  place.write("deep.yaml", "a: " + std::string(10000, '['));
  place.write("deep.toml", "a = " + std::string(10000, '['));
  place.write("self.yaml", "model: &m {a: *m}\n");
  for (const char* file : {"bomb.yaml", "deep.yaml", "deep.toml", "self.yaml"}) {
    const CommandResult result = place.run({"import", file});
    EXPECT_EQ(result.exit_code, 1) << file;
    EXPECT_NE(result.err.find(file), std::string::npos) << result.err;
    EXPECT_LT(result.cpu_s, 10) << file;
    EXPECT_LT(result.wall_s, 60);
  }
  place.write("broken.yaml", "model:\n  a: [1\n");
  EXPECT_NE(place.run({"import", "broken.yaml"}).err.find("broken.yaml:"), std::string::npos);
  place.write("broken.toml", "[training]\nseq_len = \n");
  EXPECT_NE(place.run({"import", "broken.toml"}).err.find("broken.toml:2"), std::string::npos);
}

TEST(ImportVerb, WritesTheRunToStdoutAndListsToStderr) {
  const Workplace place;
  const CommandResult result = place.run({"import", launch_file("gpt3_175b.sh")});
  ASSERT_EQ(result.exit_code, 0);
  EXPECT_TRUE(parse_json(result.out, "stdout").ok());
  EXPECT_NE(result.err.find("Translated"), std::string::npos);
  EXPECT_NE(result.err.find("UNRESOLVED"), std::string::npos);
  EXPECT_EQ(place.run({"import", launch_file("gpt3_175b.sh"), "--quiet"}).err, "");
}

TEST(ImportVerb, APlaceForTheClusterIsNamedByOtherVerbs) {
  const Workplace place;
  ASSERT_EQ(place.run({"import", launch_file("gpt3_175b.sh"), "--out", "run.json"}).exit_code, 0);
  const CommandResult refused = place.run({"simulate", "run.json"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_NE(refused.err.find("cluster.preset=NAME"), std::string::npos) << refused.err;
  const CommandResult named =
      place.run({"simulate", "run.json", "--set", "cluster.preset=dgx-h100", "--no-advice"});
  EXPECT_EQ(named.exit_code, 0) << named.err;
}

TEST(ImportVerb, OtherVerbsSendLaunchFilesHere) {
  const Workplace place;
  place.write("train.sh", "#!/bin/bash\ntorchrun pretrain_gpt.py --num-layers 4\n");
  place.write("train", "#!/bin/bash\ntorchrun pretrain_gpt.py --num-layers 4\n");
  place.write("train.yaml", "model:\n  num_layers: 4\n");
  place.write("train.toml", "[model]\nflavor = \"8B\"\n");
  for (const char* verb : {"simulate", "search", "goodput", "show"}) {
    for (const char* file : {"train.sh", "train", "train.yaml", "train.toml"}) {
      const CommandResult result = place.run({verb, file});
      EXPECT_EQ(result.exit_code, 1);
      EXPECT_NE(result.err.find("`foretrain import "), std::string::npos) << verb << result.err;
    }
  }
}

TEST(ImportVerb, FaultsNameFileAndLine) {
  const Workplace place;
  place.write("open.sh", "echo a\nARGS=(\n  --num-layers 2\n");
  const CommandResult open = place.run({"import", "open.sh"});
  EXPECT_EQ(open.exit_code, 1);
  EXPECT_NE(open.err.find("open.sh:2"), std::string::npos) << open.err;
  place.write("none.sh", "echo nothing\n");
  EXPECT_EQ(place.run({"import", "none.sh"}).exit_code, 1);
  EXPECT_EQ(place.run({"import", "absent.sh"}).exit_code, 1);
  EXPECT_EQ(place.run({"import"}).exit_code, 2);
  const CommandResult from =
      place.run({"import", launch_file("gpt3_175b.sh"), "--from", "megatron"});
  EXPECT_EQ(from.exit_code, 1);
  EXPECT_NE(from.err.find("megatron-lm"), std::string::npos) << from.err;
  const CommandResult over =
      place.run({"import", launch_file("gpt3_175b.sh"), "--cluster", "dgx-h101"});
  EXPECT_EQ(over.exit_code, 1);
  EXPECT_NE(over.err.find("dgx-h100"), std::string::npos) << over.err;
}

TEST(ImportVerb, NothingInAScriptIsRun) {
  const Workplace place;
  place.write("train.sh",
              "touch a\nX=$(touch b)\nY=`touch c`\ntorchrun pretrain_gpt.py --num-layers $(touch "
              "d; echo 4) "
              "--hidden-size 256 --num-attention-heads 4\n");
  EXPECT_EQ(place.run({"import", "train.sh"}).exit_code, 1);  // a model without layers
  EXPECT_EQ(place.files(), std::vector<std::string>{"train.sh"});
}

}  // namespace
}  // namespace foretrain
